"""The disk work of a broker: names and messages at the start, while it serves clients, and at the end.

The engine never waits for a disk. It writes messages into the page cache and records in its storage that a sync is due;
``run`` does the syncs in worker threads, one after the other. With ``--durability=fsync`` each of them is a commit, and
publishers are answered when it has ended. Topics and channels are named on disk shortly after they change, also in a
thread; ``save`` lets an HTTP answer wait for that.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from nsqkit.broker.core import metadata
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.storage import DiskStorage, DurableStorage
from nsqkit.broker.file_store import DirectoryFileStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock

logger = logging.getLogger("nsqkit.broker")

CLOSING_THREADS: Final = 4
"""Threads that write the topics' messages at a stop: while one waits for the disk another one writes."""

SAVE_PAUSE_NS: Final = 10**9
"""Time until names are written again after a failure."""


class Persistence:
    """The data path of one broker: a directory that has to exist, or its files.

    After a sync, ``after`` is called to act on its effects in the engine.

    Attributes:
        storage: where the broker's queues are.
    """

    def __init__(self, path: str | DirectoryFileStore, options: BrokerOptions, *, after: Callable[[], None]) -> None:
        self._files = DirectoryFileStore(path) if isinstance(path, str) else path
        storage_type = DurableStorage if options.durability == "fsync" else DiskStorage
        self.storage = storage_type(self._files, options)
        self._after = after
        self._committed_ticket = 0
        self._failed_ticket = 0
        self._commit_ended = anyio.Event()
        self._saved_revision = -1
        self._saving = anyio.Lock()
        self._changed = anyio.Event()

    def open(self, broker: Broker, now_ns: int) -> None:
        """Lock the directory, and create the topics and channels that it names.

        Raises:
            OSError: it does not exist, cannot be written, or another broker uses it.
            OptionError: the file with the names cannot be read.
        """
        self._files.lock()
        try:
            self.storage.open(now_ns)
            document = self._files.read(metadata.FILE_NAME)
            if document is not None:
                for name in metadata.restore(broker, document, now_ns):
                    logger.warning("skipping creation of invalid %s", name)
            self._files.replace(metadata.FILE_NAME, metadata.document(broker))
        except BaseException as error:
            self._files.close()
            if isinstance(error, OSError):
                text = f"failed to load or persist metadata - {metadata.FILE_NAME}: {error_text(error)}"
                raise OSError(error.errno, text) from error
            raise
        self._log_reports()
        self._saved_revision = broker.changes.revision

    def _log_reports(self) -> None:
        for sentence in self.storage.take_reports():
            logger.error(sentence)

    def check(self, broker: Broker) -> None:
        """Wake ``run`` if work is due; cheap, to be called often."""
        self._log_reports()
        names_changed = broker.changes.revision != self._saved_revision
        if names_changed or self._sync_is_due(broker) or self._files.has_removed:
            self._changed.set()

    def _sync_is_due(self, broker: Broker) -> bool:
        return self.storage.wants_sync or (broker.group_commit is not None and broker.group_commit.wanted)

    async def run(self, broker: Broker, clock: Clock) -> None:
        """Write names and sync messages when they have changed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            saved = await self.save(broker)
            while self._sync_is_due(broker):
                await self._sync(broker)
            if self._files.has_removed:
                await anyio.to_thread.run_sync(self._files.free_removed)
            if not saved:
                await clock.wait_until(clock.now_ns() + SAVE_PAUSE_NS)
                self._changed.set()

    async def save(self, broker: Broker) -> bool:
        """Return when the names of the moment of the call are written.

        A failure is logged, and the next call tries again.

        Returns:
            Whether they are written.
        """
        async with self._saving:
            revision = broker.changes.revision
            if revision == self._saved_revision:
                return True
            document = metadata.document(broker)
            try:
                await anyio.to_thread.run_sync(self._files.replace, metadata.FILE_NAME, document)
            except OSError as error:
                logger.error("failed to persist metadata - %s", error_text(error))
                return False
            self._saved_revision = revision
            return True

    async def _sync(self, broker: Broker) -> None:
        """Do one sync; ``nsqkit.broker.core.disk.sync`` has its steps."""
        ticket, failure = 0, ""
        if broker.group_commit is not None:
            ticket = broker.group_commit.begin()
            if not await self.save(broker):  # first the names: messages of a topic without a name are not found
                failure = "failed to persist metadata"  # names that are written during the sync may not be on disk
        batch = self.storage.begin_sync(names_are_saved=self._saved_revision == broker.changes.revision)
        try:
            try:
                await anyio.to_thread.run_sync(batch.sync_data)
            except OSError as error:
                self.storage.record_write(error)
                failure = error_text(error)
                batch.fail(error)
            batch.rewrite()
            if ticket:
                self._end_commit(broker, ticket, failure)
            if batch.has_positions:
                await anyio.to_thread.run_sync(batch.write_positions)
                batch.rename_positions()
                await anyio.to_thread.run_sync(batch.sync_names)
        except BaseException:
            batch.abandon()
            raise
        self.storage.end_sync(batch)
        if self._files.has_removed:
            await anyio.to_thread.run_sync(self._files.free_removed)
        self._log_reports()
        self._after()

    def _end_commit(self, broker: Broker, ticket: int, failure: str) -> None:
        if failure:
            logger.error("commit failed - %s", failure)
            assert broker.group_commit is not None
            # After a sync that fails, the next one succeeds without the messages put meanwhile: they have failed, too.
            self._failed_ticket = ticket = broker.group_commit.begin()
            broker.fail_commit(failure)
        else:
            broker.end_commit(ticket)
        self._committed_ticket = ticket
        self._commit_ended.set()
        self._commit_ended = anyio.Event()
        self._after()

    async def committed(self, broker: Broker, first_ticket: int | None = None) -> bool:
        """Return when messages put before the call are as safe as the options demand: True if they are.

        ``first_ticket`` is as in ``RunningBroker.committed``.
        """
        if broker.group_commit is None:
            return True
        ticket = broker.group_commit.ticket
        first_ticket = ticket if first_ticket is None else first_ticket
        broker.group_commit.wanted = True
        self._changed.set()
        while self._committed_ticket < ticket:
            await self._commit_ended.wait()
        return self._failed_ticket < first_ticket  # if a later one has failed as well, this one counts as failed

    def close(self, broker: Broker) -> None:
        """Write the names, then all messages, and give up the directory."""
        names_are_saved = True
        try:
            self._files.replace(metadata.FILE_NAME, metadata.document(broker))
        except OSError as error:
            logger.error("failed to persist metadata - %s", error_text(error))
            names_are_saved = self._saved_revision == broker.changes.revision
        with ThreadPoolExecutor(CLOSING_THREADS) as pool:
            for failure in broker.close(pool.map, names_are_saved=names_are_saved):
                logger.error("failed to keep messages - %s", error_text(failure))
        self.storage.close()
        self._log_reports()
        self._files.close()

    def abandon(self) -> None:
        """Give up the directory and write nothing, as if the process had been killed."""
        self._files.abandon()
