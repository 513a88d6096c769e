"""Where one thread waits for what the event loop tells it.

The rule it guards: it is told once, and may be told before it waits. A lock is all there is to it: a hundred thousand
of them are made where a hundred thousand messages are published one after the other.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """Where one thread waits for what the event loop tells it, once."""

    __slots__ = ("_error", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._result: T | None = None
        self._error: Exception | None = None

    def tell(self, result: T) -> None:
        """End the wait with a result."""
        self._result = result
        self._lock.release()

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        self._error = error
        self._lock.release()

    def settle(self, error: Exception | None) -> None:
        """End the wait with an error, or without one."""
        self._error = error
        self._lock.release()

    def wait(self) -> T:
        """Wait, and return, or raise, what it is told."""
        self._lock.acquire()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def is_told(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds; tell whether it was told. It can still be waited for."""
        # A wait with a limit arms a timer, which costs more than all the rest; so it is for those who need it.
        if is_told := self._lock.acquire(timeout=timeout):
            self._lock.release()
        return is_told
