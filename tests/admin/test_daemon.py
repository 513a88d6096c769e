from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

import nsqkit
from nsqkit.admin.daemon import DaemonAdmin, channel_params, topic_params
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.http.daemon import bearer
from tests import certificates
from tests.answering import PATIENT, answering, http_answer, unused_address

pytestmark = pytest.mark.anyio


async def test_ping_of_a_healthy_daemon():
    async with answering(lambda request: http_answer(b"OK")) as server:
        await DaemonAdmin(server.address, authorization=bearer("token")).ping()
    assert server.requests[0].startswith(b"GET /ping HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer token\r\n" in server.requests[0]


async def test_ping_of_an_unhealthy_daemon():
    async with answering(lambda request: http_answer(b"NOK - disk full", status="500 Error")) as server:
        with pytest.raises(RequestRefused) as caught:
            await DaemonAdmin(server.address, **PATIENT).ping()
    assert (caught.value.status, caught.value.message) == (500, "NOK - disk full")


async def test_ping_of_an_unreachable_daemon():
    address = await unused_address()
    with pytest.raises(RequestFailed, match=f"^http://{address}/ping: "):
        await DaemonAdmin(address).ping()


async def test_daemon_over_https():
    async with answering(lambda request: http_answer(b"OK"), tls=certificates.server_context()) as server:
        url = f"https://localhost:{server.port}"
        await DaemonAdmin(url, tls_context=certificates.client_context()).ping()
        with pytest.raises(RequestFailed, match="certificate is not accepted"):
            await DaemonAdmin(url, **PATIENT).ping()


async def test_the_repr_has_no_secret():
    admin = DaemonAdmin("http://me:secret@h:1/?key=secret", authorization="Bearer secret")
    assert repr(admin) == "<DaemonAdmin http://h:1>"


async def test_invalid_options_are_refused_at_once():
    with pytest.raises(OptionError, match=r"^address 'h' is not host:port"):
        DaemonAdmin("h")
    with pytest.raises(OptionError, match=r"^connect_timeout is 0; "):
        DaemonAdmin("h:1", connect_timeout=0)


async def test_names():
    assert topic_params("t") == {"topic": "t"}
    assert channel_params("t", "c#ephemeral") == {"topic": "t", "channel": "c#ephemeral"}
    for topic, channel in (("", "c"), ("a b", "c"), ("t", ""), ("t", "c" * 65), ("t", "*")):
        with pytest.raises(OptionError, match="name"):
            channel_params(topic, channel)


async def test_importing_the_clients_does_not_import_http():
    program = "import sys, nsqkit; nsqkit.NsqdAdmin, nsqkit.LookupdAdmin; print('h11' in sys.modules)"
    result = await anyio.run_process([sys.executable, "-c", program], cwd=Path(nsqkit.__file__).parent.parent)
    assert result.stdout.split() == [b"False"]
