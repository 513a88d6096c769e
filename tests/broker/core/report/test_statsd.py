from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.report.stats import collect
from nsqkit.broker.core.report.statsd import NOTHING, cut_packets, report, resolve_prefix
from nsqkit.broker.core.topics.latency import Latency

NOW_NS = 1_700_000_000 * 10**9

MEMORY = {
    "heap_objects": 1,
    "heap_idle_bytes": 2,
    "heap_in_use_bytes": 3,
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


def look(broker, memory=None):
    return {**collect(broker, NOW_NS, include_clients=False), "memory": memory}


def test_report_has_the_lines_of_nsqd_in_its_order(broker):
    topic = broker.topics.get_or_create(b"t")
    topic.channel(b"c", NOW_NS)
    topic.put([b"12345", b"678"], NOW_NS)
    topic.put([b"9"], NOW_NS, delay_ns=10**9)
    assert list(report(look(broker), NOTHING)) == [
        "topic.t.message_count:3|c",
        "topic.t.message_bytes:9|c",
        "topic.t.depth:0|g",
        "topic.t.backend_depth:0|g",
        "topic.t.channel.c.message_count:3|c",
        "topic.t.channel.c.depth:2|g",
        "topic.t.channel.c.backend_depth:0|g",
        "topic.t.channel.c.in_flight_count:0|g",
        "topic.t.channel.c.deferred_count:1|g",
        "topic.t.channel.c.requeue_count:0|c",
        "topic.t.channel.c.timeout_count:0|c",
        "topic.t.channel.c.clients:0|g",
    ]


def test_counters_are_differences_and_gauges_are_not(broker):
    topic = broker.topics.get_or_create(b"t")
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"12345", b"678"], NOW_NS)
    channel.requeue_count, channel.timeout_count = 4, 5
    first = look(broker)
    topic.put([b"9"], NOW_NS)
    channel.requeue_count, channel.timeout_count = 6, 8
    topic.channel(b"new", NOW_NS)
    lines = list(report(look(broker), first))
    assert lines[:2] == ["topic.t.message_count:1|c", "topic.t.message_bytes:1|c"]
    assert {
        "topic.t.channel.c.message_count:1|c",
        "topic.t.channel.c.depth:3|g",
        "topic.t.channel.c.requeue_count:2|c",
        "topic.t.channel.c.timeout_count:3|c",
        "topic.t.channel.new.message_count:0|c",
    } <= set(lines)


def test_topic_created_again_has_a_negative_difference(broker):
    broker.topics.get_or_create(b"t").put([b"x"] * 3, NOW_NS)
    first = look(broker)
    broker.delete_topic(b"t")
    broker.topics.get_or_create(b"t").put([b"x"], NOW_NS)
    assert next(report(look(broker), first)) == "topic.t.message_count:-2|c"


def test_latency_lines_follow_those_of_their_channel_or_topic(broker):
    channel = broker.topics.get_or_create(b"t").channel(b"c", NOW_NS)
    channel.latency = Latency((0.999, 0.5), 10**9, NOW_NS)
    channel.latency.add([250], NOW_NS)
    lines = list(report(look(broker), NOTHING))
    assert lines[4:6] == [
        "topic.t.e2e_processing_latency_100:250|g",
        "topic.t.e2e_processing_latency_50:250|g",
    ]
    assert lines[-2:] == [
        "topic.t.channel.c.e2e_processing_latency_100:250|g",
        "topic.t.channel.c.e2e_processing_latency_50:250|g",
    ]


def test_ephemeral_topics_and_channels_can_be_excluded(broker):
    broker.topics.get_or_create(b"e#ephemeral").channel(b"c", NOW_NS)
    broker.topics.get_or_create(b"t").channel(b"c#ephemeral", NOW_NS)
    kept = [line for line in report(look(broker), NOTHING) if "#ephemeral" in line]
    assert len(kept) == 4 + 8 + 8
    assert not any("#ephemeral" in line for line in report(look(broker), NOTHING, exclude_ephemeral=True))
    assert len(list(report(look(broker), NOTHING, exclude_ephemeral=True))) == 4


def test_memory_is_last_and_omitted_if_absent(broker):
    now = look(broker, MEMORY)
    expected = [
        "mem.heap_objects:1|g",
        "mem.heap_idle_bytes:2|g",
        "mem.heap_in_use_bytes:3|g",
        "mem.heap_released_bytes:4|g",
        "mem.gc_pause_usec_100:5|g",
        "mem.gc_pause_usec_99:6|g",
        "mem.gc_pause_usec_95:7|g",
        "mem.next_gc_bytes:8|g",
    ]
    assert list(report(now, NOTHING)) == [*expected, "mem.gc_runs:9|c"]
    assert list(report(now, now)) == [*expected, "mem.gc_runs:0|c"]
    assert list(report({**now, "memory": None}, now)) == []


@pytest.mark.parametrize(
    ("prefix", "address", "port", "expected"),
    [
        ("nsq.%s", "10.1.2.3", 4151, "nsq.10_1_2_3_4151."),
        ("%s.%s.", "host", 0, "host_0.host_0."),
        ("plain", "host", 1, "plain."),
        ("dot.", "host", 1, "dot."),
        ("", "host", 1, ""),
        ("nsq.%s", "::1", 4151, "nsq.[__1]_4151."),
    ],
)
def test_prefix_contains_the_host(prefix, address, port, expected):
    assert resolve_prefix(prefix, address, port) == expected


def test_packets_are_as_full_as_whole_lines_allow():
    assert cut_packets(["aa", "bb", "c"], 6) == [b"aa\nbb\n", b"c\n"]
    assert cut_packets(["aa", "bb", "c"], 5) == [b"aa\n", b"bb\nc\n"]
    assert cut_packets(["a", "long" * 5, "b"], 8) == [b"a\n", b"long" * 5 + b"\n", b"b\n"]
    assert cut_packets([], 508) == []


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"))), st.integers(1, 100))
def test_packets_hold_all_lines_in_order(lines, size):
    encoded = [f"{line}\n".encode() for line in lines]
    packets = cut_packets(lines, size)
    assert b"".join(packets) == b"".join(encoded)
    assert all(packets)
    for packet in packets:
        assert packet.endswith(b"\n")
        assert len(packet) <= size or packet in encoded
    for packet, following in pairwise(packets):
        assert len(packet) + following.index(b"\n") + 1 > size
