"""Measures how long a broker takes to start (the fixture, and the command), and to stop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import attrs

from nsqkit.testing.servers import NsqdServer
from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess, Sample
from tests.benchmarks.table import Floor, Row

FIXTURES = 30
COMMANDS = 10
MESSAGES = 1_000_000
TOPICS = 5_000


def measure(bench: Bench) -> Iterator[Row]:
    """Measure the time to the first answer; each figure is the median of several starts."""
    yield Row(
        what="fixture ready",
        unit="ms",
        value=median(_start_fixture() for _ in range(bench.effort.count(FIXTURES))),
        less_is_better=True,
        floors=[Floor(at_most=10)],
    )
    starts = Bench(
        attrs.evolve(bench.effort, rounds=bench.effort.count(COMMANDS)), bench.nsqd_binary, notes=bench.notes
    )
    runs = {name: partial(_start_and_stop, command) for name, command in bench.brokers.items()}
    samples = starts.take_turns(runs)
    yield _row("python -m nsqkit nsqd, until the first answer", "start", samples, 200)
    yield _row("python -m nsqkit nsqd, from SIGTERM to its end", "stop", samples, 100)
    messages = bench.effort.count(MESSAGES)
    stops = {name: {"stop": _stop_full(command, messages)} for name, command in bench.brokers.items()}
    yield _row(f"the same with {messages:,} messages to be written", "stop", stops, None)
    topics = bench.effort.count(TOPICS)
    yield _row(
        f"the same with {topics:,} topics of one message",
        "stop",
        bench.take_turns({name: partial(_stop_wide, command, topics) for name, command in bench.brokers.items()}),
        None,
    )


def _row(what: str, key: str, samples: Mapping[str, Sample], at_most: float | None) -> Row:
    figures = {name: sample[key] for name, sample in samples.items()}
    return Row(
        what=what,
        unit="ms",
        value=figures.pop("nsqkit"),
        peers=figures,
        less_is_better=True,
        floors=[Floor(at_most=at_most)] if at_most else (),
    )


def _start_fixture() -> float:
    begin = time.perf_counter()
    with NsqdServer():
        return (time.perf_counter() - begin) * 1e3


def _start_and_stop(command: Sequence[str]) -> Sample:
    begin = time.perf_counter()
    with BrokerProcess(command) as broker, raw_client.connect(broker.address):
        started = time.perf_counter() - begin
        return {"start": started * 1e3, "stop": broker.stop() * 1e3}


def _stop_full(command: Sequence[str], count: int) -> float:
    with BrokerProcess(command) as broker:
        raw_client.make_channel(broker.address, "stop")
        raw_client.fill(broker.address, "stop", count)
        return broker.stop() * 1e3


def _stop_wide(command: Sequence[str], count: int) -> Sample:
    with (
        BrokerProcess(command) as broker,
        raw_client.connect(broker.address, heartbeat_ms=60_000) as connection,
    ):
        for number in range(count):
            raw_client.ask(connection, raw_client.publish_command(f"stop-{number}", 1))
        return {"stop": broker.stop() * 1e3}
