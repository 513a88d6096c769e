"""Does a delivery cost more when there is more of everything? In this process, on the engine alone.

The rule it guards: one number is raised, all else stays; what is timed is the delivery of the same messages and their
FINs. Growth is told beside the smallest number of the same run, and is held by a floor.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session import Session
from nsqkit.wire.commands import MAGIC_V2, encode_finish, encode_ready, encode_subscribe
from tests.benchmarks.harness import Bench
from tests.benchmarks.table import Floor, Row

RDY: Final = 500
DELIVERIES: Final = 40_000
RUNS: Final = 3
GROWTH_MAX: Final = 1.5

TOPIC: Final = b"topic"
CHANNEL: Final = b"channel"
_ID: Final = slice(18, 34)
_FRAME_LENGTH: Final = 34 + 200

SIZES: Final[dict[str, tuple[int, ...]]] = {
    "queued messages": (50_000, 200_000, 1_000_000),
    "messages in flight": (1_000, 10_000, 100_000),
    "channels": (1, 100, 10_000),
    "connections": (1, 100, 10_000),
}


class Stage:
    """A broker, and a consumer whose deliveries are timed."""

    def __init__(self) -> None:
        options = BrokerOptions(mem_queue_size=10_000_000, max_rdy_count=1_000_000)
        self.broker = Broker(options, Random(0))
        self.now_ns = 1_704_067_200 * 10**9
        self.consumer = self.subscribe(TOPIC, CHANNEL)

    def subscribe(self, topic: bytes, channel: bytes) -> Session:
        """Return a new session that consumes a channel, with RDY 0."""
        session = self.broker.open_session("127.0.0.1:1", self.now_ns)
        session.receive_data(MAGIC_V2 + encode_subscribe(topic, channel), self.now_ns)
        session.data_to_send(self.now_ns)
        self.broker.take_sessions()
        return session

    def publish(self, count: int, topic: bytes = TOPIC) -> None:
        """Put messages into a topic."""
        for _ in range(count // 1000):
            self.broker.topic(topic).put([bytes(200)] * 1000, self.now_ns)

    def deliver(self, count: int) -> float:
        """Have ``count`` messages delivered and finished; return nanoseconds for each."""
        consumer, now_ns = self.consumer, self.now_ns
        gc.collect()
        begin = time.perf_counter_ns()
        consumer.receive_data(encode_ready(RDY), now_ns)
        done = 0
        while done < count:
            data = consumer.data_to_send(now_ns)
            ids = [data[at : at + 16] for at in range(_ID.start, len(data), _FRAME_LENGTH)]
            done += len(ids)
            consumer.receive_data(b"".join(map(encode_finish, ids)), now_ns)
            self.broker.take_sessions()
        return (time.perf_counter_ns() - begin) / done


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each number from the smallest to the greatest."""
    count = max(bench.effort.count(DELIVERIES), RDY)
    for what, sizes in SIZES.items():
        first = 0.0
        for size in sizes:
            wanted = max(bench.effort.count(size), 1)
            value = min(_run(what, wanted, count) for _ in range(RUNS))
            yield Row(
                what=f"a delivery with {wanted:,} {what}",
                unit="ns",
                value=value,
                less_is_better=True,
                floors=[Floor(at_most=round(GROWTH_MAX * first))] if first else (),
            )
            first = first or value


def _run(what: str, size: int, count: int) -> float:
    stage = Stage()
    _PREPARE[what](stage, size)
    stage.publish(max(count + RDY + 1000, size if what == "queued messages" else 0))
    return stage.deliver(count)


def _hold(stage: Stage, count: int) -> None:
    """Have another consumer of the channel hold messages."""
    stage.publish(count + 1000)
    other = stage.subscribe(TOPIC, CHANNEL)
    other.receive_data(encode_ready(count), stage.now_ns)
    while other.data_to_send(stage.now_ns):
        stage.broker.take_sessions()


def _add_channels(stage: Stage, count: int) -> None:
    """Make channels that have a timer running: each has a deferred message."""
    for number in range(count):
        topic = stage.broker.topic(b"other-%d" % number)
        topic.channel(CHANNEL, stage.now_ns)
        topic.put([b"later"], stage.now_ns, delay_ns=10**12)


def _connect(stage: Stage, count: int) -> None:
    for _ in range(count):
        stage.subscribe(TOPIC, CHANNEL)


_PREPARE: Final[dict[str, Callable[[Stage, int], None]]] = {
    "queued messages": lambda stage, count: None,
    "messages in flight": _hold,
    "channels": _add_channels,
    "connections": _connect,
}
