"""Measures the blocking clients, beside other clients for threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.benchmarks import raw_client
from tests.benchmarks.clients import Figure, nsqkit_subjects, peer_subjects, rows
from tests.benchmarks.consume import MAX_IN_FLIGHT, PEER_COUNT, filled
from tests.benchmarks.harness import Bench
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

PROGRAM = "nsqkit_blocking"

FLOORS = (Floor(ratio=1.0, peer="pynsq"), Floor(ratio=1.0, peer="gnsq"))

# Name of the row, messages, messages in a command.
PUBLISHING = (("blocking PUB, one by one", 4_000, 1), ("blocking MPUB of 100, one by one", 100_000, 100))


def measure(bench: Bench) -> Iterator[Row]:
    """Measure each way of publishing, and a handler."""
    figures = [Figure("per_second", "msg/s", floors=FLOORS)]
    for what, count, batch in PUBLISHING:
        with bench.serve() as broker:
            task = Assignment(mode="publish", address=broker.address, count=bench.effort.count(count), batch=batch)
            prepare = partial(raw_client.make_channel, broker.address)
            subjects = nsqkit_subjects(bench, task, prepare, PROGRAM) | peer_subjects(bench, task, prepare)
            samples = bench.take_turns(subjects)
        yield from rows(bench, what, samples, figures)
    with bench.serve() as broker:
        task = Assignment(
            mode="consume",
            address=broker.address,
            count=bench.effort.count(PEER_COUNT),
            max_in_flight=MAX_IN_FLIGHT,
        )
        fill = filled(broker, task)
        subjects = nsqkit_subjects(bench, task, fill, PROGRAM) | peer_subjects(bench, task, fill)
        samples = bench.take_turns(subjects)
    cpu = Figure("cpu_per_100k", "CPU s/100 k", less_is_better=True, floors=FLOORS)
    yield from rows(bench, "blocking consume, handler", samples, [*figures, cpu])
