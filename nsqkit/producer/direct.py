"""Publishing in the caller's own thread: who publishes one by one talks to the nsqd itself.

The rule it guards: the event-loop thread is not woken for what one thread does alone. That two threads wake each other
takes longer than all the rest of a publish. So one thread that has published several times while no other has borrows
the connection (``nsqkit.transport.loan``). As soon as anybody else wants it, or nobody does, it goes back, and all
publishes take the event loop's way, where those of many threads share wake-ups, writes and reads.

How to read it: ``publish``, then ``_borrow``, which says when it is worth it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsqkit.loop_thread import LoopClient, OneShot

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.producer.arguments import Bytes
    from nsqkit.producer.producer import Producer
    from nsqkit.producer.receipt import Receipt
    from nsqkit.transport.loan import Loan

ALONE_MIN: Final = 16
"""Publishes of one thread in a row after which it borrows; whoever publishes now and then is not to pay for a loan."""

REFUSED_PAUSE: Final = 1000
"""Publishes after which it is tried again when nothing was lent: the producer may be one that never lends."""


class Direct:
    """The short cut of one open façade.

    Args:
        loop_client: where its producer is.
    """

    def __init__(self, loop_client: LoopClient[Producer]) -> None:
        self._loop_client = loop_client
        self._loan: Loan | None = None
        self._thread_id = 0
        self._alone_count = 0

    def publish(self, begin: Callable[..., Receipt], what: tuple[Any, ...], key: str | Bytes | None) -> bool:
        """Publish in this thread, and return when the broker has acknowledged, if that is worth it.

        Args:
            begin: the producer's method.
            what: what is published.
            key: what belongs together has the same.

        Returns:
            Whether it was published; if not, nothing has happened.

        Raises:
            NSQError: as the method, and what came instead of an acknowledgement.
            RuntimeError: as ``LoopClient.check``.
        """
        self._loop_client.check()
        loan = self._loan or self._borrow()
        if loan is None:
            return False
        call: OneShot[None] | None = None

        def leave(receipt: Receipt) -> None:
            nonlocal call
            call = OneShot()
            receipt.call_back(call.resolve)

        receipt = loan.use(partial(begin, self._loop_client.client, *what, key=key), leave)
        if receipt is None or call is not None:
            self._loan = None
        if receipt is None:
            return False
        if call is not None:
            call.get()
        elif receipt.error is not None:
            raise receipt.error
        return True

    def _borrow(self) -> Loan | None:
        """Borrow the connection if this thread has published alone for a while."""
        thread_id = threading.get_ident()
        if thread_id != self._thread_id:
            self._thread_id, self._alone_count = thread_id, 0
        self._alone_count += 1
        if self._alone_count <= ALONE_MIN:
            return None
        self._loan = self._loop_client.borrow(self._loop_client.client.lend)
        self._alone_count = 0 if self._loan is not None else -REFUSED_PAUSE
        return self._loan
