"""One nsqd of a pool: its connection, what lingers for it, and what has become of publishes to it.

The rule it guards: a publish is put on its way in one turn of the event loop, without waiting: whoever has found a
destination ready hands it over before anything can change.

How to read it: ``offer`` is what dispatching calls; policies look at the properties.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nsqkit.errors import BrokerError, NotConnected
from nsqkit.producer.session import ProducerSession, Urgency
from nsqkit.producer.stats import NsqdStats
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from nsqkit.client.connection import Connection
    from nsqkit.clock import Clock
    from nsqkit.errors import NSQError
    from nsqkit.producer.linger import Linger
    from nsqkit.producer.send_window import SendWindow
    from nsqkit.producer.waiter import Waiter
    from nsqkit.transport.loan import Loan


class PoolConnection:
    """An nsqd to publish to.

    Args:
        connection: to it.
        linger: gathers publishes for it; None where nothing is gathered.
        clock: the time.
        outstanding: gets back the bytes of publishes that are settled; None where nothing is limited.

    Attributes:
        address: where it is.
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
        outstanding: SendWindow | None = None,
    ) -> None:
        self.address = connection.address
        self.connection = connection
        self.message_count = 0
        self.refused_count = 0
        self.lost_count = 0
        self._linger = linger
        self._clock = clock
        self._outstanding = outstanding
        self._timer = None if linger is None else Timer(linger, clock, after=connection.wake)

    @property
    def tasks(self) -> list[Callable[[], Awaitable[None]]]:
        """What is to run as long as the producer is used."""
        run = self.connection.run
        return [run] if self._timer is None else [run, self._timer.run]

    @property
    def is_connected(self) -> bool:
        """True while there is a connection that was greeted."""
        session = self.connection.session
        return session is not None and session.is_open

    @property
    def is_ready(self) -> bool:
        """True while it takes publishes."""
        session = self.connection.session
        return session is not None and session.has_room

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for its answer."""
        session = self.connection.session
        return session is not None and session.is_open and session.is_awaited

    @property
    def outstanding_count(self) -> int:
        """Commands that it has not answered yet, and publishes that linger."""
        session = self.connection.session
        return 0 if session is None else session.outstanding_count

    def offer(self, topic: bytes | None, data: bytes, waiter: Waiter) -> ProducerSession | None:
        """Put a publish on its way, if this nsqd is ready.

        Args:
            topic: of a message that may linger; None if ``data`` is a command.
            data: the body of that message, or the command.
            waiter: is told the answer.

        Returns:
            The session that the publish is withdrawn from if nobody waits any more; None if it was not taken.
        """
        connection = self.connection
        session = connection.session
        if session is None or not session.has_room:
            return None
        if topic is None:
            urgency = session.publish(data, waiter)
            if urgency is Urgency.SOON:
                connection.wake()
            elif urgency is Urgency.NOW:
                connection.flush()
        elif self._linger is not None and self._linger.join(topic, data, waiter):
            self._on_batch(session, self._linger)
        return session

    def lend(self, on_idle: Callable[[], None]) -> Loan | None:
        """Hand the connection to threads, if nothing is on its way there; see ``Connection.lend``."""
        if self._linger is not None or self.outstanding_count:
            return None
        return self.connection.lend(on_idle)

    def take_note(self, error: NSQError) -> None:
        """Count a publish that has failed here."""
        if isinstance(error, BrokerError):
            self.refused_count += 1
        elif not isinstance(error, NotConnected):
            self.lost_count += 1

    def settle(self, error: NSQError | None, count: int, size: int) -> None:
        """Count a publish of ``count`` messages that has come to its end here, and give back its bytes."""
        if error is None:
            self.message_count += count
        else:
            self.take_note(error)
        if self._outstanding is not None:
            self._outstanding.give_back(size)

    def say(self, command: bytes) -> None:
        """Send a command that has no answer, if there is a connection."""
        session = self.connection.session
        if session is not None and session.is_open:
            session.send(command)
            self.connection.wake()

    def say_goodbye(self) -> bool:
        """Have the connection closed when all is sent; tell whether there is one."""
        session = self.connection.session
        if session is None or not session.is_open:
            return False
        session.end(None)
        self.connection.wake()
        return True

    def hurry(self) -> None:
        """Have sent what lingers."""
        if self._linger is not None:
            self._linger.hurry()
        self.connection.wake()

    def stats(self) -> NsqdStats:
        """Return how it is."""
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

    def _on_batch(self, session: ProducerSession, linger: Linger) -> None:
        """See to a batch that was opened, or is ready."""
        session.check_room()
        linger.set_deadlines(self._clock.now_ns())
        if self._timer is not None:
            self._timer.check()
        if linger.has_ready:
            self.connection.wake()
