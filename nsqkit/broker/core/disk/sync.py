"""Syncs of queues: what a queue records for the next sync, and the steps of a sync.

A queue writes to its file at once, into the page cache; it does not wait for the disk. A sync is done in steps, of
which those that wait for the disk run in a worker thread:

    event loop    ``begin_sync`` of each queue    take the files to sync, and the positions of this moment
    thread        ``SyncBatch.sync_data``         sync the files with messages
    event loop    ``SyncBatch.rewrite``           write those messages again that could not be synced
    thread        ``SyncBatch.write_positions``   write the positions to temporary files, and sync these
    event loop    ``SyncBatch.rename_positions``  give them their names
    thread        ``SyncBatch.sync_names``        sync the directory
    event loop    ``SyncBatch.end``               remove the files that are no longer needed

Positions are written after the messages that they count, so they never name bytes that a power cut can take away. Only
the event loop creates, renames and removes files of queues: a topic that is emptied, or deleted and created again,
while its sync runs does not get the positions of before, since ``rename_positions`` leaves them out.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.disk.id_mark import write_mark

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import File, FileStore

HEALTHY: Final = "OK"


@attrs.define(eq=False)
class SyncPlan:
    """A part of a sync: one queue.

    Attributes:
        queue: the queue.
        files: with messages, shared with the queue.
        complete: the queue's own of those to which it does not write any more.
        meta_name: the file of its positions; empty if messages alone are synced.
        meta: the positions to write; None if the file has them already.
        first_file: the number of the oldest file that is needed once the positions are written.
        temporary: the name under which they have been written.
        names_are_synced: the directory has been synced since they have their own name.
        is_synced: the messages have been synced.
        has_no_room: the positions could not be written because the disk is full.
        error: why the sync has failed.
    """

    queue: SyncedQueue
    files: list[File]
    complete: tuple[File, ...]
    meta_name: str = ""
    meta: bytes | None = None
    first_file: int = 0
    temporary: str = ""
    names_are_synced: bool = False
    is_synced: bool = False
    has_no_room: bool = False
    error: OSError | None = None

    def sync_data(self) -> None:
        """Sync the files; record an error."""
        try:
            for file in self.files:
                file.sync()
        except OSError as error:
            self.error = error
        else:
            self.is_synced = True

    def rewrite(self) -> None:
        """Have the next sync write the messages that could not be synced."""
        if not self.is_synced:
            for file in self.files:
                with suppress(OSError):  # a power cut can lose them then
                    file.rewrite()

    def write_positions(self, store: FileStore) -> None:
        """Write the positions to a temporary file, if the messages have been synced; record an error."""
        if self.meta is not None and self.error is None:
            try:
                self.temporary = store.write_temporary(self.meta_name, self.meta)
            except OSError as error:
                self.error = error
                self.has_no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)

    def rename_positions(self, store: FileStore) -> None:
        """Give the positions their name, unless the queue was emptied since they were taken; record an error."""
        if not self.temporary:
            return
        try:
            if self.queue.is_current(self):
                store.rename(self.temporary, self.meta_name)
                return
        except OSError as error:
            self.error = error
        with suppress(OSError):
            store.remove(self.temporary)

    def sync_names(self, store: FileStore) -> None:
        """Sync the names of the files; record an error."""
        try:
            store.sync()
        except OSError as error:
            self.error = self.error or error
        else:
            self.names_are_synced = True

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()


class SyncedQueue(Protocol):
    """A queue as a sync uses it."""

    @property
    def needs_sync(self) -> bool:
        """Whether messages were put or taken since the last sync."""

    def begin_sync(self, *, with_positions: bool = True) -> SyncPlan:
        """Return what a sync has to do now; without positions, sync the messages alone."""

    def is_current(self, plan: SyncPlan) -> bool:
        """Return whether the plan is the newest, and the queue was not emptied since."""

    def end_sync(self, plan: SyncPlan) -> None:
        """Act on the end of a sync, with or without an error."""


class SyncState:
    """The data that the queues of a data path share with its storage.

    Attributes:
        health: "OK", or "NOK - " and the error of the last write.
        reports: errors that have been dealt with, for the log; the reader clears it.
        has_news: a report was made, or a sync is due; the reader sets it to False.
        unsynced: queues that were used since their last sync.
        due: those that are to be synced as soon as possible.
        uncommitted: those with messages that no commit has covered (``--durability=fsync``).
        guids: gives the ids of all messages.
    """

    def __init__(self, guids: GuidFactory) -> None:
        self.health = HEALTHY
        self.reports: list[str] = []
        self.has_news = False
        self.unsynced: dict[SyncedQueue, None] = {}
        self.due: dict[SyncedQueue, None] = {}
        self.uncommitted: dict[SyncedQueue, None] = {}
        self.guids = guids

    def report(self, sentence: str) -> None:
        """Record an error that has been dealt with."""
        self.reports.append(sentence)
        self.has_news = True

    def record_write(self, error: OSError | None) -> None:
        """Record the result of a write: the last one decides the broker's health, as in nsqd."""
        self.health = HEALTHY if error is None else f"NOK - {error_text(error)}"

    def request_sync(self, queue: SyncedQueue) -> None:
        """Have a queue synced as soon as possible."""
        self.due[queue] = None
        self.has_news = True

    def forget(self, queue: SyncedQueue) -> None:
        """Do not sync a queue that has been emptied."""
        for queues in (self.unsynced, self.due, self.uncommitted):
            queues.pop(queue, None)


class SyncBatch:
    """One sync of several queues; see the module for the steps.

    Args:
        store: where the files are.
        plans: what to do, one for each queue.
        reserved_tick: written as the mark of ids, before all else; None if it has not changed.
        is_commit: the positions of no queue are written unless the messages of all are on disk. So a message that went
            from one queue to another is on disk in at least one of them.

    Attributes:
        mark_error: why the mark of ids could not be written.
    """

    def __init__(self, store: FileStore, plans: list[SyncPlan], reserved_tick: int | None, *, is_commit: bool) -> None:
        self.plans = plans
        self.mark_error: OSError | None = None
        self._store = store
        self._reserved_tick = reserved_tick
        self._is_commit = is_commit

    @property
    def has_positions(self) -> bool:
        """Whether positions have been written and have to get their names, or files may have to be removed."""
        return any(plan.meta_name for plan in self.plans)

    def sync_data(self) -> None:
        """Sync the messages; in a commit, raise the OSError of a queue whose messages could not be synced."""
        if self._reserved_tick is not None:
            try:
                write_mark(self._store, self._reserved_tick)
            except OSError as error:
                self.mark_error = error
        for plan in self.plans:
            plan.sync_data()
        if self._is_commit:
            for plan in self.plans:
                if plan.error is not None:
                    raise plan.error
            self._store.sync()

    def rewrite(self) -> None:
        for plan in self.plans:
            plan.rewrite()

    def write_positions(self) -> None:
        for plan in self.plans:
            plan.write_positions(self._store)

    def rename_positions(self) -> None:
        for plan in self.plans:
            plan.rename_positions(self._store)

    def sync_names(self) -> None:
        try:
            self._store.sync()
        except OSError as error:
            self.fail(error)
        else:
            for plan in self.plans:
                plan.names_are_synced = True

    def fail(self, error: OSError) -> None:
        for plan in self.plans:
            plan.error = plan.error or error

    def abandon(self) -> None:
        """Close the files, and remove the temporary ones: the sync does not go on."""
        self.rewrite()
        for plan in self.plans:
            plan.close()
            if plan.temporary:
                with suppress(OSError):
                    self._store.remove(plan.temporary)

    def end(self) -> None:
        """Close the files, and have each queue act on the end."""
        for plan in self.plans:
            plan.close()
            plan.queue.end_sync(plan)
