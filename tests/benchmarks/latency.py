"""From the call of ``publish`` to the call of the handler, both in one client process, with nothing else going on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.benchmarks import raw_client
from tests.benchmarks.clients import Figure, nsqkit_subjects, peer_subjects, rows
from tests.benchmarks.harness import Bench
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

COUNT = 1000

FIGURES = (
    Figure("p50_ms", "ms", suffix=", p50", less_is_better=True, floors=(Floor(at_most=0.5),)),
    Figure("p99_ms", "ms", suffix=", p99", less_is_better=True),
)


def measure(bench: Bench) -> Iterator[Row]:
    """Measure with one message in flight at most, and with a hundred."""
    for max_in_flight in (1, 100):
        with bench.serve() as broker:
            task = Assignment(
                mode="latency",
                address=broker.address,
                count=bench.effort.count(COUNT),
                max_in_flight=max_in_flight,
            )
            prepare = partial(raw_client.make_channel, broker.address)
            subjects = {**nsqkit_subjects(bench, task, prepare), **peer_subjects(bench, task, prepare)}
            samples = bench.take_turns(subjects)
        yield from rows(bench, f"latency, max_in_flight {max_in_flight}", samples, FIGURES)
