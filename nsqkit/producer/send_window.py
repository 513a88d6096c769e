"""Backpressure: how many bytes may be on their way, and who waits until there is room.

The rule it guards: whoever asked first goes first. A small publish does not overtake a large one that waits, so the
large one is never starved; and one that is larger than the whole limit goes alone rather than never.

How to read it: ``take`` and ``give_back`` are all there is while there is room; ``wait`` and ``leave`` are for those
for whom there was none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.errors import NSQError
    from nsqkit.producer.waiter import Waiter


class SendWindow:
    """Bytes that were published and not answered.

    Args:
        size_max: how many there may be.

    Attributes:
        size: how many there are.
    """

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self._size_max = size_max
        self._waiting: dict[Waiter, int] = {}  # in order of arrival

    @property
    def waiting_count(self) -> int:
        """Publishes that wait for room."""
        return len(self._waiting)

    def take(self, size: int) -> bool:
        """Take room for ``size`` bytes if there is some and nobody waits for it; tell whether it was so."""
        if self._waiting or not self._has_room(size):
            return False
        self.size += size
        return True

    def wait(self, size: int, waiter: Waiter) -> None:
        """Have ``waiter`` told when room for ``size`` bytes was taken for it."""
        self._waiting[waiter] = size

    def leave(self, waiter: Waiter, size: int) -> None:
        """Take ``waiter`` out of the line; what was taken for it already is given back."""
        waiter.cancel()
        if waiter.cancelled():
            self._waiting.pop(waiter, None)
        else:
            self.size -= size
        self._admit()

    def give_back(self, size: int) -> None:
        """Take note that ``size`` bytes were answered."""
        self.size -= size
        if self._waiting:
            self._admit()

    def refuse(self, error: type[NSQError], why: str) -> None:
        """Tell all who wait that they will not get room."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                self.size += waiting[waiter]  # whoever is told leaves, with what it was given
                waiter.set_result(error(why))

    def _has_room(self, size: int) -> bool:
        return not self.size or self.size + size <= self._size_max

    def _admit(self) -> None:
        while self._waiting:
            waiter, size = next(iter(self._waiting.items()))
            if waiter.done():  # it was cancelled, and has not left yet
                del self._waiting[waiter]
            elif self._has_room(size):
                del self._waiting[waiter]
                self.size += size
                waiter.set_result(None)
            else:
                break
