from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nsqkit import BlockingProducer, Consumer, OptionError, Producer
from nsqkit.testing.cluster import Cluster
from nsqkit.testing.http_faults import Silence


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nsqds=2, nsqlookupds=2, clock="manual") as cluster:
        yield cluster


def listed(cluster: Cluster, topic: str) -> list[list[str]]:
    """Return the addresses that each nsqlookupd lists for a topic."""
    return [[node.tcp_address for node in lookupd.registry.producers(topic)] for lookupd in cluster.nsqlookupds]


@pytest.mark.anyio
async def test_consumer_finds_the_nsqds(nsq_cluster: Cluster) -> None:
    for number, address in enumerate(nsq_cluster.nsqd_tcp_addresses):
        async with Producer(address) as producer:
            await producer.publish("t", b"%d" % number)
    await nsq_cluster.wait_registered()
    addresses: Any = nsq_cluster.lookupd_http_addresses
    bodies = []
    async with Consumer("t", "c", lookupd_http_addresses=addresses, max_in_flight=3) as consumer:
        async for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == 3:
                break
    assert sorted(bodies) == [b"0", b"1", b"2"]


@pytest.mark.nsq_cluster(nsqds=1, nsqlookupds=1, max_rdy_count=7)
def test_marker_sets_numbers_and_options(nsq_cluster: Cluster) -> None:
    assert len(nsq_cluster.nsqlookupds) == 1
    (nsqd,) = nsq_cluster.nsqds
    assert nsqd.options.max_rdy_count == 7


@pytest.mark.parametrize("options", [{"broadcast_address": "localhost"}, {"broadcast_tcp_port": 4150}], ids=str)
def test_nsqd_with_another_address_for_clients_is_registered(options: dict[str, Any]) -> None:
    with Cluster(1, 1, **options) as cluster:
        cluster.nsqds[0].publish("t", b"x")
        cluster.wait_registered()


def test_killed_nsqd_is_not_listed_until_it_is_back(cluster: Cluster) -> None:
    one, other = cluster.nsqds
    for nsqd in cluster.nsqds:
        nsqd.publish("t", b"x")
    cluster.wait_registered()
    assert [sorted(addresses) for addresses in listed(cluster, "t")] == [sorted(cluster.nsqd_tcp_addresses)] * 2
    cluster.kill(0)
    cluster.nsqds[1].wait_for(lambda: listed(cluster, "t") == [[other.tcp_address]] * 2)
    cluster.restart(0)
    assert one.topics == {}
    one.publish("t", b"x")
    cluster.wait_registered()
    cluster.stop(one)
    cluster.restart(one, keep_data=True)
    assert one.topic("t").depth == 1


def test_nsqlookupd_is_back_with_all_registrations_after_15_seconds(cluster: Cluster) -> None:
    cluster.nsqds[0].publish("t", b"x")
    cluster.wait_registered()
    cluster.kill(cluster.nsqlookupds[1])
    cluster.restart(cluster.nsqlookupds[1])
    assert listed(cluster, "t") == [[cluster.nsqds[0].tcp_address], []]
    cluster.clock.advance(15)
    cluster.wait_registered()
    assert listed(cluster, "t") == [[cluster.nsqds[0].tcp_address]] * 2


def test_partition_between_nsqd_and_nsqlookupd(cluster: Cluster) -> None:
    nsqd, lookupd = cluster.nsqds[0], cluster.nsqlookupds[0]
    cluster.wait_registered()
    cluster.partition(lookupd, nsqd)
    nsqd.publish("t", b"x")
    cluster.wait_registered()
    assert listed(cluster, "t") == [[], [nsqd.tcp_address]]
    cluster.heal()
    cluster.wait_registered()
    assert listed(cluster, "t") == [[nsqd.tcp_address]] * 2


def test_nsqd_that_is_cut_off_expires(cluster: Cluster) -> None:
    nsqd = cluster.nsqds[0]
    cluster.wait_registered()
    cluster.partition(0)
    cluster.clock.advance(301)
    assert [node.tcp_address for node in cluster.nsqlookupds[0].registry.nodes] == [cluster.nsqds[1].tcp_address]
    with pytest.raises(Exception, match=nsqd.tcp_address):
        with BlockingProducer(nsqd.tcp_address, connect_timeout=0.1) as producer:
            producer.publish("t", b"x")
    cluster.heal()
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")


def test_nsqlookupd_that_is_cut_off_does_not_answer(cluster: Cluster) -> None:
    cluster.wait_registered()
    cluster.partition(cluster.nsqlookupds[0])
    cluster.nsqds[0].publish("t", b"x")
    cluster.wait_registered()
    assert listed(cluster, "t") == [[], [cluster.nsqds[0].tcp_address]]
    assert cluster.nsqlookupds[0].faults.plan("/lookup", "t") == [Silence()]
    cluster.heal()
    cluster.wait_registered()
    assert cluster.nsqlookupds[0].faults.plan("/lookup", "t") == []


def test_node_that_is_cut_off_can_be_cut_off_again(cluster: Cluster) -> None:
    for node in (cluster.nsqds[0], cluster.nsqlookupds[0]):
        cluster.partition(node)
        cluster.partition(node)
        node.faults.clear()
        cluster.partition(node)
        assert node.faults.active
    cluster.heal()
    cluster.wait_registered()
    assert not cluster.nsqds[0].faults.active
    assert not cluster.nsqlookupds[0].faults.active


def test_missing_registration_is_named(cluster: Cluster) -> None:
    cluster.wait_registered()
    cluster.nsqlookupds[0].inspect(lambda registry: registry.create_topic(b"x"))
    cluster.nsqds[1].publish("t", b"x")
    cluster.wait_registered()
    cluster.nsqlookupds[0].reset()
    with pytest.raises(AssertionError, match=r"nsqlookupd 0 lists .* for nsqd 1, which has"):
        cluster.wait_registered(timeout=0.05)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"nsqds": 0}, "nsqds is 0; allowed is an int from 1 to 100"),
        ({"nsqlookupds": -1}, "nsqlookupds is -1; allowed is an int from 0 to 100"),
        ({"tcp_address": "127.0.0.1:1"}, "there is no option tcp_address for a cluster"),
        ({"max_rdy_count": -1}, "max_rdy_count is -1"),
        ({"clock": "slow"}, "mode is 'slow'"),
    ],
    ids=["nsqds", "nsqlookupds", "address", "option", "clock"],
)
def test_wrong_value_is_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        Cluster(**options)


def test_node_of_another_cluster_is_refused(cluster: Cluster) -> None:
    with pytest.raises(OptionError, match="node is 2; allowed is a server of this cluster, or 0 to 1"):
        cluster.kill(2)
    with pytest.raises(OptionError, match="an nsqd and an nsqd have no connection"):
        cluster.partition(0, 1)
