"""Queues of messages by key: messages with the same key are handled one after the other, in the order of receipt.

    inbox  a1 b1 a2 c1 b2 ─▶ queue 0  a1 a2 c1        (the keys a and c share a queue)
                             queue 1  b1 b2

A key always has the same queue, and a queue has one worker. So messages with one key are never handled at the same
time, and those with another key wait for them only in the same queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message


class KeyedQueues:
    """Waiting messages, each in the queue of its key."""

    def __init__(self, inbox: deque[Message], count: int, key: Callable[[Message], Hashable]) -> None:
        self.queues: list[deque[Message]] = [deque() for _ in range(count)]
        self._inbox = inbox
        self._key = key

    def sort(self) -> list[tuple[Message, Exception]]:
        """Move all messages from the inbox into their queues; return those for which ``key`` raised, with the error."""
        inbox, queues, key = self._inbox, self.queues, self._key
        failures: list[tuple[Message, Exception]] = []
        while inbox:
            message = inbox.popleft()
            try:
                number = hash(key(message))
            except Exception as error:
                failures.append((message, error))
            else:
                queues[number % len(queues)].append(message)
        return failures
