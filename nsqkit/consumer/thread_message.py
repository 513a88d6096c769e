"""A message for a handler in a worker thread.

A session is only called in the event loop. Answers are given there, and the thread waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.from_thread

from nsqkit.consumer.blocking_message import BlockingMessage
from nsqkit.consumer.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable


class _FromThread:
    """The event loop of a thread that anyio has started."""

    @staticmethod
    def finish(message: Message) -> None:
        anyio.from_thread.run_sync(message.finish)

    @staticmethod
    def call(function: Callable[[], None]) -> None:
        anyio.from_thread.run_sync(function)


class ThreadMessage(BlockingMessage):
    """One delivery of a message, for a thread that anyio has started: as ``Message``."""

    __slots__ = ()

    def __init__(self, message: Message) -> None:
        super().__init__(_FromThread, message)

    __repr__ = Message.__repr__
