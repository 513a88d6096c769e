from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.plan import plan_partitions


def make_spec(nsqd_count: int, **options):
    addresses = [f"nsqd-{n}:4150" for n in range(nsqd_count)]
    return ConsumerSpec(topic="t", channel="c", nsqd_tcp_addresses=addresses, **options)


def test_more_partitions_than_nsqds_share_them():
    plans = plan_partitions(make_spec(2, partitions=5, max_in_flight=12))
    assert [plan.nsqd_tcp_addresses for plan in plans] == [
        ("nsqd-0:4150",),
        ("nsqd-1:4150",),
        ("nsqd-0:4150",),
        ("nsqd-1:4150",),
        ("nsqd-0:4150",),
    ]
    assert [plan.max_in_flight for plan in plans] == [3, 3, 2, 2, 2]
    assert [plan.index for plan in plans] == [0, 1, 2, 3, 4]


def test_fewer_partitions_than_nsqds_have_several_nsqds_each():
    plans = plan_partitions(make_spec(3, partitions=2, max_in_flight=3))
    assert [plan.nsqd_tcp_addresses for plan in plans] == [("nsqd-0:4150", "nsqd-2:4150"), ("nsqd-1:4150",)]
    assert [plan.max_in_flight for plan in plans] == [2, 1]


def test_max_in_flight_is_at_most_max_messages():
    plans = plan_partitions(make_spec(2, max_messages=7, max_in_flight=1000))
    assert [(plan.max_messages, plan.max_in_flight) for plan in plans] == [(4, 4), (3, 3)]


@given(
    nsqd_count=st.integers(1, 20),
    partitions=st.integers(1, 40),
    spare=st.integers(0, 1000),
    max_messages=st.none() | st.integers(0, 1000),
)
def test_the_shares_add_up_to_the_spec(nsqd_count: int, partitions: int, spare: int, max_messages: int | None):
    max_in_flight = max(nsqd_count, partitions) + spare
    spec = make_spec(nsqd_count, partitions=partitions, max_in_flight=max_in_flight, max_messages=max_messages)
    plans = plan_partitions(spec)
    assert len(plans) == partitions
    assert {address for plan in plans for address in plan.nsqd_tcp_addresses} == set(spec.nsqd_tcp_addresses)
    assert sum(len(plan.nsqd_tcp_addresses) for plan in plans) == spec.connection_count
    for plan in plans:
        assert plan.max_in_flight >= len(plan.nsqd_tcp_addresses) >= 1
    if max_messages is None:
        assert sum(plan.max_in_flight for plan in plans) == max_in_flight
    else:
        assert sum(plan.max_in_flight for plan in plans) <= max_in_flight
        assert sum(plan.max_messages or 0 for plan in plans) == max_messages
