"""nsqd's own timing: the scan for what is due, and the output buffer."""

from __future__ import annotations

from random import Random

import pytest

from nsqkit.broker.core.topics.queue_scan import (
    REFRESH_INTERVAL_NS,
    SCAN_INTERVAL_NS,
    NsqdFrameBuffer,
    QueueScan,
)
from nsqkit.wire.commands import CLS, CommandDecoder, encode_finish, encode_ready, encode_requeue
from tests.pairs import NS_PER_S, DrivenBroker
from tests.rules import AllowAll

BUFFER_TIME = 0.25
"""Seconds; nsqd's default."""


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker(timing="nsqd")


class CountingChannel:
    """A channel that counts how often it was looked at, and has something due ``dirty`` times."""

    def __init__(self, dirty: int = 0) -> None:
        self.count = 0
        self._dirty = dirty

    def look_for_due(self, now_ns: int) -> bool:
        self.count += 1
        return self.count <= self._dirty


def scan_of(channels: list[CountingChannel], selection_count: int = 20) -> QueueScan:
    return QueueScan(lambda: channels, selection_count, Random(1))  # type: ignore[arg-type,return-value]


class TestQueueScan:
    def test_it_looks_every_100_ms(self):
        channels = [CountingChannel()]
        scan = scan_of(channels)
        assert scan.start(7) == 7 + SCAN_INTERVAL_NS
        assert scan.handle_deadline(1000) == 1000 + SCAN_INTERVAL_NS
        assert channels[0].count == 1

    def test_a_new_channel_is_known_when_the_list_is_made_anew(self):
        channels: list[CountingChannel] = []
        scan = scan_of(channels)
        scan.start(0)
        channels.append(CountingChannel())
        scan.handle_deadline(REFRESH_INTERVAL_NS - 1)
        assert channels[0].count == 0
        scan.handle_deadline(REFRESH_INTERVAL_NS)
        assert channels[0].count == 1

    def test_of_many_it_looks_at_some(self):
        channels = [CountingChannel() for _ in range(100)]
        scan = scan_of(channels, 20)
        scan.start(0)
        scan.handle_deadline(1)
        assert sum(channel.count for channel in channels) == 20

    def test_while_a_quarter_has_something_due_it_looks_again(self):
        channels = [CountingChannel(dirty) for dirty in (3, 3, 1, 0, 0)]
        scan = scan_of(channels)
        scan.start(0)
        scan.handle_deadline(1)
        assert [channel.count for channel in channels] == [4] * 5


class TestMessages:
    def test_one_that_times_out_comes_with_the_next_look(self, driven):
        consumer = driven.consumer(1, msg_timeout=1000)
        driven.advance(5.05)  # the channel is known from here on
        driven.publish(b"m")
        message = consumer.message()
        driven.advance(1.049)  # it has been due for 49 ms
        assert consumer.messages() == []
        driven.advance(0.001)
        assert (consumer.message().id, driven.topic().channels[b"c"].timeout_count) == (message.id, 1)

    def test_on_a_new_channel_a_deferred_one_may_be_five_seconds_late(self, driven):
        driven.settle()
        consumer = driven.consumer(1)
        driven.publish(b"m", delay=1)
        driven.advance(4.9)
        assert consumer.messages() == []
        driven.advance(0.2)
        assert consumer.bodies() == [b"m"]

    def test_exactly_they_come_when_they_are_due(self):
        driven = DrivenBroker(timing="exact")
        consumer = driven.consumer(1)
        driven.publish(b"m", delay=1)
        driven.advance(1)
        assert consumer.bodies() == [b"m"]


class TestOutputBuffer:
    def test_messages_wait_for_the_end_of_its_time(self, driven):
        consumer = driven.consumer(10)
        driven.publish(b"a")
        driven.publish(b"b")
        assert consumer.messages() == []
        driven.advance(BUFFER_TIME)
        assert consumer.bodies() == [b"a", b"b"]

    def test_its_times_begin_with_the_client(self, driven):
        consumer = driven.consumer(10, output_buffer_timeout=1000)
        driven.advance(0.9)
        driven.publish(b"a")
        driven.advance(0.1)
        assert consumer.bodies() == [b"a"]

    def test_when_the_client_takes_no_more_they_are_sent(self, driven):
        consumer = driven.consumer(2)
        driven.publish(b"a")
        assert consumer.messages() == []
        driven.publish(b"b")
        assert consumer.bodies() == [b"a", b"b"]

    def test_when_it_is_full_they_are_sent(self, driven):
        consumer = driven.consumer(10, output_buffer_size=100)
        driven.publish(b"a")
        assert consumer.messages() == []
        driven.publish(b"x" * 100)
        assert len(consumer.messages()) == 2

    def test_with_an_answer_they_are_sent_before_it(self, driven):
        consumer = driven.consumer(10)
        driven.publish(b"a")
        message, closing = consumer.say(CLS)
        assert (message.body, closing) == (b"a", b"CLOSE_WAIT")

    def test_a_client_may_have_none(self, driven):
        consumer = driven.consumer(10, output_buffer_size=-1)
        driven.publish(b"a")
        assert consumer.bodies() == [b"a"]

    def test_without_a_time_they_wait_for_something_else(self, driven):
        consumer = driven.consumer(10, output_buffer_timeout=-1)
        driven.publish(b"a")
        driven.advance(20)
        assert consumer.messages() == []
        driven.publish(*[b"b"] * 9)
        assert consumer.bodies() == [b"a"] + [b"b"] * 9

    def test_answered_messages_make_room_as_ever(self, driven):
        consumer = driven.consumer(1)
        driven.publish(b"a")
        message = consumer.message()
        driven.publish(b"b")
        consumer.feed(encode_requeue(message.id, 0), encode_ready(1))
        second = consumer.message()
        assert second.body == b"b"
        consumer.feed(encode_finish(second.id))
        assert consumer.bodies() == [b"a"]


def test_what_waits_counts_as_output_of_the_link():
    buffer = NsqdFrameBuffer(CommandDecoder(AllowAll(), max_msg_size=1, max_body_size=9))
    buffer.flush_every(NS_PER_S, 5)
    buffer.send_messages([b"abc"], 10, 6)
    assert (buffer.size, buffer.has_output, buffer.take(), buffer.flush_ns) == (3, False, b"", 5 + NS_PER_S)
    buffer.flush()
    assert (buffer.size, buffer.has_output, buffer.take(), buffer.flush_ns) == (3, True, b"abc", None)
    assert buffer.size == 0
