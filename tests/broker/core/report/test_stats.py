from __future__ import annotations

from random import Random

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.report.stats import collect, to_document, to_text
from nsqkit.broker.core.topics.latency import Latency
from nsqkit.wire.commands import encode_finish, encode_identify, encode_publish, encode_ready, encode_requeue

S = 10**9
START_NS = 1_700_000_000 * S
NOW_NS = START_NS + 125 * S + 5

NO_LATENCY = {"count": 0, "percentiles": None}

MEMORY = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 30000,
    "heap_released_bytes": 4,
    "gc_pause_usec_100": 5,
    "gc_pause_usec_99": 6,
    "gc_pause_usec_95": 7,
    "next_gc_bytes": 8,
    "gc_total_runs": 9,
}


@pytest.fixture
def broker():
    return Broker(BrokerOptions(), Random(1))


def connect(broker, *commands, address="10.0.0.1:4242", identity=b""):
    session = broker.open_session(address, START_NS + S // 2)
    identify = encode_identify(identity) if identity else b""
    session.receive_data(b"  V2" + identify + b"".join(commands), START_NS + S)
    broker.settle(START_NS + S)
    return session


def names(stats):
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]] for topic in stats["topics"]
    }


def held(session):
    return session.subscription.in_flight


def the_producer(broker, topic=b""):
    producers = collect(broker, NOW_NS, topic=topic)["producers"]
    assert producers
    assert len(producers) == 1
    return producers[0]


def text(stats, memory=None):
    return to_text(
        stats,
        version_line="nsqd v1.3.0 (built w/go1)",
        health="OK",
        start_time="2023-11-14T22:13:20Z",
        start_time_ns=START_NS,
        now_ns=NOW_NS,
        memory=memory,
    )


def test_stats_of_an_empty_broker(broker):
    stats = collect(broker, NOW_NS)
    assert stats == {"topics": [], "producers": None}
    assert to_document(stats, health="OK", start_time_ns=START_NS + 7, memory=MEMORY) == {
        "version": "1.3.0",
        "health": "OK",
        "start_time": 1_700_000_000,
        "topics": [],
        "memory": MEMORY,
        "producers": None,
    }
    assert text(stats, MEMORY) == (
        "nsqd v1.3.0 (built w/go1)\n"
        "start_time 2023-11-14T22:13:20Z\n"
        "uptime 2m5.000000005s\n"
        "\n"
        "Health: OK\n"
        "\n"
        "Memory:\n"
        "   heap_objects             \t1\n"
        "   heap_idle_bytes          \t2\n"
        "   heap_in_use_bytes        \t30000\n"
        "   heap_released_bytes      \t4\n"
        "   gc_pause_usec_100        \t5\n"
        "   gc_pause_usec_99         \t6\n"
        "   gc_pause_usec_95         \t7\n"
        "   next_gc_bytes            \t8\n"
        "   gc_total_runs            \t9\n"
        "\n"
        "Topics: None\n"
        "\n"
        "Producers: None\n"
    )


def test_keys_of_the_document_are_in_the_order_of_nsqd(broker):
    stats = collect(broker, NOW_NS)
    keys = list(to_document(stats, health="OK", start_time_ns=START_NS, memory=MEMORY))
    assert keys == ["version", "health", "start_time", "topics", "memory", "producers"]
    keys.remove("memory")
    assert list(to_document(stats, health="OK", start_time_ns=START_NS, memory=None)) == keys


def full(broker):
    """Bring the broker into a state in which all numbers differ."""
    consumer = connect(
        broker,
        b"SUB t c\n",
        encode_ready(4),
        identity=b'{"client_id": "ci", "hostname": "ho", "user_agent": "ua", "topology_zone": "z"}',
    )
    topic = broker.topics.get_or_create(b"t")
    topic.put([b"11"] * 7, START_NS)
    broker.settle(START_NS)
    first, second, third, *_ = held(consumer).untouched
    consumer.receive_data(encode_finish(first) + encode_requeue(second, 60_000), START_NS + S)
    consumer.receive_data(encode_requeue(third, 0), START_NS + S)
    broker.settle(START_NS + S)
    topic.channels[b"c"].pause()
    topic.put([b"333"], START_NS)
    connect(
        broker,
        encode_publish(b"other", b"x"),
        encode_publish(b"t", b"y"),
        encode_publish(b"other", b"z"),
        address="[::1]:77",
    )
    topic.pause()
    topic.put([b""], START_NS)
    return consumer


def test_document_has_topics_channels_and_clients(broker):
    full(broker)
    stats = collect(broker, NOW_NS, topic=b"t")
    assert stats["topics"] == [
        {
            "topic_name": "t",
            "channels": [
                {
                    "channel_name": "c",
                    "depth": 3,
                    "backend_depth": 0,
                    "in_flight_count": 4,
                    "deferred_count": 1,
                    "message_count": 9,
                    "global_msg_count": 7,
                    "requeue_count": 2,
                    "timeout_count": 0,
                    "client_count": 1,
                    "clients": [
                        {
                            "client_id": "ci",
                            "hostname": "ho",
                            "version": "V2",
                            "remote_address": "10.0.0.1:4242",
                            "state": 3,
                            "ready_count": 4,
                            "in_flight_count": 4,
                            "message_count": 7,
                            "finish_count": 1,
                            "requeue_count": 2,
                            "connect_ts": 1_700_000_000,
                            "sample_rate": 0,
                            "deflate": False,
                            "snappy": False,
                            "user_agent": "ua",
                            "topology_zone": "z",
                            "topology_region": "",
                            "tls": False,
                            "tls_cipher_suite": "",
                            "tls_version": "",
                            "tls_negotiated_protocol": "",
                            "tls_negotiated_protocol_is_mutual": False,
                        }
                    ],
                    "paused": True,
                    "e2e_processing_latency": NO_LATENCY,
                }
            ],
            "depth": 1,
            "backend_depth": 0,
            "message_count": 10,
            "message_bytes": 18,
            "paused": True,
            "e2e_processing_latency": NO_LATENCY,
        }
    ]


def test_text_has_the_columns_of_nsqd(broker):
    full(broker)
    assert text(collect(broker, NOW_NS)).partition("Health: OK\n")[2] == (
        "\n"
        "Topics:\n"
        "   [other          ] depth: 2     be-depth: 0     msgs: 2        e2e%: \n"
        "\n"
        "*P [t              ] depth: 1     be-depth: 0     msgs: 10       e2e%: \n"
        "   *P [c                        ] depth: 3     be-depth: 0     inflt: 4    def: 1    re-q: 2     "
        "timeout: 0     msgs: 9        e2e%: \n"
        "        [V2 ho:4242 ua           ] state: 3 inflt: 4    rdy: 4    fin: 1        re-q: 2        "
        "msgs: 7        connected: 2m5s\n"
        "\n"
        "Producers:\n"
        "   [V2 ::1:77               ] msgs: 2        topics: other=2 connected: 2m5s\n"
    )


def test_topics_and_channels_are_in_byte_order(broker):
    for name in (b"zz", b"Bb", b"a1", b"a", b"_"):
        broker.topics.get_or_create(name).channel(name, START_NS)
        broker.topics.get_or_create(b"a").channel(name, START_NS)
    order = ["Bb", "_", "a", "a1", "zz"]
    assert list(names(collect(broker, NOW_NS))) == order
    assert names(collect(broker, NOW_NS))["a"] == order


def test_filters(broker):
    for topic in (b"t1", b"t2"):
        for channel in (b"c1", b"c2"):
            broker.topics.get_or_create(topic).channel(channel, START_NS)
    broker.topics.get_or_create(b"t2").channel(b"c3", START_NS)
    connect(broker, encode_publish(b"t1", b"x"))
    assert names(collect(broker, NOW_NS, topic=b"t1")) == {"t1": ["c1", "c2"]}
    assert names(collect(broker, NOW_NS, channel=b"c3")) == {"t2": ["c3"]}
    assert names(collect(broker, NOW_NS, topic=b"t1", channel=b"c2")) == {"t1": ["c2"]}
    assert collect(broker, NOW_NS, topic=b"t1", channel=b"none")["topics"] == []
    assert collect(broker, NOW_NS, topic=b"none") == {"topics": None, "producers": None}
    assert "Topics: None\n\nProducers: None\n" in text(collect(broker, NOW_NS, topic=b"none"))


def test_producer_is_listed_with_one_topic_only(broker):
    connect(broker, encode_publish(b"a", b"x"), encode_publish(b"b", b"x"), encode_publish(b"b", b"x"))

    def pub_counts(topic):
        return the_producer(broker, topic).get("pub_counts")

    assert pub_counts(b"") == [{"topic": "a", "count": 1}]
    assert pub_counts(b"b") == [{"topic": "b", "count": 2}]
    broker.topics.get_or_create(b"c")
    assert pub_counts(b"c") is None
    assert "\n   [V2 10.0.0.1:4242        ] state: 0 inflt: 0 " in text(collect(broker, NOW_NS, topic=b"c"))


def test_consumer_that_publishes_is_a_producer_too(broker):
    connect(broker, b"SUB t c\n", encode_publish(b"t", b"x"))
    stats = collect(broker, NOW_NS)
    assert stats["topics"]
    assert stats["topics"][0]["channels"][0]["clients"] == stats["producers"]


def test_pub_counts_have_their_place_in_the_order_of_nsqd(broker):
    connect(broker, encode_publish(b"t", b"x"))
    keys = list(the_producer(broker))
    assert keys[keys.index("pub_counts") - 1 : keys.index("pub_counts") + 2] == [
        "topology_region",
        "pub_counts",
        "tls",
    ]


def test_without_clients_only_their_number_is_returned(broker):
    connect(broker, b"SUB t c\n", encode_publish(b"t", b"x"))
    stats = collect(broker, NOW_NS, include_clients=False)
    assert stats["producers"] is None
    assert stats["topics"]
    assert stats["topics"][0]["channels"][0]["clients"] is None
    assert stats["topics"][0]["channels"][0]["client_count"] == 1
    assert "[V2" not in text(stats)


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (b'{"topology_zone": "z"}', "zone_local_msg_count"),
        (b'{"topology_region": "r"}', "region_local_msg_count"),
        (b"{}", "global_msg_count"),
        (b"", "global_msg_count"),
    ],
)
def test_deliveries_are_counted_by_proximity(place, key):
    options = BrokerOptions(enable_experiments=("topology-aware-consumption",), topology_zone="z", topology_region="r")
    broker = Broker(options, Random(1))
    connect(broker, b"SUB t c\n", encode_ready(5), identity=place)
    broker.topics.get_or_create(b"t").put([b"x"] * 3, START_NS)
    broker.settle(START_NS)
    topics = collect(broker, NOW_NS)["topics"]
    assert topics
    channel = topics[0]["channels"][0]
    counts = {key: value for key, value in channel.items() if key.endswith("_msg_count")}
    assert counts == {key: 3}


def test_consumer_without_identify_is_not_near():
    broker = Broker(BrokerOptions(enable_experiments=("topology-aware-consumption",)), Random(1))
    silent = connect(broker, b"SUB t c\n", encode_ready(5))
    identified = connect(broker, b"SUB t c\n", encode_ready(5), identity=b"{}")
    broker.topics.get_or_create(b"t").put([b"x"], START_NS)
    broker.settle(START_NS)
    assert (len(held(silent)), len(held(identified))) == (0, 1)


def test_nearest_consumers_are_served_first_and_others_get_the_rest():
    options = BrokerOptions(enable_experiments=("topology-aware-consumption",), topology_zone="z", topology_region="r")
    broker = Broker(options, Random(1))
    far = connect(broker, b"SUB t c\n", encode_ready(5), identity=b'{"topology_zone": "y"}')
    near = connect(broker, b"SUB t c\n", encode_ready(3), identity=b'{"topology_zone": "z"}')
    middle = connect(
        broker,
        b"SUB t c\n",
        encode_ready(2),
        identity=b'{"topology_zone": "y", "topology_region": "r"}',
    )
    broker.topics.get_or_create(b"t").put([b"x"] * 6, START_NS)
    broker.settle(START_NS)
    assert [len(held(session)) for session in (near, middle, far)] == [3, 2, 1]


@pytest.mark.parametrize(
    ("latency_ns", "shown"),
    [(0, "0.0ns"), (200, "200.0ns"), (1_500, "1.5us"), (2_500_000, "2.5ms"), (90 * S, "89.9s")],
)
def test_latencies_of_channels_and_their_topic(broker, latency_ns, shown):
    topic = broker.topics.get_or_create(b"t")
    for name in (b"c", b"d"):
        topic.channel(name, START_NS).latency = Latency((1.0, 0.5), 600 * S, START_NS)
    topic.channels[b"c"].latency.add([latency_ns], NOW_NS)
    topics = collect(broker, NOW_NS)["topics"]
    assert topics
    percentiles = topics[0]["e2e_processing_latency"]["percentiles"]
    assert percentiles
    value = percentiles[0]["value"]
    assert abs(value - latency_ns) * 256 <= latency_ns
    both = {"count": 1, "percentiles": [{"quantile": 1, "value": value}, {"quantile": 0.5, "value": value}]}
    none = {"count": 0, "percentiles": [{"quantile": 1, "value": 0}, {"quantile": 0.5, "value": 0}]}
    assert topics[0]["e2e_processing_latency"] == both
    assert [channel["e2e_processing_latency"] for channel in topics[0]["channels"]] == [both, none]
    ends = [line.partition("e2e%: ")[2] for line in text(collect(broker, NOW_NS)).splitlines() if "e2e%" in line]
    assert ends == [f"{shown}, {shown}", f"{shown}, {shown}", "0.0ns, 0.0ns"]


def test_health_reports_an_error(broker):
    stats = collect(broker, NOW_NS)
    document = to_document(stats, health="NOK - no space", start_time_ns=START_NS, memory=None)
    assert document["health"] == "NOK - no space"
    lines = to_text(stats, version_line="", health="NOK - x", start_time="", start_time_ns=0, now_ns=0, memory=None)
    assert "\nHealth: NOK - x\n" in lines


def test_client_of_a_unix_socket_has_no_port(broker):
    connect(broker, encode_publish(b"t", b"x"), address="@", identity=b'{"hostname": "h", "user_agent": "ua"}')
    assert the_producer(broker)["remote_address"] == "@"
    assert "\n   [V2 h: ua                ] msgs: 1 " in text(collect(broker, NOW_NS))
