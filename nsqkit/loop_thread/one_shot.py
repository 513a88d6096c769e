"""One-shot futures: a result that comes once, for tasks, threads and callbacks.

A result is set once, may be set before anything waits for it, and stays. A wait that is cancelled changes nothing.
Most are made where messages are published one by one, so what a wait needs (a future of the event loop, a lock) is
made when the wait begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")

_LOCK = type(threading.Lock())


class OneShot(Generic[T]):
    """A result or an error that is set once.

    Attributes:
        is_answered: True once it is set.
        error: the error; None before, and where there is a result.
    """

    __slots__ = ("_callback", "_result", "_waiter", "error", "is_answered")

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_answered = False
        self._result: T | None = None
        self._callback: Callable[[Exception | None], object] | None = None
        self._waiter: Any = None  # a lock or an asyncio future

    def resolve(self, error: Exception | None, result: T | None = None) -> None:
        """Set the error, or the result where ``error`` is None; to be called once."""
        self.error = error
        self._result = result
        self.is_answered = True  # before the look at _waiter: join() does the same in the opposite order
        waiter = self._waiter
        if waiter is not None:
            if type(waiter) is _LOCK:
                waiter.release()
            elif not waiter.done():
                waiter.set_result(None)
        if self._callback is not None:
            self._callback(error)

    def result(self) -> T:
        """Return the result or raise the error, once ``is_answered``."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def call_back(self, callback: Callable[[Exception | None], object]) -> None:
        """Call a function once with the error, None for a result: when it is set, or now if it is.

        Call this in the thread that calls ``resolve``.
        """
        earlier = self._callback
        if self.is_answered:
            callback(self.error)
        elif earlier is None:
            self._callback = callback
        else:
            self._callback = lambda error: (earlier(error), callback(error))

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_answered:
            loop = _running_loop() if self._waiter is None else None
            if loop is not None:
                self._waiter = loop.create_future()  # a third of the cost of an event
                yield from self._waiter
            else:
                event = anyio.Event()
                self.call_back(lambda error: event.set())
                yield from event.wait().__await__()
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def join(self, timeout: float = -1) -> bool:
        """Wait in this thread, while another one calls ``resolve``; return ``is_answered``.

        Args:
            timeout: seconds; -1 for no limit. A limit arms a timer, which costs more than the rest of a wait.
        """
        if not self.is_answered:
            if self._waiter is None:
                lock = threading.Lock()
                lock.acquire()
                self._waiter = lock
            # It may have been set before _waiter was, so without a release.
            if not self.is_answered and self._waiter.acquire(timeout=timeout):
                self._waiter.release()
        return self.is_answered

    def get(self) -> T:
        """Wait in this thread, and return the result or raise the error."""
        self.join()
        return self.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running asyncio loop; None on trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
