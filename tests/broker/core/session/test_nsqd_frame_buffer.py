"""nsqd's output buffer."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.session.nsqd_frame_buffer import NsqdFrameBuffer
from nsqkit.wire.commands import CLS, CommandDecoder, encode_finish, encode_ready, encode_requeue
from tests.pairs import NS_PER_S, DrivenBroker
from tests.rules import AllowAll

BUFFER_TIME = 0.25
"""Seconds; nsqd's default."""


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker(timing="nsqd")


def test_messages_wait_for_the_end_of_the_interval(driven):
    consumer = driven.consumer(10)
    driven.publish(b"a")
    driven.publish(b"b")
    assert consumer.messages() == []
    driven.advance(BUFFER_TIME)
    assert consumer.bodies() == [b"a", b"b"]


def test_intervals_begin_with_identify(driven):
    consumer = driven.consumer(10, output_buffer_timeout=1000)
    driven.advance(0.9)
    driven.publish(b"a")
    driven.advance(0.1)
    assert consumer.bodies() == [b"a"]


@pytest.mark.parametrize("rdy_count", [0, 1])
def test_messages_are_sent_when_a_lower_rdy_lets_no_more_be_taken(driven, rdy_count):
    consumer = driven.consumer(10)
    driven.publish(b"a")
    consumer.feed(encode_ready(rdy_count))
    assert consumer.bodies() == [b"a"]


def test_messages_are_sent_when_their_channel_is_paused(driven):
    consumer = driven.consumer(10)
    driven.publish(b"a")
    driven.topic().channels[b"c"].pause()
    driven.settle()
    assert consumer.bodies() == [b"a"]


def test_messages_are_sent_when_the_consumer_can_take_no_more(driven):
    consumer = driven.consumer(2)
    driven.publish(b"a")
    assert consumer.messages() == []
    driven.publish(b"b")
    assert consumer.bodies() == [b"a", b"b"]


def test_messages_are_sent_when_the_buffer_is_full(driven):
    consumer = driven.consumer(10, output_buffer_size=100)
    driven.publish(b"a")
    assert consumer.messages() == []
    driven.publish(b"x" * 100)
    assert len(consumer.messages()) == 2


def test_messages_are_sent_when_more_would_not_be_delivered():
    driven = DrivenBroker(timing="nsqd", max_output_buffer_size=1 << 23)
    consumer = driven.consumer(10, output_buffer_size=1 << 22, output_buffer_timeout=-1)
    driven.publish(bytes(700_000))
    assert consumer.messages() == []
    driven.publish(bytes(700_000))
    assert len(consumer.messages()) == 2


def test_messages_are_sent_before_an_answer(driven):
    consumer = driven.consumer(10)
    driven.publish(b"a")
    message, closing = consumer.exchange(CLS)
    assert (message.body, closing) == (b"a", b"CLOSE_WAIT")


def test_client_can_disable_the_buffer(driven):
    consumer = driven.consumer(10, output_buffer_size=-1)
    driven.publish(b"a")
    assert consumer.bodies() == [b"a"]


def test_messages_wait_without_limit_if_the_client_disables_the_interval(driven):
    consumer = driven.consumer(10, output_buffer_timeout=-1)
    driven.publish(b"a")
    driven.advance(20)
    assert consumer.messages() == []
    driven.publish(*[b"b"] * 9)
    assert consumer.bodies() == [b"a"] + [b"b"] * 9


def test_answered_message_is_followed_by_the_next(driven):
    consumer = driven.consumer(1)
    driven.publish(b"a")
    message = consumer.message()
    driven.publish(b"b")
    consumer.feed(encode_requeue(message.id, 0), encode_ready(1))
    second = consumer.message()
    assert second.body == b"b"
    consumer.feed(encode_finish(second.id))
    assert consumer.bodies() == [b"a"]


def test_buffered_messages_count_as_output():
    buffer = NsqdFrameBuffer(CommandDecoder(AllowAll(), max_msg_size=1, max_body_size=9))
    buffer.flush_every(NS_PER_S, 5)
    buffer.send_messages([b"abc"], 10, 6)
    assert (buffer.size, buffer.has_output, buffer.take(), buffer.flush_ns) == (3, False, b"", 5 + NS_PER_S)
    buffer.flush()
    assert (buffer.size, buffer.has_output, buffer.take(), buffer.flush_ns) == (3, True, b"abc", None)
    assert buffer.size == 0


def test_first_message_after_an_idle_interval_does_not_wait():
    buffer = NsqdFrameBuffer(CommandDecoder(AllowAll(), max_msg_size=1, max_body_size=9))
    buffer.flush_every(NS_PER_S, 0)
    buffer.send_messages([b"a"], 100, 3 * NS_PER_S // 2)
    assert buffer.take() == b"a"
    buffer.send_messages([b"b"], 100, 3 * NS_PER_S // 2)
    assert (buffer.take(), buffer.flush_ns) == (b"", 2 * NS_PER_S)


def test_messages_do_not_wait_for_another_interval_though_their_time_was_missed():
    buffer = NsqdFrameBuffer(CommandDecoder(AllowAll(), max_msg_size=1, max_body_size=9))
    buffer.flush_every(NS_PER_S, 0)
    buffer.send_messages([b"a"], 100, 1)
    buffer.send_messages([b"b"], 100, NS_PER_S + 1)
    assert buffer.flush_ns == NS_PER_S
    buffer.end_interval(NS_PER_S + 1)
    assert buffer.take() == b"ab"
    buffer.send_messages([b"c"], 100, NS_PER_S + 2)
    assert buffer.flush_ns == 2 * NS_PER_S
