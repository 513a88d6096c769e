"""The send window: how many bytes may be published without an answer, and the publishes that wait for space.

Publishes get space in order of arrival. A small one does not overtake a large one that waits, which would never get
space otherwise; one that is larger than the whole window gets space when the window is empty.

The window calls nothing: ``release`` and ``leave`` return the waiters that have got space, ``clear`` those that get
none.
"""

from __future__ import annotations

from typing import Generic, TypeVar

W = TypeVar("W")


class SendWindow(Generic[W]):
    """Bytes that were published and have no answer yet; ``size`` is their number."""

    def __init__(self, size_max: int) -> None:
        self.size = 0
        self._size_max = size_max
        self._waiting: dict[W, int] = {}  # in order of arrival

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self, size: int) -> bool:
        """Take ``size`` bytes if there is space for them and no other publish waits; return whether it was so."""
        if self._waiting or not self._has_space(size):
            return False
        self.size += size
        return True

    def wait(self, size: int, waiter: W) -> None:
        """Add a publish that waits for ``size`` bytes."""
        self._waiting[waiter] = size

    def leave(self, waiter: W, size: int) -> list[W]:
        """Remove a publish that waits no longer, and release its bytes if it has got them already."""
        if self._waiting.pop(waiter, None) is None:
            self.size -= size
        return self._admit()

    def release(self, size: int) -> list[W]:
        """Release the bytes of publishes that were answered; return the waiters that have got space."""
        self.size -= size
        return self._admit() if self._waiting else []

    def clear(self) -> list[W]:
        """Remove all waiters and return them."""
        waiters = [*self._waiting]
        self._waiting.clear()
        return waiters

    def _has_space(self, size: int) -> bool:
        return not self.size or self.size + size <= self._size_max

    def _admit(self) -> list[W]:
        admitted = []
        for waiter, size in self._waiting.items():
            if not self._has_space(size):
                break
            self.size += size
            admitted.append(waiter)
        for waiter in admitted:
            del self._waiting[waiter]
        return admitted
