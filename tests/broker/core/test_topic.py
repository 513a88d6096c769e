"""A topic: ids, copies that are none, and what waits for a channel."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.agenda import Agenda
from nsqkit.broker.core.channel import Channel
from nsqkit.broker.core.storage import MemoryStorage
from nsqkit.broker.core.topic import Topic
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, ID, encode_message
from tests.broker.core.queues import take_all

NOW_NS = 1_704_067_200 * 10**9


def make(name: bytes = b"t", mem_queue_size: int = 100) -> Topic:
    return Topic(name, Agenda(), MemoryStorage(mem_queue_size), node_id=1)


def waiting(channel: Channel) -> list[bytes]:
    """Take the bodies that wait in a channel's queue."""
    return [frame[FRAME_HEADER_LENGTH:] for frame in take_all(channel.queue)]


def deferred(channel: Channel) -> list[tuple[int, bytes]]:
    """Look at the deferred messages of a channel: how long after NOW_NS, and the body."""
    return sorted(
        (due_ns - NOW_NS, frame[FRAME_HEADER_LENGTH:]) for due_ns, _, frame in channel.deferred._heap
    )


# Publishing.


def test_a_message_gets_an_id_the_time_and_attempts_1():
    topic = make()
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"one", b"two"], NOW_NS)
    first, second = take_all(channel.queue)
    assert first == encode_message(NOW_NS, 1, first[ID], b"one")
    assert second == encode_message(NOW_NS, 1, second[ID], b"two")
    assert first[ID] < second[ID]


def test_every_channel_gets_every_message_and_shares_its_frame():
    topic = make()
    channels = [topic.channel(name, NOW_NS) for name in (b"a", b"b", b"c")]
    topic.put([b"m"], NOW_NS)
    topic.put([b"later"], NOW_NS, delay_ns=50)
    frames = [take_all(channel.queue)[0] for channel in channels]
    assert frames[0] is frames[1] is frames[2]
    later = [channel.deferred.take_all()[0] for channel in channels]
    assert later[0] is later[1] is later[2]


def test_a_deferred_message_goes_to_the_deferred_ones_of_each_channel():
    topic = make()
    channels = [topic.channel(name, NOW_NS) for name in (b"a", b"b")]
    topic.put([b"m"], NOW_NS, delay_ns=50)
    assert [deferred(channel) for channel in channels] == [[(50, b"m")]] * 2
    assert [len(channel.queue) for channel in channels] == [0, 0]


def test_messages_and_bytes_are_counted():
    topic = make()
    topic.put([b"one", b"three"], NOW_NS)
    topic.channel(b"c", NOW_NS)
    topic.put([b"four"], NOW_NS, delay_ns=5)
    topic.put([], NOW_NS)
    assert (topic.message_count, topic.message_bytes) == (3, 12)


# Waiting for the first channel.


def test_the_first_channel_gets_what_waited_and_the_second_does_not():
    topic = make()
    topic.put([b"1", b"2"], NOW_NS)
    assert len(topic.queue) == 2
    first = topic.channel(b"a", NOW_NS)
    second = topic.channel(b"b", NOW_NS)
    assert (len(topic.queue), waiting(first), waiting(second)) == (0, [b"1", b"2"], [])
    assert (first.message_count, second.message_count) == (2, 0)


def test_a_channel_is_made_once():
    topic = make()
    assert topic.channel(b"c", NOW_NS) is topic.channel(b"c", NOW_NS)


def test_the_delay_of_a_waiting_message_begins_when_a_channel_gets_it():
    topic = make()
    topic.put([b"later", b"too"], NOW_NS - 1000, delay_ns=50)
    topic.put([b"now"], NOW_NS - 1000)
    topic.put([b"much later"], NOW_NS - 1000, delay_ns=70)
    channel = topic.channel(b"c", NOW_NS)
    assert deferred(channel) == [(50, b"later"), (50, b"too"), (70, b"much later")]
    assert waiting(channel) == [b"now"]
    topic.put([b"next"], NOW_NS)
    assert waiting(channel) == [b"next"], "the delays of those before are forgotten"
    assert topic._waiting_delays_ns == {}


@pytest.mark.parametrize(("name", "kept"), [(b"t", 3), (b"t#ephemeral", 2)])
def test_only_an_ephemeral_topic_drops_what_it_has_no_memory_for(name, kept):
    topic = make(name, mem_queue_size=2)
    topic.put([b"1", b"2", b"3"], NOW_NS)
    assert len(topic.queue) == kept
    assert topic.message_count == 3
    assert waiting(topic.channel(b"c", NOW_NS)) == [b"1", b"2", b"3"][:kept]


def test_the_delay_of_a_message_that_was_dropped_is_dropped_too():
    topic = make(b"t#ephemeral", mem_queue_size=2)
    topic.put([b"now"], NOW_NS)
    topic.put([b"kept", b"dropped"], NOW_NS, delay_ns=50)
    assert len(topic._waiting_delays_ns) == 1
    channel = topic.channel(b"c", NOW_NS)
    assert (waiting(channel), deferred(channel)) == ([b"now"], [(50, b"kept")])


# Pausing and emptying.


def test_a_paused_topic_keeps_what_is_published_until_it_is_unpaused():
    topic = make()
    channel = topic.channel(b"a", NOW_NS)
    topic.pause()
    topic.put([b"1"], NOW_NS)
    topic.put([b"later"], NOW_NS - 1000, delay_ns=50)
    other = topic.channel(b"b", NOW_NS)
    assert (len(topic.queue), len(channel.queue)) == (2, 0)
    topic.unpause(NOW_NS)
    for each in (channel, other):
        assert (waiting(each), deferred(each)) == ([b"1"], [(50, b"later")])
    topic.put([b"2"], NOW_NS)
    assert waiting(channel) == [b"2"]


def test_unpausing_a_topic_without_channels_loses_nothing():
    topic = make()
    topic.pause()
    topic.put([b"later"], NOW_NS, delay_ns=50)
    topic.unpause(NOW_NS)
    assert deferred(topic.channel(b"c", NOW_NS)) == [(50, b"later")]


def test_emptying_forgets_what_waits_in_the_topic_and_not_what_the_channels_have():
    topic = make()
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"has"], NOW_NS)
    topic.pause()
    topic.put([b"waits"], NOW_NS)
    topic.put([b"waits"], NOW_NS, delay_ns=50)
    topic.empty()
    assert topic._waiting_delays_ns == {}
    topic.unpause(NOW_NS)
    assert (waiting(channel), deferred(channel)) == ([b"has"], [])
