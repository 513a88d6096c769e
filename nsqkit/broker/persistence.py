"""What a broker keeps over its end: the data path, the names in it, and the order of things at start and stop.

The rule it guards: at the start the data path is locked before anything in it is read; ``nsqd.dat`` names the topics
and channels that there are, soon after they change; at a graceful stop it is written before the queues are, and the
lock is given up last. With ``--durability=fsync`` publishers are answered when what they published is synced, and the
names of its topic and channels with it; one sync serves all who came while the one before it ran.

How to read it: ``open``, ``run`` and ``close`` are the broker's start, life and end. Nothing here decides what a queue
writes; that is ``nsqkit.broker.core.disk.disk_queue``.
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
    from nsqkit.broker.core.disk.file_store import File
    from nsqkit.broker.core.disk.group_commit import GroupCommit
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.session.session import Session

logger = logging.getLogger("nsqkit.broker")

CLOSING_THREADS: Final = 4
"""Threads that write the topics' messages at a stop: while one waits for the disk another one writes."""

SAVE_PAUSE: Final = 1.0
"""Seconds before names are written again after that has failed."""


class Persistence:
    """The data path of one broker.

    Args:
        path: the directory; it has to exist.
        options: nsqd's flags.
        after: called when the engine was told that a commit has ended, to act on what follows.

    Attributes:
        storage: where the broker's queues are.
    """

    def __init__(self, path: str, options: BrokerOptions, *, after: Callable[[], None]) -> None:
        self._data_path = DirectoryFileStore(path)
        self._durable = (
            DurableStorage(self._data_path, options, logger.error) if options.durability == "fsync" else None
        )
        self.storage = self._durable or DiskStorage(self._data_path, options, logger.error)
        self._after = after
        self._committed_ticket = 0
        self._failed_ticket = 0
        self._commit_ended = anyio.Event()
        self._saved_revision = -1
        self._saving = anyio.Lock()
        self._changed = anyio.Event()

    def open(self, broker: Broker, now_ns: int) -> None:
        """Lock the directory, and make the topics and channels that it names.

        Raises:
            OSError: it is not there, cannot be written, or belongs to another broker.
            OptionError: what it names cannot be read.
        """
        self._data_path.lock()
        try:
            self.storage.open()
            document = self._data_path.read(metadata.FILE_NAME)
            if document is not None:
                for name in metadata.restore(broker, document, now_ns):
                    logger.warning("skipping creation of invalid %s", name)
            self._data_path.replace(metadata.FILE_NAME, metadata.document(broker))
        except BaseException as error:
            self._data_path.close()
            if isinstance(error, OSError):
                text = f"failed to load or persist metadata - {metadata.FILE_NAME}: {error_text(error)}"
                raise OSError(error.errno, text) from error
            raise
        self._saved_revision = broker.agenda.revision
        if self._durable is not None:
            self._durable.names_are_saved = lambda: broker.agenda.revision == self._saved_revision

    def check(self, broker: Broker) -> None:
        """Have ``run`` write the names if they have changed; cheap, to be called often."""
        if broker.agenda.revision != self._saved_revision or (
            broker.group_commit and broker.group_commit.wanted
        ):
            self._changed.set()

    async def run(self, broker: Broker) -> None:
        """Keep the names written, and commit what publishers wait for, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            saved = await self.save(broker)
            while (
                self._durable is not None and broker.group_commit is not None and broker.group_commit.wanted
            ):
                await self._commit(self._durable, broker, broker.group_commit)
            if not saved:
                await anyio.sleep(SAVE_PAUSE)
                self._changed.set()

    async def save(self, broker: Broker) -> bool:
        """Return when the names are written that there were at the call.

        A failure is logged, and the next call tries again.

        Returns:
            Whether they are written.
        """
        async with self._saving:
            revision = broker.agenda.revision
            if revision == self._saved_revision:
                return True
            document = metadata.document(broker)
            try:
                await anyio.to_thread.run_sync(self._data_path.replace, metadata.FILE_NAME, document)
            except OSError as error:
                logger.error("failed to persist metadata - %s", error_text(error))
                return False
            self._saved_revision = revision
            return True

    # ---- commits -------------------------------------------------------------------------------------------------

    async def _commit(self, storage: DurableStorage, broker: Broker, commits: GroupCommit[Session]) -> None:
        ticket, revision, failure = commits.begin(), broker.agenda.revision, ""
        try:
            # First the names: without them nobody would look for the messages.
            await self.save(broker)
            files = storage.files_to_sync()
            await anyio.to_thread.run_sync(self._sync_all, files)
            if self._saved_revision < revision:
                failure = "failed to persist metadata"
        except OSError as error:
            storage.wrote(error)
            failure = error_text(error)
        if failure:
            logger.error("commit failed - %s", failure)
            self._failed_ticket = ticket
            broker.fail_commit(failure)
        else:
            broker.end_commit(ticket)
        self._committed_ticket = ticket
        self._commit_ended.set()
        self._commit_ended = anyio.Event()
        self._after()

    def _sync_all(self, files: list[File]) -> None:
        try:
            for file in files:
                file.sync()
            self._data_path.sync()
        finally:
            for file in files:
                file.close()

    async def committed(self, broker: Broker) -> bool:
        """Return when what was put before the call is as safe as the options want it; tell whether it is."""
        if broker.group_commit is None:
            return True
        ticket = broker.group_commit.ticket
        broker.group_commit.wanted = True
        self._changed.set()
        while self._committed_ticket < ticket:
            await self._commit_ended.wait()
        return self._failed_ticket < ticket  # if a later one has failed as well, nobody remembers this one

    # ---- end -----------------------------------------------------------------------------------------------------

    def close(self, broker: Broker) -> None:
        """Write the names, then all messages, and give up the directory."""
        try:
            self._data_path.replace(metadata.FILE_NAME, metadata.document(broker))
        except OSError as error:
            logger.error("failed to persist metadata - %s", error_text(error))
        with ThreadPoolExecutor(CLOSING_THREADS) as pool:
            for failure in broker.close(pool.map):
                logger.error("failed to keep messages - %s", error_text(failure))
        self.storage.close()
        self._data_path.close()
