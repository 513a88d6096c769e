"""How much memory a consumer has: with many connections, and after very many messages.

The rule it guards: memory is what the consumer holds, not what has passed through it. So the figure of the soak is how
much it has grown since its first tenth, when all that is made once has been made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.harness import NSQKIT_NSQD, ROOT, Bench, BrokerProcess, RunFailed
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

CONNECTIONS: Final = 100
MEMORY_MAX: Final = 60.0
"""MB that the consumer's process may have with so many connections."""

MESSAGES: Final = 10_000_000
"""About as many as a busy consumer gets in an hour."""

PARTS: Final = 10
GROWTH_MAX: Final = 4.0
"""MB by which it may have grown between the first part and the last: the allocator's, not the messages'."""

TOPIC: Final = "soak"


def measure(bench: Bench) -> Iterator[Row]:
    """Measure a consumer that is idle, and one that is not; one round, for both are of the program alone."""
    # All of 127.0.0.0/8 are addresses of this machine, so one broker stands for many.
    with BrokerProcess(NSQKIT_NSQD, "--tcp-address=0.0.0.0:0") as broker:
        address = f"127.0.0.1:{broker.address.rpartition(':')[2]}"
        raw_client.make_channel(address, TOPIC)
        task = Assignment(mode="stay", address=address, topic=TOPIC, count=0, outstanding=CONNECTIONS)
        (idle,) = _memory(task)
        part = bench.effort.count(MESSAGES // PARTS)
        busy = attrs.evolve(task, outstanding=1, batch=part, count=part * PARTS)
        _, first, *_, last = _memory(busy)
    yield _row(f"a consumer with {CONNECTIONS} idle connections", idle, MEMORY_MAX)
    yield _row(f"a consumer after {busy.count:,} messages", last, None)
    yield _row("the same, more than after the first tenth", max(last - first, 0.0), GROWTH_MAX)


def _row(what: str, value: float, at_most: float | None) -> Row:
    floors = [] if at_most is None else [Floor(at_most=at_most)]
    return Row(what=what, unit="MB", value=value, less_is_better=True, floors=floors)


def _memory(task: Assignment) -> list[float]:
    """Have a program consume while a topic is filled; return what it tells of its memory."""
    command = [sys.executable, "-m", "tests.benchmarks.programs.staying", task.as_argument()]
    told: list[float] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            told.append(json.loads(line)["MB"])
            if (len(told) - 1) * task.batch < task.count:
                raw_client.fill(task.address, task.topic, task.batch)
    if program.returncode:
        raise RunFailed(f"the consumer ended with code {program.returncode}")
    return told
