"""Measures whether a delivery costs more with more topics, channels, consumers or messages.

One number grows, all others stay the same; the figure is the broker's CPU time for the delivery of the same messages
and their FINs. It is compared with the smallest number of the same run, and limited by a floor.

``SIZES`` are the numbers, ``STAGES`` prepares a broker for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from tests.benchmarks import raw_client
from tests.benchmarks.crowd import Crowd, allow_connections
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.idle import serve_channels
from tests.benchmarks.table import Floor, Row

DELIVERIES: Final = 100_000
PART: Final = 20_000
"""Messages that are published and delivered in one part: they must fit in ``FEW_QUEUED``."""

FEW_QUEUED: Final = "--mem-queue-size=25000"
"""For many channels: nsqd reserves memory for as many messages in each."""

GROWTH_MAX: Final = 1.5
TOPIC: Final = "growth"

SIZES: Final[dict[str, tuple[int, ...]]] = {
    "queued messages": (1_000, 100_000, 1_000_000),
    "messages in flight": (1_000, 10_000, 100_000),
    "channels": (1, 100, 10_000),
    "connections": (1, 100, 10_000),
}


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each number from the smallest to the greatest."""
    deliveries = bench.effort.count(DELIVERIES)
    for what, sizes in SIZES.items():
        counts = [bench.effort.count(size) for size in sizes]
        if what == "connections" and not allow_connections(counts[-1]):
            bench.notes.append(f"the limit of open files (ulimit -Hn) does not allow {counts[-1]:,} connections")
            continue
        samples = bench.take_turns(
            {
                f"{name} {count}": partial(_run, what, command, count, deliveries)
                for count in counts
                for name, command in bench.brokers.items()
            }
        )
        first = 0.0
        for count in counts:
            figures = {name: samples[key]["ns"] for name in bench.brokers if (key := f"{name} {count}") in samples}
            if "nsqkit" in figures:
                row = _row(f"a delivery with {count:,} {what}", figures, GROWTH_MAX * first)
                first = first or row.value
                yield row


def _row(what: str, figures: dict[str, float], at_most: float) -> Row:
    return Row(
        what=what,
        unit="ns of CPU",
        value=figures.pop("nsqkit"),
        peers=figures,
        less_is_better=True,
        floors=[Floor(at_most=round(at_most))] if at_most else (),
    )


def _run(what: str, command: Sequence[str], count: int, deliveries: int) -> Sample:
    part = min(PART, deliveries)
    cpu_seconds = 0.0
    delivered = 0
    with STAGES[what](command, count) as broker:
        raw_client.make_channel(broker.address, TOPIC)
        while delivered < deliveries:
            raw_client.fill(broker.address, TOPIC, part)
            before = broker.cpu_seconds()
            delivered += raw_client.drain(broker.address, TOPIC, part)
            cpu_seconds += broker.cpu_seconds() - before
    return {"ns": cpu_seconds / delivered * 1e9}


@contextmanager
def _queue(command: Sequence[str], count: int) -> Iterator[BrokerProcess]:
    """Fill a queue with messages that stay there."""
    with BrokerProcess(command) as broker:
        raw_client.make_channel(broker.address, TOPIC)
        raw_client.fill(broker.address, TOPIC, count)
        yield broker


@contextmanager
def _hold(command: Sequence[str], count: int) -> Iterator[BrokerProcess]:
    """Let another consumer of the channel hold messages."""
    with BrokerProcess(command, f"--max-rdy-count={max(count, raw_client.RDY)}") as broker:
        with raw_client.subscribe(broker.address, TOPIC) as connection:
            raw_client.fill(broker.address, TOPIC, count)
            raw_client.hold(connection, count)
            yield broker


@contextmanager
def _connect(command: Sequence[str], count: int) -> Iterator[BrokerProcess]:
    """Subscribe other consumers to the channel."""
    with BrokerProcess(command) as broker, Crowd(broker.address, TOPIC, count):
        yield broker


STAGES: Final[dict[str, Callable[[Sequence[str], int], AbstractContextManager[BrokerProcess]]]] = {
    "queued messages": _queue,
    "messages in flight": _hold,
    "channels": lambda command, count: serve_channels(command, count, FEW_QUEUED),
    "connections": _connect,
}
