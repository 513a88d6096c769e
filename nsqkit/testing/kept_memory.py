"""Memory that outlives a broker: the messages of a broker without a data path, over a restart.

A restarted nsqd has what its files hold: the messages in flight wait again, with their attempts, deferred ones are due
unless ``--keep-deferred`` is on, counts begin at 0, and ephemeral topics and channels are gone. The same happens here,
with queues in the place of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nsqkit.broker.core import metadata
from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.queue import DiscardBackend, MemoryBackend, MessageQueue
from nsqkit.broker.core.disk.storage import MemoryStorage

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions


class KeptMemory(MemoryStorage):
    """The storage of one broker.

    Args:
        options: the broker's.
        before: the storage of the broker before it, after ``save``, whose messages it begins with.
    """

    def __init__(self, options: BrokerOptions, before: KeptMemory | None = None) -> None:
        super().__init__(options.mem_queue_size, options.node_id)
        self._options = options
        self._names: bytes = b"" if before is None else before._names
        self._backends: dict[bytes, _KeptBackend] = {} if before is None else before._backends
        self._times: dict[bytes, _KeptTimes] = {} if before is None else before._times
        if before is not None:
            self.guids.used_tick = max(before.guids.tick, before.guids.used_tick)

    def open_queue(self, name: bytes, *, ephemeral: bool) -> MessageQueue:
        """Return the queue of this name, with the messages that were kept."""
        if ephemeral:
            return MessageQueue(self._mem_queue_size, DiscardBackend())
        return MessageQueue(self._mem_queue_size, self._backends.setdefault(name, _KeptBackend()))

    def deferred_times(self, name: bytes, *, ephemeral: bool) -> DeferredTimes:
        """Return when the deferred messages of the queue of this name are due."""
        if ephemeral or not self._options.keep_deferred:
            return DeferredTimes()
        return self._times.setdefault(name, _KeptTimes())

    def save(self, broker: Broker) -> None:
        """Take all that ``broker``, which has stopped and has this storage, would have on disk."""
        self._names = metadata.document(broker)
        broker.close()

    def restore(self, broker: Broker, now_ns: int) -> None:
        """Create the topics and channels in a new broker that has this storage."""
        if self._names:
            metadata.restore(broker, self._names, now_ns)


class _KeptBackend(MemoryBackend):
    __slots__ = ()

    def close(self, frames: Sequence[bytes]) -> None:
        self.put(frames)


class _KeptTimes(DeferredTimes):
    @property
    def has_file(self) -> bool:
        return True

    def write(self, times: Mapping[bytes, int]) -> None:
        self.by_id.update(times)
