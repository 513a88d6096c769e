"""One-shot futures: a result that comes once, for tasks, threads and callbacks.

A result is set once, may be set before anything waits for it, and stays. A wait that is cancelled changes nothing.
Most are made where messages are published one by one, so what a wait needs (a future of the event loop, a lock) is
made when the wait begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")


class _ThreadWaiter:
    """The object with which a thread waits; it has the methods of a future that ``OneShot`` calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self.lock.release()


class OneShot(Generic[T]):
    """A result or an error that is set once.

    Args:
        waiter: a future of asyncio for the task that awaits it first, which costs a third of an event; None makes an
            event when it is awaited.

    Attributes:
        is_answered: True once it is set.
        error: the error; None before, and where there is a result.
    """

    __slots__ = ("_callback", "_result", "_waiter", "error", "is_answered")

    def __init__(self, waiter: asyncio.Future[None] | None = None) -> None:
        self.error: Exception | None = None
        self.is_answered = False
        self._callback: Callable[[Exception | None], object] | None = None
        self._waiter: Any = waiter  # of the first task, or of a thread

    def resolve(self, error: Exception | None, result: T | None = None) -> None:
        """Set the error, or the result where ``error`` is None; to be called once."""
        self.error = error
        self._result: T | None = result
        self.is_answered = True  # before the look at _waiter: join() does the same in the opposite order
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._callback is not None:
            self._callback(error)

    @staticmethod
    def resolve_all(one_shots: Iterable[OneShot[None]]) -> None:
        """Do as ``resolve(None)`` for each, with one call for all of them."""
        for one_shot in one_shots:
            one_shot._result = None
            one_shot.is_answered = True
            waiter = one_shot._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
            if one_shot._callback is not None:
                one_shot._callback(None)

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
            event = anyio.Event()
            self.call_back(lambda error: event.set())
            yield from event.wait().__await__()
        return self.result()

    def join(self, timeout: float = -1) -> bool:
        """Wait in this thread, while another one calls ``resolve``; return ``is_answered``.

        Args:
            timeout: seconds; -1 for no limit. A limit arms a timer, which costs more than the rest of a wait.
        """
        if not self.is_answered:
            if self._waiter is None:
                self._waiter = _ThreadWaiter()
            lock = self._waiter.lock
            # It may have been set before _waiter was, so without a release.
            if not self.is_answered and lock.acquire(timeout=timeout):
                lock.release()
        return self.is_answered

    def get(self) -> T:
        """Wait in this thread, and return the result or raise the error."""
        self.join()
        return self.result()
