"""Receipts: what ``publish_nowait`` returns at once, for an answer that comes later.

The rule it guards: the answer stays. Whoever waits for it may be cancelled, and ask again; nobody has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from nsqkit.producer.linger import BatchRefused

if TYPE_CHECKING:
    from nsqkit.errors import NSQError

Settle: TypeAlias = "Callable[[NSQError | None, int, int], object]"


class Receipt:
    """The answer to one publish, some day: ``await receipt`` returns on OK and raises what came instead.

    Args:
        settle: called once with the answer (None for OK), and with ``count`` and ``size``.
        count: how many messages it is for.
        size: bytes of what was published.

    Attributes:
        settle: as given.
        is_answered: True once the answer is there.
        error: what came instead of OK; None before, too.
    """

    __slots__ = ("_callback", "_count", "_event", "_size", "error", "is_answered", "settle")

    def __init__(self, settle: Settle, count: int, size: int) -> None:
        self.error: NSQError | None = None
        self.is_answered = False
        self.settle = settle
        self._count = count
        self._size = size
        self._callback: Callable[[NSQError | None], object] | None = None
        self._event: anyio.Event | None = None  # made for those who wait, of whom there may be none

    async def wait(self) -> None:
        """Return when the broker has acknowledged.

        Raises:
            BrokerError: it has refused.
            ConnectionLost: the connection was lost before the answer; the message may have arrived.
            NotConnected: it was lost before the message was sent.
        """
        await self

    def call_back(self, callback: Callable[[NSQError | None], object]) -> None:
        """Have a function called once with the answer, None for OK: when it comes, or now if it is there."""
        earlier = self._callback
        if self.is_answered:
            callback(self.error)
        elif earlier is None:
            self._callback = callback
        else:
            self._callback = lambda error: (earlier(error), callback(error))

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_answered:
            self._event = self._event or anyio.Event()
            yield from self._event.wait().__await__()
        if self.error is not None:
            raise self.error

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
        self.settle(result, self._count, self._size)
        if self._callback is not None:
            self._callback(result)
        if self._event is not None:
            self._event.set()


class LingeringReceipt(Receipt):
    """The answer to a publish that may be sent with others.

    Args:
        settle: as for ``Receipt``; so are ``count`` and ``size``.
        count: how many messages it is for.
        size: bytes of what was published.
        send_again: called with the receipt, instead of an answer, if the broker has kept nothing of the batch.
    """

    __slots__ = ("_send_again",)

    def __init__(
        self, settle: Settle, count: int, size: int, send_again: Callable[[Receipt], object]
    ) -> None:
        super().__init__(settle, count, size)
        self._send_again = send_again

    def set_result(self, result: NSQError | None, /) -> None:
        """Take the answer, unless what was published goes again."""
        if isinstance(result, BatchRefused):
            self._send_again(self)
        else:
            super().set_result(result)
