"""A task group for objects that users enter with ``async with``, such as producers and consumers.

A plain task group would cancel its tasks together with the user's block, before ``__aexit__`` can close connections in
order, and would wrap an exception of the block in an ``ExceptionGroup``. Here the tasks run until ``end``, and the
block's exception stays as it is. An error of a task cancels the block and is raised in an ``ExceptionGroup``.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import anyio

from nsqkit.transport.interrupts import without_interrupts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

Args = TypeVarTuple("Args")


class TaskScope:
    """Tasks, from ``start`` (for ``__aenter__``) to ``end`` (for ``__aexit__``)."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._added = anyio.Event()
        self._shields: dict[anyio.CancelScope, None] = {}  # cancelled in this order, the same in each run
        self._is_ending = False

    async def start(self) -> None:
        """Open the task group."""
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run, self._start_waiting)

    def start_soon(self, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Start a task that calls ``function`` with ``args``; callbacks of the event loop can call this, too."""
        self._waiting.append(partial(function, *args))
        self._added.set()

    async def end(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Cancel the tasks and close the task group; return the value for ``__aexit__`` to return.

        Raises:
            ExceptionGroup: of the tasks' errors.
        """
        assert self._tasks is not None
        self._is_ending = True
        for scope in self._shields:
            scope.cancel()
        self._tasks.cancel_scope.cancel()
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            try:
                return await self._tasks.__aexit__(exc_type, exc, traceback)
            except anyio.get_cancelled_exc_class() as raised:
                if raised is not exc:
                    raise
                # An AsyncExitStack would make an exception that is raised again its own context, and then never end.
                return False
        await self._tasks.__aexit__(None, None, None)
        return None

    async def _start_waiting(self) -> None:
        """Start tasks, from a task: outside of one, anyio can start a task only in an event loop that it has run."""
        assert self._tasks is not None
        while True:
            self._added = anyio.Event()
            while self._waiting:
                self._tasks.start_soon(self._run, self._waiting.popleft())
            await self._added.wait()

    async def _run(self, function: Callable[[], Awaitable[None]]) -> None:
        with anyio.CancelScope(shield=not self._is_ending) as scope:
            self._shields[scope] = None
            try:
                await without_interrupts(function)
            finally:
                self._shields.pop(scope, None)
