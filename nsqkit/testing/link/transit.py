"""The bytes of one direction on their way: delayed, limited in rate or cut into slices, and always in order."""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

NS_PER_S: Final = 1_000_000_000

_PIECES_PER_S: Final = 100
"""The bytes of a limited rate leave in so many equal pieces in a second, or byte by byte if the rate is lower."""


@attrs.frozen(kw_only=True)
class Flow:
    """How bytes travel.

    Attributes:
        delay_ns: the time between arrival and departure.
        rate: bytes per second; 0 for no limit.
        slice_size: the bytes of one write at most; 0 for no limit.
    """

    delay_ns: int = 0
    rate: int = 0
    slice_size: int = 0


FREE: Final = Flow()
"""Bytes leave at once."""


@attrs.define(eq=False)
class _Stretch:
    """Bytes that arrived together; those before ``start`` have left."""

    due_ns: int
    data: bytes
    flow: Flow
    start: int = 0


class Transit:
    """A queue of bytes. None of them overtakes another, so a delay holds all bytes after it, too.

    Attributes:
        size: the bytes in the queue.
    """

    def __init__(self) -> None:
        self.size = 0
        self._stretches: deque[_Stretch] = deque()
        self._free_ns = 0  # the limit of the rate allows no byte before

    def push(self, data: bytes, flow: Flow, now_ns: int) -> None:
        """Add bytes."""
        if data:
            self._stretches.append(_Stretch(now_ns + flow.delay_ns, data, flow))
            self.size += len(data)

    @property
    def is_sliced(self) -> bool:
        """True if the next bytes are a slice, which leaves alone."""
        return bool(self._stretches) and self._stretches[0].flow.slice_size > 0

    @property
    def next_due(self) -> int | None:
        """The time, in ns, of the next departure; None if the queue is empty."""
        return max(self._stretches[0].due_ns, self._free_ns) if self._stretches else None

    def pull(self, now_ns: int) -> bytes:
        """Remove and return the bytes that leave until ``now_ns``; of slices only one."""
        departed: list[bytes] = []
        while (due_ns := self.next_due) is not None and due_ns <= now_ns:
            if departed and self.is_sliced:
                break
            flow = self._stretches[0].flow
            departed.append(self._depart(due_ns))
            if flow.slice_size:
                break
        return b"".join(departed)

    def _depart(self, due_ns: int) -> bytes:
        stretch = self._stretches[0]
        flow, start = stretch.flow, stretch.start
        count = len(stretch.data) - start
        if flow.slice_size:
            count = min(count, flow.slice_size)
        if flow.rate:
            count = min(count, max(1, flow.rate // _PIECES_PER_S))
            self._free_ns = due_ns + count * NS_PER_S // flow.rate
        stretch.start += count
        if stretch.start == len(stretch.data):
            self._stretches.popleft()
        self.size -= count
        return stretch.data[start : start + count]

    def clear(self) -> None:
        """Lose all bytes."""
        self._stretches.clear()
        self.size = 0
