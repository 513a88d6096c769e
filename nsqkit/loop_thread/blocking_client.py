"""What users hold who call without ``await``: opened, used by any thread, closed.

The rule it guards: it belongs to the process that has opened it. A process that was forked meanwhile may open it, too;
what it does then does not touch the parent's.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from nsqkit.errors import Closed
from nsqkit.loop_thread.loop_client import LoopClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any])


class BlockingClient(Generic[C]):
    """What is opened and closed by any thread, and used by all of them: for ``with``, or ``open`` and ``close``.

    It may be opened again after it was closed, and in a process that was forked while it was open.

    Args:
        make: makes the client; raises OptionError for what it cannot be made of, at once.
        name: what users call it, for errors.
        interrupt: called in the event loop with the client if ``close`` is interrupted; it makes leaving it quick.
    """

    def __init__(
        self, make: Callable[[], C], name: str, interrupt: Callable[[C], object] | None = None
    ) -> None:
        make()
        self._make = make
        self._name = name
        self._interrupt = interrupt
        self._loop_client: LoopClient[C] | None = None
        self._closed: C | None = None

    def open(self) -> Self:
        """Begin; connections are made meanwhile.

        Raises:
            Closed: it is open already.
        """
        if self._loop_client is not None and self._loop_client.is_here:
            raise Closed(f"the {self._name} is open already; make another one")
        self._loop_client = LoopClient(self._make, self._name, self._interrupt)
        return self

    def close(self) -> None:
        """End; nothing is left running. Does nothing if it is closed, or was opened in another process."""
        loop_client = self._loop_client
        if loop_client is not None and loop_client.is_here:
            try:
                loop_client.end()
            finally:
                self._loop_client = None
                self._closed = loop_client.client

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self, look: Callable[[C], T]) -> T:
        """Return what ``look`` returns of the client: in the event loop, or here once it is closed."""
        if self._loop_client is None and self._closed is not None:
            return look(self._closed)
        loop_client = self._opened()
        return loop_client.ask(partial(look, loop_client.client))

    def _opened(self) -> LoopClient[C]:
        if self._loop_client is None:
            raise Closed(
                f"the {self._name} is closed: use it inside of 'with', or between open() and close()"
            )
        return self._loop_client
