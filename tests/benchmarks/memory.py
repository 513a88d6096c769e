"""Measures the memory of queued messages in a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

MESSAGES = 1_000_000
MEMORY_MAX = 400.0
"""MB that the broker's process may have with so many messages."""

TOPIC = "memory"


def measure(bench: Bench) -> Iterator[Row]:
    """Measure the resident memory of the whole process."""
    count = bench.effort.count(MESSAGES)
    runs = {name: partial(_queued, command, count) for name, command in bench.brokers.items()}
    figures = {name: sample["MB"] for name, sample in bench.take_turns(runs).items()}
    if "nsqkit" in figures:
        yield Row(
            what=f"memory, {count:,} messages of {raw_client.BODY_LENGTH} bytes queued",
            unit="MB",
            value=figures.pop("nsqkit"),
            peers=figures,
            less_is_better=True,
            floors=[Floor(at_most=MEMORY_MAX)],
        )


def _queued(command: Sequence[str], count: int) -> Sample:
    with BrokerProcess(command) as broker:
        raw_client.make_channel(broker.address, TOPIC)
        raw_client.fill(broker.address, TOPIC, count)
        return {"MB": broker.memory_bytes() / 1e6}
