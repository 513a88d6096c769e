"""The plan of a batch: every nsqd has a connection, limits hold, and a stored plan counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.spark.batch_plan import (
    BatchLimits,
    BatchPlan,
    PlannedConnection,
    decode_plan,
    encode_plan,
    plan_batch,
    read_plan,
    store_plan,
)
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore

NSQDS = [f"n{number}:4150" for number in range(9)]
LIMITS = st.builds(
    BatchLimits,
    partition_count=st.none() | st.integers(1, 20),
    max_partitions=st.integers(1, 20),
    max_in_flight=st.integers(1, 100),
    records_max=st.none() | st.integers(1, 200),
    bytes_max=st.none() | st.integers(1, 200),
)


def limits(partition_count: int, max_in_flight: int, records_max: int | None = None) -> BatchLimits:
    return BatchLimits(
        partition_count=partition_count, max_partitions=64, max_in_flight=max_in_flight, records_max=records_max
    )


def addresses(plan: BatchPlan) -> list[list[str]]:
    return [[connection.nsqd_address for connection in share.connections] for share in plan.partitions]


@given(st.integers(0, 50), st.lists(st.sampled_from(NSQDS), min_size=1), LIMITS)
def test_a_plan_keeps_to_its_limits(batch: int, nsqds: list[str], bounds: BatchLimits) -> None:
    plan = plan_batch(batch, nsqds, bounds, 7)
    connections = [connection for share in plan.partitions for connection in share.connections]
    assert sum(connection.max_in_flight for connection in connections) <= bounds.max_in_flight
    assert all(connection.max_in_flight >= 1 for connection in connections)
    assert all(share.connections for share in plan.partitions)
    assert all(len(set(found)) == len(found) for found in addresses(plan))
    if bounds.records_max is not None:
        assert sum(share.records_max or 0 for share in plan.partitions) == bounds.records_max
    planned = {connection.nsqd_address for connection in connections}
    assert len(planned) == min(len(set(nsqds)), bounds.max_in_flight)
    assert len(plan.partitions) <= bounds.max_partitions
    assert decode_plan("key", batch, encode_plan(plan)) == plan


@given(st.integers(0, 50), st.sets(st.sampled_from(NSQDS), min_size=1), st.integers(1, 9), st.integers(1, 20))
def test_successive_batches_reach_every_nsqd(batch: int, nsqds: set[str], max_in_flight: int, count: int) -> None:
    reached: set[str] = set()
    for number in range(batch, batch + len(nsqds)):
        reached.update(*addresses(plan_batch(number, list(nsqds), limits(count, max_in_flight), 0)))
    assert reached == nsqds


@pytest.mark.parametrize(
    ("count", "nsqd_count", "planned"),
    [
        (2, 2, [["n0"], ["n1"]]),
        (4, 2, [["n0"], ["n1"], ["n0"], ["n1"]]),
        (2, 5, [["n0", "n2", "n4"], ["n1", "n3"]]),
        (4, 3, [["n0", "n1"], ["n1", "n2"], ["n2"], ["n0"]]),
    ],
    ids=["equal", "more-partitions", "more-nsqds", "uneven"],
)
def test_each_nsqd_has_the_same_number_of_connections(count: int, nsqd_count: int, planned: list[list[str]]) -> None:
    plan = plan_batch(0, NSQDS[:nsqd_count], limits(count, 100), 0)
    assert addresses(plan) == [[f"{name}:4150" for name in names] for names in planned]


def test_the_nsqds_rotate_if_the_connections_outnumber_max_in_flight() -> None:
    plans = [plan_batch(batch, NSQDS[:5], limits(3, 2), 0) for batch in range(3)]
    assert [addresses(plan) for plan in plans] == [
        [["n0:4150"], ["n1:4150"]],
        [["n2:4150"], ["n3:4150"]],
        [["n4:4150"], ["n0:4150"]],
    ]


def test_no_more_is_in_flight_than_rows_are_wanted() -> None:
    plan = plan_batch(0, NSQDS[:2], limits(1, 2500, records_max=10), 0)
    assert plan.partitions[0].connections == (PlannedConnection("n0:4150", 5), PlannedConnection("n1:4150", 5))


def test_a_batch_without_nsqds_has_no_partitions() -> None:
    assert plan_batch(3, [], limits(2, 100), 9) == BatchPlan(3, 9, ())


def test_the_stored_plan_counts() -> None:
    wal = Wal(MemoryStore(), "w")
    assert read_plan(wal, 0) is None
    first = plan_batch(0, NSQDS[:4], limits(4, 100), 0)
    assert store_plan(wal, first) == first
    assert store_plan(wal, plan_batch(0, NSQDS[:1], limits(1, 100), 0)) == first
    assert read_plan(wal, 0) == first
    assert read_plan(wal, 1) is None


@pytest.mark.parametrize(
    "data",
    [
        b'{"version": 1}',
        b'{"version": 1, "batch": "0", "created_ns": 0, "partitions": []}',
        b'{"version": 1, "batch": 0, "created_ns": 0, "partitions": 3}',
        b'{"version": 1, "batch": 0, "created_ns": 0, "partitions": [3]}',
        b'{"version": 1, "batch": 1, "created_ns": 0, "partitions": []}',
        b'{"version": 1, "batch": 0, "created_ns": 0, "partitions": [{"index": 0}]}',
    ],
    ids=["empty", "batch", "partitions", "partition", "other-batch", "no-connections"],
)
def test_other_bytes_are_no_plan(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"w/plan/0\.json is no plan"):
        decode_plan("w/plan/0.json", 0, data)
