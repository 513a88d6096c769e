from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from nsqkit.producer.session import OUTBOX_SIZE_MAX, ProducerSession, Urgency
from nsqkit.wire.commands import MAGIC_V2, NOP, CommandDecoder, encode_multi_publish, encode_publish
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.identify import IdentifyRequest
from nsqkit.wire.messages import encode_message
from tests.producer.fakes import answers, connected
from tests.rules import AllowAll
from tests.strategies import chunkings


def publish(session: ProducerSession, count: int) -> None:
    """Publish with the tokens 0, 1, 2 and so on."""
    for n in range(count):
        session.publish(b"PUB %d|" % n, n)


def sent(count: int) -> ProducerSession:
    session = connected()
    publish(session, count)
    session.data_to_send()
    return session


def test_publishes_share_a_write_and_are_answered_in_order():
    session = connected()
    publish(session, 3)
    assert session.data_to_send() == b"PUB 0|PUB 1|PUB 2|"
    session.receive_data(OK_FRAME + OK_FRAME, 0)
    assert session.outstanding_count == 1
    assert answers(session) == {0: None, 1: None}
    session.receive_data(OK_FRAME, 0)
    assert answers(session) == {2: None}
    assert answers(session) == {}


def test_a_heartbeat_answers_no_publish():
    session = sent(1)
    session.receive_data(HEARTBEAT_FRAME + OK_FRAME, 0)
    assert answers(session) == {0: None}
    assert session.data_to_send() == NOP


def test_after_a_fatal_error_nsqd_has_not_read_later_publishes():
    session = sent(3)
    session.receive_data(OK_FRAME + encode_error(BadTopic("PUB topic name …")), 0)
    ok, refused, unread = answers(session).values()
    assert ok is None
    assert isinstance(refused, BadTopic)
    assert isinstance(unread, NotConnected)
    assert unread.__cause__ is refused
    assert session.ended
    assert session.error is refused


def test_after_an_unknown_fatal_error_later_publishes_may_have_arrived():
    session = sent(2)
    session.receive_data(encode_error(BrokerError("E_NEW something")), 0)
    assert [type(answer) for answer in answers(session).values()] == [BrokerError, ConnectionLost]


def test_an_error_that_is_not_fatal_answers_one_publish():
    session = sent(2)
    session.receive_data(encode_error(FinishFailed("?")) + OK_FRAME, 0)
    found = answers(session)
    assert isinstance(found[0], FinishFailed)
    assert found[1] is None
    assert not session.ended


def test_a_fatal_error_without_a_publish_ends_the_session():
    session = connected()
    session.receive_data(encode_error(BadMessage("PUB …")), 0)
    assert isinstance(session.error, BadMessage)


@pytest.mark.parametrize("frame", [OK_FRAME, encode_response(b"CLOSE_WAIT")])
def test_an_answer_without_a_publish_is_a_protocol_error(frame):
    session = connected()
    session.receive_data(frame, 0)
    assert isinstance(session.error, ProtocolError)
    assert "which answers no command" in str(session.error)


def test_a_message_to_a_producer_is_a_protocol_error():
    session = sent(1)
    session.receive_data(encode_message(0, 1, b"0123456789abcdef", b"x"), 0)
    assert str(session.error) == "the broker sent message b'0123456789abcdef' to a producer"
    assert isinstance(answers(session)[0], ConnectionLost)


def test_the_end_answers_each_publish_once_with_an_error_of_its_own():
    session = sent(2)
    session.publish(b"PUB 2|", 2)
    session.receive_eof(0)
    session.end(None)
    found = [*answers(session).values()]
    assert [type(answer) for answer in found] == [ConnectionLost] * 2 + [NotConnected]
    assert [answer.__cause__ for answer in found] == [session.error] * 3
    assert len({*map(id, found)}) == 3
    assert session.outstanding_count == 0


def test_session_is_ready_while_few_bytes_wait():
    session = connected()
    session.publish(bytes(OUTBOX_SIZE_MAX - 1), 0)
    assert session.is_ready
    session.publish(b"x", 1)
    assert not session.is_ready
    session.data_to_send()
    assert session.is_ready


def test_a_session_that_is_ready_again_has_an_event():
    session = connected()
    session.publish(bytes(OUTBOX_SIZE_MAX), 0)
    assert not session.has_events
    session.data_to_send()
    assert session.has_events
    assert session.events() == []
    assert not session.has_events


def test_the_first_publish_of_a_turn_requests_a_write_and_a_single_one_requests_it_now():
    session = connected()
    assert session.publish(b"1", 1) is Urgency.NOW
    assert session.publish(b"2", 2) is None
    session.data_to_send()
    assert session.publish(b"3", 3) is Urgency.SOON
    assert session.publish(b"4", 4) is None


def test_session_is_ready_from_handshake_to_end():
    session = ProducerSession(IdentifyRequest(), read_timeout_ns=60, max_msg_size=1000, now_ns=0)
    session.data_to_send()
    assert not session.is_ready
    session.receive_data(encode_response(b"{}"), 0)
    assert session.is_ready
    session.end(None)
    session.data_to_send()
    assert not session.is_ready


# ---- withdrawing -------------------------------------------------------------------------------------------------


def test_a_publish_that_is_withdrawn_before_it_was_taken_is_not_sent():
    session = connected()
    publish(session, 3)
    assert session.withdraw(1)
    assert session.data_to_send() == b"PUB 0|PUB 2|"
    session.receive_data(OK_FRAME + OK_FRAME, 0)
    assert answers(session) == {0: None, 2: None}


def test_a_publish_that_was_sent_keeps_its_place_when_it_is_withdrawn():
    session = sent(2)
    assert not session.withdraw(0)
    assert session.is_awaited
    session.receive_data(encode_error(FinishFailed("?")), 0)
    assert isinstance(answers(session)[0], FinishFailed)
    session.receive_data(OK_FRAME, 0)
    assert answers(session) == {1: None}


def test_a_session_with_nothing_but_withdrawn_publishes_is_not_awaited():
    session = sent(1)
    assert session.is_awaited
    session.withdraw(0)
    assert not session.is_awaited
    session.receive_eof(0)
    assert isinstance(answers(session)[0], ConnectionLost)


# ---- batches -----------------------------------------------------------------------------------------------------


def join(session: ProducerSession, *bodies: bytes) -> None:
    """Add messages, with their bodies as tokens."""
    assert session.linger is not None
    for body in bodies:
        if session.linger.join(b"t", body, body):
            session.check_linger()


def lingering(*bodies: bytes) -> ProducerSession:
    session = connected(Linger(linger_ns=10, count_max=100, size_max=OUTBOX_SIZE_MAX + 100))
    join(session, *bodies)
    return session


def test_single_publishes_become_one_command_with_an_answer_for_each():
    session = lingering(b"a", b"bb")
    assert session.has_output
    assert session.data_to_send() == encode_multi_publish(b"t", [b"a", b"bb"])
    assert not session.has_output
    session.receive_data(OK_FRAME, 0)
    assert answers(session) == {b"a": None, b"bb": None}


def test_a_batch_of_one_is_a_pub():
    assert lingering(b"a").data_to_send() == encode_publish(b"t", b"a")


def test_a_batch_whose_messages_are_withdrawn_is_not_sent():
    session = lingering(b"a")
    assert session.withdraw(b"a")
    assert session.data_to_send() == b""
    join(session, b"b")
    assert session.data_to_send() == encode_publish(b"t", b"b")
    session.receive_data(OK_FRAME, 0)
    assert answers(session) == {b"b": None}


def test_an_error_for_a_batch_is_an_error_of_its_own_for_each_message():
    session = lingering(b"a", b"b", b"c")
    session.withdraw(b"b")
    session.data_to_send()
    session.receive_data(encode_error(MultiPublishFailed("no space")), 0)
    found = answers(session)
    first, third = found[b"a"], found[b"c"]
    assert isinstance(first, MultiPublishFailed)
    assert isinstance(third, MultiPublishFailed)
    assert first is not third
    assert str(first) == str(third) == "E_MPUB_FAILED no space"


@pytest.mark.parametrize("refusal", [BadMessage("MPUB message too big 11 > 10"), BadBody("MPUB body too big")])
def test_a_refusal_of_a_batch_may_be_about_any_message(refusal):
    session = lingering(b"a", b"b")
    session.data_to_send()
    session.receive_data(encode_error(refusal), 0)
    found = [*answers(session).values()]
    assert [type(answer) for answer in found] == [BatchRefused, BatchRefused]
    assert str(found[0]) == f"the broker refused 2 messages together: {refusal}"
    assert session.ended


def test_a_refusal_of_a_batch_of_one_is_about_that_message():
    session = lingering(b"a")
    session.data_to_send()
    session.receive_data(encode_error(BadMessage("PUB message too big 11 > 10")), 0)
    assert isinstance(answers(session)[b"a"], BadMessage)


def test_messages_that_linger_at_the_end_have_not_arrived():
    session = lingering(b"a")
    session.data_to_send()
    join(session, b"b")
    session.receive_eof(0)
    assert [type(answer) for answer in answers(session).values()] == [ConnectionLost, NotConnected]
    assert session.outstanding_count == 0


def test_ready_batches_count_towards_the_bytes_that_wait():
    session = lingering(bytes(OUTBOX_SIZE_MAX))
    assert not session.is_ready
    session.data_to_send()
    assert session.is_ready


# ---- properties --------------------------------------------------------------------------------------------------

ANSWERS = st.sampled_from([OK_FRAME, HEARTBEAT_FRAME, encode_error(FinishFailed("?")), encode_error(BadTopic("!"))])


@given(st.lists(ANSWERS, max_size=20).flatmap(lambda frames: st.tuples(st.just(frames), chunkings(b"".join(frames)))))
def test_answers_belong_to_their_publishes_for_any_chunking(case):
    frames, chunks = case
    session = sent(20)
    found: dict[Any, Any] = {}
    for chunk in chunks:
        session.receive_data(chunk, 0)
        found |= answers(session)
    expected: list[type | None] = []
    for frame in frames:
        if frame == encode_error(BadTopic("!")):
            expected += [BadTopic, *[NotConnected] * (20 - len(expected) - 1)]
            break
        if frame != HEARTBEAT_FRAME:
            expected.append(None if frame == OK_FRAME else FinishFailed)
    assert [found[n] and type(found[n]) for n in sorted(found)] == expected


class Pipeline(RuleBasedStateMachine):
    """A session and a broker that answers commands in order; tokens are the bodies, all of which differ."""

    publishes = Bundle("publishes")

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.linger = Linger(linger_ns=5, count_max=4, size_max=60)
        self.session = connected(self.linger)
        self.decoder = CommandDecoder(AllowAll(), max_msg_size=1000, max_body_size=1000)
        assert list(self.decoder.feed(MAGIC_V2)) == []
        self.unread: list[Sequence[bytes]] = []  # by the broker: the bodies of each command
        self.arrived: set[bytes] = set()
        self.open: dict[bytes, None] = {}  # published, not withdrawn and not answered
        self.answers: dict[bytes, Any] = {}
        self.count = 0

    def _new(self) -> bytes:
        body = b"%05d" % self.count
        self.count += 1
        self.open[body] = None
        return body

    def _collect(self) -> dict[bytes, Any]:
        found = answers(self.session)
        assert not found.keys() & self.answers.keys(), "a publish was answered twice"
        self.answers |= found
        for body in found:
            del self.open[body]
        return found

    @precondition(lambda self: self.session.is_open)
    @rule(target=publishes)
    def publish(self):
        body = self._new()
        self.session.publish(encode_publish(b"t", body), body)
        return body

    @precondition(lambda self: self.session.is_open)
    @rule(target=publishes, topic=st.sampled_from([b"a", b"b"]))
    def join(self, topic):
        body = self._new()
        if self.linger.join(topic, body, body):
            self.linger.set_deadlines(self.now_ns)
        return body

    @rule(body=publishes)
    def withdraw(self, body):
        if body in self.open and self.session.withdraw(body):
            assert body not in self.arrived
            assert not any(body in bodies for bodies in self.unread)
            del self.open[body]

    @rule()
    def write(self):
        for command in self.decoder.feed(self.session.data_to_send()):
            parts = [command.bodies] if command.verb == b"MPUB" else [(body,) for body in command.bodies]
            self.unread += parts
            seen = [*self.arrived, *[body for part in self.unread for body in part]]
            assert len(seen) == len({*seen}), "a message was sent twice"
            assert all(body in self.open for part in parts for body in part), "a withdrawn message was sent"

    @precondition(lambda self: self.unread and self.session.is_open)
    @rule(refusal=st.sampled_from([None, None, FinishFailed("?"), BadMessage("!")]))
    def answer(self, refusal):
        bodies = self.unread.pop(0)
        if refusal is None:
            self.arrived.update(bodies)
        self.session.receive_data(OK_FRAME if refusal is None else encode_error(refusal), self.now_ns)
        found = self._collect()
        # A refusal of several messages may be about any of them.
        expected = BatchRefused if isinstance(refusal, BadMessage) and len(bodies) > 1 else type(refusal)
        for body in bodies:
            assert type(found.pop(body)) is expected
        assert all(isinstance(answer, NotConnected) for answer in found.values())  # after a fatal refusal

    @rule(passed=st.integers(1, 6))
    def time_passes(self, passed):
        self.now_ns += passed
        deadline_ns = self.linger.next_deadline()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.linger.handle_deadline(self.now_ns)

    @precondition(lambda self: self.count > 20)
    @rule()
    def lose(self):
        self.session.receive_eof(self.now_ns)
        self._collect()

    @invariant()
    def a_message_with_ok_has_arrived_and_one_with_not_connected_has_not(self):
        for body, answer in self.answers.items():
            assert (answer is None) == (body in self.arrived)

    @invariant()
    def after_the_end_every_publish_is_answered(self):
        if self.session.ended:
            assert not self.open

    def teardown(self):
        self.session.end(None)
        self._collect()
        assert not self.open
        assert not self.session._withdrawn


TestPipeline = Pipeline.TestCase
