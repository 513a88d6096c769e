"""The deadlines of a broker, in a heap.

A deadline is a lower bound: the earliest time at which its owner could have something to do. When it has come, the
owner's ``handle_deadline`` looks for itself and returns its next deadline. So a message that is finished in time, as
nearly all are, reschedules nothing, and an idle channel costs nothing.

An entry that an earlier one of the same owner supersedes stays in the heap until its time comes, or until most entries
are superseded.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Protocol

_HEAP_LENGTH_MIN: Final = 64  # a shorter heap is not searched for superseded entries


class Timed(Protocol):
    """An owner of a deadline."""

    due_ns: int | None
    """The deadline, set by ``Timers``; None without one."""

    def handle_deadline(self, now_ns: int) -> int | None:
        """Do the work that is due at ``now_ns``; return the next deadline, None for none."""


class Timers:
    """A heap of deadlines.

    Attributes:
        has_news: a deadline was added since it was last set to False.
    """

    __slots__ = ("_count", "_heap", "_heap_length_max", "has_news")

    def __init__(self) -> None:
        self.has_news = False
        self._heap: list[tuple[int, int, Timed]] = []
        self._heap_length_max = _HEAP_LENGTH_MIN
        self._count = 0  # equal deadlines are due in the order in which they were added

    def schedule(self, owner: Timed, due_ns: int) -> None:
        """Give ``owner`` a deadline, unless it has an earlier one."""
        if owner.due_ns is None or due_ns < owner.due_ns:
            owner.due_ns = due_ns
            self.has_news = True
            self._count += 1
            heappush(self._heap, (due_ns, self._count, owner))
            if len(self._heap) > self._heap_length_max:
                self._drop_superseded()

    def schedule_messages(self, owner: Timed, due_ns: int) -> None:
        """Give a deadline to an owner of messages that time out or are deferred."""
        self.schedule(owner, due_ns)

    def cancel(self, owner: Timed) -> None:
        """Take the deadline of ``owner`` away."""
        owner.due_ns = None

    def _drop_superseded(self) -> None:
        """Keep the valid entry of each owner, and do so again when the heap has twice as many."""
        valid = {entry[2]: entry for entry in self._heap if entry[2].due_ns == entry[0]}
        self._heap = sorted(valid.values())
        self._heap_length_max = max(2 * len(valid), _HEAP_LENGTH_MIN)

    def next_deadline(self) -> int | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap and heap[0][2].due_ns != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[Timed]:
        """Remove the deadlines that have come; return their owners, earliest first."""
        due = []
        while (deadline_ns := self.next_deadline()) is not None and deadline_ns <= now_ns:
            owner = heappop(self._heap)[2]
            owner.due_ns = None
            due.append(owner)
        return due
