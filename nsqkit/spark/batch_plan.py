"""The plan of a batch: which partition consumes which topic of which nsqd, and the shares of the batch's limits.

        connections = nodes × ceil(partitions / nodes)

A node is a topic of an nsqd. Each node has the same number of connections, and a partition has at most one to each
node. The shares of ``max_in_flight`` add up to it. If there are more connections than ``max_in_flight`` allows, a batch
has only so many, and the next batch goes on with the next nodes. The first plan of a batch is stored and never changes:
a replay with other options or other nodes would read other partitions, and would lose the rows of those that it leaves
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from nsqkit.errors import OptionError, ProtocolError
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.slots.records import decode_fields, encode_fields
from nsqkit.spark.slots.wal import Wal


@attrs.frozen(kw_only=True)
class BatchLimits:
    """The limits of each batch, all partitions together.

    Attributes:
        partition_count: partitions wanted; None for one for each node, from 2 to ``max_partitions``.
        max_partitions: the most partitions if ``partition_count`` is None.
        max_in_flight: messages in flight, at least 1.
        records_max: rows of a batch; None for no limit.
        bytes_max: bytes of bodies of a batch; None for no limit.
    """

    partition_count: int | None
    max_partitions: int
    max_in_flight: int
    records_max: int | None = None
    bytes_max: int | None = None


@attrs.frozen(order=True)
class SourceNode:
    """A topic of an nsqd, which is known by its TCP address as the executors reach it."""

    nsqd_address: str
    topic: str


@attrs.frozen
class PlannedConnection:
    """One connection of a partition, and its share of ``max_in_flight``: its RDY."""

    nsqd_address: str
    topic: str
    max_in_flight: int


@attrs.frozen(kw_only=True)
class PartitionShare:
    """The work of one partition.

    Attributes:
        index: the partition's number, from 0.
        connections: one or more, each to another node.
        records_max: its share of the batch's; None for no limit.
        bytes_max: its share of the batch's; None for no limit.
    """

    index: int
    connections: tuple[PlannedConnection, ...]
    records_max: int | None
    bytes_max: int | None


@attrs.frozen
class BatchPlan:
    """The plan of one batch: without partitions if no node was known.

    Attributes:
        batch: the batch's number.
        created_ns: when it was planned, ns since the Unix epoch.
        partitions: the work of each partition, in order.
    """

    batch: int
    created_ns: int
    partitions: tuple[PartitionShare, ...]


def named_nodes(spec: ConsumerSpec) -> tuple[SourceNode, ...]:
    """Return the nodes of a spec that names its nsqds; none if nsqlookupds list them."""
    return tuple(SourceNode(address, topic) for address in spec.nsqd_tcp_addresses for topic in spec.topics)


def batch_limits(spec: ConsumerSpec) -> BatchLimits:
    """Return the limits of a spec."""
    return BatchLimits(
        partition_count=spec.partitions,
        max_partitions=spec.max_partitions,
        max_in_flight=spec.max_in_flight,
        records_max=spec.max_messages,
        bytes_max=spec.max_bytes,
    )


def plan_spec(spec: ConsumerSpec, nodes: Iterable[SourceNode]) -> tuple[PartitionShare, ...]:
    """Return the work of each partition of a job that consists of one batch.

    Args:
        spec: the limits.
        nodes: the nodes of its topics now, in any order.

    Raises:
        OptionError: no nsqd has one of the topics, or ``max_in_flight`` is less than the number of nodes, so that some
            would have no consumer.
    """
    known = sorted(set(nodes))
    if missing := set(spec.topics) - {node.topic for node in known}:
        topics = ", ".join(map(repr, sorted(missing)))
        raise OptionError(f"the nsqlookupds list no nsqd for {topics}; allowed are topics that have one")
    if spec.max_in_flight < len(known):
        raise OptionError(
            f"max_in_flight is {spec.max_in_flight}; allowed is at least one for each of the {len(known)} pairs of "
            "nsqd and topic"
        )
    return plan_batch(0, known, batch_limits(spec), 0).partitions


def plan_batch(batch: int, nodes: Iterable[SourceNode], limits: BatchLimits, now_ns: int) -> BatchPlan:
    """Return the plan of a batch that has none.

    Args:
        batch: its number, which decides the nodes if there are more than ``max_in_flight``.
        nodes: the topics of nsqds that are known now, in any order.
        limits: of the batch.
        now_ns: ns since the Unix epoch.
    """
    known = sorted(set(nodes))
    if not known:
        return BatchPlan(batch, now_ns, ())
    wanted = limits.partition_count or min(max(len(known), 2), limits.max_partitions)
    wanted = min(wanted, limits.records_max or wanted)
    connection_count = len(known) * -(-wanted // len(known))
    planned_count = min(connection_count, limits.max_in_flight)
    first = batch * planned_count if planned_count < connection_count else 0
    planned = [known[(first + number) % len(known)] for number in range(planned_count)]
    in_flight = _deal(limits.max_in_flight, planned_count)
    count = min(wanted, planned_count)
    records = _deal_or_none(limits.records_max, count)
    sizes = _deal_or_none(limits.bytes_max, count)
    partitions = tuple(
        PartitionShare(
            index=index,
            connections=_connections(planned[index::count], in_flight[index::count], records[index]),
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
    nodes: Sequence[SourceNode], in_flight: Sequence[int], records_max: int | None
) -> tuple[PlannedConnection, ...]:
    # More messages than the partition's rows would be delivered only to be requeued.
    caps = in_flight if records_max is None else [max(1, cap) for cap in _deal(records_max, len(nodes))]
    shares = zip(nodes, in_flight, caps, strict=True)
    return tuple(PlannedConnection(node.nsqd_address, node.topic, min(share, cap)) for node, share, cap in shares)


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
        PlannedConnection(str(item["nsqd_address"]), str(item["topic"]), _int(item["max_in_flight"]))
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
