"""The deadlines of a world, in one heap.

An owner is given to ``update`` after anything that may change its deadline. An entry that a later one of the same owner
supersedes stays in the heap until its time comes, so an update costs little.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol


class Timed(Protocol):
    """An owner of a deadline; ``agenda_ns`` is set by the agenda, and is None at first."""

    agenda_ns: int | None

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline``."""
        ...

    def handle_deadline(self, now_ns: int) -> None:
        """Do the work that is due."""
        ...


class Agenda:
    """The owners of deadlines, earliest first; equal deadlines are in the order in which they were given."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._count = 0

    def update(self, owner: Timed) -> None:
        """Read the deadline of an owner."""
        due_ns = owner.next_deadline()
        if due_ns != owner.agenda_ns:
            owner.agenda_ns = due_ns
            if due_ns is not None:
                self._count += 1
                heappush(self._heap, (due_ns, self._count, owner))

    def next_deadline(self) -> int | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap and heap[0][2].agenda_ns != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[Timed]:
        """Remove the deadlines that have come; return their owners."""
        due: list[Timed] = []
        while (due_ns := self.next_deadline()) is not None and due_ns <= now_ns:
            owner = heappop(self._heap)[2]
            owner.agenda_ns = None
            due.append(owner)
        return due
