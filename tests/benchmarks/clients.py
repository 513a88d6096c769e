"""Measures clients: nsqkit on each event loop, and its peers, with the same assignment.

One broker serves all of them, each run uses a separate topic, and only the client differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from tests.benchmarks.harness import Bench, Sample, run_program
from tests.benchmarks.programs.assignment import Assignment
from tests.benchmarks.table import Floor, Row

Subject: TypeAlias = Callable[[], Sample]
Prepare: TypeAlias = Callable[[str], None]
"""Called with the name of the topic before each run."""


@attrs.frozen
class Figure:
    """One figure of a client program's report, and its row in the table.

    Attributes:
        key: its name in the report.
        unit: unit of the row.
        suffix: part of the row's name.
        less_is_better: see ``Row``.
        floors: see ``Row``.
    """

    key: str
    unit: str
    suffix: str = ""
    less_is_better: bool = False
    floors: Sequence[Floor] = ()


def nsqkit_subjects(bench: Bench, task: Assignment, prepare: Prepare, program: str = "nsqkit") -> dict[str, Subject]:
    """Return nsqkit on each event loop, by the loop's name; ``program`` is another program for it."""
    return {loop: _subject(bench, program, attrs.evolve(task, loop=loop), prepare) for loop in bench.loops}


def peer_subjects(bench: Bench, task: Assignment, prepare: Prepare) -> dict[str, Subject]:
    """Return the peers that are installed, by name."""
    return {peer: _subject(bench, peer, task, prepare) for peer in bench.peers}


def _subject(bench: Bench, program: str, task: Assignment, prepare: Prepare) -> Subject:
    def run() -> Sample:
        topic = bench.new_topic()
        prepare(topic)
        return run_program(program, attrs.evolve(task, topic=topic))

    return run


def rows(bench: Bench, what: str, samples: Mapping[str, Sample], figures: Sequence[Figure]) -> Iterator[Row]:
    """Yield a row for each figure on each event loop; ``samples`` are by loop or peer."""
    for figure in figures:
        for loop in bench.loops:
            if loop in samples:
                yield Row(
                    what=f"{what}, {loop}{figure.suffix}",
                    unit=figure.unit,
                    value=samples[loop][figure.key],
                    peers={peer: samples[peer][figure.key] for peer in bench.peers if peer in samples},
                    less_is_better=figure.less_is_better,
                    floors=figure.floors,
                )
