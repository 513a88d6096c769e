from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.session import OVERSHOOT
from nsqkit.errors import (
    BadChannel,
    BadTopic,
    ConnectionLost,
    FinishFailed,
    InvalidCommand,
    ProtocolError,
    RequeueFailed,
    SubscribeFailed,
    TouchFailed,
    Unauthorized,
)
from nsqkit.wire.frames import (
    CLOSE_WAIT_FRAME,
    HEARTBEAT_FRAME,
    OK_FRAME,
    encode_error,
    encode_response,
)
from tests.consumer.driven import DrivenConsumer, DrivenSession
from tests.peers import encode_numbered
from tests.strategies import chunkings


@pytest.fixture
def link() -> DrivenSession:
    """A session with RDY 10."""
    return DrivenConsumer(max_in_flight=10).connect()


class TestOpening:
    def test_session_is_open_after_ok(self):
        link = DrivenConsumer(max_in_flight=5).handshake()
        assert not link.session.is_open
        link.send(OK_FRAME)
        assert link.session.is_open
        assert link.lines() == ["RDY 5"]

    def test_rdy_is_limited_by_max_rdy_count(self):
        assert DrivenConsumer(max_in_flight=5000).connect(max_rdy_count=77).lines() == ["RDY 77"]

    @pytest.mark.parametrize("error", [BadTopic("!"), BadChannel("!"), SubscribeFailed("full"), Unauthorized("no")])
    def test_refused_subscription_ends_the_session(self, error):
        link = DrivenConsumer().handshake()
        link.send(encode_error(error))
        assert link.session.ended
        assert type(link.session.error) is type(error)

    @pytest.mark.parametrize(
        "frame",
        [encode_numbered(1), CLOSE_WAIT_FRAME, encode_response(b"?")],
        ids=["message", "farewell", "other"],
    )
    def test_other_answers_to_sub_are_protocol_errors(self, frame):
        consumer = DrivenConsumer()
        link = consumer.handshake()
        link.send(frame)
        assert isinstance(link.session.error, ProtocolError)
        assert not consumer.core.inbox

    def test_a_heartbeat_may_come_first(self):
        link = DrivenConsumer().handshake()
        link.send(HEARTBEAT_FRAME + OK_FRAME)
        assert link.lines() == ["NOP", "RDY 1"]


class TestMessages:
    def test_answers_share_a_write(self, link):
        link.lines()
        one, two, three = link.deliver(1, 2, 3)
        one.finish()
        two.requeue(5, backoff=False)
        three.touch()
        three.finish()
        # A TOUCH comes before the FIN of the same message, or nsqd would refuse it.
        assert link.lines() == ["REQ 2 5000", "TOUCH 3", "FIN 1", "FIN 3"]
        assert link.session.held == {}

    def test_first_finish_wakes_the_connection_once(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.connect()
        link.lines()
        consumer.woken.clear()
        for message in link.deliver(1, 2, 3):
            message.finish()
        assert consumer.woken == [link.session]
        link.lines()
        link.deliver(4)[0].finish()
        assert consumer.woken == [link.session] * 2

    def test_messages_between_other_frames(self, link):
        link.lines()
        link.send(
            encode_numbered(1)
            + HEARTBEAT_FRAME
            + encode_numbered(2, 3)
            + encode_error(FinishFailed("FIN … failed"))
            + encode_numbered(4)
        )
        assert [int(word, 16) for word in link.session.held] == [1, 2, 3, 4]
        assert link.lines() == ["NOP"]

    @pytest.mark.parametrize("kind", [FinishFailed, RequeueFailed, TouchFailed])
    def test_an_answer_that_nsqd_refuses_is_counted(self, link, kind):
        link.send(encode_error(kind("… failed ID not in flight")))
        assert link.session.counts.refused == 1
        assert not link.session.ended

    def test_fatal_error_ends_the_session(self, link):
        link.send(encode_error(InvalidCommand("RDY count 9 out of range 0-5")) + encode_numbered(1))
        assert isinstance(link.session.error, InvalidCommand)
        assert link.session.held == {}

    @pytest.mark.parametrize("frame", [OK_FRAME, CLOSE_WAIT_FRAME])
    def test_unexpected_response_is_a_protocol_error(self, link, frame):
        link.send(frame)
        assert isinstance(link.session.error, ProtocolError)
        assert "which answers no command" in str(link.session.error)

    def test_redelivered_message_has_timed_out(self):
        consumer = DrivenConsumer(max_in_flight=1)
        link = consumer.connect()
        link.lines()
        link.deliver(1)
        link.deliver(1, attempts=2)
        assert consumer.core.flow.in_flight == 1
        assert link.lines() == []
        assert consumer.core.counts.received == 2
        assert consumer.core.counts.finished == 0


class TestClosing:
    def test_session_sends_cls_once_and_ends_with_close_wait(self, link):
        link.lines()
        link.session.start_close()
        link.session.start_close()
        assert link.lines() == ["CLS"]
        assert not link.session.ended
        link.dismiss()
        assert link.session.ended
        assert link.session.error is None

    def test_held_messages_can_be_answered_after_close_wait(self, link):
        link.lines()
        one, two = link.deliver(1, 2)
        link.session.start_close()
        assert link.lines() == ["CLS"]
        link.dismiss()
        one.finish()
        assert link.lines() == ["FIN 1"]
        assert not link.session.ended
        two.requeue(0, backoff=False)
        assert not link.session.ended  # before it is sent
        assert link.lines() == ["REQ 2 0"]
        assert link.session.ended
        assert link.session.error is None

    def test_a_session_that_is_not_open_has_nothing_to_close(self):
        link = DrivenConsumer().handshake()
        link.session.start_close()
        assert not link.session.is_closing
        assert link.lines() == []

    def test_lost_connection_ends_a_session_with_held_messages(self, link):
        link.deliver(1)
        link.session.start_close()
        link.lose()
        assert isinstance(link.session.error, ConnectionLost)
        assert link.session.held == {}


@given(st.data())
def test_messages_in_any_chunks_are_held_until_answered(data):
    link = DrivenConsumer(max_in_flight=100).connect()
    link.lines()
    numbers = data.draw(st.lists(st.integers(0, 99), unique=True))
    for chunk in data.draw(chunkings(encode_numbered(*numbers))):
        link.send(chunk)
    held = [*link.session.held.values()]
    assert [int(message.id, 16) for message in held] == numbers
    for message in held:
        message.finish()
    assert link.lines() == [f"FIN {number}" for number in numbers]


class TestTooManyMessages:
    """nsqd respects RDY. Messages held beyond it can only be those that have timed out at nsqd."""

    @pytest.mark.parametrize(("msg_timeout", "expected"), [(60_000, 3), (30_000, 4), (1_000, 62), (0, 62)])
    def test_broker_that_exceeds_rdy_ends_the_session(self, msg_timeout: int, expected: int):
        link = DrivenConsumer(max_in_flight=10, heartbeat_interval=30).connect(msg_timeout=msg_timeout)
        held_max = 10 * expected + OVERSHOOT
        link.deliver(*range(held_max))
        assert len(link.session.held) == held_max
        assert not link.session.ended
        link.deliver(held_max)
        assert isinstance(link.session.error, ProtocolError)
        assert str(link.session.error) == (
            f"the broker does not keep to RDY: more than {held_max} of its messages have no answer, "
            "and the highest RDY was 10"
        )
        assert not link.session.held

    def test_messages_of_an_earlier_rdy_are_accepted(self):
        consumer = DrivenConsumer(max_in_flight=1000)
        link = consumer.connect(msg_timeout=60_000)
        consumer.core.set_max_in_flight(1, 0)
        assert link.lines() == ["RDY 1000", "RDY 1"]
        link.deliver(*range(1000))
        link.deliver(*range(1000, 2000))
        assert not link.session.ended

    def test_redelivered_messages_count_once(self):
        link = DrivenConsumer(max_in_flight=10).connect(msg_timeout=60_000)
        for attempts in range(1, 100):
            link.deliver(*range(OVERSHOOT), attempts=attempts)
        assert not link.session.ended

    def test_answered_messages_do_not_count(self):
        link = DrivenConsumer(max_in_flight=10).connect(msg_timeout=60_000)
        for start in range(0, 10_000, OVERSHOOT):
            for message in link.deliver(*range(start, start + OVERSHOOT)):
                message.finish()
        assert not link.session.ended
        assert link.session.counts.received == 10_000

    def test_one_buffer_alone_may_be_too_much(self):
        link = DrivenConsumer(max_in_flight=10).connect(msg_timeout=60_000)
        assert link.deliver(*range(8000)) == []
        assert isinstance(link.session.error, ProtocolError)
        assert link.session.counts.received == 0
