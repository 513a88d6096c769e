"""The answers to an HTTP request: one round for each connection, since redirects are followed."""

from __future__ import annotations

import ssl
from typing import Final
from unittest import mock

from nsqkit.clock import ManualClock
from nsqkit.errors import RequestFailed
from nsqkit.http import client
from tests.fuzz.broker_session import NOW_NS
from tests.fuzz.fake_stream import FakeStream, run_async
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack

BODY_MAX: Final = 3000
TLS: Final = ssl.create_default_context()
_MOVED: Final = b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
SEEDS: Final = [
    pack(_MOVED % b"http://other/x?y=%41", _MOVED % b"//user:pass@third:1", _MOVED % b"https://h", b"\x15\x03\x01"),
    pack(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA: b\r\n\r\n", mode=1),
    pack(b"HTTP/1.0 404 No\r\nServer: s\r\n\r\nbody to the end", mode=1),
    pack(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 307 Again\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n", _OK, mode=1),
    pack(b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL"),
    pack(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(100), action=3),
]
WORDS: Final = [
    b"HTTP/1.1 ",
    b"Location: ",
    b"Content-Length: ",
    b"Transfer-Encoding: chunked",
    b"\r\n\r\n",
    b"http://[",
]
CALLS_PER_UNIT: Final = 400
HEADS_MAX: Final = 15_000
"""As for the server."""


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    answers = [each.content[: HEADS_MAX // len(rounds)] for each in reversed(rounds)]
    hosts: list[tuple[str, int]] = []

    async def connect(host: str, port: int) -> FakeStream:
        hosts.append((host, port))
        if not answers:
            raise ConnectionRefusedError
        return FakeStream(cut(answers.pop()))

    shown = ""
    with mock.patch.object(client, "connect_tcp", connect):
        try:
            response = run_async(
                client.fetch(
                    "POST" if mode & 1 else "GET",
                    "http://user:secret@host:4151/path?query",
                    body=b"body" if mode & 1 else b"",
                    clock=ManualClock(NOW_NS),
                    connect_timeout=1.0,
                    request_timeout=9.0,
                    body_max=BODY_MAX,
                    tls=TLS,
                )
            )
        except RequestFailed as error:
            response, shown = None, f"{type(error).__name__} {error}"
    assert "secret" not in shown
    assert response is None or len(response.body) <= BODY_MAX
    return Outcome({"hosts": hosts, "response": response}, shown.partition(" ")[0])
