from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ByteStream

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.errors import ProtocolError
from nsqkit.transport.address import port_of
from nsqkit.transport.tcp import connect
from nsqkit.transport.tls import TLS
from nsqkit.transport.tls_stream import TLSStream
from tests.certificates import HOST, Files, client_context, write_files

pytestmark = pytest.mark.anyio

PING = b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
PLAIN_ANSWER = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return write_files(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def broker(files: Files, **values: str) -> AsyncIterator[Nsqd]:
    addresses = dict.fromkeys(("tcp_address", "http_address", "https_address"), "127.0.0.1:0")
    options = {**addresses, "tls_cert": files.certificate, "tls_key": files.key, **values}
    async with Nsqd(BrokerOptions(**options)) as nsqd:  # type: ignore[arg-type]
        yield nsqd


async def read_all(stream: ByteStream) -> bytes:
    """Return everything until the end of the stream, which must not be a reset."""
    data = b""
    with anyio.fail_after(60):
        try:
            while True:
                data += await stream.receive()
        except EndOfStream:
            return data


async def ask(address: str, request: bytes) -> bytes:
    """Return the answer to data that is sent without TLS."""
    async with await connect(address) as stream:
        await stream.send(request)
        return await read_all(stream)


async def ask_securely(address: str, request: bytes = PING, certificate: str | None = None) -> bytes:
    async with await connect(address) as stream:
        tls = TLS(client_context(certificate), server_hostname=HOST)
        secure = TLSStream(stream, tls)
        await secure.handshake()
        await secure.send(request)
        answer = await read_all(secure)
        assert tls.at_end, "the end is sent inside TLS"
        return answer


async def test_https_has_the_same_routes(files):
    async with broker(files) as nsqd:
        assert (await ask_securely(nsqd.https_address)).endswith(b"\r\n\r\nOK")
        assert (await ask(nsqd.http_address, PING)).endswith(b"\r\n\r\nOK")


async def test_without_a_certificate_there_is_no_https():
    async with Nsqd(BrokerOptions(tcp_address="127.0.0.1:0", http_address="")) as nsqd:
        assert nsqd.https_address == ""


async def test_with_an_empty_address_there_is_no_https(files):
    async with broker(files, https_address="") as nsqd:
        assert nsqd.https_address == ""


@pytest.mark.parametrize("values", [{"tls_required": "true"}, {"tls_client_auth_policy": "require-verify"}])
async def test_plain_http_answers_with_the_https_port_if_tls_is_required(files, values):
    async with broker(files, **values) as nsqd:
        head, _, body = (await ask(nsqd.http_address, PING)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert json.loads(body) == {"message": "TLS_REQUIRED", "https_port": port_of(nsqd.https_address)}
    assert body.startswith(b'{"message": "TLS_REQUIRED", "https_port": ')


async def test_plain_http_is_allowed_with_tcp_https(files):
    async with broker(files, tls_required="tcp-https") as nsqd:
        assert (await ask(nsqd.http_address, PING)).endswith(b"\r\n\r\nOK")


@pytest.mark.parametrize("request_head", [b"GET /ping", b"POST /pub", b"HEAD /ping", b"PUT /config/x", b"OPTIONS /"])
async def test_plain_http_on_the_https_port_is_answered_in_http(files, request_head, caplog):
    async with broker(files) as nsqd:
        assert await ask(nsqd.https_address, request_head + b" HTTP/1.1\r\n\r\n") == PLAIN_ANSWER
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith("http: TLS handshake error from 127.0.0.1:")
    assert warning.getMessage().endswith(": tls: first record does not look like a TLS handshake")


async def test_other_data_on_the_https_port_is_not_answered_in_http(files):
    async with broker(files) as nsqd:
        assert await ask(nsqd.https_address, b"  V2PUB t\n") == b""


async def test_a_disconnect_during_the_handshake_is_logged(files, caplog):
    async with broker(files) as nsqd:
        async with await connect(nsqd.https_address) as stream:
            await stream.send_eof()
            assert await read_all(stream) == b""
        assert (await ask_securely(nsqd.https_address)).endswith(b"OK")
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records if record.levelno == 30] == ["EOF"]


@pytest.mark.parametrize("policy", ["require", "require-verify"])
async def test_a_client_needs_the_certificate_of_the_policy(files, policy):
    async with broker(files, tls_client_auth_policy=policy, tls_root_ca_file=files.authority) as nsqd:
        assert (await ask_securely(nsqd.https_address, certificate="client")).endswith(b"OK")
        with pytest.raises((ProtocolError, BrokenResourceError)):
            await ask_securely(nsqd.https_address)
