"""One nsqd of a pool: its connection, the batches that gather for it, and receipts for the answers that come from it.

A publish is handed over in one turn of the event loop, without waiting: between choosing an nsqd that is ready and
``offer``, nothing can change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from nsqkit.errors import BrokerError, NotConnected
from nsqkit.loop_thread.one_shot import OneShot
from nsqkit.producer.linger import BatchRefused
from nsqkit.producer.session import Answers, ProducerSession, Urgency
from nsqkit.producer.stats import NsqdStats
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    import asyncio

    from nsqkit.client.connection import Connection
    from nsqkit.clock import Clock
    from nsqkit.errors import NSQError
    from nsqkit.producer.linger import Linger
    from nsqkit.producer.send_window import SendWindow


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
            Closed: the producer was left before the message was sent again.
        """
        await self


class PoolConnection:
    """An nsqd to publish to.

    Args:
        connection: to it.
        linger: gathers publishes for it; None if they are sent one by one.
        clock: the time.
        window: counts the bytes of publishes without an answer; None for no limit.

    Attributes:
        address: of the nsqd.
        connection: to it.
        message_count: messages that it has acknowledged.
        refused_count: publishes that it has refused.
        lost_count: publishes that were sent and never answered.
    """

    def __init__(
        self,
        connection: Connection[ProducerSession],
        linger: Linger | None,
        clock: Clock,
        window: SendWindow[OneShot[None]] | None = None,
    ) -> None:
        self.address = connection.address
        self.connection = connection
        self.message_count = 0
        self.refused_count = 0
        self.lost_count = 0
        self._linger = linger
        self._clock = clock
        self._window = window
        self._timer = None if linger is None else Timer(linger, clock, after=lambda _: self._send_ready())

    @property
    def tasks(self) -> list[Callable[[], Awaitable[None]]]:
        """The functions to run in tasks while the producer is used."""
        run = self.connection.run
        return [run] if self._timer is None else [run, self._timer.run]

    @property
    def is_connected(self) -> bool:
        """True while there is a connection, after its handshake."""
        session = self.connection.session
        return session is not None and session.is_open

    @property
    def is_ready(self) -> bool:
        """True while it accepts publishes."""
        session = self.connection.session
        return session is not None and session.is_ready

    @property
    def is_awaited(self) -> bool:
        """True while a publish that was not cancelled has no answer."""
        session = self.connection.session
        return session is not None and session.is_open and session.is_awaited

    @property
    def is_idle(self) -> bool:
        """True while it is connected and has nothing in flight; never where publishes linger."""
        return self._linger is None and self.is_connected and not self.outstanding_count

    @property
    def outstanding_count(self) -> int:
        """Commands without an answer, and publishes that linger."""
        session = self.connection.session
        return 0 if session is None else session.outstanding_count

    def offer(self, topic: bytes | None, data: bytes, receipt: Receipt) -> ProducerSession | None:
        """Publish, if this nsqd is ready.

        Args:
            topic: of a message that may linger; None if ``data`` is a command.
            data: the body of that message, or the command.
            receipt: gets the answer.

        Returns:
            The session, from which the publish can be withdrawn; None if it is not ready.
        """
        connection = self.connection
        session = connection.session
        if session is None or not session.is_ready:
            return None
        if topic is None:
            urgency = session.publish(data, receipt)
            if urgency is not None:
                (connection.flush if urgency is Urgency.NOW else connection.wake)()
        elif self._linger is not None and self._linger.join(topic, data, receipt):
            self._send_batches(self._linger)
        return session

    def process_events(self) -> list[Receipt]:
        """Resolve the receipts that the session has answers for; return those whose publish is to be sent again."""
        session = self.connection.session
        again: list[Receipt] = []
        for event in session.events() if session is not None and session.has_events else ():
            assert isinstance(event, Answers)
            receipt: Receipt
            size = 0 if self._window is None else sum([receipt.size for receipt in event.ok])
            self.message_count += sum([receipt.count for receipt in event.ok])
            Receipt.resolve_all(event.ok)
            for receipt, error in event.failed:
                if receipt.again is not None and isinstance(error, BatchRefused):
                    again.append(receipt)
                    continue
                self._count(error)
                size += receipt.size
                receipt.resolve(error)
            if size and self._window is not None:
                for waiter in self._window.release(size):
                    waiter.resolve(None)
        return again

    def _count(self, error: NSQError) -> None:
        if isinstance(error, BrokerError):
            self.refused_count += 1
        elif not isinstance(error, NotConnected):
            self.lost_count += 1

    def send(self, command: bytes) -> None:
        """Send a command that has no answer, if there is a connection."""
        session = self.connection.session
        if session is not None and session.is_open:
            session.send(command)
            self.connection.wake()

    def close(self) -> bool:
        """Have the connection closed when everything is sent; return whether there is one."""
        session = self.connection.session
        if session is None or not session.is_open:
            return False
        session.end(None)
        self.connection.wake()
        return True

    def flush(self) -> None:
        """Send what lingers."""
        if self._linger is not None:
            self._linger.flush()
        self._send_ready()

    def stats(self) -> NsqdStats:
        """Return the state of the connection, and the counts."""
        session = self.connection.session
        return NsqdStats(
            address=self.address,
            is_connected=self.is_connected,
            message_count=self.message_count,
            refused_count=self.refused_count,
            lost_count=self.lost_count,
            outstanding_count=self.outstanding_count,
            error=self.connection.error,
            auth=session.auth if session is not None else None,
        )

    def _send_batches(self, linger: Linger) -> None:
        """Send the batches that are ready, and set the timer for those that were opened."""
        linger.set_deadlines(self._clock.now_ns())
        if self._timer is not None:
            self._timer.check()
        if linger.has_ready:
            self._send_ready()

    def _send_ready(self) -> None:
        session = self.connection.session
        if session is not None:
            session.check_linger()
        self.connection.wake()
