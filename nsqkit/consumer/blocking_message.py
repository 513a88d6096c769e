"""A message for threads.

A session is only called in the event loop. ``finish`` is handed over together with others, and the thread does not wait
for it. The other methods run in the event loop, and the thread waits for them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.consumer.message import Message
    from nsqkit.options.durations import Seconds


class EventLoop(Protocol):
    """Answers messages in the event loop; see ``ThreadReceiver``."""

    def finish(self, message: Message) -> None:
        """Finish a message soon."""
        ...

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop, wait for it, and raise what it raises."""
        ...


class BlockingMessage:
    """One delivery of a message, for threads: as ``Message``.

    Args:
        event_loop: the consumer's.
        delivery: the message in the event loop.

    Attributes:
        id: 16 bytes; unique for one topic of one nsqd, and the same for each delivery of the message.
        body: the bytes that were published.
        attempts: deliveries so far, this one included; nsqd wraps it at 65535.
        timestamp_ns: the time of publication by the broker's clock, ns since the Unix epoch.
        received_ns: the time of receipt by this machine's clock, ns since the Unix epoch.
        delivery: the message in the event loop.
    """

    __slots__ = (
        "_event_loop",
        "_is_finished",
        "attempts",
        "body",
        "delivery",
        "id",
        "received_ns",
        "timestamp_ns",
    )

    def __init__(self, event_loop: EventLoop, delivery: Message) -> None:
        self._event_loop = event_loop
        self._is_finished = False
        self.delivery = delivery
        self.id = delivery.id
        self.body = delivery.body
        self.attempts = delivery.attempts
        self.timestamp_ns = delivery.timestamp_ns
        self.received_ns = delivery.received_ns

    def finish(self) -> None:
        """Queue FIN: the message is done, and nsqd forgets it. The thread does not wait.

        This does nothing if the message has timed out or its connection was lost: nsqd delivers it again.

        Raises:
            MessageError: it was finished or requeued before.
        """
        if self.is_answered:
            self._event_loop.call(self.delivery.finish)
        else:
            self._is_finished = True
            self._event_loop.finish(self.delivery)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """Queue REQ: nsqd delivers the message again.

        Args:
            delay: as for ``Message.requeue``.
            backoff: whether this counts as a failure, which slows the consumer down.

        Raises:
            MessageError: it was finished or requeued before.
            OptionError: the delay is negative or not a duration.
        """
        self._event_loop.call(partial(self.delivery.requeue, delay, backoff=backoff))

    def touch(self) -> None:
        """Queue TOUCH: the message timeout starts anew, up to nsqd's ``--max-msg-timeout`` after delivery.

        Raises:
            MessageError: it was finished or requeued before.
        """
        self._event_loop.call(self.delivery.touch)

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer: it was finished or requeued, timed out, or lost its connection."""
        return self._is_finished or self.delivery.is_answered

    @property
    def deadline_ns(self) -> int:
        """When nsqd times the message out, by this machine's clock; ``touch`` moves it."""
        return self.delivery.deadline_ns

    @property
    def time_left(self) -> float:
        """Seconds until nsqd times the message out and delivers it again; 0 afterwards."""
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
        """As ``Message.value``, decoded in the calling thread.

        Raises:
            ValueError: the body cannot be decoded.
        """
        return self.delivery.session.subscription.decode(self.body)

    @property
    def nsqd_address(self) -> str:
        """The ``host:port`` of the nsqd that delivered it."""
        return self.delivery.nsqd_address

    def __repr__(self) -> str:
        return f"<BlockingMessage {self.id.decode(errors='replace')} attempts={self.attempts} {len(self.body)} bytes>"
