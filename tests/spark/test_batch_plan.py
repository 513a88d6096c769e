"""The plan of a batch: every node has a connection, limits hold, and a stored plan counts."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError, ProtocolError
from nsqkit.spark.batch_plan import (
    BatchLimits,
    BatchPlan,
    PlannedConnection,
    SourceNode,
    batch_limits,
    decode_plan,
    encode_plan,
    named_nodes,
    plan_batch,
    plan_spec,
    read_plan,
    store_plan,
)
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore

NODES = [SourceNode(f"n{number}:4150", "t") for number in range(9)]
SOME_NODES = st.sampled_from([*NODES, SourceNode("n0:4150", "u"), SourceNode("n1:4150", "u")])
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


def make_spec(**options: Any) -> ConsumerSpec:
    return ConsumerSpec(**{"topics": "t", "channel": "c", "nsqd_tcp_addresses": ["a:1", "b:1", "c:1"], **options})


def nodes_of(plan: BatchPlan) -> list[list[SourceNode]]:
    return [[SourceNode(found.nsqd_address, found.topic) for found in share.connections] for share in plan.partitions]


def names_of(plan: BatchPlan) -> list[list[str]]:
    return [[node.nsqd_address.removesuffix(":4150") for node in nodes] for nodes in nodes_of(plan)]


@given(st.integers(0, 50), st.lists(SOME_NODES, min_size=1), LIMITS)
def test_a_plan_keeps_to_its_limits(batch: int, nodes: list[SourceNode], bounds: BatchLimits) -> None:
    plan = plan_batch(batch, nodes, bounds, 7)
    connections = [connection for share in plan.partitions for connection in share.connections]
    assert sum(connection.max_in_flight for connection in connections) <= bounds.max_in_flight
    assert all(connection.max_in_flight >= 1 for connection in connections)
    assert all(share.connections for share in plan.partitions)
    assert all(len(set(found)) == len(found) for found in nodes_of(plan))
    if bounds.records_max is None:
        assert sum(connection.max_in_flight for connection in connections) == bounds.max_in_flight
    else:
        assert sum(share.records_max or 0 for share in plan.partitions) == bounds.records_max
    planned = {node for found in nodes_of(plan) for node in found}
    assert len(planned) == min(len(set(nodes)), bounds.max_in_flight)
    assert len(plan.partitions) <= (bounds.partition_count or bounds.max_partitions)
    assert decode_plan("key", batch, encode_plan(plan)) == plan


@given(st.integers(0, 50), st.sets(SOME_NODES, min_size=1), st.integers(1, 9), st.integers(1, 20))
def test_successive_batches_reach_every_node(
    batch: int, nodes: set[SourceNode], max_in_flight: int, count: int
) -> None:
    reached: set[SourceNode] = set()
    for number in range(batch, batch + len(nodes)):
        reached.update(*nodes_of(plan_batch(number, nodes, limits(count, max_in_flight), 0)))
    assert reached == nodes


@given(st.lists(st.sets(SOME_NODES), max_size=6), LIMITS)
def test_nodes_may_come_and_go_between_batches(sets: list[set[SourceNode]], bounds: BatchLimits) -> None:
    bounds = attrs.evolve(bounds, max_in_flight=100)
    for batch, nodes in enumerate(sets):
        planned = nodes_of(plan_batch(batch, nodes, bounds, 0))
        assert {node for found in planned for node in found} == nodes


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
def test_each_node_has_the_same_number_of_connections(count: int, nsqd_count: int, planned: list[list[str]]) -> None:
    plan = plan_batch(0, NODES[:nsqd_count], limits(count, 100), 0)
    assert names_of(plan) == planned


def test_the_nodes_rotate_if_the_connections_outnumber_max_in_flight() -> None:
    plans = [plan_batch(batch, NODES[:5], limits(3, 2), 0) for batch in range(3)]
    assert [names_of(plan) for plan in plans] == [[["n0"], ["n1"]], [["n2"], ["n3"]], [["n4"], ["n0"]]]


def test_each_topic_of_an_nsqd_is_a_node() -> None:
    nodes = [SourceNode(address, topic) for address in ("n0:4150", "n1:4150") for topic in ("t", "u")]
    plan = plan_batch(0, nodes, limits(2, 100), 0)
    assert nodes_of(plan) == [[nodes[0], nodes[2]], [nodes[1], nodes[3]]]


@pytest.mark.parametrize(("node_count", "max_partitions", "planned"), [(1, 64, 2), (5, 64, 5), (9, 4, 4)])
def test_the_default_is_a_partition_for_each_node(node_count: int, max_partitions: int, planned: int) -> None:
    spec = make_spec(max_partitions=max_partitions)
    assert len(plan_batch(0, NODES[:node_count], batch_limits(spec), 0).partitions) == planned


def test_max_partitions_does_not_limit_partitions_that_are_set() -> None:
    assert len(plan_spec(make_spec(partitions=65), NODES)) == 65


def test_no_more_is_in_flight_than_rows_are_wanted() -> None:
    plan = plan_batch(0, NODES[:2], limits(1, 2500, records_max=10), 0)
    assert plan.partitions[0].connections == (
        PlannedConnection("n0:4150", "t", 5),
        PlannedConnection("n1:4150", "t", 5),
    )


def test_a_batch_without_nodes_has_no_partitions() -> None:
    assert plan_batch(3, [], limits(2, 100), 9) == BatchPlan(3, 9, ())


def test_a_spec_that_names_its_nsqds_has_their_topics_as_nodes() -> None:
    nodes = named_nodes(make_spec(topics=["t", "u"], nsqd_tcp_addresses=["a:1", "b:1"]))
    assert nodes == (SourceNode("a:1", "t"), SourceNode("a:1", "u"), SourceNode("b:1", "t"), SourceNode("b:1", "u"))


def test_a_job_has_the_limits_of_its_spec() -> None:
    spec = make_spec(partitions=2, max_in_flight=7, max_messages=5, max_bytes=9)
    shares = plan_spec(spec, named_nodes(spec))
    assert [(share.index, share.records_max, share.bytes_max) for share in shares] == [(0, 3, 5), (1, 2, 4)]
    assert shares[0].connections == (PlannedConnection("a:1", "t", 2), PlannedConnection("c:1", "t", 1))
    assert shares[1].connections == (PlannedConnection("b:1", "t", 2),)


def test_a_job_has_a_consumer_for_every_node() -> None:
    spec = make_spec(max_in_flight=2)
    with pytest.raises(OptionError, match="max_in_flight is 2; allowed is at least one for each of the 3 pairs"):
        plan_spec(spec, named_nodes(spec))


def test_a_job_without_nsqds_for_a_topic_is_refused() -> None:
    spec = make_spec(topics=["t", "u", "v"])
    with pytest.raises(OptionError, match="the nsqlookupds list no nsqd for 'u', 'v'; allowed are topics that have"):
        plan_spec(spec, NODES)


def test_the_stored_plan_counts() -> None:
    wal = Wal(MemoryStore(), "w")
    assert read_plan(wal, 0) is None
    first = plan_batch(0, NODES[:4], limits(4, 100), 0)
    assert store_plan(wal, first) == first
    assert store_plan(wal, plan_batch(0, NODES[:1], limits(1, 100), 0)) == first
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
