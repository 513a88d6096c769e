"""Functions that wait, for tests of every kind: plain, asyncio and trio.

A method of the test double that waits returns ``wait(function)``. A plain test calls the method and has the result when
it returns. An async test awaits the method, and its event loop runs meanwhile. In a thread without an event loop, such
as a worker thread of an async test, the method does as in a plain test.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator

import anyio


def wait(function: Callable[[], object]) -> Awaitable[None]:
    """Call ``function``, which may block: now, or when the result is awaited, in a worker thread.

    Outside of an event loop ``function`` has returned, or has raised, when this returns; the result need not be
    awaited. Inside one the result is a coroutine. If it is cancelled, ``function`` continues in its thread, and its
    result is discarded.
    """
    if is_in_event_loop():
        return _run_in_thread(function)
    function()
    return _Done()


def is_in_event_loop() -> bool:
    """Return whether an event loop of asyncio or trio runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")  # a program that runs trio has imported it
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    return True


async def _run_in_thread(function: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(function, abandon_on_cancel=True)


class _Done(Awaitable[None]):
    """The result of a function that has returned."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
