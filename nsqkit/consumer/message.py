"""A message in a consumer's hands.

The rule it guards: a message is answered once, by ``finish`` or ``requeue``, and each of these only queues bytes: no
await, no lock, no task. A thousand messages answered in a row are one write.

What becomes of a message, and what an answer does then:

    delivered ─▶ finish, requeue ─▶ answered             a second answer raises MessageError
              ├▶ its time is over ─▶ timed out           an answer does nothing: nsqd delivers it again
              └▶ its connection is lost                  likewise
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqkit.consumer.session import ConsumerSession
    from nsqkit.options.durations import Seconds

NS_PER_S = 1_000_000_000


class Message:
    """One delivery of a message.

    Attributes:
        id: 16 bytes; unique for one topic of one nsqd, and the same for each delivery of the message.
        body: what was published.
        attempts: deliveries so far, this one included; nsqd wraps it at 65535.
        timestamp_ns: when it was published, ns since the Unix epoch, by the broker's clock.
        received_ns: when it was received, ns since the Unix epoch, by this machine's clock.
        deadline_ns: when nsqd takes it back, by this machine's clock; ``touch`` moves it.
    """

    # There is no __init__: a session sets all of it in one pass over a buffer, which costs a quarter less.
    __slots__ = ("attempts", "body", "deadline_ns", "id", "received_ns", "session", "timestamp_ns")

    session: ConsumerSession
    received_ns: int
    deadline_ns: int
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    def finish(self) -> None:
        """Say that the message is done; nsqd forgets it.

        When it has timed out, or its connection was lost, this does nothing: nsqd delivers the message again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if not self.session.finish(self):
            self.session.check_not_answered(self)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """Give the message back, to be delivered again.

        When it has timed out, or its connection was lost, this does nothing: nsqd delivers the message again.

        Args:
            delay: seconds until then, a number or a timedelta; None is what the option ``requeue_delay_policy`` says
                or, without one, ``default_requeue_delay`` times attempts; at most ``max_requeue_delay``. nsqd shortens
                what is above its ``--max-req-timeout``.
            backoff: whether this counts as a failure, which slows the consumer down.

        Raises:
            MessageError: it was finished or requeued before.
            OptionError: the delay is negative or no length of time.
        """
        if not self.session.requeue(self, delay, backoff=backoff):
            self.session.check_not_answered(self)

    def touch(self) -> None:
        """Ask nsqd for the whole message timeout anew, up to its ``--max-msg-timeout`` after delivery.

        When it has timed out, or its connection was lost, this does nothing.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if not self.session.touch(self):
            self.session.check_not_answered(self)

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer: it was finished or requeued, timed out, or lost its connection."""
        return self.session.held.get(self.id) is not self

    @property
    def time_left(self) -> float:
        """Seconds until nsqd takes the message back and delivers it again; 0 once it has."""
        return max(self.deadline_ns - self.session.tell_time(), 0) / NS_PER_S

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.session.topic

    @property
    def channel(self) -> str:
        """The channel that it was delivered from."""
        return self.session.channel

    @property
    def value(self) -> Any:
        """What the consumer's serializer makes of the body, each time anew; the body itself if it has no serializer.

        Raises:
            ValueError: the body cannot be decoded.
        """
        return self.session.decode(self.body)

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self.session.address

    def __repr__(self) -> str:
        return f"<Message {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
