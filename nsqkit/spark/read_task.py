"""The tasks by which executors read: each is the value of one of Spark's input partitions, and yields Arrow batches.

        WalTask: drain or replay the log of a partition     AdoptedTask: replay logs of older WALs
        ReceiveTask: FIN on receipt, without a log

Spark repeats a task freely: for each action, after a failure, or twice at a time. A task with a log has the same rows
each time. It first looks for the plan of its batch: an executor that does not see the driver's directory fails there,
before it has received a message.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import PartitionShare
from nsqkit.spark.drainer import PartitionStats, drain_to_slots, receive_rows
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.schema import MessageRow, RowNumbers, encode_payload, record_batches
from nsqkit.spark.slots.fsspec_store import open_slot_store, show_location
from nsqkit.spark.slots.maintenance import adopted_partitions
from nsqkit.spark.slots.records import MessageKey
from nsqkit.spark.slots.slot_log import ReplaySlot
from nsqkit.spark.slots.wal import PartitionWal, Wal

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("nsqkit.spark")

BATCHES_PER_INDEX: Final = 16
"""Batches after which a worker begins a new index of the WAL's messages, since the driver removes old batches."""

ADOPTED_TASKS_MAX: Final = 64

RECEIVED_BYTES: Final = 64 << 20
"""Bytes of bodies after which a batch of received rows ends; the texts of an Arrow array have 2 GiB at most."""


class ReadTask(Protocol):
    """One partition of a batch. It pickles."""

    def read(self, spec: ConsumerSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition."""


@attrs.frozen(kw_only=True)
class WalLocation:
    """A WAL as executors find it.

    Attributes:
        location: ``walLocation``.
        wal_id: its name.
        adopted: older WALs whose rows are rows of this one.
    """

    location: str = attrs.field(repr=show_location)
    wal_id: str
    adopted: tuple[str, ...] = ()

    def open(self, batch: int) -> Wal:
        """Return the WAL, with an index that the tasks of this process share.

        Raises:
            OptionError: the location cannot be written, or is not the one in which the driver planned the batch.
        """
        wal = _shared_wal(self, batch // BATCHES_PER_INDEX)
        if wal.store.get(wal.plan_key(batch)) is None:
            raise OptionError(
                f"walLocation {show_location(self.location)} on host {socket.gethostname()} has no plan of batch "
                f"{batch} of WAL {self.wal_id}: it has to be a directory or an object store that the driver and all "
                "executors share"
            )
        return wal


@functools.lru_cache(maxsize=4)
def _shared_wal(found: WalLocation, _epoch: int) -> Wal:
    return Wal(open_slot_store(found.location), found.wal_id, found.adopted)


@attrs.frozen
class WalTask:
    """The log of one partition."""

    wal: WalLocation
    batch: int
    share: PartitionShare

    def read(self, spec: ConsumerSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the log, which is drained first if it is empty."""
        partition_wal = self.wal.open(self.batch).partition(self.batch, self.share.index)
        slots, stats = drain_to_slots(spec, self.share, partition_wal)
        _report_unreachable(self.batch, stats)
        yield from _replay(partition_wal, slots, RowNumbers(self.batch, self.share.index))


@attrs.frozen
class AdoptedTask:
    """Logs of older WALs, by WAL, batch and partition: rows that no checkpoint has.

    Attributes:
        wal: the WAL that adopted them.
        batch: the batch that their rows belong to.
        partition: its number among the batch's partitions.
        logs: the logs.
    """

    wal: WalLocation
    batch: int
    partition: int
    logs: tuple[tuple[str, int, int], ...]

    def read(self, spec: ConsumerSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the logs. They are sealed, so nothing is received."""
        store = self.wal.open(self.batch).store
        numbers = RowNumbers(self.batch, self.partition)
        for wal_id, batch, partition in self.logs:
            partition_wal = Wal(store, wal_id).partition(batch, partition)
            share = PartitionShare(index=partition, connections=(), records_max=None, bytes_max=None)
            slots, _ = drain_to_slots(spec, share, partition_wal)
            yield from _replay(partition_wal, slots, numbers)


@attrs.frozen
class ReceiveTask:
    """Messages that are finished when they arrive: at most once."""

    batch: int
    share: PartitionShare

    def read(self, spec: ConsumerSpec) -> Iterator[pa.RecordBatch]:
        """Receive and yield messages; a repeated task receives other ones."""
        rows, stats = receive_rows(spec, self.share)
        _report_unreachable(self.batch, stats)
        numbers = RowNumbers(self.batch, self.share.index)
        for part in _parts(rows):
            yield from record_batches(encode_payload(part, spec.channel), row_keys(part), frozenset(), numbers)


def _parts(rows: Iterable[MessageRow]) -> Iterator[list[MessageRow]]:
    """Divide rows, in order, into lists that each make one Arrow batch."""
    part: list[MessageRow] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row.body)
        if size >= RECEIVED_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def row_keys(rows: Iterable[MessageRow]) -> tuple[MessageKey, ...]:
    """Return the key of each row, as slots have it."""
    return tuple(MessageKey(row.nsqd_address, row.topic, row.id.encode()) for row in rows)


def adopted_tasks(found: WalLocation, wal: Wal, first_partition: int) -> list[AdoptedTask]:
    """Return the tasks that replay the logs of the WALs that a WAL adopted, in its first batch.

    Args:
        found: the WAL as executors find it.
        wal: the WAL.
        first_partition: the number of the first of these tasks among the batch's partitions.
    """
    logs = adopted_partitions(wal)
    count = min(len(logs), ADOPTED_TASKS_MAX)
    return [AdoptedTask(found, 0, first_partition + index, tuple(logs[index::count])) for index in range(count)]


def _report_unreachable(batch: int, stats: PartitionStats) -> None:
    """Log nsqds that a partition did without, since its rows do not show that."""
    if stats.unreachable_count:
        logger.warning(
            "partition %d of batch %d has no messages of %d of its nsqds, which it did not reach",
            stats.partition,
            batch,
            stats.unreachable_count,
        )


def _replay(partition_wal: PartitionWal, slots: Sequence[ReplaySlot], numbers: RowNumbers) -> Iterator[pa.RecordBatch]:
    for slot in slots:
        data = partition_wal.read_slot(slot.number)
        yield from record_batches(data.payload, data.keys, slot.excluded, numbers)
