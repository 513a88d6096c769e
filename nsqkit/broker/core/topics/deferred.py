"""The deferred messages of a channel: published with a delay, or requeued with one.

The rule it guards: none comes before its time, and those of one time come in the order in which they were deferred.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from nsqkit.wire.messages import id_of


class Deferred:
    """A channel's messages that wait for their time.

    Args:
        on_due: called with the frames whose time has come.
    """

    __slots__ = ("_count", "_heap", "_on_due", "due_ns")

    def __init__(self, on_due: Callable[[list[bytes]], None]) -> None:
        self._on_due = on_due
        self._heap: list[tuple[int, int, bytes]] = []
        self._count = 0
        self.due_ns: int | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, frame: bytes, due_ns: int) -> None:
        """Hold a message until ``due_ns``."""
        self._count += 1
        heappush(self._heap, (due_ns, self._count, frame))

    def times(self) -> dict[bytes, int]:
        """Return when each message is due, by id."""
        return {id_of(frame): due_ns for due_ns, _, frame in self._heap}

    def take_all(self) -> list[bytes]:
        """Remove and return the frames of all messages, earliest first."""
        frames = [frame for _, _, frame in sorted(self._heap)]
        self._heap.clear()
        return frames

    def handle_deadline(self, now_ns: int) -> int | None:
        """Let go what is due; return when the next one is, None when none is left."""
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now_ns:
            due.append(heappop(heap)[2])
        if due:
            self._on_due(due)
        return heap[0][0] if heap else None
