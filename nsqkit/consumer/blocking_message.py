"""A message in the hands of a thread.

The rule it guards: a session is only ever called in the event loop. ``finish``, of which there is one for nearly every
message, is handed over together with others and waits for nothing; all else is asked there, and waited for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.thread_receiver import ThreadReceiver
    from nsqkit.options.durations import Seconds


class BlockingMessage:
    """One delivery of a message, for threads: as ``Message``.

    Args:
        receiver: brings answers to the event loop.
        delivery: the message there.

    Attributes:
        id: 16 bytes; unique for one topic of one nsqd, and the same for each delivery of the message.
        body: what was published.
        attempts: deliveries so far, this one included; nsqd wraps it at 65535.
        timestamp_ns: when it was published, ns since the Unix epoch, by the broker's clock.
        received_ns: when it was received, ns since the Unix epoch, by this machine's clock.
        delivery: the message in the event loop.
    """

    __slots__ = (
        "_is_finished",
        "_receiver",
        "attempts",
        "body",
        "delivery",
        "id",
        "received_ns",
        "timestamp_ns",
    )

    def __init__(self, receiver: ThreadReceiver, delivery: Message) -> None:
        self._receiver = receiver
        self._is_finished = False
        self.delivery = delivery
        self.id = delivery.id
        self.body = delivery.body
        self.attempts = delivery.attempts
        self.timestamp_ns = delivery.timestamp_ns
        self.received_ns = delivery.received_ns

    def finish(self) -> None:
        """Say that the message is done; nsqd forgets it. This waits for nothing.

        When it has timed out, or its connection was lost, this does nothing: nsqd delivers the message again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if self.is_answered:
            self._receiver.answer(self.delivery.finish)
        else:
            self._is_finished = True
            self._receiver.finish(self.delivery)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """Give the message back, to be delivered again.

        Args:
            delay: as for ``Message.requeue``.
            backoff: whether this counts as a failure, which slows the consumer down.

        Raises:
            MessageError: it was finished or requeued before.
            OptionError: the delay is negative or no length of time.
        """
        self._receiver.answer(partial(self.delivery.requeue, delay, backoff=backoff))

    def touch(self) -> None:
        """Ask nsqd for the whole message timeout anew, up to its ``--max-msg-timeout`` after delivery.

        Raises:
            MessageError: it was finished or requeued before.
        """
        self._receiver.answer(self.delivery.touch)

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer: it was finished or requeued, timed out, or lost its connection."""
        return self._is_finished or self.delivery.is_answered

    @property
    def deadline_ns(self) -> int:
        """When nsqd takes it back, by this machine's clock; ``touch`` moves it."""
        return self.delivery.deadline_ns

    @property
    def time_left(self) -> float:
        """Seconds until nsqd takes the message back and delivers it again; 0 once it has."""
        return self.delivery.time_left

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.delivery.topic

    @property
    def channel(self) -> str:
        """The channel that it was delivered from."""
        return self.delivery.channel

    @property
    def value(self) -> Any:
        """As ``Message.value``; it is decoded in the thread that asks.

        Raises:
            ValueError: the body cannot be decoded.
        """
        return self.delivery.session.decode(self.body)

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self.delivery.nsqd_address

    def __repr__(self) -> str:
        return f"<BlockingMessage {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
