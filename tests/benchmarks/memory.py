"""How much memory of a broker waiting messages and idle consumers take."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tests.benchmarks import raw_client
from tests.benchmarks.harness import Bench, BrokerProcess
from tests.benchmarks.table import Floor, Row

MESSAGES = 1_000_000
CONNECTIONS = (1000, 5000)
OTHER_FILES = 100
"""Files that a process may have open besides its connections."""


def measure(bench: Bench) -> Iterator[Row]:
    """Measure the resident memory of the process, or how it grows."""
    messages = bench.effort.count(MESSAGES)
    figures = {name: _queued(command, messages) for name, command in bench.brokers.items()}
    yield _row(f"memory, {messages:,} messages of 200 bytes queued", "MB", figures, Floor(at_most=400))
    for count in map(bench.effort.count, CONNECTIONS):
        if allow_files(count + OTHER_FILES):
            figures = {name: _idle(command, count) for name, command in bench.brokers.items()}
            yield _row(f"memory, {count:,} idle consumers", "KB/connection", figures, Floor(at_most=40))
        else:
            bench.notes.append(f"the limit of open files (ulimit -Hn) does not allow {count:,} connections")


def _row(what: str, unit: str, figures: dict[str, float], floor: Floor) -> Row:
    value = figures.pop("nsqkit")
    return Row(what=what, unit=unit, value=value, peers=figures, less_is_better=True, floors=[floor])


def _queued(command: Sequence[str], count: int) -> float:
    with BrokerProcess(command) as broker:
        raw_client.make_channel(broker.address, "memory")
        raw_client.fill(broker.address, "memory", count)
        return broker.memory_bytes() / 1e6


def _idle(command: Sequence[str], count: int) -> float:
    with BrokerProcess(command) as broker, ExitStack() as stack:
        raw_client.make_channel(broker.address, "memory")
        before = broker.memory_bytes()
        for _ in range(count):
            stack.enter_context(raw_client.subscribe(broker.address, "memory"))
        return (broker.memory_bytes() - before) / count / 1000


def allow_files(count: int) -> bool:
    """Raise the limit of open files, for this process and those that it starts; tell whether that is enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        return False
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    return True
