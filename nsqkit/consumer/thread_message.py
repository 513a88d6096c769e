"""A message for a handler in a worker thread.

A session is only called in the event loop. The methods run there, and the thread waits for them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio.from_thread

from nsqkit.consumer.message import Message

if TYPE_CHECKING:
    from nsqkit.options.durations import Seconds


class ThreadMessage(Message):
    """One delivery of a message, for a thread that anyio has started: as ``Message``."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        for name in Message.__slots__:
            setattr(self, name, getattr(message, name))
        self._message = message

    def finish(self) -> None:
        """As ``Message.finish``."""
        anyio.from_thread.run_sync(self._message.finish)

    def requeue(self, delay: Seconds | None = None, *, backoff: bool = True) -> None:
        """As ``Message.requeue``."""
        anyio.from_thread.run_sync(partial(self._message.requeue, delay, backoff=backoff))

    def touch(self) -> None:
        """As ``Message.touch``."""
        anyio.from_thread.run_sync(self._message.touch)
        self.deadline_ns = self._message.deadline_ns

    @property
    def is_answered(self) -> bool:
        """True once there is nothing to answer."""
        return anyio.from_thread.run_sync(lambda: self._message.is_answered)

    @property
    def time_left(self) -> float:
        """Seconds until nsqd takes the message back and delivers it again; 0 once it has."""
        return anyio.from_thread.run_sync(lambda: self._message.time_left)
