"""Storage: where the queues of a broker keep the messages that memory does not hold.

Topics and channels do not depend on a disk: they use any ``Storage``. ``MemoryStorage`` is that of a broker without a
data path, ``DiskStorage`` opens queues on disk, ``DurableStorage`` those of ``--durability=fsync``. Storage decides
which queues are synced, and when; ``nsqkit.broker.persistence`` runs the syncs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.durable_queue import DurableQueue, KeptQueue
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import FileStore
from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.disk.id_mark import FILE_NAME, read_used_tick, write_mark
from nsqkit.broker.core.disk.queue import DiscardBackend, MemoryBackend, MessageQueue
from nsqkit.broker.core.disk.recovery import set_aside_unknown
from nsqkit.broker.core.disk.sync import HEALTHY, SyncBatch, SyncState
from nsqkit.broker.core.options import BrokerOptions

BATCH_QUEUES_MAX: Final = 64
"""Queues in one sync, unless all have to be."""


class MemoryStorage:
    """Keeps everything in memory; messages over ``mem_queue_size`` count as the backend's."""

    def __init__(self, mem_queue_size: int, node_id: int = 0) -> None:
        self.health = HEALTHY
        self.has_news = False
        self.guids = GuidFactory(node_id)
        self._mem_queue_size = mem_queue_size

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        """Return the queue of this name, with the messages that its files hold."""
        return MessageQueue(self._mem_queue_size, DiscardBackend() if ephemeral else MemoryBackend())

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        """Return when the deferred messages of the queue of this name are due."""
        return DeferredTimes()


class DiskStorage(SyncState):
    """Keeps the messages that memory does not hold in files, and all of them when the broker stops."""

    def __init__(self, files: FileStore, options: BrokerOptions) -> None:
        super().__init__(GuidFactory(options.node_id))
        self.due_ns: int | None = None
        self._files = files
        self._options = options
        self._mem_queue_size = options.mem_queue_size
        self._marked_tick = -1
        self._mark_failed = False
        self._mark_waits = False  # for the deadline, to be written once more

    def open(self, now_ns: int) -> None:
        """Set unknown files aside, read which ids were given, and reserve the next ones if the clock is behind them.

        Call it when the directory is locked, before a queue is opened.
        """
        set_aside_unknown(self._files, self)
        used_tick = self.guids.used_tick = read_used_tick(self._files, self.reports)
        if used_tick < now_ns >> 20:
            return
        # The ids begin ahead of the clock. If the process is killed before the next sync, the times of the files do not
        # show that these ids were given.
        self.guids.skip(used_tick)
        self._take_mark()
        try:
            write_mark(self._files, self.guids.reserved_tick)
        except OSError as error:
            self._keep_mark_waiting(error)

    def _keep_mark_waiting(self, error: OSError) -> None:
        self._marked_tick = -1
        self._mark_waits = True
        if not self._mark_failed:
            self.report(f"{FILE_NAME} cannot be written: {error_text(error)}")
        self._mark_failed = True

    def close(self) -> None:
        """Write which ids were given, and sync the names of all files. Call it when all queues are closed."""
        if self.guids.tick >= 0:
            try:
                write_mark(self._files, self.guids.tick)
            except OSError as error:
                self.report(f"{FILE_NAME} cannot be written: {error_text(error)}")
        try:
            self._files.sync()
        except OSError as error:
            self.report(f"failed to sync the data path: {error_text(error)}")

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        if ephemeral:
            return MessageQueue(self._mem_queue_size, DiscardBackend())
        queue = self._open(name.decode())
        self.guids.gave_all = self.guids.gave_all and not queue
        return queue

    def _open(self, name: str) -> MessageQueue:
        return MessageQueue(self._mem_queue_size, DiskQueue(self._files, name, self._options, self))

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        if ephemeral or not self._options.keep_deferred:
            return DeferredTimes()
        return DeferredTimes(self._files, name.decode(), self)

    def take_reports(self) -> list[str]:
        """Return the errors that have been dealt with since the last call."""
        reports, self.reports = self.reports, []
        return reports

    def sync_deadline(self, now_ns: int) -> int | None:
        """Return when to sync, None if there is nothing to sync or the timers have the time already."""
        if self._mark_is_due:
            self.has_news = True
        waits = bool(self.unsynced) or self._mark_waits
        return now_ns + self._options.sync_timeout_ns if waits and self.due_ns is None else None

    def handle_deadline(self, now_ns: int) -> None:
        """Have the queues synced that were used, and the mark of ids written that could not be written."""
        self._mark_waits = False
        self.due.update(self.unsynced)
        self.has_news = True

    @property
    def wants_sync(self) -> bool:
        """Whether a sync is due."""
        return bool(self.due) or self._mark_is_due

    @property
    def _mark_is_due(self) -> bool:
        return self.guids.reserved_tick != self._marked_tick and not self._mark_waits

    def begin_sync(self, *, names_are_saved: bool) -> SyncBatch:
        """Return the next sync; run it, then call ``end_sync``.

        Args:
            names_are_saved: all topics and channels are named on disk. Otherwise no queue drops a message that went
                to another one, whose name might be lost.
        """
        queues = list(self.due)[:BATCH_QUEUES_MAX]
        for queue in queues:
            del self.due[queue]
        plans = [queue.begin_sync() for queue in queues if queue.needs_sync]
        return SyncBatch(self._files, plans, self._take_mark(), is_commit=False)

    def _take_mark(self) -> int | None:
        if not self._mark_is_due:
            return None
        self._marked_tick = self.guids.reserved_tick
        return self._marked_tick

    def end_sync(self, batch: SyncBatch) -> None:
        """Act on the end of a sync."""
        batch.end()
        if batch.mark_error is None:
            self._mark_failed = False
        else:
            self._keep_mark_waiting(batch.mark_error)


class DurableStorage(DiskStorage):
    """Keeps every message in files until it is finished; the arguments are those of ``DiskStorage``."""

    def _open(self, name: str) -> MessageQueue:
        return KeptQueue(DurableQueue(self._files, name, self._options, self))

    def begin_sync(self, *, names_are_saved: bool) -> SyncBatch:
        """Return the next commit: all messages that have been put, and the positions of all queues if they are due."""
        queues = list(self.unsynced) if self.due and names_are_saved else []
        self.due.clear()
        plans = [queue.begin_sync() for queue in queues if queue.needs_sync]
        plans += [queue.begin_sync(with_positions=False) for queue in list(self.uncommitted)]
        return SyncBatch(self._files, plans, self._take_mark(), is_commit=True)


Storage: TypeAlias = MemoryStorage | DiskStorage
