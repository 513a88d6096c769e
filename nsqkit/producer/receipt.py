"""Receipts: what ``publish_nowait`` returns at once, for an answer that comes later.

The rule it guards: the answer stays. Whoever waits for it may be cancelled, and ask again; nobody has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from nsqkit.errors import NSQError


class Receipt:
    """The answer to one publish, some day: ``await receipt`` returns on OK and raises what came instead.

    Args:
        on_answer: called once with the answer, None for OK.

    Attributes:
        is_answered: True once the answer is there.
        error: what came instead of OK; None before, too.
    """

    __slots__ = ("_callback", "_event", "_on_answer", "error", "is_answered")

    def __init__(self, on_answer: Callable[[NSQError | None], None]) -> None:
        self.error: NSQError | None = None
        self.is_answered = False
        self._on_answer = on_answer
        self._callback: Callable[[NSQError | None], object] | None = None
        self._event: anyio.Event | None = None  # made for those who wait, of whom there may be none

    async def wait(self) -> None:
        """Return when the broker has acknowledged.

        Raises:
            BrokerError: it has refused.
            ConnectionLost: the connection was lost before the answer; the message may have arrived.
            NotConnected: it was lost before the message was sent.
        """
        if not self.is_answered:
            self._event = self._event or anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error

    def call_back(self, callback: Callable[[NSQError | None], object]) -> None:
        """Have a function called once with the answer, None for OK: when it comes, or now if it is there."""
        if self.is_answered:
            callback(self.error)
        else:
            self._callback = callback

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    # ---- as a waiter ---------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Tell whether the answer is there."""
        return self.is_answered

    def cancelled(self) -> bool:
        """Tell that the answer is wanted: always."""
        return False

    def cancel(self) -> None:
        """Go on wanting the answer."""

    def set_result(self, result: NSQError | None, /) -> None:
        """Take the answer."""
        self.error = result
        self.is_answered = True
        self._on_answer(result)
        if self._callback is not None:
            self._callback(result)
        if self._event is not None:
            self._event.set()
