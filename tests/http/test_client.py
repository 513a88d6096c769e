from __future__ import annotations

import ssl
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import anyio
import pytest
import trustme
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from nsqkit import __version__
from nsqkit.clock import LoopClock, ManualClock
from nsqkit.errors import RequestFailed, TransportError, WrongServer
from nsqkit.http import client
from nsqkit.http.client import REDIRECTS_MAX, TURN_EVENTS, fetch, fetch_v1
from nsqkit.http.messages import Response
from nsqkit.transport.tcp import listen
from tests import certificates
from tests.answering import PATIENT, answering, http_answer, unused_address
from tests.fuzz.fake_stream import FakeStream

pytestmark = pytest.mark.anyio

LONG = bytes(20_000_000) + b"!"
"""A body that is longer than the buffers of a connection."""

TOO_BIG = http_answer(b"MSG_TOO_BIG", status="413 Request Entity Too Large")


def limits() -> Any:
    return {**PATIENT, "body_max": 100, "clock": LoopClock()}


async def get(url: str, **options) -> Response:
    return await fetch("GET", url, **(limits() | options))


async def test_a_request_and_its_response():
    async with answering(lambda _: http_answer(b"OK", "X-Y: z")) as server:
        response = await get(f"http://{server.address}/ping?a=b%20c#d", headers=[("Accept", "x")])
    assert response == Response(200, (("content-length", "2"), ("x-y", "z")), b"OK")
    lines = [
        b"GET /ping?a=b%20c HTTP/1.1",
        f"Host: {server.address}".encode(),
        f"User-Agent: nsqkit/{__version__}".encode(),
        b"Connection: close",
        b"Accept: x",
        b"",
        b"",
    ]
    assert server.requests == [b"\r\n".join(lines)]


async def test_a_body_is_announced_and_sent():
    async with answering(lambda _: http_answer(b"", status="204 No Content")) as server:
        response = await fetch("POST", f"http://{server.address}", body=b"hello", **limits())
    assert response.status == 204
    (request,) = server.requests
    assert request.startswith(b"POST / HTTP/1.1\r\n")
    assert b"\r\nContent-Length: 5\r\n" in request
    assert request.endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + http_answer(b"x"), b"x"),
        (http_answer(b"x" * 100), b"x" * 100),
    ],
)
async def test_a_body_in_each_form(answer, body):
    async with answering(lambda _: answer) as server:
        assert (await get(f"http://{server.address}/")).body == body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "the server has closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-", "the server has closed the connection"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
            "peer closed connection without sending complete",
        ),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "illegal status line"),
        (http_answer(b"x" * 101), "the response has more than 100 bytes"),
    ],
)
async def test_an_invalid_answer_is_refused(answer, error):
    async with answering(lambda _: answer) as server:
        with pytest.raises(RequestFailed, match=error):
            await get(f"http://{server.address}/")


async def test_an_early_refusal_of_a_long_body_is_the_response():
    async def refuse(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(TOO_BIG[:-1])
            await stream.send(TOO_BIG[-1:])
            await anyio.sleep_forever()

    contexts = [None, certificates.server_context()]
    for scheme, theirs in zip(("http", "https"), contexts, strict=True):
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        where = TLSListener(listener, theirs, standard_compatible=False) if theirs else listener
        async with where, anyio.create_task_group() as tasks:
            tasks.start_soon(where.serve, refuse)
            url = f"{scheme}://localhost:{listener.extra(SocketAttribute.local_port)}/"
            response = await fetch("POST", url, body=LONG, **limits(), tls=certificates.client_context())
            assert (response.status, response.body) == (413, b"MSG_TOO_BIG")
            tasks.cancel_scope.cancel()


async def test_a_body_is_sent_to_its_end_after_100_continue():
    async def invite(stream: ByteStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            while not (await stream.receive()).endswith(LONG[-1:]):
                pass
            await stream.send(http_answer(b"OK"))

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, invite, tasks)
        response = await fetch("POST", f"http://{listener.address}/", body=LONG, **limits())
        tasks.cancel_scope.cancel()
    assert response.body == b"OK"


class ClosedByServer(FakeStream):
    async def send(self, item: bytes) -> None:
        raise anyio.BrokenResourceError


async def test_a_response_before_the_connection_was_closed_is_received():
    with patch.object(client, "connect_tcp", AsyncMock(return_value=ClosedByServer([TOO_BIG]))):
        assert (await fetch("POST", "http://h/", body=b"x", **limits())).status == 413
    with patch.object(client, "connect_tcp", AsyncMock(return_value=ClosedByServer([]))):
        with pytest.raises(RequestFailed, match=r"^http://h/: the server has closed the connection$"):
            await fetch("POST", "http://h/", body=b"x", **limits())


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("ftp://h/", r"^'ftp://h/' is not a URL of http or https with a host$"),
        ("h:80/x?secret=s", r"^'h:80/x' is not a URL of http or https with a host$"),
        ("http:///x", "with a host"),
        ("http://h:99999/?secret=s", r"^'http://h:99999/' is not a URL: Port out of range"),
        ("http://h:x/", "is not a URL: Port could not be cast"),
        ("http://me:secret@h:x/?secret=s", r"^'http://h:x/' is not a URL"),
        ("http://me:secret/x@h/", r"^'http://h/' is not a URL: .* has one of / \? # \[ \] that is not escaped$"),
        ("http://me:secret?x@h/", r"^'http://\.\.\.' is not a URL"),
        ("http://me:secret#x@h/", r"^'http://h/' is not a URL"),
        ("http://me:secret\u2100@h/", r"^'http://h/' is not a URL"),
        ("me:secret@h/", r"^'h/' is not a URL"),
        ("http://[::1/", "is not a URL: Invalid IPv6 URL"),
        ("http://" + "a" * 64 + "/?secret=s", "^http://a{64}/: "),
    ],
)
async def test_an_invalid_url_is_refused(url, error):
    with pytest.raises(RequestFailed, match=error) as caught:
        await get(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


async def test_a_refused_connection_fails():
    address = await unused_address()
    with pytest.raises(TransportError, match=f"^http://{address}/x: .*(fail|refused)") as caught:
        await get(f"http://{address}/x?secret=s")
    assert isinstance(caught.value.__cause__, OSError)


async def test_other_tasks_run_during_a_body_of_small_chunks():
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    count = 100 * TURN_EVENTS
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    with patch.object(client, "connect_tcp", AsyncMock(return_value=FakeStream([chunks]))):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            assert (await get("http://h/", body_max=count)).body == b"x" * count
            tasks.cancel_scope.cancel()
    assert turns >= count // TURN_EVENTS // 2


async def test_the_request_timeout():
    async with answering(lambda _: None) as server:
        with pytest.raises(RequestFailed, match=r"/x: no answer within 0\.05 seconds$"):
            await get(f"http://{server.address}/x?secret=s", request_timeout=0.05)


async def test_the_request_timeout_follows_the_clock():
    clock = ManualClock()
    failures: list[RequestFailed] = []

    async def request() -> None:
        try:
            await get(f"http://{server.address}/x", request_timeout=3600.0, clock=clock)
        except RequestFailed as error:
            failures.append(error)

    async with answering(lambda _: None) as server, anyio.create_task_group() as tasks:
        tasks.start_soon(request)
        with anyio.fail_after(60):
            while not server.requests:
                await anyio.lowlevel.checkpoint()
        assert not failures
        clock.advance(3600)
    assert str(failures[0]).endswith("/x: no answer within 3600 seconds")


async def test_the_connect_timeout(monkeypatch):
    async def connect(host: str, port: int) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("nsqkit.http.client.connect_tcp", connect)
    with pytest.raises(RequestFailed, match=r"^http://h/x: no connection within 0 seconds$"):
        await get("http://h/x?secret=s", connect_timeout=0, request_timeout=None)


async def test_user_and_password_go_into_a_header_and_not_into_errors():
    async with answering(lambda _: b"") as server:
        with pytest.raises(RequestFailed) as caught:
            await get(f"http://us%65r:p%40ss@{server.address}/")
    assert b"\r\nAuthorization: Basic dXNlcjpwQHNz\r\n" in server.requests[0]
    assert b"\r\nHost: 127.0.0.1:" in server.requests[0]
    assert "p%40ss" not in str(caught.value)


async def test_an_authorization_header_overrides_user_and_password():
    async with answering(lambda _: http_answer(b"")) as server:
        await get(f"http://me:password@{server.address}/", headers=[("authorization", "Bearer token")])
    assert server.requests[0].lower().count(b"\r\nauthorization:") == 1
    assert b"\r\nauthorization: Bearer token\r\n" in server.requests[0]


async def test_a_redirect_to_another_server_drops_the_authorization():
    async with answering(lambda _: http_answer(b"there")) as other:
        away = http_answer(b"", f"Location: http://{other.address}/b", status="302 Found")
        here = http_answer(b"", "Location: /b", status="302 Found")
        async with answering(lambda request: here if b" /a" in request else away) as server:
            headers = [("AUTHORIZATION", "Bearer token"), ("X-Y", "z")]
            assert (await get(f"http://{server.address}/a", headers=headers)).body == b"there"
    assert [b"Bearer token" in request for request in server.requests] == [True, True]
    (request,) = other.requests
    assert b"Bearer token" not in request
    assert b"\r\nX-Y: z\r\n" in request


@pytest.mark.parametrize("place", ["{}/nsqd.sock", "@{}/nsqd"])
async def test_a_server_at_a_unix_socket(tmp_path: Path, place: str):
    path = place.format(tmp_path)

    async def serve(stream: ByteStream) -> None:
        async with stream:
            assert (await stream.receive()).startswith(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n")
            await stream.send(http_answer(b"OK"))

    async with await listen(path) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        assert (await get("http://localhost/ping", socket_path=path)).body == b"OK"
        tasks.cancel_scope.cancel()


async def test_a_missing_unix_socket_fails(tmp_path: Path):
    with pytest.raises(RequestFailed, match=r"^http://localhost/ping: .*No such file"):
        await get("http://localhost/ping", socket_path=f"{tmp_path}/nsqd.sock")


async def test_invalid_characters_of_a_url_are_escaped():
    async with answering(lambda _: http_answer(b"")) as server:
        await get(f"http://{server.address}/a b\xe9%41?\u20ac=1?2")
    assert server.requests[0].startswith(b"GET /a%20b%C3%A9%41?%E2%82%AC=1?2 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("status", "method", "again"),
    [
        ("301 Moved", "GET", "GET"),
        ("307 Temporary", "POST", "POST"),
        ("308 Permanent", "POST", "POST"),
        ("308 Permanent", "GET", "GET"),
    ],
)
async def test_redirects_are_followed(status, method, again):
    def answer(request: bytes) -> bytes:
        return http_answer(b"", "Location: /b?c", status=status) if b" /a" in request else http_answer(b"there")

    async with answering(answer) as server:
        response = await fetch(method, f"http://{server.address}/a", body=b"x" if method == "POST" else b"", **limits())
    assert response.body == b"there"
    first, second = server.requests
    assert first.startswith(f"{method} /a ".encode())
    assert second.startswith(f"{again} /b?c ".encode())
    assert second.endswith(b"\r\n\r\nx") is (again == "POST")


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_redirect_that_would_become_a_get_fails(status, method):
    answer = http_answer(b"", "Location: //me:password@other:1/b?secret", status=status)
    async with answering(lambda _: answer) as server:
        with pytest.raises(RequestFailed) as caught:
            await fetch(method, f"http://me:password@{server.address}/a?secret", body=b"x", **limits())
    assert str(caught.value) == (
        f"http://{server.address}/a: the {method} got response {status[:3]}, a redirect to http://other:1/b"
    )
    assert len(server.requests) == 1


async def test_redirects_of_a_document_are_followed_as_in_go():
    def answer(request: bytes) -> bytes:
        return http_answer(b"", "Location: /b", status="302 Found") if b" /a" in request else http_answer(b"there")

    async with answering(answer) as server:
        assert await fetch_v1(f"http://{server.address}/a", document=b"{}", **limits()) == b"there"
    assert [request.partition(b" HTTP")[0] for request in server.requests] == [b"POST /a", b"GET /b"]


async def test_redirects_have_a_limit():
    async with answering(lambda _: http_answer(b"", "Location: /a", status="302 Found")) as server:
        with pytest.raises(RequestFailed, match=f"stopped after {REDIRECTS_MAX} redirects"):
            await get(f"http://{server.address}/a")
    assert len(server.requests) == REDIRECTS_MAX + 1


async def test_a_redirect_to_an_invalid_url_fails():
    answer = http_answer(b"", "Location: //me:password@h]/?secret", status="302 Found")
    async with answering(lambda _: answer) as server:
        with pytest.raises(RequestFailed, match=r"/a: the server redirects to '//h]/': the host or the port is wrong"):
            await get(f"http://{server.address}/a")


async def test_a_redirect_without_a_location_is_returned():
    async with answering(lambda _: http_answer(b"", status="302 Found")) as server:
        assert (await get(f"http://{server.address}/a")).status == 302


# ---- https ------------------------------------------------------------------------------------------------------


async def test_https_with_a_trusted_certificate_and_without():
    ca = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(theirs)
    ours = ssl.create_default_context()
    ca.configure_trust(ours)
    async with answering(lambda _: http_answer(b"safe"), tls=theirs) as server:
        assert (await get(f"https://{server.address}/", tls=ours)).body == b"safe"
    async with answering(lambda _: b"HTTP/1.0 200 OK\r\n\r\nto the end", tls=theirs) as server:
        assert (await get(f"https://{server.address}/", tls=ours)).body == b"to the end"


async def test_https_to_a_server_without_tls():
    async with answering(lambda _: b"") as server:
        with pytest.raises(RequestFailed, match=f"^https://{server.address}/x: no answer within"):
            await get(f"https://{server.address}/x", request_timeout=0.05)


async def test_https_with_an_untrusted_certificate_is_refused():
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(theirs)
    async with answering(lambda _: b"", tls=theirs) as server:
        with pytest.raises(
            WrongServer, match=f"^https://{server.address}/: the server's certificate is not accepted: "
        ):
            await get(f"https://{server.address}/")


# ---- NSQ's daemons ----------------------------------------------------------------------------------------------


async def test_v1_gets_and_posts():
    async with answering(lambda _: http_answer(b"{}")) as server:
        assert await fetch_v1(f"http://{server.address}/a?b", **limits()) == b"{}"
        assert await fetch_v1(f"http://{server.address}/a", document=b"[]", **limits()) == b"{}"
    asked, posted = server.requests
    assert asked.startswith(b"GET /a?b HTTP/1.1\r\n")
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in asked
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\nContent-Type: application/json\r\n" in posted
    assert posted.endswith(b"\r\n\r\n[]")


@pytest.mark.parametrize("status", ["201 Created", "403 Forbidden", "500 Error"])
async def test_v1_accepts_only_status_200(status):
    async with answering(lambda _: http_answer(b"no", status=status)) as server:
        with pytest.raises(RequestFailed, match=f"^got response {status[:3]} no$"):
            await fetch_v1(f"http://{server.address}/", **limits())


# ---- other servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [b"\0\0\0\x0eE_BAD_PROTOCOL", b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL"],
    ids=["nsqlookupd", "nsqd"],
)
async def test_a_daemons_tcp_port_is_recognized(answer: bytes):
    async with answering(lambda _: answer) as server:
        with pytest.raises(WrongServer, match=r"^http://.*: the server speaks NSQ's TCP protocol; .* 4161 "):
            await get(f"http://{server.address}/lookup")


async def test_a_daemons_tcp_port_is_recognized_in_single_bytes():
    with patch.object(client, "connect_tcp", AsyncMock(return_value=FakeStream([b"\0"] * 18))):
        with pytest.raises(WrongServer, match="the server speaks NSQ's TCP protocol"):
            await get("http://h:4150/lookup")


async def test_a_tls_server_is_recognized():
    async with answering(lambda _: b"\x15\x03\x01\0\x02\x02\x46") as server:
        with pytest.raises(WrongServer, match="the server speaks TLS; give a URL that begins with https://"):
            await get(f"http://{server.address}/")


async def test_a_server_that_answers_tls_with_http_is_recognized():
    async def refuse(stream: ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, refuse, tasks)
        with pytest.raises(WrongServer, match="does not speak TLS; give a URL that begins with http://"):
            await get(f"https://{listener.address}/")
        tasks.cancel_scope.cancel()
