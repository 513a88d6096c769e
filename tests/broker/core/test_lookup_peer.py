from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqkit.broker.core.lookup_peer import ANSWER_TIMEOUT_NS, PING_INTERVAL_NS, LookupPeerSession
from nsqkit.errors import ConnectionLost, HeartbeatTimeout, ProtocolError
from nsqkit.wire.lookup import (
    MAGIC_V1,
    LookupCommand,
    LookupCommandDecoder,
    LookupdInfo,
    Node,
    decode_node,
    encode_answer,
    encode_identify,
    encode_info,
)
from tests.rules import AllowAll

NODE = Node(broadcast_address="b", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")
INFO = LookupdInfo(broadcast_address="l", hostname="l", tcp_port=4160, http_port=4161, version="1.3.0")
NOW_NS = 1_700_000_000_000_000_000
OK = encode_answer(b"OK")


def opened(registrations=None) -> LookupPeerSession:
    return LookupPeerSession(NODE, registrations or {}, NOW_NS, answer_size_max=1000)


def identified(registrations=None) -> LookupPeerSession:
    session = opened(registrations)
    session.data_to_send()
    session.receive_data(encode_answer(encode_info(INFO)), NOW_NS)
    return session


def sent(session: LookupPeerSession, now_ns: int = NOW_NS) -> list[bytes]:
    """Answer each command until none is left; return the commands."""
    lines = []
    while data := session.data_to_send():
        lines.append(data)
        session.receive_data(OK, now_ns)
    return lines


def test_session_begins_with_identify():
    session = opened({b"t": [b"c"]})
    assert session.has_output
    assert session.data_to_send() == MAGIC_V1 + encode_identify(NODE)
    assert not session.has_output
    assert not session.outbox_full
    assert session.info is None


def test_present_topics_are_announced_after_identify():
    session = identified({b"t": [b"c1", b"c2"], b"u": [], b"e#ephemeral": [b"x#ephemeral"]})
    assert session.info == INFO
    assert sent(session) == [
        b"REGISTER t c1\n",
        b"REGISTER t c2\n",
        b"REGISTER u\n",
        b"REGISTER e#ephemeral x#ephemeral\n",
    ]


def test_command_waits_for_the_answer_to_the_previous_one():
    session = identified({b"t": [], b"u": []})
    assert session.data_to_send() == b"REGISTER t\n"
    assert not session.has_output
    session.receive_data(OK[:5], NOW_NS)
    assert not session.has_output
    session.receive_data(OK[5:], NOW_NS)
    assert session.data_to_send() == b"REGISTER u\n"


def test_changes_before_the_first_answer_are_in_the_first_announcement():
    session = opened({b"t": [b"c"]})
    session.update({b"u": []}, NOW_NS)
    session.data_to_send()
    session.receive_data(encode_answer(b"{}"), NOW_NS)
    assert session.info == LookupdInfo()
    assert sent(session) == [b"REGISTER u\n"]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({}, {b"t": []}, [b"REGISTER t\n"]),
        ({}, {b"t": [b"c"]}, [b"REGISTER t\n", b"REGISTER t c\n"]),
        ({b"t": []}, {b"t": [b"c", b"d"]}, [b"REGISTER t c\n", b"REGISTER t d\n"]),
        ({b"t": [b"c", b"d"]}, {b"t": [b"d"]}, [b"UNREGISTER t c\n"]),
        ({b"t": [b"c"]}, {b"t": [b"d"]}, [b"UNREGISTER t c\n", b"REGISTER t d\n"]),
        ({b"t": [b"d", b"c"]}, {}, [b"UNREGISTER t\n", b"UNREGISTER t c\n", b"UNREGISTER t d\n"]),
        ({b"t": []}, {b"u": []}, [b"UNREGISTER t\n", b"REGISTER u\n"]),
    ],
)
def test_difference_is_announced(before, after, lines):
    session = identified(before)
    sent(session)
    session.update(after, NOW_NS)
    assert sent(session) == lines
    session.update(after, NOW_NS)
    assert sent(session) == []


def test_changes_wait_in_order_for_the_outstanding_answer():
    session = identified({b"t": []})
    assert session.data_to_send() == b"REGISTER t\n"
    session.update({b"t": [b"c"]}, NOW_NS)
    session.update({b"t": []}, NOW_NS)
    assert session.data_to_send() == b""
    session.receive_data(OK, NOW_NS)
    assert sent(session) == [b"REGISTER t c\n", b"UNREGISTER t c\n"]


def test_announcements_do_not_change_with_the_callers_objects():
    channels = [b"c"]
    registrations = {b"t": channels}
    session = identified(registrations)
    sent(session)
    channels.append(b"d")
    session.update(registrations, NOW_NS)
    assert sent(session) == [b"REGISTER t d\n"]


# ---- time --------------------------------------------------------------------------------------------------------


def test_ping_is_sent_after_each_interval():
    session = identified()
    assert session.next_deadline() == NOW_NS + PING_INTERVAL_NS
    session.handle_deadline(NOW_NS + PING_INTERVAL_NS - 1)
    assert sent(session) == []
    session.handle_deadline(NOW_NS + PING_INTERVAL_NS)
    assert sent(session, NOW_NS + PING_INTERVAL_NS) == [b"PING\n"]
    assert session.next_deadline() == NOW_NS + 2 * PING_INTERVAL_NS


def test_missing_answer_ends_the_session():
    session = opened()
    assert session.next_deadline() == NOW_NS + ANSWER_TIMEOUT_NS
    session.handle_deadline(NOW_NS + ANSWER_TIMEOUT_NS - 1)
    assert not session.ended
    session.receive_data(b"\0", NOW_NS + 5)  # something at least
    assert session.next_deadline() == NOW_NS + 5 + ANSWER_TIMEOUT_NS
    session.handle_deadline(NOW_NS + 5 + ANSWER_TIMEOUT_NS)
    assert session.ended
    assert session.has_output
    assert session.data_to_send() == b""
    assert session.next_deadline() is None
    assert isinstance(session.error, HeartbeatTimeout)
    assert str(session.error) == "no answer within 1 s"


def test_each_command_has_its_own_answer_timeout():
    session = identified({b"t": [], b"u": []})
    later_ns = NOW_NS + ANSWER_TIMEOUT_NS - 1
    assert session.data_to_send() == b"REGISTER t\n"
    session.receive_data(OK, later_ns)
    assert session.next_deadline() == later_ns + ANSWER_TIMEOUT_NS
    assert session.data_to_send() == b"REGISTER u\n"
    session.receive_data(OK, later_ns)
    assert session.next_deadline() == NOW_NS + PING_INTERVAL_NS


# ---- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encode_answer(b"E_INVALID no"), "^the answer to IDENTIFY cannot be understood: b'E_INVALID no'$"),
        (encode_answer(b"OK"), "^the answer to IDENTIFY cannot be understood: b'OK'$"),
        (b"\0\0\x03\xe9", "^answer size 1001 is out of range 0-1000$"),
    ],
)
def test_invalid_answer_to_identify_ends_the_session(data, error):
    session = opened({b"t": []})
    session.data_to_send()
    session.receive_data(data, NOW_NS)
    assert session.ended
    assert isinstance(session.error, ProtocolError)
    with pytest.raises(ProtocolError, match=error):
        raise session.error


def test_answer_without_a_command_ends_the_session():
    session = identified()
    session.receive_data(OK, NOW_NS)
    with pytest.raises(ProtocolError, match=r"^an answer came to nothing: b'OK'$"):
        raise session.error or AssertionError


def test_answer_to_a_command_that_was_not_sent_ends_the_session():
    session = opened({b"t": [], b"u": []})
    session.data_to_send()
    session.receive_data(encode_answer(encode_info(INFO)) + OK, NOW_NS)
    with pytest.raises(ProtocolError, match=r"^an answer came to nothing: b'OK'$"):
        raise session.error or AssertionError


def test_close_after_a_refusal_names_the_refusal():
    session = identified({b"t": [], b"u": []})
    session.data_to_send()
    session.receive_data(encode_answer(b"E_BAD_TOPIC no"), NOW_NS)
    assert session.data_to_send() == b"REGISTER u\n"  # as nsqd does
    session.receive_eof(NOW_NS)
    with pytest.raises(ConnectionLost, match=r"has closed the connection after it said b'E_BAD_TOPIC no'$"):
        raise session.error or AssertionError


def test_refusal_followed_by_ok_is_not_named():
    session = identified({b"t": [], b"u": []})
    for answer in (encode_answer(b"E_BAD_TOPIC no"), OK):
        session.data_to_send()
        session.receive_data(answer, NOW_NS)
    session.receive_eof(NOW_NS)
    assert str(session.error) == "the nsqlookupd has closed the connection"


def test_ended_session_ignores_input():
    session = identified()
    session.receive_eof(NOW_NS)
    first = session.error
    session.receive_eof(NOW_NS)
    session.receive_data(b"\xff" * 8, NOW_NS)
    session.update({b"t": []}, NOW_NS)
    session.handle_deadline(NOW_NS + PING_INTERVAL_NS)
    assert session.error is first
    assert session.data_to_send() == b""


# ---- any sequence of events ----------------------------------------------------------------------------------------


class Lookupd:
    """The registrations that an nsqlookupd has from one connection; the test sends its answers."""

    def __init__(self) -> None:
        self.known: dict[bytes, set[bytes]] = {}
        self.unanswered = 0
        self.replies: list[bytes] = []
        self._decoder = LookupCommandDecoder(AllowAll())

    def receive(self, data: bytes) -> None:
        for command in self._decoder.feed(data):
            self.unanswered += 1
            assert self.unanswered == 1, "one command at a time"
            self.replies.append(self._act_on(command))

    def _act_on(self, command: LookupCommand) -> bytes:
        if command.verb == b"IDENTIFY":
            assert decode_node(command.body) == NODE
            return encode_answer(encode_info(INFO))
        if command.verb == b"REGISTER":
            self.known.setdefault(command.params[0], set()).update(command.params[1:])
        elif command.verb == b"UNREGISTER" and command.params[1:]:
            self.known.get(command.params[0], set()).discard(command.params[1])
        elif command.verb == b"UNREGISTER":
            del self.known[command.params[0]]
        return OK


class Conversation(RuleBasedStateMachine):
    """Updates, answers, silence and lost connections, in any order."""

    registrations = st.dictionaries(
        st.sampled_from([b"t", b"u", b"v#ephemeral"]),
        st.lists(st.sampled_from([b"c", b"d", b"e#ephemeral"]), unique=True),
    )

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = NOW_NS
        self.wanted: dict[bytes, list[bytes]] = {}
        self.connect()

    @rule()
    def connect(self) -> None:
        """Lose the connection, if there is one, and make another."""
        self.session = LookupPeerSession(NODE, self.wanted, self.now_ns, answer_size_max=1000)
        self.lookupd = Lookupd()

    @rule(registrations=registrations)
    def change(self, registrations) -> None:
        self.wanted = registrations
        self.session.update(registrations, self.now_ns)

    @rule()
    def deliver(self) -> None:
        self.lookupd.receive(self.session.data_to_send())

    @precondition(lambda self: self.lookupd.replies)
    @rule(cut=st.integers(0, 20))
    def answer(self, cut) -> None:
        reply = self.lookupd.replies.pop(0)
        self.lookupd.unanswered -= 1
        for piece in filter(None, (reply[:cut], reply[cut:])):
            self.session.receive_data(piece, self.now_ns)

    @rule(ms=st.sampled_from([1, 999, 1_000, 15_000]))
    def wait(self, ms) -> None:
        self.now_ns += ms * 1_000_000
        deadline_ns = self.session.next_deadline()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.session.handle_deadline(self.now_ns)

    @invariant()
    def an_end_has_a_reason(self) -> None:
        assert self.session.ended is (self.session.error is not None)

    def teardown(self) -> None:
        if self.session.ended:
            self.connect()
        for _ in range(1000):
            self.deliver()
            if not self.lookupd.replies:
                break
            self.answer(3)
        assert self.lookupd.known == {topic: {*channels} for topic, channels in self.wanted.items()}
        assert not self.session.ended


TestConversation = Conversation.TestCase


@given(st.lists(Conversation.registrations, max_size=5))
def test_announcements_end_with_the_present_names(updates):
    session = identified()
    lookupd = Lookupd()
    lookupd.receive(MAGIC_V1)
    for registrations in updates:
        session.update(registrations, NOW_NS)
    for line in sent(session):
        lookupd.receive(line)
        lookupd.unanswered = 0
    assert lookupd.known == {topic: {*channels} for topic, channels in (updates or [{}])[-1].items()}
