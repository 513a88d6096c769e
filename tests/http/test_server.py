from __future__ import annotations

import errno
import logging
import re

import anyio
import pytest
from anyio import EndOfStream
from anyio.abc import ByteStream

from nsqkit.clock import LoopClock, ManualClock
from nsqkit.errors import ConnectionLost
from nsqkit.http.messages import HTTPError, Request, Response
from nsqkit.http.router import Router
from nsqkit.http.server import CHUNK_SIZE, LINGER, RECEIVE_SIZE, SEND_SIZE, TURN_EVENTS, serve_connection
from nsqkit.transport.memory import memory_pair

pytestmark = pytest.mark.anyio

BODY_MAX = 1000


async def echo(request: Request) -> Response:
    """Answer with the body of at most 10 bytes."""
    body = await request.read(10)
    if len(body) > 10:
        raise HTTPError(413, "MSG_TOO_BIG")
    return Response.v1(body)


def ignore(request: Request) -> Response:
    return Response.plain(request.path)


ROUTES = Router([("POST", "/echo", echo), ("GET", "/ping", ignore), ("POST", "/ignore", ignore)])


async def talk(*pieces: bytes, handle=ROUTES.handle) -> str:
    """Send the pieces, then the end of the stream; return the answer without its dates.

    They stand before the length, as in what Go's server sends.
    """
    client, server = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_connection(server, handle, body_max=BODY_MAX, clock=LoopClock()))
        tasks.start_soon(send_all, client, pieces)
        answer = await receive_all(client)
    date = r"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n(?=Content-Length: )"
    return re.sub(date, "", answer.decode())


async def send_all(stream: ByteStream, pieces: tuple[bytes, ...]) -> None:
    try:
        for piece in pieces:
            await stream.send(piece)
        await stream.send_eof()
    except anyio.BrokenResourceError:
        pass


async def receive_all(stream: ByteStream) -> bytes:
    answer = b""
    try:
        while True:
            answer += await stream.receive()
    except EndOfStream:
        await stream.aclose()
        return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", *headers, "", ""]).encode()


def ok(text: str, *headers: str) -> str:
    """Return the text of a successful answer in the V1 form."""
    return "\r\n".join(
        [
            "HTTP/1.1 200 OK",
            "Content-Type: text/plain; charset=utf-8",
            "X-Nsq-Content-Type: nsq; version=1.0",
            f"Content-Length: {len(text)}",
            *headers,
            "",
            text,
        ]
    )


def plain(status: str, text: str, *headers: str) -> str:
    return "\r\n".join(
        [
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(text)}",
            *headers,
            "",
            text,
        ]
    )


def error(status: str, message: str, *headers: str) -> str:
    text = f'{{"message":"{message}"}}'
    return "\r\n".join(
        [
            f"HTTP/1.1 {status}",
            "Content-Type: application/json; charset=utf-8",
            "X-Nsq-Content-Type: nsq; version=1.0",
            f"Content-Length: {len(text)}",
            *headers,
            "",
            text,
        ]
    )


CHUNKED = get("/echo", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
TOO_BIG = error("413 Request Entity Too Large", "MSG_TOO_BIG")
PING = plain("200 OK", "/ping")


async def test_a_request_is_answered():
    assert await talk(get("/ping")) == PING


async def test_a_connection_is_kept_for_the_next_request():
    client, server = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock()))
        for text in (b"one", b"two", b"three"):
            await client.send(post("/echo", text))
            assert (await client.receive()).endswith(text)
        await client.aclose()


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_pipelined_requests_are_answered_in_order_in_any_pieces(size):
    stream = post("/echo", b"first") + CHUNKED + get("/ping") + post("/ignore", b"x" * 50) + post("/echo", b"z")
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert await talk(*pieces) == ok("first") + ok("abcde") + PING + plain("200 OK", "/ignore") + ok("z")


async def test_a_body_of_exactly_the_limit_is_good_and_one_byte_more_is_not():
    assert await talk(post("/echo", b"x" * 10)) == ok("x" * 10)
    assert await talk(post("/echo", b"x" * 11)) == TOO_BIG


async def test_the_rest_of_a_body_is_discarded_up_to_the_limit():
    assert await talk(post("/echo", b"x" * BODY_MAX), get("/ping")) == TOO_BIG + PING


async def test_a_longer_body_ends_the_connection_after_the_answer():
    expected = error("413 Request Entity Too Large", "MSG_TOO_BIG", "Connection: close")
    assert await talk(post("/echo", b"x" * (BODY_MAX + 1)), get("/ping")) == expected


async def test_a_longer_body_of_unknown_length_ends_the_connection_too():
    chunk = b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"
    request = get("/echo", "Transfer-Encoding: chunked", method="POST") + chunk
    assert await talk(request, get("/ping")) == TOO_BIG


async def test_a_handler_never_gets_more_than_the_connection_allows():
    async def handle(request: Request) -> Response:
        return Response.v1([len(await request.read(10**9)), len(await request.read(10**9))])

    assert (await talk(post("/", b"x" * 2000), handle=handle)).endswith("[1001,0]")


async def test_a_handler_may_read_a_body_in_parts():
    async def handle(request: Request) -> Response:
        return Response.v1([(await request.read(limit)).decode() for limit in (1, 1, 100)])

    assert (await talk(post("/", b"abcdefgh"), handle=handle)).endswith('["ab","cd","efgh"]')


async def test_a_read_body_is_invited_by_100_continue():
    client, server = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock()))
        await client.send(post("/echo", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 3"))
        assert await client.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"abc")
        assert (await client.receive()).endswith(b"\r\n\r\nabc")
        await client.aclose()


async def test_an_unread_body_is_not_invited():
    request = get("/ignore", "Content-Length: 3", "Expect: 100-continue", method="POST")
    assert await talk(request, b"abc" + get("/ping")) == plain("200 OK", "/ignore", "Connection: close")


async def test_head_is_answered_without_a_body():
    assert await talk(get("/ping", method="HEAD"), handle=ignore) == plain("200 OK", "/ping")[: -len("/ping")]


async def test_connection_close_ends_the_connection():
    assert await talk(get("/ping", "Connection: close"), get("/ping")) == plain("200 OK", "/ping", "Connection: close")


async def test_http_1_0_is_answered_once():
    assert await talk(b"GET /ping HTTP/1.0\r\n\r\n") == plain("200 OK", "/ping", "Connection: close")


async def test_an_upgrade_is_ignored():
    upgrade = get("/ping", "Connection: Upgrade", "Upgrade: h2c")
    assert await talk(upgrade, get("/ping")) == PING + PING


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", "400 Bad Request", "illegal request line"),
        (b"  V2PUB t\n\n", "400 Bad Request", "illegal request line"),
        (b"GET / HTTP/1.1\r\n\r\n", "400 Bad Request", "Missing mandatory Host: header"),
        (get("ping"), "400 Bad Request", "target 'ping' does not begin with a slash"),
        (get("/%zz"), "400 Bad Request", "'%zz' is not a percent sign and two hexadecimal digits"),
        (get("/", "Content-Length: x"), "400 Bad Request", "bad Content-Length"),
        (get("/", "Content-Length: 1, 1") + b"x", "400 Bad Request", "bad Content-Length"),
        (get("/", "CONTENT-LENGTH:1,1") + b"x", "400 Bad Request", "bad Content-Length"),
        (get("/ping").replace(b"Host: h", b"Host: a b"), "400 Bad Request", "malformed Host header"),
        (get("/ping").replace(b"Host: h", b"Host: h/"), "400 Bad Request", "malformed Host header"),
        (get("/", "X: \x01"), "400 Bad Request", "invalid header value"),
        (
            get("/", "Transfer-Encoding: chunked").replace(b"/1.1", b"/1.0") + b"0\r\n\r\n",
            "400 Bad Request",
            "Transfer-Encoding in HTTP/1.0",
        ),
        (get("/", "X: " + "x" * 70_000), "431 Request Header Fields Too Large", "Receive buffer too long"),
        (
            get("/", "Transfer-Encoding: gzip"),
            "501 Not Implemented",
            "Only Transfer-Encoding: chunked is supported",
        ),
    ],
)
async def test_an_invalid_request_is_refused_and_ends_the_connection(request_, status, reason):
    head, _, text = (await talk(request_, get("/ping"))).partition("\r\n\r\n")
    assert text.startswith(f"{status}: ")
    assert reason in text
    assert head == plain(status, text, "Connection: close").partition("\r\n\r\n")[0]


async def test_a_refusal_of_head_has_no_body():
    answer = await talk(get("ping", method="HEAD"))
    assert answer.startswith("HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith("\r\n\r\n")


async def test_a_repeated_length_and_one_in_a_body_are_accepted():
    assert await talk(post("/echo", b"x", "Content-Length: 1"), get("/ping")) == ok("x") + PING
    assert await talk(post("/ignore", b"\nContent-Length: 1, 1\n"), get("/ping")) == plain("200 OK", "/ignore") + PING


async def test_the_reason_of_a_refusal_is_short():
    answer = await talk(get("Y" * 10_000))
    assert "400 Bad Request: target 'YYY" in answer
    assert len(answer) < 500


async def test_the_reason_of_a_refusal_shows_no_buffer():
    assert (await talk(get("/", "no colon"))).endswith("400 Bad Request: illegal header line")


async def test_a_request_that_is_cut_off_is_refused():
    assert (await talk(get("/ping")[:-2])).startswith("HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize("body", [b"zz\r\nabc\r\n", b"3\r\nabcd\r\n", b"3\r\nab"])
async def test_a_malformed_or_cut_off_body_is_a_bad_request(body):
    request = get("/echo", "Transfer-Encoding: chunked", method="POST") + body
    assert await talk(request) == error("400 Bad Request", "BAD_REQUEST", "Connection: close")


async def test_a_malformed_unread_body_ends_the_connection():
    request = get("/ignore", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n"
    assert await talk(request, get("/ping")) == plain("200 OK", "/ignore")


async def test_a_refusal_of_the_handler_is_the_answer():
    def handle(request: Request) -> Response:
        raise HTTPError(404, "TOPIC_NOT_FOUND")

    answer = error("404 Not Found", "TOPIC_NOT_FOUND")
    assert await talk(get("/"), get("/"), handle=handle) == answer + answer


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_of_the_handler_is_logged_and_hidden(is_async, caplog):
    def handle(request: Request) -> Response:
        raise RuntimeError("the disk is gone")

    async def handle_async(request: Request) -> Response:
        return handle(request)

    answer = await talk(get("/a?b"), get("/ping"), handle=handle_async if is_async else handle)
    assert answer == 2 * error("500 Internal Server Error", "INTERNAL_ERROR")
    first = caplog.records[0]
    assert (first.name, first.levelno, first.getMessage()) == (
        "nsqkit.http",
        logging.ERROR,
        "panic in HTTP handler - GET /a?b",
    )
    assert "the disk is gone" in str(first.exc_info)


async def test_a_refused_client_may_finish_sending():
    client, server = memory_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock()))
        for _ in range(100):  # more than the buffers hold, so this ends only if the server reads
            await client.send(b"nonsense\r\n\r\n")
        await client.send_eof()
        assert (await receive_all(client)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_refused_client_that_does_not_close_is_disconnected_after_a_time():
    clock = ManualClock()
    client, server = memory_pair()
    async with client, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=clock))
        await client.send(b"nonsense\r\n\r\n")
        await anyio.wait_all_tasks_blocked()
        await client.send(b"more")
        await anyio.wait_all_tasks_blocked()
        clock.advance(LINGER)
        assert (await receive_all(client)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_a_disconnect_is_raised_in_the_handler(caplog):
    seen: list[str] = []

    async def handle(request: Request) -> Response:
        await server.aclose()  # otherwise a reader gets a reset connection
        try:
            return Response.v1(await request.read(10))
        except ConnectionLost as problem:
            seen.append(str(problem))
            raise

    client, server = memory_pair()
    async with client:
        await client.send(get("/", "Content-Length: 3"))
        await serve_connection(server, handle, body_max=BODY_MAX, clock=LoopClock())
    assert seen == ["the client has closed the connection"]
    assert not caplog.records


async def test_a_client_that_disconnects_before_the_answer_is_no_error():
    client, server = memory_pair()
    await client.send(get("/ping"))
    await client.aclose()
    await serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock())


async def test_a_refused_client_that_has_disconnected_is_no_error(monkeypatch, caplog):
    async def send_eof() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    client, server = memory_pair()
    async with client:
        monkeypatch.setattr(server, "send_eof", send_eof)
        await client.send(b"nonsense\r\n\r\n")
        await serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock())
    assert not caplog.records


async def test_an_internal_error_is_logged_and_not_raised(monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("nsqkit.http.server.check_head", fail)
    client, server = memory_pair()
    async with client:
        await client.send(get("/ping"))
        await serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock())
        with pytest.raises(EndOfStream):
            await client.receive()
    (record,) = caplog.records
    assert (record.message, record.exc_info[0]) == ("panic in HTTP connection", ZeroDivisionError)


async def test_the_stream_is_closed_in_the_end():
    client, server = memory_pair()
    async with client:
        await client.send_eof()
        await serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock())
        with pytest.raises(EndOfStream):
            await client.receive()


@pytest.mark.parametrize("error", [OSError(107, "not connected"), anyio.BrokenResourceError()], ids=repr)
async def test_a_broken_stream_is_no_error(error, monkeypatch):
    async def fail() -> None:
        raise error

    client, server = memory_pair()
    monkeypatch.setattr(server, "send_eof", fail)
    async with client:
        await client.send(get("/ping", "Connection: close"))
        await serve_connection(server, ROUTES.handle, body_max=BODY_MAX, clock=LoopClock())
        assert (await client.receive()).startswith(b"HTTP/1.1 200 OK\r\n")


class EndlessStream(ByteStream):
    """A client that sends an endless body, and reads the answer."""

    def __init__(self) -> None:
        self.received = 0
        self.head = get("/", "Transfer-Encoding: chunked", method="POST")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        assert max_bytes == RECEIVE_SIZE
        await anyio.lowlevel.checkpoint()
        data = self.head or b"fff0\r\n" + b"x" * 0xFFF0 + b"\r\n"
        self.head = b""
        self.received += len(data)
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("limit", [0, 100, 10**9])
async def test_body_is_read_only_as_far_as_the_handler_reads(limit):
    taken = []

    async def handle(request: Request) -> Response:
        taken.append(stream.received)
        await request.read(limit)
        taken.append(stream.received)
        return Response.v1()

    stream = EndlessStream()
    await serve_connection(stream, handle, body_max=200_000, clock=LoopClock())
    assert taken[0] < 100
    assert taken[1] <= min(limit, 200_000) + 2 * RECEIVE_SIZE
    assert stream.received <= 200_000 + 2 * RECEIVE_SIZE


# Turns.


async def turns_of_others(*pieces: bytes, handle=ROUTES.handle) -> int:
    """Return the number of turns of another task while the pieces, sent at once, were answered."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            await anyio.lowlevel.checkpoint()
            count += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await talk(b"".join(pieces), handle=handle)
        tasks.cancel_scope.cancel()
    return count


async def test_other_tasks_run_after_each_answer():
    assert await turns_of_others(get("/ping") * 200) > 200


async def test_other_tasks_run_during_a_body_of_small_chunks():
    head = b"POST /ignore HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    # Other tasks also run while the system transfers the bytes; the minimum of several runs has few such turns.
    least = min([await turns_of_others(head + b"0\r\n\r\n") for _ in range(5)])
    chunks = BODY_MAX
    assert await turns_of_others(head + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n") >= least + chunks // TURN_EVENTS - 1


def in_pieces(*pieces: bytes):
    return lambda request: Response(headers=(("A", "b"),), pieces=iter(pieces))


async def test_an_answer_in_pieces_that_is_short_has_a_length():
    assert (
        await talk(get("/"), handle=in_pieces(b"ab", b"c")) == "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 3\r\n\r\nabc"
    )
    assert await talk(get("/"), handle=in_pieces()) == "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n"


async def test_a_long_answer_in_pieces_is_sent_in_chunks():
    piece = b"x" * CHUNK_SIZE
    answer = await talk(get("/"), get("/"), handle=in_pieces(piece, b"y"))
    head, _, body = answer.partition("\r\n\r\n")
    assert "Transfer-Encoding: chunked" in head
    assert "Content-Length" not in head
    assert body.startswith(f"800\r\n{piece.decode()}\r\n1\r\ny\r\n0\r\n\r\n")


async def test_a_long_answer_to_http_1_0_ends_with_the_connection():
    piece = b"x" * CHUNK_SIZE
    answer = await talk(b"GET / HTTP/1.0\r\n\r\n", handle=in_pieces(piece, b"y"))
    head, _, body = answer.partition("\r\n\r\n")
    assert "Transfer-Encoding" not in head
    assert body == piece.decode() + "y"


async def test_head_makes_no_pieces():
    answer = await talk(get("/", method="HEAD"), handle=in_pieces(b"x" * CHUNK_SIZE, b"y"))
    assert answer.endswith("\r\n\r\n")


async def test_other_tasks_run_after_each_piece():
    pieces = [b"x" * CHUNK_SIZE] * 100
    assert await turns_of_others(get("/"), handle=in_pieces(*pieces)) > 100


async def test_a_long_answer_that_is_whole_is_sent_in_parts_with_its_length():
    body = bytes(3 * SEND_SIZE + 1)
    answer = await talk(get("/"), handle=lambda request: Response(body=body))
    head, _, sent = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body)}" in head
    assert sent == body.decode()
