"""Publishes that a broker has refused since a disk failed: what may be delivered of them all the same.

A channel gives up a message that another one could not store, unless it is in a file from which it cannot be removed.
So a message that is in no file after it was put, nor when its publisher gets the error, is lost, and must not be
delivered. The same holds for all publishes behind it on its connection, since nsqd reads no command after such an
error. Of a large MPUB, the parts that were put before are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
        self._by_body: dict[bytes, Publish] = {}

    def put(self, publishes: Iterable[Publish], files: Mapping[str, bytes]) -> None:
        """Record where messages are that were put just now.

        Their answer waits for a sync. Until then a topic may pass on those that stay in a complete file, or the file
        may be damaged.
        """
        for publish in publishes:
            publish.stored_in.update(_queues_with(publish.bodies, files))

    def refuse(self, publish: Publish, behind: Iterable[Publish], files: Mapping[str, bytes]) -> None:
        """Record a refused publish and those behind it on its connection, and where their messages are now."""
        has_parts = len(publish.bodies) > 1 and batch.PART_COUNT_MAX < PART_COUNT_MIN
        publishes = tuple(behind) if has_parts else (publish, *behind)
        self.put(publishes, files)
        for refused in publishes:
            self._by_body.update(dict.fromkeys(refused.bodies, refused))

    def cut(self, files: Mapping[str, bytes]) -> None:
        """Record where their messages are after a power cut, which may bring back bytes that were cut off."""
        for body, refused in self._by_body.items():
            refused.stored_in.update(_queues_with((body,), files))

    def delivered(self, topic: bytes, channel: bytes, body: bytes) -> None:
        """Check a delivery."""
        refused = self._by_body.get(body)
        if refused is not None:
            queues = {topic.decode(), f"{topic.decode()}:{channel.decode()}"}
            is_stored = not queues.isdisjoint(refused.stored_in)
            conclude(2, is_stored, f"{body!r} was refused, and is delivered to {channel!r}")


def _queues_with(bodies: Collection[bytes], files: Mapping[str, bytes]) -> Iterable[str]:
    for name, data in files.items():
        queue, _, rest = name.partition(".diskqueue.")
        if rest and any(_has_record(data, body) for body in bodies):
            yield queue


def _has_record(data: bytes, body: bytes) -> bool:
    """Return whether a record is there: its length, the fields before the body, and the body."""
    length = (HEADER_LENGTH + len(body)).to_bytes(4, "big")
    at = data.find(body)
    while at >= 0:
        if at >= HEADER_LENGTH + 4 and data.startswith(length, at - HEADER_LENGTH - 4):
            return True
        at = data.find(body, at + 1)
    return False
