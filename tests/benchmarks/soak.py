"""Measures the memory of a consumer: with many connections, and after very many messages.

The memory of a consumer must not depend on the number of messages that it has handled. So the figure of the soak is the
growth since its first tenth, by which time all long-lived objects exist.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.harness import NSQKIT_NSQD, ROOT, Bench, BrokerProcess, RunFailed, Sample, memory_bytes
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

CONNECTIONS: Final = 100
MEMORY_MAX: Final = 60.0
"""MB that the consumer's process may have with so many connections."""

MESSAGES: Final = 10_000_000
"""About as many as a busy consumer receives in an hour."""

PARTS: Final = 10
GROWTH_MAX: Final = 4.0
"""MB of growth allowed between the first part and the last: the allocator's, not the messages'."""

TIMEOUT: Final = 600.0
"""Seconds after which a consumer counts as failed."""

TOPIC: Final = "soak"


def measure(bench: Bench) -> Iterator[Row]:
    """Measure an idle consumer, and a busy one; one round, since both figures are of the program alone."""
    once = Bench(attrs.evolve(bench.effort, rounds=1), notes=bench.notes)
    part = bench.effort.count(MESSAGES // PARTS)
    # All of 127.0.0.0/8 are addresses of this machine, so one broker stands for many.
    with BrokerProcess(NSQKIT_NSQD, "--tcp-address=0.0.0.0:0") as broker:
        address = f"127.0.0.1:{broker.address.rpartition(':')[2]}"
        raw_client.make_channel(address, TOPIC)
        idle = Assignment(mode="stay", address=address, topic=TOPIC, count=0, outstanding=CONNECTIONS)
        busy = attrs.evolve(idle, outstanding=1, batch=part, count=part * PARTS)
        samples = once.take_turns({"idle": partial(_memory, idle), "busy": partial(_memory, busy)})
    rows: tuple[tuple[str, str, str, list[Floor]], ...] = (
        ("idle", "last", f"a consumer with {CONNECTIONS} idle connections", [Floor(at_most=MEMORY_MAX)]),
        ("busy", "last", f"a consumer after {busy.count:,} messages", []),
        ("busy", "growth", "the same, more than after the first tenth", [Floor(at_most=GROWTH_MAX)]),
    )
    for subject, figure, what, floors in rows:
        if subject in samples:
            value = samples[subject][figure]
            yield Row(what=what, unit="MB", value=value, less_is_better=True, floors=floors)


def _memory(task: Assignment) -> Sample:
    """Let a program consume a topic that is filled in parts; return its memory at the end."""
    command = [sys.executable, "-m", "tests.benchmarks.programs.staying", task.as_argument()]
    sizes: list[float] = []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        limit = threading.Timer(TIMEOUT, program.kill)
        limit.start()
        try:
            for line in program.stdout:
                sizes.append(memory_bytes(program.pid) / 1e6)
                if int(line) < task.count:
                    raw_client.fill(task.address, task.topic, task.batch)
                program.stdin.write("\n")
                program.stdin.flush()
        except BaseException:
            program.kill()
            raise
        finally:
            limit.cancel()
    if program.returncode:
        raise RunFailed(f"a consumer of {task.count} messages ended with code {program.returncode}")
    return {"last": sizes[-1], "growth": max(sizes[-1] - sizes[min(1, len(sizes) - 1)], 0.0)}
