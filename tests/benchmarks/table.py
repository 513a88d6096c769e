"""Rows of figures, and their table.

Beside nsqkit's figure a row has the best peer's figure of the same run, the ratio of both, and whether the floor, if
there is one, was reached. Figures of several rounds are compared round by round, since a machine is slower in one round
than in another, for both.

"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import attrs

COLUMNS = ("what", "unit", "nsqkit", "best peer", "ratio", "floor")


class Median(float):
    """The median of several rounds, which it keeps.

    Args:
        rounds: the figure of each round; at least one.

    Attributes:
        rounds: the figure of each round.
    """

    rounds: Sequence[float]

    def __new__(cls, rounds: Sequence[float]) -> Self:
        median = super().__new__(cls, statistics.median(rounds))
        median.rounds = rounds
        return median


@attrs.frozen
class Floor:
    """A bound of a figure: an amount in the row's unit, or a ratio to a peer.

    Attributes:
        at_most: the figure itself is this or less; None leaves that open.
        at_least: the figure itself is this or more; None leaves that open.
        ratio: nsqkit is at least so many times better; None leaves that open.
        peer: than this peer; by default than the best one.
    """

    at_most: float | None = None
    at_least: float | None = None
    ratio: float | None = None
    peer: str | None = None

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        if self.at_least is not None:
            return f"≥ {self.at_least:,}"
        return f"≥ {self.ratio:g}× {self.peer or 'best peer'}"


@attrs.frozen(kw_only=True)
class Row:
    """One figure.

    Attributes:
        what: the measured operation.
        unit: of all figures in the row.
        value: nsqkit's.
        peers: the others', by name.
        less_is_better: True for costs, False for rates.
        floors: the bounds.
    """

    what: str
    unit: str
    value: float
    peers: Mapping[str, float] = attrs.field(factory=dict)
    less_is_better: bool = False
    floors: Sequence[Floor] = ()

    @property
    def best_peer(self) -> str | None:
        """The name of the peer that nsqkit is the fewest times better than, None if there was none."""
        return min(self.peers, key=lambda peer: self._times_better(self.peers[peer]), default=None)

    def ratio(self, peer: str | None = None) -> float | None:
        """Return how many times nsqkit is better than ``peer``, by default the best one."""
        other = self.peers.get(peer or self.best_peer or "")
        return self._times_better(other) if other and self.value else None

    def _times_better(self, other: float) -> float:
        ours, theirs = _rounds(self.value), _rounds(other)
        if len(ours) != len(theirs):
            ours, theirs = (self.value,), (other,)
        if self.less_is_better:
            ours, theirs = theirs, ours
        return statistics.median(a / b if b else math.inf for a, b in zip(ours, theirs, strict=True))

    def is_met(self, floor: Floor) -> bool | None:
        """Return whether ``floor`` is reached; None if there was no peer to compare with."""
        if floor.at_most is not None:
            return self.value <= floor.at_most
        if floor.at_least is not None:
            return self.value >= floor.at_least
        ratio = self.ratio(floor.peer)
        return None if ratio is None else ratio >= (floor.ratio or 0)

    def as_document(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            **attrs.asdict(self, filter=attrs.filters.exclude("floors")),
            "best_peer": self.best_peer,
            "ratio": self.ratio(),
            "floors": [{"floor": str(floor), "met": self.is_met(floor)} for floor in self.floors],
        }


def render(rows: Iterable[Row]) -> str:
    """Return the table as text."""
    table = [COLUMNS, *(tuple(_cells(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(_line(cells, widths).rstrip() for cells in table)


def summary(rows: Iterable[Row]) -> str:
    """Return one line: how many floors were reached, and which were not."""
    verdicts = [(row, floor, row.is_met(floor)) for row in rows for floor in row.floors]
    decided = [met for _, _, met in verdicts if met is not None]
    missed = [
        f"{row.what}, {row.unit}: {_figure(row.value)} ({_comparison(row, floor)})"
        for row, floor, met in verdicts
        if met is False
    ]
    parts = [
        f"floors: {sum(decided)} of {len(decided)} met",
        *(["missed: " + "; ".join(missed)] if missed else []),
    ]
    if without := len(verdicts) - len(decided):
        parts.append(f"{without} have no peer in this run")
    return ", ".join(parts)


def _rounds(figure: float) -> Sequence[float]:
    return figure.rounds if isinstance(figure, Median) else (figure,)


def _comparison(row: Row, floor: Floor) -> str:
    ratio = row.ratio(floor.peer)
    return str(floor) if floor.ratio is None or ratio is None else f"{_cut(ratio)}, {floor}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Align names to the left of their column, figures to the right."""
    aligned = (
        cell.rjust(width) if column in {"nsqkit", "ratio"} else cell.ljust(width)
        for column, cell, width in zip(COLUMNS, cells, widths, strict=True)
    )
    return "  ".join(aligned)


def _cells(row: Row) -> Iterator[str]:
    ratio = row.ratio()
    yield row.what
    yield row.unit
    yield _figure(row.value)
    yield f"{row.best_peer} {_figure(row.peers[row.best_peer])}" if row.best_peer else ""
    yield "" if ratio is None else _cut(ratio)
    yield ", ".join(f"{floor} {_VERDICTS[row.is_met(floor)]}" for floor in row.floors)


_VERDICTS = {True: "met", False: "missed", None: "has no peer"}


def _cut(ratio: float) -> str:
    """Cut, not rounded: 1.297 is no 1.30 where that is the floor."""
    return f"{math.floor(ratio * 100) / 100:.2f}"


def _figure(value: float) -> str:
    """Return three digits of a small number, and all digits before the point of a large one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
