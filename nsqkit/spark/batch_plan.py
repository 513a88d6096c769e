"""The plan of a batch: which partition connects to which nsqd, and the shares of the batch's limits.

        connections = nsqds × ceil(partitions / nsqds)

Each nsqd has the same number of connections, and a partition has at most one to each nsqd. The shares of
``max_in_flight`` add up to it. If there are more connections than ``max_in_flight`` allows, a batch has only so many,
and the next batch goes on with the next nsqds. The first plan of a batch is stored and never changes: a replay with
other options or other nsqds would read other partitions, and would lose the rows of those that it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.records import decode_fields, encode_fields
from nsqkit.spark.slots.wal import Wal


@attrs.frozen(kw_only=True)
class BatchLimits:
    """The limits of each batch, all partitions together.

    Attributes:
        partition_count: partitions wanted; None for one for each nsqd, and at least 2.
        max_partitions: partitions at most.
        max_in_flight: messages in flight, at least 1.
        records_max: rows of a batch; None for no limit.
        bytes_max: bytes of bodies of a batch; None for no limit.
    """

    partition_count: int | None
    max_partitions: int
    max_in_flight: int
    records_max: int | None = None
    bytes_max: int | None = None


@attrs.frozen
class PlannedConnection:
    """One connection of a partition, and its share of ``max_in_flight``: its RDY."""

    nsqd_address: str
    max_in_flight: int


@attrs.frozen(kw_only=True)
class PartitionShare:
    """The work of one partition.

    Attributes:
        index: the partition's number, from 0.
        connections: one or more, each to another nsqd.
        records_max: its share of the batch's; None for no limit.
        bytes_max: its share of the batch's; None for no limit.
    """

    index: int
    connections: tuple[PlannedConnection, ...]
    records_max: int | None
    bytes_max: int | None


@attrs.frozen
class BatchPlan:
    """The plan of one batch: without partitions if no nsqd was known.

    Attributes:
        batch: the batch's number.
        created_ns: when it was planned, ns since the Unix epoch.
        partitions: the work of each partition, in order.
    """

    batch: int
    created_ns: int
    partitions: tuple[PartitionShare, ...]


def plan_batch(batch: int, nsqd_addresses: Sequence[str], limits: BatchLimits, now_ns: int) -> BatchPlan:
    """Return the plan of a batch that has none.

    Args:
        batch: its number, which decides the nsqds if there are more than ``max_in_flight``.
        nsqd_addresses: the nsqds that have the topic now, in any order.
        limits: of the batch.
        now_ns: ns since the Unix epoch.
    """
    nsqds = sorted(set(nsqd_addresses))
    if not nsqds:
        return BatchPlan(batch, now_ns, ())
    wanted = limits.partition_count or max(len(nsqds), 2)
    wanted = min(wanted, limits.max_partitions, limits.records_max or wanted)
    connection_count = len(nsqds) * -(-wanted // len(nsqds))
    planned_count = min(connection_count, limits.max_in_flight)
    first = batch * planned_count if planned_count < connection_count else 0
    addresses = [nsqds[(first + number) % len(nsqds)] for number in range(planned_count)]
    in_flight = _deal(limits.max_in_flight, planned_count)
    count = min(wanted, planned_count)
    records = _deal_or_none(limits.records_max, count)
    sizes = _deal_or_none(limits.bytes_max, count)
    partitions = tuple(
        PartitionShare(
            index=index,
            connections=_connections(addresses[index::count], in_flight[index::count], records[index]),
            records_max=records[index],
            bytes_max=sizes[index],
        )
        for index in range(count)
    )
    return BatchPlan(batch, now_ns, partitions)


def read_plan(wal: Wal, batch: int) -> BatchPlan | None:
    """Return the stored plan of a batch; None if it has none.

    Raises:
        ProtocolError: the stored bytes are no plan of this batch.
    """
    key = wal.plan_key(batch)
    data = wal.store.get(key)
    return None if data is None else decode_plan(key, batch, data)


def store_plan(wal: Wal, plan: BatchPlan) -> BatchPlan:
    """Store a plan, and return the one that counts: an earlier one if there is one."""
    if wal.store.put_if_absent(wal.plan_key(plan.batch), encode_plan(plan)):
        return plan
    stored = read_plan(wal, plan.batch)
    if stored is None:
        raise ProtocolError(f"{wal.plan_key(plan.batch)} was removed while batch {plan.batch} was planned")
    return stored


def encode_plan(plan: BatchPlan) -> bytes:
    """Return the bytes of a plan, in JSON."""
    return encode_fields(attrs.asdict(plan))


def decode_plan(key: str, batch: int, data: bytes | memoryview) -> BatchPlan:
    """Return the plan of a batch that the bytes of ``key`` hold.

    Raises:
        ProtocolError: the bytes are no plan of this batch.
    """
    fields = decode_fields(key, data)
    try:
        plan = BatchPlan(
            _int(fields["batch"]), _int(fields["created_ns"]), tuple(map(_partition, _list(fields["partitions"])))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"{key} is no plan: {error!r}") from error
    if plan.batch != batch or [share.index for share in plan.partitions] != list(range(len(plan.partitions))):
        raise ProtocolError(f"{key} is no plan of batch {batch}: it has batch {plan.batch} or partitions are missing")
    return plan


def _connections(
    addresses: Sequence[str], in_flight: Sequence[int], records_max: int | None
) -> tuple[PlannedConnection, ...]:
    # More messages than the partition's rows would be delivered only to be requeued.
    caps = in_flight if records_max is None else [max(1, cap) for cap in _deal(records_max, len(addresses))]
    shares = zip(addresses, in_flight, caps, strict=True)
    return tuple(PlannedConnection(address, min(share, cap)) for address, share, cap in shares)


def _deal(total: int, count: int) -> list[int]:
    """Divide ``total`` evenly; the first shares get the remainder."""
    least, odd = divmod(total, count)
    return [least + (index < odd) for index in range(count)]


def _deal_or_none(total: int | None, count: int) -> Sequence[int | None]:
    return [None] * count if total is None else [max(1, share) for share in _deal(total, count)]


def _partition(fields: object) -> PartitionShare:
    if not isinstance(fields, dict):
        raise TypeError(f"{fields!r} is no partition")
    connections = (
        PlannedConnection(str(item["nsqd_address"]), _int(item["max_in_flight"]))
        for item in map(dict, _list(fields["connections"]))
    )
    return PartitionShare(
        index=_int(fields["index"]),
        connections=tuple(connections),
        records_max=None if fields["records_max"] is None else _int(fields["records_max"]),
        bytes_max=None if fields["bytes_max"] is None else _int(fields["bytes_max"]),
    )


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no integer")
    return value


def _list(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value
