"""A message that a consumer has received.

A message is answered once, by ``finish`` or ``requeue``. Both only queue bytes, without an await, a lock or a task, so
the answers to a thousand messages are one write.

    delivered ─▶ finish, requeue ─▶ answered      a second answer raises MessageError
              ├▶ timed out                        an answer does nothing, since nsqd delivers the message again
              └▶ connection lost                  likewise
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from nsqkit.clock import NS_PER_S

if TYPE_CHECKING:
    from nsqkit.errors import BrokerError
    from nsqkit.options.durations import Seconds


class Outcome(enum.Enum):
    """The result of an answer, where something is left to do; None where other output is queued already."""

    FIRST = "nothing else was queued, so the connection has to be woken"
    NOT_HELD = "the session does not hold the message"


FIRST: Final = Outcome.FIRST
NOT_HELD: Final = Outcome.NOT_HELD


@attrs.define(eq=False)
class Barrier:
    """A point among the commands of a session; also the session's event that its outcome is known.

    Attributes:
        refused: the commands that nsqd has refused since the barrier before this one, each as the kind of its error and
            the message's id; None until nsqd has processed all commands before the barrier, and if the session has
            ended before that.
        is_passed: True once the outcome is known.
    """

    refused: frozenset[tuple[type[BrokerError], bytes]] | None = None
    is_passed: bool = False


class Wakeable(Protocol):
    """A connection that sends the output of a session: soon, or now if that does not block."""

    def wake(self) -> None: ...
    def flush(self) -> None: ...


class Answering(Protocol):
    """Answers messages and returns what their users read; see ``Subscription``."""

    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    def now_ns(self) -> int: ...
    def requeue(self, message: Message, delay: Seconds | None, *, backoff: bool) -> bool: ...
    def touch(self, message: Message) -> bool: ...
    def decode(self, body: bytes) -> Any: ...


class Holder(Protocol):
    """A session, which holds its messages until they are answered; see ``ConsumerSession``."""

    address: str
    held: dict[bytes, Message]
    msg_timeout_ns: int
    connection: Wakeable
    subscription: Answering

    def finish(self, message: Message) -> Outcome | None: ...
    def requeue(self, message: Message, delay_ms: int, *, backoff: bool) -> Outcome | None: ...
    def requeue_now(self, message: Message) -> Outcome | None: ...
    def touch(self, message: Message, now_ns: int) -> Outcome | None: ...
    def finish_all(self, messages: list[Message]) -> None: ...
    def add_barrier(self) -> Barrier: ...
    def extend(self, message: Message, now_ns: int) -> int | None: ...
    def check_not_answered(self, message: Message) -> None: ...


class Message:
    """One delivery of a message.

    Attributes:
        id: 16 bytes; unique for one topic of one nsqd, and the same for each delivery of the message.
        body: the bytes that were published.
        attempts: deliveries so far, this one included; nsqd wraps it at 65535.
        timestamp_ns: the time of publication by the broker's clock, ns since the Unix epoch.
        received_ns: the time of receipt by this machine's clock, ns since the Unix epoch.
        deadline_ns: when nsqd times the message out, by this machine's clock; ``touch`` moves it.
    """

    # There is no __init__: a session sets the attributes in one pass over a buffer, which costs a quarter less.
    __slots__ = ("attempts", "body", "deadline_ns", "id", "received_ns", "session", "timestamp_ns")

    session: Holder
    received_ns: int
    deadline_ns: int
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes

    def finish(self) -> None:
        """Queue FIN: the message is done, and nsqd drops it.

        This does nothing if the message has timed out or its connection was lost: nsqd delivers it again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if outcome := self.session.finish(self):
            if outcome is FIRST:
                self.session.connection.wake()
            else:
                self.session.check_not_answered(self)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """Queue REQ: nsqd delivers the message again.

        This does nothing if the message has timed out or its connection was lost: nsqd delivers it again.

        Args:
            delay: seconds until the next delivery, a number or a timedelta. None uses ``requeue_delay_policy`` or,
                without one, ``default_requeue_delay`` times attempts; at most ``max_requeue_delay``. nsqd shortens
                a delay above its ``--max-req-timeout``.
            backoff: whether this counts as a failure, which slows the consumer down.

        Raises:
            MessageError: it was finished or requeued before.
            OptionError: the delay is negative or not a duration.
        """
        if not self.session.subscription.requeue(self, delay, backoff=backoff):
            self.session.check_not_answered(self)

    def touch(self) -> None:
        """Queue TOUCH: the message timeout restarts, up to nsqd's ``--max-msg-timeout`` after delivery.

        This does nothing if the message has timed out or its connection was lost.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if not self.session.subscription.touch(self):
            self.session.check_not_answered(self)

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer: it was finished or requeued, timed out, or lost its connection."""
        return self.session.held.get(self.id) is not self

    @property
    def time_left(self) -> float:
        """Seconds until nsqd times the message out and delivers it again; 0 afterwards."""
        return max(self.deadline_ns - self.session.subscription.now_ns(), 0) / NS_PER_S

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.session.subscription.topic

    @property
    def channel(self) -> str:
        """The channel that it was delivered from."""
        return self.session.subscription.channel

    @property
    def value(self) -> Any:
        """The body, decoded by the consumer's serializer at each access; without a serializer, the body.

        Raises:
            ValueError: the body cannot be decoded.
        """
        return self.session.subscription.decode(self.body)

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self.session.address

    def __repr__(self) -> str:
        return f"<Message {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
