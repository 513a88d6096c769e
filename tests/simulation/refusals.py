"""Publishes that a broker has refused since a disk failed: what may be delivered of them all the same.

A channel that comes before the one that could not store a message gives it up, unless it has stored it on the disk
already. So a message that is in no file when its publisher gets the error is lost, and must not be delivered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.topics import batch
from tests.simulation.broken import conclude
from tests.simulation.data_path import HEADER_LENGTH

if TYPE_CHECKING:
    from tests.simulation.promises import Publish

PART_COUNT_MIN: Final = 100
"""Messages of all publishes that a world puts together, unless the parts of a batch are smaller."""


class Refusals:
    """The refused publishes of one broker."""

    def __init__(self) -> None:
        self._stored_in: dict[bytes, set[str]] = {}  # by body: the queues that had it in a file

    def refuse(self, publish: Publish, files: Mapping[str, bytes], *, is_alone: bool) -> None:
        """Record a refused publish, and where its messages are now.

        Args:
            publish: the publish.
            files: of the disk.
            is_alone: no other publish of its connection may have been put together with it.
        """
        is_alone = is_alone and len(publish.bodies) == 1
        if not is_alone and batch.PART_COUNT_MAX < PART_COUNT_MIN:
            return  # its first messages may be in all channels
        self._stored_in.update((body, set(_queues_with(body, files))) for body in publish.bodies)

    def delivered(self, topic: bytes, channel: bytes, body: bytes) -> None:
        """Check a delivery."""
        stored_in = self._stored_in.get(body)
        if stored_in is not None:
            is_stored = not stored_in.isdisjoint((topic.decode(), f"{topic.decode()}:{channel.decode()}"))
            conclude(2, is_stored, f"{body!r} was refused, and {channel!r} delivered it, which had no file with it")


def _queues_with(body: bytes, files: Mapping[str, bytes]) -> Iterator[str]:
    # A record has its length, the fields before the body, and the body.
    length = (HEADER_LENGTH + len(body)).to_bytes(4, "big")
    record = re.compile(b"%s.{%d}%s" % (re.escape(length), HEADER_LENGTH, re.escape(body)), re.DOTALL)
    for name, data in files.items():
        queue, _, rest = name.partition(".diskqueue.")
        if rest and record.search(data):
            yield queue
