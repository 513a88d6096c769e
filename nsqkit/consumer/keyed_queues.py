"""KeyedQueues: messages with the same key are handled one after the other, in the order in which they came.

    inbox  a1 b1 a2 c1 b2 ─▶ lane 0  a1 a2 c1        (a and c happen to share a lane)
                             lane 1  b1 b2

The rule it guards: a key has one lane for as long as the lanes last, and a lane has one worker. So what has one key is
never handled twice at once; what has another key waits for it only where it shares its lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message


class KeyedQueues:
    """Messages that wait, each in the lane of its key.

    Args:
        inbox: where messages come from.
        count: how many lanes there are.
        key: returns the key of a message.

    Attributes:
        queues: the messages of each lane, in order.
    """

    def __init__(
        self,
        inbox: deque[Message],
        count: int,
        key: Callable[[Message], Hashable],
    ) -> None:
        self.queues: list[deque[Message]] = [deque() for _ in range(count)]
        self._inbox = inbox
        self._key = key

    def sort(self) -> list[tuple[Message, Exception]]:
        """Move all messages from the inbox into their lanes; return those without a key, and what ``key`` raised."""
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
