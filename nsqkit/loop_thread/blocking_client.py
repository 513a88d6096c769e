"""The base of the clients that are used without ``await``: opened, used by any thread, closed.

A client belongs to the process that has opened it. A process that is forked meanwhile may open it itself, which does
not change the parent's.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from nsqkit.errors import Closed
from nsqkit.loop_thread.loop_client import LoopClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])


class BlockingClient(Generic[C]):
    """A client for any number of threads, used with ``with``, or from ``open`` to ``close``.

    It may be opened again after it was closed, and in a process that was forked while it was open.

    Args:
        make: makes the async client; also called at once, to raise OptionError for wrong options.
        name: its name in errors.
        interrupt: called in the event loop with the client if ``close`` is interrupted, so that leaving takes no time.
    """

    def __init__(self, make: Callable[[], C], name: str, interrupt: Callable[[C], object] | None = None) -> None:
        make()
        self._make = make
        self._name = name
        self._interrupt = interrupt
        self._loop_client: LoopClient[C] | None = None
        self._closed: C | None = None

    def open(self) -> Self:
        """Start; connections are made meanwhile. Raises ``Closed`` if it is open already."""
        if self._loop_client is not None and self._loop_client.is_here:
            raise Closed(f"the {self._name} is open already; make another one")
        self._loop_client = LoopClient(self._make, self._name, self._interrupt)
        return self

    def close(self) -> None:
        """Close; nothing is left running. Do nothing if it is closed, or was opened in another process."""
        loop_client = self._loop_client
        if loop_client is not None and loop_client.is_here:
            try:
                loop_client.end()
            finally:
                self._loop_client = None
                self._closed = loop_client.client

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _look(self, look: Callable[[C], T]) -> T:
        """Call ``look`` with the client, in the event loop, or here once it is closed, and return its result."""
        if self._loop_client is None and self._closed is not None:
            return look(self._closed)
        loop_client = self._opened()
        return loop_client.ask(partial(look, loop_client.client))

    def _opened(self) -> LoopClient[C]:
        loop_client = self._loop_client  # another thread may close it meanwhile
        if loop_client is None:
            raise Closed(f"the {self._name} is closed: use it inside of 'with', or between open() and close()")
        return loop_client


def forward(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """Return a method that calls ``method`` of the client in the event loop, with its signature and docstring."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop_client = self._opened()
        return loop_client.ask(partial(method, loop_client.client, *args, **kwargs))

    return call


def forward_async(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """Do as ``forward``, for an async method; the caller waits for its result."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop_client = self._opened()
        return loop_client.run(partial(method, loop_client.client, *args, **kwargs))

    return call
