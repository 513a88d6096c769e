"""The messages that a broker has to have after a power cut, and the check that it has them.

With ``--durability=fsync`` an acknowledged message for which no consumer has sent a FIN is found after each restart, in
every channel that existed when it was published; a topic that was deleted stays deleted once that is committed. More
may be found: messages may come twice, and unacknowledged ones may be found or not.

In the ordinary mode only the messages in the files of a queue are promised: after a kill those that were put there and
not taken; after a power cut those of them that the last sync of the queue has covered. So messages in memory queues, in
flight and deferred may be lost, and after a power cut those since the last sync.

A world records in ``Ledger`` what happens, and so which messages are owed. ``WatchedStorage`` opens queues of the
ordinary mode that record their own messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from nsqkit.broker.core.disk import positions
from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.queue import MessageQueue
from nsqkit.broker.core.disk.storage import DiskStorage
from nsqkit.broker.core.disk.sync import SyncPlan, SyncState
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.broker.core.disk.disks import MemoryFileStore, new_state
from tests.simulation.broken import conclude

CHANNELS = (b"a", b"b", b"c")
TOPIC = b""
"""The place of messages in the topic itself; that of messages in a channel is its name."""


@attrs.define(eq=False)
class Publish:
    """Messages that were sent together, and the places that have to have them once they are acknowledged."""

    topic: bytes
    bodies: list[bytes]
    places: set[bytes]
    is_there: bool = True  # its topic was not deleted
    stored_in: set[str] = attrs.field(factory=set)  # with a failing disk: the queues with one of them in a file


@attrs.define
class Ledger:
    """The messages that have to be found, by topic and place."""

    owed: dict[tuple[bytes, bytes], dict[bytes, None]] = attrs.field(factory=dict)  # by topic and place
    unanswered: dict[Publish, None] = attrs.field(factory=dict)
    finished: set[tuple[bytes, bytes]] = attrs.field(factory=set)  # channel and body
    acknowledged: dict[bytes, set[bytes]] = attrs.field(factory=dict)  # by topic, since it was deleted, in this run
    deleted: set[bytes] = attrs.field(factory=set)  # with their topics, and committed
    deleting: set[bytes] = attrs.field(factory=set)

    def publish(self, topic: bytes, bodies: list[bytes], channels: set[bytes]) -> Publish:
        publish = Publish(topic, bodies, channels or {TOPIC})
        self.unanswered[publish] = None
        return publish

    def acknowledge(self, publish: Publish) -> None:
        del self.unanswered[publish]
        if publish.is_there:
            self.acknowledged.setdefault(publish.topic, set()).update(publish.bodies)
        for place in publish.places:
            bodies = [body for body in publish.bodies if not self._is_finished(place, body)]
            self.owed.setdefault((publish.topic, place), {}).update(dict.fromkeys(bodies))

    def _is_finished(self, place: bytes, body: bytes) -> bool:
        places = CHANNELS if place == TOPIC else (place,)
        return any((each, body) in self.finished for each in places)

    def finish(self, topic: bytes, channel: bytes, body: bytes) -> None:
        self.finished.add((channel, body))
        for place in (channel, TOPIC):  # a message in the topic may be in any of its channels
            self.owed.get((topic, place), {}).pop(body, None)

    def forget(self, topic: bytes, *places: bytes) -> None:
        """Drop the messages of these places; those of the topic may have come to each of its channels."""
        for place in (*places, TOPIC):
            self.owed.pop((topic, place), None)
        for publish in self.unanswered:
            if publish.topic == topic:
                publish.places -= {*places, TOPIC}

    def delete_channel(self, topic: bytes, channel: bytes) -> None:
        """Drop its messages; after a power cut its files may be back, without its name."""
        self.forget(topic, channel)
        self.acknowledged.pop(topic, None)

    def delete_topic(self, topic: bytes) -> None:
        self.forget(topic, *CHANNELS)
        self.deleting |= self.acknowledged.pop(topic, set())
        for publish in self.unanswered:
            publish.is_there = publish.is_there and publish.topic != topic

    def check(self, contents: Iterable[tuple[bytes, bytes, bytes]]) -> None:
        """Compare with the messages that were found after a restart: their topics, places and bodies."""
        found: dict[tuple[bytes, bytes], set[bytes]] = {}
        for topic, place, body in contents:
            found.setdefault((topic, place), set()).add(body)
        for (topic, place), bodies in self.owed.items():
            waiting = found.get((topic, TOPIC), set())
            there = set().union(*(found.get((topic, each), set()) for each in CHANNELS))
            have = waiting | (there if place == TOPIC else found.get((topic, place), set()))
            lost = [body.decode() for body in bodies if body not in have]
            conclude(15, not lost, f"{(topic + b':' + place).decode()} has lost {lost}")
        back = self.deleted.intersection(*[set().union(*found.values())])
        conclude(14, not back, f"messages of deleted topics are back: {back}")


class WatchedQueue(DiskQueue):
    """A queue of the ordinary mode that records the messages in its files."""

    def __init__(self, files: MemoryFileStore, name: str, limits: BrokerOptions, state: SyncState) -> None:
        self._synced: set[bytes] = set()
        self._syncing: set[bytes] = set()
        self._there: deque[bytes] = deque()
        self._taken: set[bytes] = set()
        self._taken_at_sync: set[bytes] = set()
        self._passed: set[bytes] = set()  # by the positions on the disk
        self._taking = 0
        recorded = recorded_on_disk(files, name, limits)
        super().__init__(files, name, limits, state)
        self._there += on_disk(files, name, limits)
        self._synced |= recorded

    def put(self, frames: Sequence[bytes]) -> int:
        self._passed.difference_update(frames)  # a process that ends meanwhile may have written some
        in_memory = super().put(frames)
        if not self._is_closing:
            self._there += frames
            self._synced.difference_update(frames)  # an earlier copy was synced, and taken
        return in_memory

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Messages of memory count when the positions are written, and not before."""
        super().close(frames)
        self._there += frames
        self._synced.difference_update(frames)

    def take(self, count: int) -> list[bytes]:
        self._taking = count
        frames = super().take(count)
        for frame in frames:
            expected = self._there.popleft()
            assert frame == expected
        self._taken.update(frames)
        for passed in (self._passed, self._taken_at_sync):  # of two equal messages, the positions may have passed one
            passed.difference_update(frames)
        self._taking = 0
        return frames

    def begin_sync(self, *, with_positions: bool = True) -> SyncPlan:
        self._syncing = set(self._there)
        self._taken_at_sync = set(self._taken) if with_positions else set()
        return super().begin_sync(with_positions=with_positions)

    def end_sync(self, plan: SyncPlan) -> None:
        if self.is_current(plan) and plan.error is None and not self._is_closing:
            self._synced = self._syncing
            self._passed |= self._taken_at_sync
        super().end_sync(plan)

    def note_synced(self) -> None:
        self._synced = set(self._there)

    def empty(self) -> None:
        self._there.clear()
        super().empty()

    def passed(self) -> set[bytes]:
        """Return the messages that another process must not find after a kill."""
        return self._passed.difference(self._there)

    def repeated(self) -> set[bytes]:
        """Return the messages that another process may find: those that were taken, and those that wait."""
        return (self._taken - self._passed).union(self._there)

    def required(self, *, killed: bool) -> list[bytes]:
        """Return the messages that another process has to find now."""
        there = list(self._there)[self._taking :]
        return there if killed else [frame for frame in there if frame in self._synced]


def on_disk(files: MemoryFileStore, name: str, limits: BrokerOptions) -> list[bytes]:
    """Return the messages in the files of a queue, and leave the files unchanged."""
    queue = DiskQueue(files.kill(), name, limits, new_state())
    found: list[bytes] = []
    while queue:
        found += queue.take(1000)
    return found


def recorded_on_disk(files: MemoryFileStore, name: str, limits: BrokerOptions) -> set[bytes]:
    """Return the messages up to the end that the positions name: a sync has covered them.

    Recovery finds more, in files that happen to be there after a power cut; the next one may take them.
    """
    found = files.kill()
    meta = positions.from_meta(found.read(positions.meta_name(name)) or b"")
    if meta is None:
        return set()
    end = meta[2]
    for number in positions.file_numbers(found, name, end.file, positions.NUMBER_MAX):
        file_name = positions.file_name(name, number)
        if number > end.file:
            found.remove(file_name)
        elif len(found.files[file_name]) > end.offset:
            file = found.open(file_name)
            file.truncate(end.offset)
            file.close()
    return set(on_disk(found, name, limits))


class WatchedStorage(DiskStorage):
    """Opens such queues."""

    def __init__(self, files: MemoryFileStore, options: BrokerOptions) -> None:
        super().__init__(files, options)
        self._disk = files
        self.queues: dict[str, WatchedQueue] = {}

    def _open(self, name: str) -> MessageQueue:
        self.queues[name] = queue = WatchedQueue(self._disk, name, self._options, self)
        return MessageQueue(self._mem_queue_size, queue)

    def close(self) -> None:
        super().close()
        for queue in self.queues.values():
            queue.note_synced()

    def check(self, disk: MemoryFileStore, *, killed: bool) -> None:
        """Compare with the messages that were found after a restart."""
        for name, queue in self.queues.items():
            found = set(on_disk(disk, name, self._options))
            lost = [frame for frame in queue.required(killed=killed) if frame not in found]
            conclude(15, not lost, f"{name} has lost {[frame[FRAME_HEADER_LENGTH:].decode() for frame in lost]}")
            back = found & queue.passed() if killed else set()
            if (topic := self.queues.get(name.partition(":")[0])) is not None:
                back -= topic.repeated()  # the topic has put them into the channel once more
            conclude(9, not back, f"{name} has once more {[frame[FRAME_HEADER_LENGTH:].decode() for frame in back]}")
