"""The assignment of a client program, and the stopwatch for its report.

A client program is started with an ``Assignment`` as JSON in its only argument and prints one line of JSON with its
figures. There is one for nsqkit and one for each peer; each does the same with its own library.

| mode | what it does |
|---|---|
| ``publish`` | publishes ``count`` messages, ``batch`` in a command, ``outstanding`` commands at a time |
| ``consume`` | until ``count`` messages are handled; the time from the first one, the CPU from the start |
| ``latency`` | publishes a message, waits until its handler is called, and again; at most ``count`` times |

Seconds are those of the clock on the wall, ``cpu_seconds`` those of the whole process, system calls included.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import attrs

BODY = b"x" * 200
LATENCY_SECONDS_MAX = 3.0
"""After so many seconds a run for latency ends even with fewer messages; percentiles need no more."""


@attrs.frozen(kw_only=True)
class Assignment:
    """The assignment of a client program.

    Attributes:
        mode: see the table above; nsqkit's program has several ways to publish and to consume.
        address: the broker's.
        count: number of messages.
        topic: an existing topic; its channel is called ``channel``.
        outstanding: commands that wait for an answer at a time.
        batch: messages in a command; above 1 it is an MPUB.
        linger: seconds that single publishes wait for each other, for nsqkit.
        max_in_flight: of the consumer.
        loop: the event loop, for nsqkit.
    """

    mode: str
    address: str
    count: int
    topic: str = ""
    outstanding: int = 1
    batch: int = 1
    linger: float = 0.0
    max_in_flight: int = 2500
    loop: str = "asyncio"

    def as_argument(self) -> str:
        """Return the argument for the program."""
        return json.dumps(attrs.asdict(self))

    @property
    def commands_each(self) -> int:
        """How many commands each of the ``outstanding`` publishers sends."""
        return -(-self.count // (self.batch * self.outstanding))


def read_assignment() -> Assignment:
    """Return the assignment of this program."""
    return Assignment(**json.loads(sys.argv[1]))


class Meter:
    """Measures the program that it runs in.

    Args:
        count: messages after which it is complete.
    """

    def __init__(self, count: int) -> None:
        self.count = 0
        self.count_max = count
        self._latencies: list[float] = []
        self.start()

    def start(self) -> None:
        """Start, or restart."""
        self._cpu = time.process_time()
        self._begin = time.perf_counter()

    def take(self, count: int = 1) -> bool:
        """Count consumed messages; True once, when there are enough."""
        if not self.count:
            self._begin = time.perf_counter()
        self.count += count
        return self.count - count < self.count_max <= self.count

    def sent(self) -> None:
        """Record that a message is about to be published."""
        self._sent = time.perf_counter()

    def arrived(self) -> bool:
        """Record that it has reached its handler; True for the last one.

        The first message is a warm-up: it may have waited for the consumer to subscribe.
        """
        arrived = time.perf_counter()
        if not self.count:
            self._begin = arrived
        else:
            self._latencies.append(arrived - self._sent)
        self.count += 1
        return len(self._latencies) == self.count_max or arrived - self._begin > LATENCY_SECONDS_MAX

    def report(self, count: int = 0) -> None:
        """Report how long ``count`` messages took, by default the consumed ones."""
        seconds = time.perf_counter() - self._begin
        cpu_seconds = time.process_time() - self._cpu
        count = count or self.count
        print(json.dumps({"per_second": count / seconds, "cpu_per_100k": cpu_seconds / count * 1e5}))

    def report_latency(self) -> None:
        """Report the latencies."""
        percentiles = statistics.quantiles(self._latencies, n=100)
        print(json.dumps({"p50_ms": percentiles[49] * 1e3, "p99_ms": percentiles[98] * 1e3}))
