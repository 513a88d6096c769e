from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from nsqkit.errors import (
    BadBody,
    BadMessage,
    BadTopic,
    BrokerError,
    ConnectionLost,
    FinishFailed,
    MultiPublishFailed,
    NotConnected,
    ProtocolError,
)
from nsqkit.producer.linger import BatchRefused, Linger
from nsqkit.producer.send_window import SendWindow
from nsqkit.producer.session import OUTBOX_SIZE_MAX, ProducerSession, Urgency
from nsqkit.wire.commands import MAGIC_V2, NOP, CommandDecoder, encode_multi_publish, encode_publish
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.producer.fakes import UNANSWERED, FakeWaiter, answers, greeted, waiters
from tests.rules import AllowAll
from tests.strategies import chunkings


def publish(session: ProducerSession, count: int) -> list[FakeWaiter]:
    told = waiters(count)
    for n, waiter in enumerate(told):
        session.publish(b"PUB %d|" % n, waiter)
    return told


def sent(session: ProducerSession, count: int) -> list[FakeWaiter]:
    told = publish(session, count)
    session.data_to_send(0)
    return told


def test_publishes_share_a_write_and_are_answered_in_order():
    session = greeted()
    told = publish(session, 3)
    assert session.data_to_send(0) == b"PUB 0|PUB 1|PUB 2|"
    session.receive_data(OK_FRAME + OK_FRAME, 0)
    assert answers(told) == [None, None, UNANSWERED]
    assert session.outstanding_count == 1
    session.receive_data(OK_FRAME, 0)
    assert answers(told) == [None, None, None]


def test_a_heartbeat_answers_no_publish():
    session = greeted()
    told = publish(session, 1)
    session.data_to_send(0)
    session.receive_data(HEARTBEAT_FRAME + OK_FRAME, 0)
    assert answers(told) == [None]
    assert session.data_to_send(0) == NOP


def test_a_fatal_error_is_for_the_oldest_and_nsqd_reads_no_further():
    session = greeted()
    told = sent(session, 3)
    session.receive_data(OK_FRAME + encode_error(BadTopic("PUB topic name …")), 0)
    assert told[0].answer is None
    assert isinstance(told[1].answer, BadTopic)
    unread = told[2].answer
    assert isinstance(unread, NotConnected)
    assert unread.__cause__ is told[1].answer
    assert session.ended
    assert session.error is told[1].answer


def test_of_a_fatal_error_that_is_not_known_nobody_knows_what_it_ends():
    session = greeted()
    told = sent(session, 2)
    session.receive_data(encode_error(BrokerError("E_NEW something")), 0)
    assert type(told[0].answer) is BrokerError
    assert isinstance(told[1].answer, ConnectionLost)


def test_an_error_that_is_not_fatal_is_the_answer_to_one():
    session = greeted()
    told = sent(session, 2)
    session.receive_data(encode_error(FinishFailed("?")) + OK_FRAME, 0)
    assert isinstance(told[0].answer, FinishFailed)
    assert told[1].answer is None
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
    told = sent(session, 1)
    session.receive_data(encode_message(0, 1, b"0123456789abcdef", b"x"), 0)
    assert str(session.error) == "the broker sent message b'0123456789abcdef' to a producer"
    assert isinstance(told[0].answer, ConnectionLost)


def test_whatever_the_end_each_publish_gets_one_answer():
    session = greeted()
    told = sent(session, 2) + publish(session, 1)
    session.receive_eof(0)
    session.end(None)
    assert [type(answer) for answer in answers(told)] == [ConnectionLost] * 2 + [NotConnected]
    assert [answer.__cause__ for answer in answers(told)] == [session.error] * 3
    assert len({*map(id, answers(told))}) == 3
    assert session.outstanding_count == 0


def test_there_is_room_until_the_broker_stops_taking():
    session = greeted()
    session.publish(bytes(OUTBOX_SIZE_MAX - 1), FakeWaiter())
    assert session.has_room
    session.publish(b"x", FakeWaiter())
    assert not session.has_room
    session.data_to_send(0)
    assert session.has_room


def test_the_first_of_a_turn_asks_for_a_write_and_a_lone_one_for_one_at_once():
    session = greeted()
    told = waiters(4)
    assert session.publish(b"1", told[0]) is Urgency.NOW
    assert session.publish(b"2", told[1]) is Urgency.ASKED_FOR
    session.data_to_send(0)
    assert session.publish(b"3", told[2]) is Urgency.SOON
    assert session.publish(b"4", told[3]) is Urgency.ASKED_FOR


def test_there_is_no_room_before_the_greeting_and_none_after_the_end():
    session = ProducerSession(IdentifyRequest(), read_timeout_ns=60, max_msg_size=1000, now_ns=0)
    session.data_to_send(0)
    assert not session.has_room
    session.receive_data(encode_response(b"{}"), 0)
    assert session.has_room
    session.end(None)
    session.data_to_send(0)
    assert not session.has_room


# ---- nobody waits any more ---------------------------------------------------------------------------------------


def test_what_is_withdrawn_before_it_was_taken_is_not_sent():
    session = greeted()
    told = publish(session, 3)
    told[1].cancel()
    assert session.withdraw(told[1])
    assert session.data_to_send(0) == b"PUB 0|PUB 2|"
    session.receive_data(OK_FRAME + OK_FRAME, 0)
    assert answers(told) == [None, UNANSWERED, None]


def test_what_was_cancelled_just_now_is_not_sent_either():
    session = greeted()
    told = publish(session, 3)
    told[1].cancel()
    assert session.data_to_send(0) == b"PUB 0|PUB 2|"
    assert session.withdraw(told[1])


def test_what_was_sent_keeps_its_place_and_its_answer_is_swallowed():
    outstanding = SendWindow(100)
    session = greeted(outstanding=outstanding)
    told = sent(session, 2)
    assert outstanding.take(40)
    told[0].cancel()
    assert not session.withdraw(told[0], 40)
    assert session.is_awaited
    session.receive_data(encode_error(FinishFailed("?")), 0)
    assert answers(told) == [UNANSWERED, UNANSWERED]
    assert outstanding.size == 0
    session.receive_data(OK_FRAME, 0)
    assert told[1].answer is None


def test_an_answer_may_come_between_being_cancelled_and_saying_so():
    outstanding = SendWindow(100)
    session = greeted(outstanding=outstanding)
    told = sent(session, 1)
    told[0].cancel()
    session.receive_data(OK_FRAME, 0)
    assert session.withdraw(told[0], 40)  # whoever asks gives back the 40 bytes
    assert not session._abandoned


def test_a_session_that_ends_gives_back_for_those_who_do_not_wait():
    outstanding = SendWindow(100)
    session = greeted(outstanding=outstanding)
    told = sent(session, 1)
    assert outstanding.take(40)
    told[0].cancel()
    session.withdraw(told[0], 40)
    assert not session.is_awaited
    session.receive_eof(0)
    assert outstanding.size == 0
    assert told[0].answer is UNANSWERED


# ---- batches -----------------------------------------------------------------------------------------------------


def lingering(session: ProducerSession, *bodies: bytes) -> list[FakeWaiter]:
    assert session.linger is not None
    told = waiters(len(bodies))
    for body, waiter in zip(bodies, told, strict=True):
        session.linger.join(b"t", body, waiter)
    return told


def with_linger() -> ProducerSession:
    return greeted(Linger(linger_ns=10, count_max=100, size_max=OUTBOX_SIZE_MAX + 100))


def test_single_publishes_become_one_command_with_an_answer_for_each():
    session = with_linger()
    told = lingering(session, b"a", b"bb")
    assert session.has_output
    assert session.data_to_send(0) == encode_multi_publish(b"t", [b"a", b"bb"])
    assert not session.has_output
    session.receive_data(OK_FRAME, 0)
    assert answers(told) == [None, None]


def test_a_batch_of_one_is_a_pub():
    session = with_linger()
    lingering(session, b"a")
    assert session.data_to_send(0) == encode_publish(b"t", b"a")


def test_a_batch_that_everybody_has_left_is_no_command():
    session = with_linger()
    (waiter,) = lingering(session, b"a")
    waiter.cancel()
    assert session.data_to_send(0) == b""
    assert session.withdraw(waiter)
    told = lingering(session, b"b")
    assert session.data_to_send(0) == encode_publish(b"t", b"b")
    session.receive_data(OK_FRAME, 0)
    assert answers(told) == [None]


def test_one_fault_of_a_batch_is_an_error_of_its_own_for_each():
    session = with_linger()
    told = lingering(session, b"a", b"b", b"c")
    told[1].cancel()
    session.withdraw(told[1])
    session.data_to_send(0)
    session.receive_data(encode_error(MultiPublishFailed("no space")), 0)
    first, _, third = answers(told)
    assert isinstance(first, MultiPublishFailed)
    assert isinstance(third, MultiPublishFailed)
    assert first is not third
    assert str(first) == str(third) == "E_MPUB_FAILED no space"


@pytest.mark.parametrize(
    "refusal", [BadMessage("MPUB message too big 11 > 10"), BadBody("MPUB body too big")]
)
def test_what_nsqd_refuses_of_a_batch_may_be_about_any_of_it(refusal):
    session = with_linger()
    told = lingering(session, b"a", b"b")
    session.data_to_send(0)
    session.receive_data(encode_error(refusal), 0)
    assert [type(answer) for answer in answers(told)] == [BatchRefused, BatchRefused]
    assert str(answers(told)[0]) == f"the broker refused 2 messages together: {refusal}"
    assert session.ended


def test_and_of_a_batch_of_one_is_about_that_one():
    session = with_linger()
    (waiter,) = lingering(session, b"a")
    session.data_to_send(0)
    session.receive_data(encode_error(BadMessage("PUB message too big 11 > 10")), 0)
    assert isinstance(waiter.answer, BadMessage)


def test_what_lingers_at_the_end_has_not_arrived():
    session = with_linger()
    told = lingering(session, b"a")
    session.data_to_send(0)
    told += lingering(session, b"b")
    session.receive_eof(0)
    assert [type(answer) for answer in answers(told)] == [ConnectionLost, NotConnected]
    assert session.outstanding_count == 0


def test_a_batch_that_is_ready_takes_room():
    session = with_linger()
    lingering(session, bytes(OUTBOX_SIZE_MAX))
    session.check_room()
    assert not session.has_room
    session.data_to_send(0)
    assert session.has_room


# ---- whatever happens --------------------------------------------------------------------------------------------

ANSWERS = st.sampled_from(
    [OK_FRAME, HEARTBEAT_FRAME, encode_error(FinishFailed("?")), encode_error(BadTopic("!"))]
)


@given(
    st.lists(ANSWERS, max_size=20).flatmap(lambda said: st.tuples(st.just(said), chunkings(b"".join(said))))
)
def test_in_whatever_pieces_they_come_answers_meet_their_publishes(case):
    said, chunks = case
    session = greeted()
    told = sent(session, 20)
    for chunk in chunks:
        session.receive_data(chunk, 0)
    expected: list[type | None] = []
    for frame in said:
        if frame == encode_error(BadTopic("!")):
            expected += [BadTopic, *[NotConnected] * (20 - len(expected) - 1)]
            break
        if frame != HEARTBEAT_FRAME:
            expected.append(None if frame == OK_FRAME else FinishFailed)
    got = [None if answer is None else type(answer) for answer in answers(told) if answer is not UNANSWERED]
    assert got == expected


class Pipeline(RuleBasedStateMachine):
    """A session, a broker that takes commands and answers them in order, and publishes that are told apart."""

    publishes = Bundle("publishes")

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.linger = Linger(linger_ns=5, count_max=4, size_max=60)
        self.outstanding = SendWindow(1 << 30)
        self.session = greeted(self.linger, self.outstanding)
        self.decoder = CommandDecoder(AllowAll(), max_msg_size=1000, max_body_size=1000)
        assert list(self.decoder.feed(MAGIC_V2)) == []
        self.bodies: dict[FakeWaiter, bytes] = {}
        self.unread: list[Sequence[bytes]] = []  # by the broker: the bodies of each command
        self.arrived: list[bytes] = []
        self.withdrawn: set[FakeWaiter] = set()
        self.taken: set[bytes] = set()  # what was ever written

    def _new(self) -> tuple[FakeWaiter, bytes]:
        waiter, body = FakeWaiter(), b"%05d" % len(self.bodies)
        self.bodies[waiter] = body
        self.outstanding.take(len(body))
        return waiter, body

    @precondition(lambda self: self.session.is_open)
    @rule(target=publishes)
    def publish(self):
        waiter, body = self._new()
        self.session.publish(encode_publish(b"t", body), waiter)
        return waiter

    @precondition(lambda self: self.session.is_open)
    @rule(target=publishes, topic=st.sampled_from([b"a", b"b"]))
    def join(self, topic):
        waiter, body = self._new()
        if self.linger.join(topic, body, waiter):
            self.linger.set_deadlines(self.now_ns)
        return waiter

    @rule(waiter=publishes)
    def cancel(self, waiter):
        """As the event loop does it: the task itself hears of it later, in ``withdraw``."""
        waiter.cancel()

    @rule(waiter=publishes)
    def withdraw(self, waiter):
        if waiter.done() and waiter not in self.withdrawn:
            self.withdrawn.add(waiter)
            if self.session.withdraw(waiter, len(self.bodies[waiter])):
                self.outstanding.give_back(len(self.bodies[waiter]))

    @rule()
    def write(self):
        for command in self.decoder.feed(self.session.data_to_send(self.now_ns)):
            parts = [command.bodies] if command.verb == b"MPUB" else [(body,) for body in command.bodies]
            self.unread += parts
            seen = [*self.arrived, *[body for part in self.unread for body in part]]
            assert len(seen) == len({*seen}), "something was sent twice"
        cancelled = {self.bodies[waiter] for waiter in self.bodies if waiter.is_cancelled}
        fresh = {body for part in self.unread for body in part} - self.taken
        assert not cancelled & fresh, "what was cancelled before was sent"
        self.taken |= fresh

    @precondition(lambda self: self.unread and self.session.is_open)
    @rule(refusal=st.sampled_from([None, None, FinishFailed("?"), BadMessage("!")]))
    def answer(self, refusal):
        bodies = self.unread.pop(0)
        waiting = [waiter for waiter, body in self.bodies.items() if body in bodies and not waiter.done()]
        others = {w: w.answer for w in self.bodies if w not in waiting}
        if refusal is None:
            self.arrived += bodies
        self.session.receive_data(OK_FRAME if refusal is None else encode_error(refusal), self.now_ns)
        # What nsqd refuses of several messages may be about any of them.
        told = BatchRefused if isinstance(refusal, BadMessage) and len(bodies) > 1 else type(refusal)
        for waiter in waiting:
            assert type(waiter.answer) is told
        for waiter, answer in others.items():
            if waiter.answer is not answer:  # those behind a fatal refusal
                assert isinstance(waiter.answer, NotConnected)

    @rule(passed=st.integers(1, 6))
    def time_passes(self, passed):
        self.now_ns += passed
        deadline_ns = self.linger.next_deadline()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.linger.handle_deadline(self.now_ns)

    @precondition(lambda self: len(self.bodies) > 20)
    @rule()
    def lose(self):
        self.session.receive_eof(self.now_ns)

    @invariant()
    def ok_is_what_the_broker_said(self):
        for waiter, body in self.bodies.items():
            assert (waiter.answer is None) <= (body in self.arrived)
            if isinstance(waiter.answer, NotConnected):
                assert body not in self.arrived

    @invariant()
    def after_the_end_everybody_was_told(self):
        if self.session.ended:
            assert all(waiter.done() for waiter in self.bodies)

    def teardown(self):
        self.session.end(None)
        for waiter in self.bodies:
            if waiter not in self.withdrawn:
                self.withdraw(waiter)
        assert self.outstanding.size == 0


TestPipeline = Pipeline.TestCase
