"""Publishes that a broker has refused since a disk failed: what may be delivered of them all the same.

A channel that comes before the one that could not store a message gives it up, unless it has stored it on the disk
already. So a message that is in no file when its publisher gets the error is lost, and must not be delivered. Of
several messages that were put together, the first ones may have waited in a file of the topic, and be in the memory of
one channel now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.broker.core.topics import batch
from tests.simulation.broken import conclude
from tests.simulation.data_path import HEADER_LENGTH

if TYPE_CHECKING:
    from nsqkit.broker.core.topics.topic import Topic
    from tests.simulation.promises import Publish

PART_COUNT_MIN: Final = 100
"""Messages of all publishes that a world puts together, unless the parts of a batch are smaller."""


@attrs.define(eq=False)
class _Refused:
    """A refused publish: its topic, the queues with one of its messages in a file, and others that delivered one."""

    topic: bytes
    stored_in: set[str]
    others_max: int
    others: set[bytes] = attrs.field(factory=set)


class Refusals:
    """The refused publishes of one broker."""

    def __init__(self) -> None:
        self._by_body: dict[bytes, _Refused] = {}

    def refuse(self, publish: Publish, topic: Topic | None, files: Mapping[str, bytes], *, is_alone: bool) -> None:
        """Record a refused publish, and where its messages are now.

        Args:
            publish: the publish.
            topic: its topic.
            files: of the disk.
            is_alone: no other publish of its connection may have been put together with it.
        """
        is_alone = is_alone and len(publish.bodies) == 1
        waits = topic is None or topic.paused or not topic.channels or len(topic.queue)
        if not is_alone and (waits or batch.PART_COUNT_MAX < PART_COUNT_MIN):
            return  # the first messages may be in the topic's memory, or in all channels
        refused = _Refused(publish.topic, set(_queues_with(publish.bodies, files)), 0 if is_alone else 1)
        self._by_body.update(dict.fromkeys(publish.bodies, refused))

    def delivered(self, topic: bytes, channel: bytes, body: bytes) -> None:
        """Check a delivery."""
        refused = self._by_body.get(body)
        if refused is None or {topic.decode(), f"{topic.decode()}:{channel.decode()}"} & refused.stored_in:
            return
        refused.others.add(channel)
        is_allowed = len(refused.others) <= refused.others_max
        conclude(2, is_allowed, f"{body!r} was refused, and delivered by {refused.others}, which had no file with it")


def _queues_with(bodies: Iterable[bytes], files: Mapping[str, bytes]) -> Iterable[str]:
    record = re.compile(b"|".join(map(_record, bodies)), re.DOTALL)
    for name, data in files.items():
        queue, _, rest = name.partition(".diskqueue.")
        if rest and record.search(data):
            yield queue


def _record(body: bytes) -> bytes:
    """Return the pattern of the record of a message: its length, the fields before the body, and the body."""
    length = (HEADER_LENGTH + len(body)).to_bytes(4, "big")
    return b"%s.{%d}%s" % (re.escape(length), HEADER_LENGTH, re.escape(body))
