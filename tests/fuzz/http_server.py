"""An HTTP connection to a broker, with the routes of nsqd."""

from __future__ import annotations

import re
from functools import partial
from random import Random
from typing import Final

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.http_api import ROUTES
from nsqkit.clock import ManualClock
from nsqkit.http.router import Router
from nsqkit.http.server import serve_connection
from tests.fuzz.broker_session import NOW_NS, OPTIONS, state_of
from tests.fuzz.fake_stream import FakeStream, run_async
from tests.fuzz.harness import Cut, Outcome, Round, both_ways, pack

HEADS_MAX: Final = 15_000
"""Bytes of an input: h11 looks at the size of a head only while the head is incomplete, so slices decide."""

_PUB: Final = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
_CHUNKED: Final = b"POST /mpub?topic=t HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n0\r\n\r\n"
_EXPECT: Final = b"PUT /config/log_level HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
SEEDS: Final = [
    pack(_PUB, _PUB, b"GET /stats?format=json HTTP/1.1\r\nHost: h\r\n\r\n"),
    pack(_CHUNKED, b"GET /PING/ HTTP/1.0\r\n\r\n"),
    pack(_EXPECT, b"info", b"OPTIONS /pub HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"),
    *(
        pack(b"%b %b HTTP/1.1\r\nHost: h\r\n\r\n" % (method.encode(), path.encode().replace(b":opt", b"node_id")), _PUB)
        for method, route, _ in ROUTES
        for path in (route + "?topic=t%23ephemeral&channel=c&defer=9&binary=true",)
    ),
    pack(_PUB, b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 9000\r\n\r\n", b"x", action=3),
]
WORDS: Final = [
    *(f"{method} {path}".encode() for method, path, _ in ROUTES),
    *(
        b"Content-Length: ",
        b"Transfer-Encoding: chunked",
        b" HTTP/1.1\r\n",
        b"\r\n\r\n",
        b"?topic=",
        b"&channel=",
        b"%0",
    ),
]
CALLS_PER_UNIT: Final = 400


class FakeNsqd:
    """A running broker without listeners."""

    tcp_address = http_address = https_address = "192.0.2.1:4150"
    is_running = True
    start_time_ns = NOW_NS
    statsd_prefix = "nsq."

    def __init__(self) -> None:
        self.options = OPTIONS
        self.broker = Broker(OPTIONS, Random(0))
        self.clock = ManualClock(NOW_NS)

    def process_changes(self) -> None:
        self.broker.settle(NOW_NS)

    async def save(self) -> None:
        pass

    async def committed(self, first_ticket: int | None = None) -> bool:
        return True


def run(data: bytes) -> int:
    return both_ways(data, play)


def play(mode: int, rounds: list[Round], cut: Cut) -> Outcome:
    nsqd = FakeNsqd()
    routes = [(method, path, partial(route, nsqd)) for method, path, route in ROUTES]
    whole = b"".join(each.content for each in rounds)[:HEADS_MAX]
    stream = FakeStream(cut(whole))
    run_async(serve_connection(stream, Router(routes).handle, clock=nsqd.clock, body_max=3000))
    statuses = re.findall(rb"^HTTP/1\.1 (\d+ [^\r]*)\r$", stream.sent, re.MULTILINE)
    return Outcome({"statuses": statuses}, state_of(nsqd.broker))
