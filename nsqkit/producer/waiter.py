"""Waiters: where the task that publishes waits for the answer to come.

The rule it guards: a waiter is told once. On asyncio it is one of the loop's own futures, which cost a third of an
event and are made by the hundred thousand; on trio it is an event with the answer beside it.

How to read it: ``Waiter`` is what the pure machines see, ``waiter_factory`` what makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import anyio

from nsqkit.transport.asyncio_stream import asyncio_loop

if TYPE_CHECKING:
    from nsqkit.errors import NSQError


class Waiter(Protocol):
    """Whoever awaits something: ``await`` gives what ``set_result`` was told."""

    def done(self) -> bool:
        """Tell whether nobody waits any more: it was told, or it was cancelled."""
        ...

    def cancelled(self) -> bool:
        """Tell whether it was cancelled before it was told."""
        ...

    def cancel(self) -> object:
        """Wait no more."""
        ...

    def set_result(self, result: NSQError | None, /) -> None:
        """Tell it that all is well (None), or what is wrong; only if it is not done."""
        ...

    def __await__(self) -> Generator[Any, None, NSQError | None]: ...


MakeWaiter: TypeAlias = "Callable[[], Waiter]"


class EventWaiter:
    """A waiter made of an event."""

    __slots__ = ("_event", "_is_cancelled", "_result")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._is_cancelled = False
        self._result: NSQError | None = None

    def done(self) -> bool:
        """Tell whether nobody waits any more."""
        return self._is_cancelled or self._event.is_set()

    def cancelled(self) -> bool:
        """Tell whether it was cancelled before it was told."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Wait no more."""
        self._is_cancelled = not self._event.is_set()

    def set_result(self, result: NSQError | None, /) -> None:
        """Wake the task that waits."""
        self._result = result
        self._event.set()

    def __await__(self) -> Generator[Any, None, NSQError | None]:
        yield from self._event.wait().__await__()
        return self._result


def waiter_factory() -> MakeWaiter:
    """Return what makes waiters for the running event loop."""
    loop = asyncio_loop()
    return EventWaiter if loop is None else loop.create_future
