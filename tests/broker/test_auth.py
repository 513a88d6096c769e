from __future__ import annotations

import json
import ssl
import sys
from random import Random
from typing import Any
from urllib.parse import parse_qs

import anyio.lowlevel
import pytest
import trustme

from nsqkit.broker.auth import check_library, query_auth_servers
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.auth import AuthState, decode_auth_state
from nsqkit.clock import LoopClock, ManualClock
from nsqkit.errors import OptionError, RequestFailed
from tests.answering import answering, http_answer, unused_address

pytestmark = pytest.mark.anyio

NOW_NS = 1_700_000_000_000_000_000


def grant(identity: str = "me", **fields) -> bytes:
    everything = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    document = {"ttl": 60, "identity": identity, "authorizations": [everything]} | fields
    return http_answer(json.dumps(document).encode())


class First(Random):
    """Random numbers that always choose the same first server."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self._first = first

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self._first


async def query(*addresses: str, first: int = 0, **given) -> AuthState:
    names = {
        "auth_http_request_method",
        "http_client_request_timeout_ns",
        "tls_root_ca_file",
        "tls_min_version",
    }
    given = {"http_client_request_timeout_ns": 60_000_000_000} | given
    options = BrokerOptions(auth_http_addresses=addresses, **{name: given.pop(name) for name in names & given.keys()})
    question: Any = {"secret": b"s", "remote_ip": "1.2.3.4", "tls": False, "common_name": ""} | given
    clock = question.pop("clock", None) or LoopClock()
    return await query_auth_servers(options, clock=clock, random=First(first), **question)


def head(request: bytes) -> tuple[str, str, dict[str, list[str]]]:
    method, target, _ = request.decode().split(" ", 2)
    path, _, raw_query = target.partition("?")
    return method, path, parse_qs(raw_query, keep_blank_values=True, errors="surrogateescape")


async def test_the_request_describes_the_client():
    async with answering(lambda _: grant(identity_url="http://me")) as server:
        state = await query(
            server.address,
            secret=b"the secret&+\xff",
            tls=True,
            common_name="cn",
            remote_ip="::1",
            clock=ManualClock(NOW_NS),
        )
    assert (state.identity, state.identity_url, len(state.authorizations)) == ("me", "http://me", 1)
    assert state.expires_ns == NOW_NS + 60 * 10**9
    assert server.requests[0].startswith(
        b"GET /auth?common_name=cn&remote_ip=%3A%3A1&secret=the+secret%26%2B%FF&tls=true HTTP/1.1\r\n"
    )
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in server.requests[0]


async def test_a_client_without_tls_and_certificate_is_described():
    async with answering(lambda _: grant()) as server:
        await query(server.address)
    sent = {"common_name": [""], "remote_ip": ["1.2.3.4"], "secret": ["s"], "tls": ["false"]}
    assert head(server.requests[0]) == ("GET", "/auth", sent)


async def test_post_sends_a_document_of_lists():
    async with answering(lambda _: grant()) as server:
        await query(server.address, auth_http_request_method="post", secret=b"<\xc3\xa9\xff>")
    request_head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert request_head.startswith(b"POST /auth HTTP/1.1\r\n")
    assert request_head.endswith(b"\r\nContent-Type: application/json")
    assert body == (
        rb'{"common_name":[""],"remote_ip":["1.2.3.4"],"secret":["\u003c' + b"\xc3\xa9" + rb'\ufffd\u003e"],'
        b'"tls":["false"]}'
    )


@pytest.mark.parametrize(
    ("method", "path", "target"),
    [
        ("get", "/my/auth", "GET /my/auth?common_name=&remote_ip="),
        ("get", "", "GET /?common_name=&remote_ip="),
        ("get", "/auth?x=1", "GET /auth?x=1?common_name=&remote_ip="),
        ("post", "/auth?x=1", "POST /auth?x=1 HTTP"),
    ],
)
async def test_an_address_may_be_a_url(method, path, target):
    async with answering(lambda _: grant()) as server:
        await query(f"http://{server.address}{path}", auth_http_request_method=method)
    assert server.requests[0].decode().startswith(target)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            http_answer(b'{"message":"no"}', status="403 Forbidden"),
            r'got response 403 {"message":"no"}$',
        ),
        (http_answer(b"nope"), "the auth server's answer cannot be used: Expecting value"),
        (grant(ttl=0), r"invalid TTL 0 \(must be >0\)"),
        (b"", "the server has closed the connection"),
    ],
)
async def test_the_next_server_is_asked_when_one_fails(answer, error):
    async with answering(lambda _: answer) as bad, answering(lambda _: grant("good")) as good:
        assert (await query(bad.address, good.address)).identity == "good"
        assert (await query(good.address, bad.address, first=1)).identity == "good"
        assert (len(bad.requests), len(good.requests)) == (2, 2)
        with pytest.raises(RequestFailed, match=rf"^failed to auth against {bad.address} - .*{error}"):
            await query(bad.address)


async def test_no_server_is_asked_after_a_grant():
    async with answering(lambda _: grant("a")) as a, answering(lambda _: grant("b")) as b:
        assert (await query(a.address, b.address, first=1)).identity == "b"
    assert not a.requests


async def test_the_error_lists_the_failure_of_each_server():
    unused = await unused_address()
    async with answering(lambda _: None) as silent:
        with pytest.raises(RequestFailed) as caught:
            await query("ftp://x", silent.address, unused, first=1, http_client_request_timeout_ns=50_000_000)
    first, second, third = str(caught.value).split("; ")
    assert first.startswith(f"failed to auth against {silent.address} - http://{silent.address}/auth: no answer")
    assert second.startswith(f"failed to auth against {unused} - ")
    assert third.startswith("failed to auth against ftp://x - ")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:hush@{}/auth?token=hush", "http://{}/auth"),
        ("user:hush@{}", "{}"),
        ("http://user:hush/x@{}/auth", "http://{}/auth"),
        ("http://user:hush?x@{}/auth", "http://..."),
        ("user:hush#x@{}", "{}"),
    ],
)
async def test_the_error_contains_no_secret_of_a_url(address, shown):
    unused = await unused_address()
    with pytest.raises(RequestFailed) as caught:
        await query(address.format(unused))
    assert str(caught.value).startswith(f"failed to auth against {shown.format(unused)} - ")
    assert "hush" not in str(caught.value)


def test_without_google_re2_the_error_has_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(OptionError, match=r"google-re2, .* is not installed: pip install 'nsqkit\[server\]'$"):
        check_library()


async def test_many_patterns_do_not_hold_up_the_event_loop(monkeypatch, anyio_backend_name):
    """Compiling these takes some 0.3 s; each backend has its own, since RE2's package caches patterns."""
    many = [{"topic": r"(\pL){0}" * 300 + f"{anyio_backend_name}{number}"} for number in range(20)]
    turns = 0
    decoding = False

    def decode(body: bytes, now_ns: int) -> AuthState:
        nonlocal decoding
        decoding = True
        state = decode_auth_state(body, now_ns)
        decoding = False
        return state

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += decoding
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr("nsqkit.broker.auth.decode_auth_state", decode)
    async with answering(lambda _: grant(authorizations=many)) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await query(server.address)
        tasks.cancel_scope.cancel()
    assert turns


# ---- https -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["tls1.0", "tls1.3"])
async def test_the_root_ca_of_the_options_is_trusted(tmp_path, version):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(theirs)
    async with answering(lambda _: grant(), tls=theirs) as server:
        url = f"https://{server.address}/auth"
        state = await query(url, tls_root_ca_file=str(tmp_path / "ca.pem"), tls_min_version=version)
    assert state.identity == "me"


async def test_an_unreadable_root_ca_is_refused(tmp_path):
    with pytest.raises(RequestFailed, match=r"https://h/auth - option tls_root_ca_file '.*/none': "):
        await query("https://h/auth", tls_root_ca_file=str(tmp_path / "none"))
