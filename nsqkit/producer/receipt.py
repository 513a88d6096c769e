"""Receipts: the answer to one publish, which may be awaited or ignored."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from nsqkit.loop_thread.one_shot import OneShot

Again: TypeAlias = "tuple[bytes, bytes, bytes | None]"
"""Topic, body and key of a publish that is sent again by itself if the broker refuses its batch."""


class Receipt(OneShot[None]):
    """The answer to one publish, which comes later: ``await receipt`` returns on OK and raises the error otherwise.

    Args:
        count: messages that it is for.
        size: bytes that the answer releases in the send window; 0 if the publishing task releases them.
        again: what to send again if a batch was refused; None if the publishing task does that.
        waiter: as for ``OneShot``.

    Attributes:
        is_answered: True once the answer is there.
        error: the error; None on OK, and before the answer.
    """

    __slots__ = ("again", "count", "size")

    def __init__(
        self, count: int, size: int, again: Again | None = None, waiter: asyncio.Future[None] | None = None
    ) -> None:
        # What OneShot.__init__ does; a call would cost as much again, for each message.
        self.error = self._callback = None
        self.is_answered = False
        self._waiter = waiter
        self.count = count
        self.size = size
        self.again = again

    async def wait(self) -> None:
        """Return when the broker has acknowledged.

        Raises:
            BrokerError: it has refused.
            ConnectionLost: the connection was lost before the answer; the message may have arrived.
            NotConnected: it was lost before the message was sent.
        """
        await self
