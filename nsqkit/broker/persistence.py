"""What a broker keeps over its end: the data path, the names in it, and the order of things at start and stop.

The rule it guards: at the start the data path is locked before anything in it is read; ``nsqd.dat`` names the topics
and channels that there are, soon after they change; at a graceful stop it is written before the queues are, and the
lock is given up last.

How to read it: ``open``, ``run`` and ``close`` are the broker's start, life and end. Nothing here decides what a queue
writes; that is ``nsqkit.broker.core.disk_queue``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from nsqkit.broker.core import metadata
from nsqkit.broker.core.disk_queue import describe
from nsqkit.broker.core.storage import DiskStorage
from nsqkit.broker.data_path import DataPath

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions

logger = logging.getLogger("nsqkit.broker")


class Persistence:
    """The data path of one broker.

    Args:
        path: the directory; it has to exist.
        options: nsqd's flags.

    Attributes:
        storage: where the broker's queues are.
    """

    def __init__(self, path: str, options: BrokerOptions) -> None:
        self._data_path = DataPath(path)
        self.storage = DiskStorage(self._data_path, options, logger.error)
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
        document = self._data_path.read(metadata.FILE_NAME)
        if document is not None:
            metadata.restore(broker, document, now_ns)
        self._data_path.replace(metadata.FILE_NAME, metadata.document(broker))
        self._saved_revision = broker.agenda.revision

    def check(self, broker: Broker) -> None:
        """Have ``run`` write the names if they have changed; cheap, to be called often."""
        if broker.agenda.revision != self._saved_revision:
            self._changed.set()

    async def run(self, broker: Broker) -> None:
        """Keep the names written until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            await self.save(broker)

    async def save(self, broker: Broker) -> None:
        """Return when the names are written that there were at the call.

        A failure is logged, and the next call tries again.
        """
        async with self._saving:
            revision = broker.agenda.revision
            if revision == self._saved_revision:
                return
            document = metadata.document(broker)
            try:
                await anyio.to_thread.run_sync(self._data_path.replace, metadata.FILE_NAME, document)
            except OSError as error:
                logger.error("failed to persist metadata - %s", describe(error))
            else:
                self._saved_revision = revision

    def close(self, broker: Broker) -> None:
        """Write the names, then all messages, and give up the directory."""
        try:
            self._data_path.replace(metadata.FILE_NAME, metadata.document(broker))
        except OSError as error:
            logger.error("failed to persist metadata - %s", describe(error))
        for failure in broker.close():
            logger.error("failed to keep messages - %s", describe(failure))
        self._data_path.close()
