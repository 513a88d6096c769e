"""The division of a spec's nsqds and limits among partitions.

Every nsqd has a consumer, every partition has an nsqd, and the shares of ``max_in_flight`` and ``max_messages`` add up
to the limits of the job. A plan is computed from the spec alone, so each attempt of a task has the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from nsqkit.spark.options import ConsumerSpec


@attrs.frozen(kw_only=True)
class PartitionPlan:
    """The share of one partition.

    Attributes:
        index: the partition's number, from 0.
        nsqd_tcp_addresses: the nsqds it connects to.
        max_in_flight: its share of the spec's.
        max_messages: its share of the spec's; None for no limit.
    """

    index: int
    nsqd_tcp_addresses: tuple[str, ...]
    max_in_flight: int
    max_messages: int | None


def plan_partitions(spec: ConsumerSpec) -> tuple[PartitionPlan, ...]:
    """Return the plan of each partition."""
    count = spec.partition_count
    in_flight = _deal(spec.max_in_flight, count)
    messages = [None] * count if spec.max_messages is None else _deal(spec.max_messages, count)
    return tuple(_plan(spec, index, in_flight[index], messages[index]) for index in range(count))


def _plan(spec: ConsumerSpec, index: int, max_in_flight: int, max_messages: int | None) -> PartitionPlan:
    addresses = _addresses_of(index, spec.partition_count, spec.nsqd_tcp_addresses)
    if max_messages is not None:
        # More messages would be delivered only to be requeued.
        max_in_flight = min(max_in_flight, max(max_messages, len(addresses)))
    return PartitionPlan(
        index=index, nsqd_tcp_addresses=addresses, max_in_flight=max_in_flight, max_messages=max_messages
    )


def _addresses_of(index: int, count: int, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Return every ``count``-th address, or the partition's one address if there are more partitions than nsqds."""
    return addresses[index::count] if count < len(addresses) else (addresses[index % len(addresses)],)


def _deal(total: int, count: int) -> list[int]:
    """Divide ``total`` evenly; the first shares get the remainder."""
    least, odd = divmod(total, count)
    return [least + (index < odd) for index in range(count)]
