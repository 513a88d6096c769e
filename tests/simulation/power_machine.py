"""One run of a broker of a power world, and the connections of its clients."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from random import Random

import attrs

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.simulation.by_hand import Committer, Disk
from tests.simulation.power_rules import Contents
from tests.simulation.promises import TOPIC, Publish


@attrs.define(eq=False)
class Client:
    """One connection, whose input is split into frames."""

    session: Session
    topic: bytes = b""
    channel: bytes = b""
    waiting: list[Publish] = attrs.field(factory=list)
    held: list[tuple[bytes, bytes]] = attrs.field(factory=list)  # id and body

    def frames(self, now_ns: int) -> Iterator[tuple[int, bytes]]:
        self.session.process_input(now_ns)
        data = self.session.data_to_send()
        position = 0
        while position < len(data):
            size, kind = struct.unpack_from(">ii", data, position)
            yield kind, data[position + 8 : position + 4 + size]
            position += 4 + size


class Machine:
    """One run of a broker on a disk, with the real persistence."""

    def __init__(self, disk: Disk, options: BrokerOptions, now_ns: int, storage_type: type[DiskStorage]) -> None:
        self._committer = Committer(disk, options, Random(0), (0,), storage_type)
        self.storage = self._committer.persistence.storage
        self.broker = Broker(options, Random(0), self.storage)
        self._committer.start(self.broker, now_ns)

    @property
    def has_work(self) -> bool:
        """Whether names have to be written, or messages to be synced."""
        self._committer.persistence.check(self.broker)
        return not self._committer.is_idle

    @property
    def is_pausing(self) -> bool:
        """Whether the last sync has failed."""
        return self._committer.is_pausing

    def check_names(self) -> None:
        """Check the names on the disk, unless they are to be written."""
        if not self.has_work:
            self._committer.check_names()

    def sync(self, now_ns: int) -> Iterator[None]:
        """Save and sync until all is done; it yields where others may act."""
        while not self._committer.is_idle:
            self._committer.step(now_ns)
            yield
            if self.is_pausing:
                break

    def stop(self) -> None:
        """End as a broker does after SIGTERM."""
        self._committer.stop(self.broker)

    def drop(self) -> None:
        """End as a process that is killed; its disk was copied before."""
        self._committer.drop()

    def contents(self) -> Contents:
        """Take out all that there is."""
        found: Contents = Counter()
        for topic in self.broker.topics.values():
            queues = {TOPIC: topic.queue, **{name: each.queue for name, each in topic.channels.items()}}
            for place, queue in queues.items():
                while queue:
                    frames = queue.take(100, 1 << 20)
                    found.update((topic.name, place, frame[FRAME_HEADER_LENGTH:]) for frame in frames)
            for place, channel in topic.channels.items():
                frames = [frame for _, frame in channel.deferred.messages()]
                found.update((topic.name, place, frame[FRAME_HEADER_LENGTH:]) for frame in frames)
        return found
