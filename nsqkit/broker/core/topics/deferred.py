"""The deferred messages of a channel: published with a delay, or requeued with one.

None is delivered before its time. Messages of one time are delivered in the order in which they were deferred.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Deferred:
    """The deferred messages of one channel."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, frame: bytes, due_ns: int) -> None:
        """Hold a message until ``due_ns``."""
        self._count += 1
        heappush(self._heap, (due_ns, self._count, frame))

    def messages(self) -> list[tuple[int, bytes]]:
        """Return the time and the frame of each message, earliest first."""
        return [(due_ns, frame) for due_ns, _, frame in sorted(self._heap)]

    def remove_everything(self) -> list[bytes]:
        """Remove all messages; return their frames, earliest first."""
        frames = [frame for _, frame in self.messages()]
        self._heap.clear()
        return frames

    def remove_due(self, now_ns: int) -> list[bytes]:
        """Remove the messages whose time has come; return their frames."""
        heap = self._heap
        due = []
        while heap and heap[0][0] <= now_ns:
            due.append(heappop(heap)[2])
        return due

    def next_deadline(self) -> int | None:
        """Return the earliest time of a message, None without messages."""
        return self._heap[0][0] if self._heap else None
