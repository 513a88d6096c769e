"""A batch of very many messages, which is put into its topic in parts.

The rule it guards: no other client waits for a batch, and it is published as a whole. All of its messages have been
read and found in order when the first part is put. From then on only a failing disk keeps the others from being put,
whatever ends the session of its publisher.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker

PART_COUNT_MAX: Final = 5000
"""Messages of one command that are put at once."""


class Batch:
    """The messages of one batch.

    Args:
        broker: whose topic they are for.
        topic_name: which topic that is.
        bodies: the messages.
    """

    __slots__ = ("_bodies", "_broker", "_count", "_topic_name")

    def __init__(self, broker: Broker, topic_name: bytes, bodies: Sequence[bytes]) -> None:
        self._broker = broker
        self._topic_name = topic_name
        self._bodies = bodies
        self._count = 0

    def put_part(self, now_ns: int) -> bool:
        """Put the next messages; return whether further ones are left.

        Raises:
            OSError: there is no place for them, or not for all of them.
        """
        self._put(PART_COUNT_MAX, now_ns)
        return self._count < len(self._bodies)

    def put_rest(self, now_ns: int) -> None:
        """Put all that are left. The publisher has gone, so an error of the disk cannot be answered."""
        with suppress(OSError):
            self._put(len(self._bodies), now_ns)

    def _put(self, count: int, now_ns: int) -> None:
        bodies = self._bodies[self._count : self._count + count]
        self._broker.topic(self._topic_name).put(bodies, now_ns)
        self._count += count
