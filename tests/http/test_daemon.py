from __future__ import annotations

import ssl
import traceback
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.http.daemon import Daemon, basic, bearer
from nsqkit.transport.tcp import listen
from tests import certificates
from tests.answering import answering, http_answer, unused_address

pytestmark = pytest.mark.anyio

LIMITS: Any = {"connect_timeout": 15.0, "request_timeout": 15.0, "body_max": 1000}


def daemon(address: str, **options: Any) -> Daemon:
    return Daemon(address, **(LIMITS | options))


# ---- addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "url", "name"),
    [
        ("h:4161", "http://h:4161", "http://h:4161"),
        ("[::1]:4161", "http://[::1]:4161", "http://[::1]:4161"),
        ("h:4161/nsq/", "http://h:4161/nsq", "http://h:4161/nsq"),
        ("http://h", "http://h", "http://h"),
        ("https://h:1/", "https://h:1", "https://h:1"),
        ("http://h:1/nsq/lookup", "http://h:1/nsq", "http://h:1/nsq"),
        ("http://me:p%40ss@h:1/a", "http://me:p%40ss@h:1/a", "http://h:1/a"),
        ("me:pass@h:1", "http://me:pass@h:1", "http://h:1"),
        ("http://h:1/?key=secret", "http://h:1", "http://h:1"),
        ("/run/nsqd.sock", "http://localhost", "/run/nsqd.sock"),
        ("./nsqd.sock", "http://localhost", "./nsqd.sock"),
        ("./a:b/c:d@e", "http://localhost", "./a:b/c:d@e"),
        ("@nsqd", "http://localhost", "@nsqd"),
    ],
)
async def test_addresses(address, url, name):
    found = daemon(address)
    assert (found.url, found.name, str(found)) == (url, name, name)
    assert found.socket_path == (name if url == "http://localhost" else "")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "h",
        "localhost",
        "h:x",
        "h:99999",
        ":4161",
        "ftp://h:1",
        "http://",
        "http://[::1",
        4161,
        None,
        b"h:1",
    ],
)
async def test_invalid_addresses_are_refused(address):
    with pytest.raises(OptionError, match=r"^address "):
        daemon(address)


async def test_a_refused_address_shows_no_secrets():
    user = "me:hush"
    addresses: list[Any] = [
        *(f"http://{user}@h:x/", f"{user}@h", "http://h:x/?key=hush", f"ftp://{user}@h", f"{user}@h:1".encode()),
        *(f"{scheme}{user}{mark}x@h:1" for scheme in ("", "http://") for mark in "/?#["),
    ]
    for address in addresses:
        with pytest.raises(OptionError) as caught:
            daemon(address)
        assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "options",
    [
        {"tls_context": "ca.pem"},
        {"connect_timeout": 0},
        {"request_timeout": -1.0},
        {"request_timeout": float("nan")},
        {"connect_timeout": None},
        {"connect_timeout": True},
    ],
    ids=repr,
)
async def test_a_wrong_option_is_refused_by_name(options):
    (name,) = options
    with pytest.raises(OptionError, match=f"^{name} is .*; allowed is "):
        daemon("h:1", **options)


async def test_no_secret_is_shown():
    shown = repr(daemon("http://me:secret@h:1/?key=secret", authorization="Bearer secret"))
    assert "http://h:1" in shown
    assert "secret" not in shown


# ---- requests -------------------------------------------------------------------------------------------------


async def test_a_request_and_its_answer():
    async with answering(lambda _: http_answer(b'{"topics":[]}')) as server:
        asked = daemon(f"{server.address}/nsq?key=secret")
        assert await asked.request_document("GET", "/topics", {"topic": "a b&c"}) == {"topics": []}
        assert await asked.request("POST", "/pub", body=b"x") == b'{"topics":[]}'
    first, second = server.requests
    assert first.startswith(b"GET /nsq/topics?key=secret&topic=a+b%26c HTTP/1.1\r\n")
    assert b"\r\nAccept: application/vnd.nsq; version=1.0\r\n" in first
    assert b"Authorization" not in first
    assert second.startswith(b"POST /nsq/pub?key=secret HTTP/1.1\r\n")
    assert second.endswith(b"\r\n\r\nx")


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"authorization": bearer("token")}, b"Bearer token"),
        ({"authorization": basic("me", "p@ss")}, b"Basic bWU6cEBzcw=="),
        ({}, b"Basic bWU6cEBzcw=="),
    ],
)
async def test_authorization(options, header):
    async with answering(lambda _: http_answer(b"{}")) as server:
        user = "" if options else "me:p%40ss@"
        await daemon(f"http://{user}{server.address}", **options).request("GET", "/ping")
    assert b"\r\nAuthorization: " + header + b"\r\n" in server.requests[0]


@pytest.mark.parametrize("authorization", ["Bearer secret\r\nX: y", "secret\x00", "sécret", " secret", b"secret"])
async def test_an_invalid_header_is_refused_and_not_shown(authorization):
    with pytest.raises(OptionError, match=r"^authorization is not the value of a header") as caught:
        daemon("h:1", authorization=authorization)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (http_answer(b'{"message":"TOPIC_NOT_FOUND"}', status="404 Not Found"), 404, "TOPIC_NOT_FOUND"),
        (http_answer(b"NOK - disk full", status="500 Internal"), 500, "NOK - disk full"),
        (http_answer(b"", status="204 No Content"), 204, ""),
        (http_answer(b'{"status_code":404,"status_txt":"GONE","data":null}'), 404, "GONE"),
    ],
)
async def test_a_refusal(answer, status, message):
    async with answering(lambda _: answer) as server:
        with pytest.raises(RequestRefused) as caught:
            await daemon(f"http://me:secret@{server.address}?key=secret").request_document("GET", "/x")
    error = caught.value
    assert (error.asked, error.status, error.message) == (f"http://{server.address}/x", status, message)


async def test_an_answer_that_is_not_a_json_object_is_refused():
    async with answering(lambda _: http_answer(b"<html>")) as server:
        with pytest.raises(RequestFailed, match=r"/x: the answer is no JSON object: '<html>'$"):
            await daemon(server.address).request_document("GET", "/x")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"garbage\r\n\r\n", http_answer(b"x" * 1001), None])
async def test_no_answer(answer):
    async with answering(lambda _: answer) as server:
        with pytest.raises(RequestFailed, match=f"^http://{server.address}/x: |more than 1000 bytes"):
            await daemon(server.address, request_timeout=0.2 if answer is None else 15.0).request("GET", "/x")


async def test_an_unreachable_daemon_fails():
    address = await unused_address()
    with pytest.raises(RequestFailed, match=f"^http://{address}/x: "):
        await daemon(address).request("GET", "/x")


async def test_a_daemon_at_a_unix_socket(tmp_path: Path):
    path = f"{tmp_path}/nsqd.sock"

    async def serve(stream: ByteStream) -> None:
        async with stream:
            assert (await stream.receive()).startswith(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n")
            await stream.send(http_answer(b"OK"))

    async with await listen(path) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        assert await daemon(path).request("GET", "/ping") == b"OK"
        tasks.cancel_scope.cancel()


async def test_https_with_an_own_authority_and_a_client_certificate():
    theirs = certificates.server_context()
    theirs.verify_mode = ssl.CERT_REQUIRED
    certificates.authority().configure_trust(theirs)
    async with answering(lambda _: http_answer(b"OK"), tls=theirs) as server:
        address = f"https://localhost:{server.port}"
        known = daemon(address, tls_context=certificates.client_context("client"))
        assert await known.request("GET", "/ping") == b"OK"
        with pytest.raises(RequestFailed, match="certificate is not accepted"):
            await daemon(address).request("GET", "/ping")
        with pytest.raises(RequestFailed):
            await daemon(address, tls_context=certificates.client_context()).request("GET", "/ping")


# ---- http_request --------------------------------------------------------------------------------------------


async def test_http_request_sends_the_requests():
    asked = []

    async def request(method, url, headers, body):
        asked.append((method, url, dict(headers), body))
        return 200, b"OK"

    known = daemon("http://me:pass@h:1/a?key=k", authorization="Bearer t", http_request=request)
    assert await known.request("PUT", "/x", {"topic": "t"}, body=b"y") == b"OK"
    headers = {"Accept": "application/vnd.nsq; version=1.0", "Authorization": "Bearer t"}
    assert asked == [("PUT", "http://me:pass@h:1/a/x?key=k&topic=t", headers, b"y")]


@pytest.mark.parametrize("result", [None, (200,), ("200", b""), (200, "text"), (200, b"x" * 1001)])
async def test_http_request_with_an_invalid_result_fails(result):
    async def request(method, url, headers, body):
        return result

    with pytest.raises(RequestFailed, match=r"^http://h:1: "):
        await daemon("h:1", http_request=request).request("GET", "/x")


async def test_an_exception_of_http_request_shows_no_secrets():
    async def request(method, url, headers, body):
        raise LookupError(f"{method} {url} {headers}")

    known = daemon("http://me:pass@h:1/?key=k", authorization="Bearer t", http_request=request)
    with pytest.raises(RequestFailed, match=r"^http://h:1: LookupError\(.*GET http://\.\.\.@h:1/x\?\.\.\. ") as caught:
        await known.request("GET", "/x")
    assert isinstance(caught.value.__cause__, LookupError)
    assert "pass" not in str(caught.value)
    assert "Bearer t" not in str(caught.value)


async def test_http_request_has_a_timeout():
    async def request(method, url, headers, body):
        await anyio.sleep_forever()

    with pytest.raises(RequestFailed, match=r"^http://h:1: no answer within 0\.01 seconds$"):
        await daemon("h:1", http_request=request, request_timeout=0.01).request("GET", "/x")


async def test_http_request_with_a_unix_socket_is_refused():
    async def request(method, url, headers, body):
        return 200, b""

    with pytest.raises(OptionError, match=r"^address '/run/x' is a Unix socket"):
        daemon("/run/x", http_request=request)
