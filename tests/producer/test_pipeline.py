from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadMessage, BadTopic, ConnectionLost, FinishFailed, NSQError, ProtocolError
from nsqkit.producer.pipeline import OUTBOX_SIZE_MAX, ProducerSession
from nsqkit.wire.commands import NOP
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.strategies import chunkings

UNANSWERED = object()


class Waiter:
    """Keeps the answer to one publish, which has to come once."""

    def __init__(self) -> None:
        self.answer: object = UNANSWERED

    def answered(self, error: NSQError | None) -> None:
        assert self.answer is UNANSWERED
        self.answer = error


def greeted() -> ProducerSession:
    session = ProducerSession(IdentifyRequest(), read_timeout_ns=60, max_msg_size=1000, now_ns=0)
    session.data_to_send(0)
    session.receive_data(encode_response(b"{}"), 0)
    return session


def publish(session: ProducerSession, count: int) -> list[Waiter]:
    waiters = [Waiter() for _ in range(count)]
    for n, waiter in enumerate(waiters):
        session.publish(b"PUB %d|" % n, waiter)
    return waiters


def answers(waiters: list[Waiter]) -> list[object]:
    return [waiter.answer for waiter in waiters]


def test_publishes_share_a_write_and_are_answered_in_order():
    session = greeted()
    waiters = publish(session, 3)
    assert session.data_to_send(0) == b"PUB 0|PUB 1|PUB 2|"
    session.receive_data(OK_FRAME + OK_FRAME, 0)
    assert answers(waiters) == [None, None, UNANSWERED]
    assert session.waiting_count == 1
    session.receive_data(OK_FRAME, 0)
    assert answers(waiters) == [None, None, None]


def test_a_heartbeat_answers_no_publish():
    session = greeted()
    waiters = publish(session, 1)
    session.data_to_send(0)
    session.receive_data(HEARTBEAT_FRAME + OK_FRAME, 0)
    assert answers(waiters) == [None]
    assert session.data_to_send(0) == NOP


def test_a_fatal_error_is_for_the_oldest_and_ends_the_others():
    session = greeted()
    waiters = publish(session, 3)
    session.receive_data(OK_FRAME + encode_error(BadTopic("PUB topic name …")), 0)
    assert waiters[0].answer is None
    assert isinstance(waiters[1].answer, BadTopic)
    lost = waiters[2].answer
    assert isinstance(lost, ConnectionLost)
    assert lost.__cause__ is waiters[1].answer
    assert session.ended
    assert session.error is waiters[1].answer


def test_an_error_that_is_not_fatal_is_the_answer_to_one():
    session = greeted()
    waiters = publish(session, 2)
    session.receive_data(encode_error(FinishFailed("?")) + OK_FRAME, 0)
    assert isinstance(waiters[0].answer, FinishFailed)
    assert waiters[1].answer is None
    assert not session.ended


def test_a_fatal_error_out_of_the_blue_is_why_it_ends():
    session = greeted()
    session.receive_data(encode_error(BadMessage("PUB …")), 0)
    assert isinstance(session.error, BadMessage)


@pytest.mark.parametrize("frame", [OK_FRAME, encode_response(b"CLOSE_WAIT")])
def test_an_answer_to_nothing_is_not_the_protocol(frame):
    session = greeted()
    session.receive_data(frame, 0)
    assert isinstance(session.error, ProtocolError)
    assert "when nothing was asked" in str(session.error)


def test_a_message_is_not_for_a_producer():
    session = greeted()
    waiters = publish(session, 1)
    session.receive_data(encode_message(0, 1, b"0123456789abcdef", b"x"), 0)
    assert str(session.error) == "the broker sent message b'0123456789abcdef' to a producer"
    assert isinstance(waiters[0].answer, ConnectionLost)


def test_whatever_the_end_each_publish_gets_one_answer():
    session = greeted()
    waiters = publish(session, 2)
    session.receive_eof(0)
    session.end(None)
    assert [type(answer) for answer in answers(waiters)] == [ConnectionLost] * 2
    assert session.waiting_count == 0


def test_there_is_room_until_the_broker_stops_taking():
    session = greeted()
    session.publish(bytes(OUTBOX_SIZE_MAX - 1), Waiter())
    assert session.has_room
    session.publish(b"x", Waiter())
    assert not session.has_room
    session.data_to_send(0)
    assert session.has_room


ANSWERS = st.sampled_from(
    [OK_FRAME, HEARTBEAT_FRAME, encode_error(FinishFailed("?")), encode_error(BadTopic("!"))]
)


@given(
    st.lists(ANSWERS, max_size=20).flatmap(lambda said: st.tuples(st.just(said), chunkings(b"".join(said))))
)
def test_in_whatever_pieces_they_come_answers_meet_their_publishes(case):
    said, chunks = case
    session = greeted()
    waiters = publish(session, 20)
    for chunk in chunks:
        session.receive_data(chunk, 0)
    expected: list[type | None] = []
    for frame in said:
        if frame == encode_error(BadTopic("!")):
            expected += [BadTopic, *[ConnectionLost] * (20 - len(expected) - 1)]
            break
        if frame != HEARTBEAT_FRAME:
            expected.append(None if frame == OK_FRAME else FinishFailed)
    got = [
        None if answer is None else type(answer) for answer in answers(waiters) if answer is not UNANSWERED
    ]
    assert got == expected
