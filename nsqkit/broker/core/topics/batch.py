"""A batch of very many messages, which is put into its topic in parts.

No other client waits until the whole batch is put, and yet it is published as a whole: all of its messages were read
and checked before the first part is put. From then on only a failing disk keeps messages from being put, however the
session of the publisher ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.queue import PartlyStored

if TYPE_CHECKING:
    from nsqkit.broker.core.topics.registry import Topics

PART_COUNT_MAX: Final = 5000
"""Messages of one command that are put at once."""


class Batch:
    """The messages of one batch for a topic, which is created again if it is deleted meanwhile.

    Args:
        topics: the broker's.
        topic_name: of the topic.
        bodies: of the messages.
        one_by_one: as for ``Topic.put``.
    """

    __slots__ = ("_bodies", "_count", "_one_by_one", "_topic_name", "_topics")

    def __init__(self, topics: Topics, topic_name: bytes, bodies: Sequence[bytes], *, one_by_one: bool = False) -> None:
        self._topics = topics
        self._topic_name = topic_name
        self._bodies = bodies
        self._one_by_one = one_by_one
        self._count = 0

    def put_part(self, now_ns: int) -> bool:
        """Put the next messages; return whether more are left.

        Raises:
            PartlyStored: not all messages of the batch could be stored.
        """
        self._put(PART_COUNT_MAX, now_ns)
        return self._count < len(self._bodies)

    def put_rest(self, now_ns: int) -> None:
        """Put all messages that are left. The publisher has gone, so an error of the disk cannot be answered."""
        with suppress(OSError):
            self._put(len(self._bodies), now_ns)

    def _put(self, count: int, now_ns: int) -> None:
        bodies = self._bodies[self._count : self._count + count]
        try:
            self._topics.get_or_create(self._topic_name).put(bodies, now_ns, one_by_one=self._one_by_one)
        except OSError as error:  # those of the topic, which was deleted, cannot be opened; or the disk fails
            stored_count = error.stored_count if isinstance(error, PartlyStored) else 0
            raise PartlyStored(self._count + stored_count, error) from error
        self._count += count
