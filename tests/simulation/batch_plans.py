"""The plans of the batches of a core world: those of the connector, which are checked, or a simple one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from nsqkit.spark.batch_plan import (
    BatchLimits,
    BatchPlan,
    PartitionShare,
    PlannedConnection,
    SourceNode,
    plan_batch,
)
from tests.simulation.broken import conclude


def plan_alike(number: int, nodes: Sequence[SourceNode], count: int, rdy: int, now_ns: int) -> BatchPlan:
    """Return the plan of a batch without limits: each of ``count`` partitions consumes from each node."""
    connections = tuple(PlannedConnection(node.nsqd_address, node.topic, rdy) for node in nodes)
    partitions = (
        PartitionShare(index=index, connections=connections, records_max=None, bytes_max=None) for index in range(count)
    )
    return BatchPlan(number, now_ns, tuple(partitions))


def plan_within(
    number: int, nodes: Sequence[SourceNode], count: int, options: Mapping[str, int], now_ns: int
) -> BatchPlan:
    """Return the connector's plan of a batch within the limits of ``options``, for up to ``count`` partitions.

    Raises:
        Broken: it exceeds a limit, leaves a part of one unused, or prefers a node.
    """
    limits = BatchLimits(partition_count=count, max_partitions=1, **options)
    plan = plan_batch(number, nodes, limits, now_ns)
    connections = [each for partition in plan.partitions for each in partition.connections]
    in_flight = [each.max_in_flight for each in connections]
    by_node = Counter(each.nsqd_address for each in connections)
    records = [partition.records_max or 0 for partition in plan.partitions]
    wanted = min(count, limits.records_max or math.inf, limits.max_in_flight)
    is_right = len(plan.partitions) == wanted and all(partition.connections for partition in plan.partitions)
    # A connection needs no more in flight than its partition takes.
    may_be_less = limits.records_max is not None and sum(in_flight) < limits.max_in_flight
    is_right &= may_be_less or sum(in_flight) == limits.max_in_flight
    is_right &= 0 not in in_flight and sum(records) == (limits.records_max or 0)
    is_right &= limits.records_max is None or 0 not in records
    is_right &= len(set(by_node.values())) == 1 and len(by_node) in {len(nodes), limits.max_in_flight}
    conclude(6, is_right, f"the limits {limits} lead to the plan {plan}")
    plans = (plan_batch(number + later, nodes, limits, now_ns) for later in range(-(-len(nodes) // len(connections))))
    reached = {each.nsqd_address for plan in plans for partition in plan.partitions for each in partition.connections}
    conclude(27, len(reached) == len(nodes), f"with the limits {limits}, the next batches have {reached} of {nodes}")
    return plan
