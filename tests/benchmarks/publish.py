"""Measures publishing: one at a time, pipelined, in batches, and in lingering batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs

from tests.benchmarks import raw_client
from tests.benchmarks.clients import Figure, nsqkit_subjects, peer_subjects, rows
from tests.benchmarks.harness import Bench
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

FLOORS = (Floor(ratio=1.3),)

ALONE = (Figure("per_second", "msg/s"),)
RATE = (Figure("per_second", "msg/s", floors=FLOORS),)
BATCHES = (*RATE, Figure("cpu_per_100k", "CPU s/100 k", less_is_better=True, floors=FLOORS))
"""For batches also the CPU time: their rate depends on the broker, which is as busy."""

# Name of the row, messages, commands outstanding, messages in a command, figures.
WAYS = (
    ("PUB, 1 outstanding", 4_000, 1, 1, ALONE),
    ("PUB, 100 outstanding", 40_000, 100, 1, RATE),
    ("MPUB of 100, 1 outstanding", 100_000, 1, 100, BATCHES),
    ("MPUB of 100, 10 outstanding", 200_000, 10, 100, BATCHES),
)


LINGERING = Assignment(mode="", address="", count=400_000, outstanding=2_000, linger=0.005)
"""No peer has this: single publishes, each answered, that share commands."""

LINGERING_WAYS = (
    ("PUB with linger, 2,000 tasks", "publish", ()),
    ("PUB with linger, 2,000 receipts", "publish-nowait", (Floor(at_least=300_000),)),
)


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each way of publishing."""
    for what, count, outstanding, batch, figures in WAYS:
        with bench.serve() as broker:
            task = Assignment(
                mode="publish",
                address=broker.address,
                count=bench.effort.count(count),
                outstanding=outstanding,
                batch=batch,
            )
            prepare = partial(raw_client.make_channel, broker.address)
            subjects = {**nsqkit_subjects(bench, task, prepare), **peer_subjects(bench, task, prepare)}
            samples = bench.take_turns(subjects)
        yield from rows(bench, what, samples, figures)
    for what, mode, floors in LINGERING_WAYS:
        with bench.serve() as broker:
            task = attrs.evolve(LINGERING, mode=mode, address=broker.address, count=bench.effort.count(LINGERING.count))
            subjects = nsqkit_subjects(bench, task, partial(raw_client.make_channel, broker.address))
            samples = bench.take_turns(subjects)
        yield from rows(bench, what, samples, [Figure("per_second", "msg/s", floors=floors)])
