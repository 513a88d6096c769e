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

    __slots__ = ("attempts", "body", "id", "session", "timestamp_ns")

    def __init__(
        self, session: ConsumerSession, timestamp_ns: int, attempts: int, message_id: bytes, body: bytes
    ) -> None:
        self.session = session
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.id = message_id
        self.body = body

    def finish(self) -> None:
        """Say that the message is done; nsqd forgets it.

        On a connection that was lost meanwhile this does nothing: nsqd delivers the message again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if not self.session.finish(self):
            self.session.check_not_answered(self)

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
        if not self.session.requeue(self, delay, backoff=backoff):
            self.session.check_not_answered(self)

    def touch(self) -> None:
        """Ask nsqd for the whole message timeout anew, up to its ``--max-msg-timeout`` after delivery.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if not self.session.touch(self):
            self.session.check_not_answered(self)

    @property
    def is_answered(self) -> bool:
        """True once it was finished or requeued, or its connection was lost."""
        return self.session.held.get(self.id) is not self

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self.session.address

    def __repr__(self) -> str:
        return f"<Message {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
