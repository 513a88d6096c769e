"""The tasks behind an ``async with`` block: what a producer or a consumer does while its user does something else.

The rule it guards: the user's cancellation and the user's exceptions are the user's. A plain task group would have
its tasks cancelled along with the block, before the good-bye that ``__aexit__`` says for them, and would wrap an
exception of the block in an ``ExceptionGroup``. Here tasks go on until ``end``, and the exception stays as it is.
An error of a task is nobody's wish: it cancels the block and comes out in the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVarTuple, Unpack

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

Args = TypeVarTuple("Args")


class Background:
    """Tasks, from ``start`` (for ``__aenter__``) to ``end`` (for ``__aexit__``)."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._shelters: list[anyio.CancelScope] = []

    async def start(self) -> None:
        """Open the block."""
        self._tasks = await anyio.create_task_group().__aenter__()

    def start_soon(self, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Start a task that calls ``function`` with ``args``."""
        assert self._tasks is not None
        shelter = anyio.CancelScope(shield=True)
        self._shelters.append(shelter)
        self._tasks.start_soon(_run, shelter, function, *args)

    async def end(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Cancel the tasks and close the block; return what ``__aexit__`` has to return.

        Raises:
            ExceptionGroup: of the errors that tasks have ended with.
        """
        assert self._tasks is not None
        for shelter in self._shelters:
            shelter.cancel()
        self._tasks.cancel_scope.cancel()
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            return await self._tasks.__aexit__(exc_type, exc, traceback)
        await self._tasks.__aexit__(None, None, None)
        return None


async def _run(
    shelter: anyio.CancelScope, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args
) -> None:
    with shelter:
        await function(*args)
