"""Where the queues of a broker keep what memory does not hold.

The rule it guards: a topic and a channel do not know whether there is a disk. What fails on it is told in one place,
the broker's health: the last write decides, as in nsqd.

How to read it: ``MemoryStorage`` is that of a broker without a data path; ``DiskStorage`` opens a file queue by name,
and syncs those that were used when their time has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.disk_queue import DiskLimits, DiskQueue
from nsqkit.broker.core.disk.durable_queue import DurableQueue, KeptQueue
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import File, FileStore
from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.disk.id_mark import IdMark
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.queue import DiscardBackend, MemoryBackend, MessageQueue

HEALTHY: Final = "OK"

SYNCS_AT_ONCE: Final = 8
"""Queues that are synced in one go when their time has come; the others have their turn a little later, so that the
broker answers in between."""

_SYNC_PAUSE_NS: Final = 1_000_000


class Storage(Protocol):
    """Opens queues."""

    health: str
    """"OK", or "NOK - " and what was wrong with the last write."""

    due_ns: int | None
    """Kept by the agenda."""

    guids: GuidFactory
    """Gives the ids of all messages in its queues."""

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        """Return the queue of this name, with what it may hold."""
        ...

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        """Return when the deferred messages of the queue of this name are due."""
        ...

    def sync_deadline(self, now_ns: int) -> int | None:
        """Return when to call ``handle_deadline``, None if nothing has been written or read."""
        ...

    def handle_deadline(self, now_ns: int) -> int | None:
        """Sync queues that were used; return when to go on."""
        ...


class MemoryStorage:
    """Keeps everything in memory.

    Args:
        mem_queue_size: messages that count as kept in memory; the others count as the backend's.
        node_id: the broker's, for ids.
    """

    def __init__(self, mem_queue_size: int, node_id: int = 0) -> None:
        self.health = HEALTHY
        self.guids = GuidFactory(node_id)
        self.due_ns: int | None = None
        self._mem_queue_size = mem_queue_size

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        """Return a new queue."""
        return MessageQueue(self._mem_queue_size, DiscardBackend() if ephemeral else MemoryBackend())

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        """Return none."""
        return DeferredTimes()

    def sync_deadline(self, now_ns: int) -> int | None:
        """Return None: there is nothing to sync."""
        return None

    def handle_deadline(self, now_ns: int) -> int | None:
        """Do nothing."""
        return None


class DiskStorage:
    """Keeps what overflows memory in files, and all of it when the broker stops.

    Args:
        directory: where the files are.
        options: nsqd's flags.
        report: called with a sentence when something was wrong and has been dealt with.

    Attributes:
        due_ns: kept by the agenda.
    """

    def __init__(self, directory: FileStore, options: BrokerOptions, report: Callable[[str], None]) -> None:
        self.health = HEALTHY
        self.due_ns: int | None = None
        self.unsynced: dict[DiskQueue, None] = {}
        self._directory = directory
        self._mem_queue_size = options.mem_queue_size
        self._sync_timeout_ns = options.sync_timeout_ns
        self._keeps_deferred = options.keep_deferred
        self._limits = DiskLimits(
            max_bytes_per_file=options.max_bytes_per_file,
            max_msg_size=options.max_msg_size,
            sync_every=options.sync_every,
        )
        self._report = report
        self._id_mark = IdMark(directory, report)
        self.guids = GuidFactory(options.node_id, self._id_mark.reserve)

    def open(self) -> None:
        """Learn which ids were given before; to be called when the directory is locked, before a queue is opened."""
        self._id_mark.read()

    def close(self) -> None:
        """Note which ids were given, and sync the names of all files; to be called when all queues are closed."""
        self._id_mark.close(self.guids.tick)
        try:
            self._directory.sync()
        except OSError as error:
            self._report(f"failed to sync the data path: {error_text(error)}")

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        """Return the queue of this name, with what its files hold."""
        if ephemeral:
            return MessageQueue(self._mem_queue_size, DiscardBackend())
        queue = self._open(name.decode())
        self.guids.gave_all = self.guids.gave_all and not queue
        return queue

    def _open(self, name: str) -> MessageQueue:
        return MessageQueue(self._mem_queue_size, DiskQueue(self._directory, name, self._limits, self))

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        """Return when the deferred messages of the queue of this name are due, as far as its file tells."""
        if ephemeral or not self._keeps_deferred:
            return DeferredTimes()
        return DeferredTimes(self._directory, name.decode(), self._report)

    # ---- for the queues ------------------------------------------------------------------------------------------

    def report(self, sentence: str) -> None:
        """Take note of what was wrong and has been dealt with."""
        self._report(sentence)

    def wrote(self, error: OSError | None) -> None:
        """Take note of how the last write went."""
        self.health = HEALTHY if error is None else f"NOK - {error_text(error)}"

    def used(self, queue: DiskQueue) -> None:
        """Take note that a queue is to be synced when its time has come."""
        self.unsynced[queue] = None

    def renew(self, frame: bytes) -> bytes:
        """Return a message's frame with a new id in it."""
        return self.guids.renew(frame)

    # ---- time ----------------------------------------------------------------------------------------------------

    def sync_deadline(self, now_ns: int) -> int | None:
        """Return when to sync, None if nothing is to be or the agenda knows."""
        return now_ns + self._sync_timeout_ns if self.unsynced and self.due_ns is None else None

    def handle_deadline(self, now_ns: int) -> int | None:
        """Sync queues that were used; return when to go on."""
        queues = list(self.unsynced)[:SYNCS_AT_ONCE]
        for queue in queues:
            del self.unsynced[queue]
            if queue.needs_sync:
                queue.sync()
        if not self.unsynced:
            return None
        failed = any(queue in self.unsynced for queue in queues)
        return now_ns + (self._sync_timeout_ns if failed else _SYNC_PAUSE_NS)


class DurableStorage(DiskStorage):
    """Keeps every message in files until it is finished; the arguments are those of ``DiskStorage``.

    Attributes:
        names_are_saved: tells whether all topics and channels are named on disk. Until they are, no queue forgets what
            it has given to another, for which nobody would look.
    """

    def __init__(self, directory: FileStore, options: BrokerOptions, report: Callable[[str], None]) -> None:
        super().__init__(directory, options, report)
        self.names_are_saved: Callable[[], bool] = lambda: True
        self._uncommitted: dict[DurableQueue, None] = {}
        self._unsettled: dict[DurableQueue, None] = {}

    def _open(self, name: str) -> MessageQueue:
        return KeptQueue(DurableQueue(self._directory, name, self._limits, self))

    def used(self, queue: DiskQueue) -> None:
        """Take note that a queue is to be synced when its time has come, and committed at once."""
        super().used(queue)
        if isinstance(queue, DurableQueue):
            self._uncommitted[queue] = None
            self._unsettled[queue] = None

    def files_to_sync(self) -> list[File]:
        """Return the files that were written to since the last call, for whoever syncs and closes them.

        Raises:
            OSError: one of them cannot be had.
        """
        queues, self._uncommitted = self._uncommitted, {}
        files: list[File] = []
        try:
            for queue in queues:
                files += queue.data_to_sync()
        except OSError:
            for file in files:
                file.close()
            raise
        return files

    def handle_deadline(self, now_ns: int) -> int | None:
        """Sync queues that were used; return when to go on.

        First the messages of all, then the positions: what has gone from one queue to another is never in neither.
        """
        if not self.names_are_saved():
            return now_ns + self._sync_timeout_ns
        try:
            for queue in self._unsettled:
                queue.sync_data()
            self._directory.sync()
        except OSError as error:
            self.wrote(error)
            return now_ns + self._sync_timeout_ns
        for queue in self._unsettled:
            queue.settle()
        self._unsettled.clear()
        return super().handle_deadline(now_ns)
