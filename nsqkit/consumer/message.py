"""A message in a consumer's hands.

The rule it guards: a message is answered once, by ``finish`` or ``requeue``, and each of these only queues bytes: no
await, no lock, no task. A thousand messages answered in a row are one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.consumer.session import ConsumerSession


class Message:
    """One delivery of a message.

    Attributes:
        id: 16 bytes; unique for one topic of one nsqd, and the same for each delivery of the message.
        body: what was published.
        attempts: deliveries so far, this one included; nsqd wraps it at 65535.
        timestamp_ns: when it was published, ns since the Unix epoch, by the broker's clock.
    """

    __slots__ = ("_session", "attempts", "body", "id", "timestamp_ns")

    def __init__(
        self, session: ConsumerSession, timestamp_ns: int, attempts: int, message_id: bytes, body: bytes
    ) -> None:
        self._session = session
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.id = message_id
        self.body = body
        if message_id in session.held:
            session.delivered_again()
        session.held[message_id] = self

    def finish(self) -> None:
        """Say that the message is done; nsqd forgets it.

        On a connection that was lost meanwhile this does nothing: nsqd delivers the message again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        self._session.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Give the message back, to be delivered again.

        Args:
            delay: seconds until then; None is ``default_requeue_delay`` times attempts, at most
                ``max_requeue_delay``. nsqd shortens what is above its ``--max-req-timeout``.
            backoff: whether this counts as a failure, which slows the consumer down.

        Raises:
            MessageError: it was finished or requeued before.
            OptionError: the delay is negative or not a number.
        """
        self._session.requeue(self, delay, backoff=backoff)

    def touch(self) -> None:
        """Ask nsqd for the whole message timeout anew, up to its ``--max-msg-timeout`` after delivery.

        Raises:
            MessageError: it was finished or requeued before.
        """
        self._session.touch(self)

    @property
    def is_answered(self) -> bool:
        """True once it was finished or requeued, or its connection was lost."""
        return self._session.held.get(self.id) is not self

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self._session.address

    def came_by(self, session: ConsumerSession) -> bool:
        """Tell whether the message was delivered on ``session``."""
        return self._session is session

    def __repr__(self) -> str:
        return f"<Message {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
