"""How long a broker takes to start: the fixture, and the command."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import attrs

from nsqkit.testing.servers import NsqdServer
from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

FIXTURES = 30
COMMANDS = 10


def measure(bench: Bench) -> Iterator[Row]:
    """Measure until the first answer; each figure is the median of several starts."""
    yield Row(
        what="fixture ready",
        unit="ms",
        value=median(_start_fixture() for _ in range(bench.effort.count(FIXTURES))),
        less_is_better=True,
        floors=[Floor(at_most=10)],
    )
    starts = Bench(
        attrs.evolve(bench.effort, rounds=bench.effort.count(COMMANDS)), bench.nsqd_binary, bench.notes
    )
    samples = starts.take_turns(
        {name: partial(_start_command, command) for name, command in bench.brokers.items()}
    )
    yield Row(
        what="python -m nsqkit nsqd, until the first answer",
        unit="ms",
        value=samples.pop("nsqkit")["ms"],
        peers={name: sample["ms"] for name, sample in samples.items()},
        less_is_better=True,
        floors=[Floor(at_most=200)],
    )


def _start_fixture() -> float:
    begin = time.perf_counter()
    with NsqdServer():
        return (time.perf_counter() - begin) * 1e3


def _start_command(command: Sequence[str]) -> Sample:
    begin = time.perf_counter()
    with BrokerProcess(command) as broker, raw_client.connect(broker.address):
        return {"ms": (time.perf_counter() - begin) * 1e3}
