"""A message for threads.

A session is only called in the event loop. ``finish`` is handed over together with others, and the thread does not wait
for it. The other methods run in the event loop, and the thread waits for them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqkit.consumer.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.options.durations import Seconds


class EventLoop(Protocol):
    """Answers messages in the event loop; see ``ThreadReceiver``."""

    def finish(self, message: Message) -> None: ...
    def call(self, function: Callable[[], None]) -> None: ...


class BlockingMessage(Message):
    """One delivery of a message, for threads: as ``Message``; ``delivery`` is the message in the event loop."""

    __slots__ = ("_event_loop", "_is_finished", "delivery")

    def __init__(self, event_loop: EventLoop, delivery: Message) -> None:
        self._event_loop = event_loop
        self._is_finished = False
        self.delivery = delivery
        self.session = delivery.session
        self.id = delivery.id
        self.body = delivery.body
        self.attempts = delivery.attempts
        self.timestamp_ns = delivery.timestamp_ns
        self.received_ns = delivery.received_ns

    def finish(self) -> None:
        """As ``Message.finish``; the thread does not wait."""
        if self.is_answered:
            self._event_loop.call(self.delivery.finish)
        else:
            self._is_finished = True
            self._event_loop.finish(self.delivery)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """As ``Message.requeue``."""
        self._event_loop.call(partial(self.delivery.requeue, delay, backoff=backoff))

    def touch(self) -> None:
        """As ``Message.touch``."""
        self._event_loop.call(self.delivery.touch)

    @property
    def deadline_ns(self) -> int:  # type: ignore[override]
        """As ``Message.deadline_ns``, which ``auto_touch`` moves, too."""
        return self.delivery.deadline_ns

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer: it was finished or requeued, timed out, or lost its connection."""
        return self._is_finished or self.delivery.is_answered

    def __repr__(self) -> str:
        return super().__repr__().replace("<Message", "<BlockingMessage")
