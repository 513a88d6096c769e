from __future__ import annotations

import json
import logging
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.lookupd.registry import Registry
from nsqkit.lookupd.session import OUTBOX_SIZE_MAX, TURN_COUNT, Session
from nsqkit.wire.lookup import (
    LINE_LENGTH_MAX,
    MAGIC_V1,
    OK_ANSWER,
    PING,
    AnswerDecoder,
    LookupdInfo,
    Node,
    encode_answer,
    encode_identify,
    encode_info,
    encode_register,
    encode_unregister,
)
from tests import strategies

INFO = LookupdInfo(broadcast_address="l", hostname="h", http_port=4161, tcp_port=4160, version="1.3.0")
NODE = Node(broadcast_address="b", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")
IDENTIFY = encode_identify(NODE)


class Conversation:
    """A session with its answers."""

    def __init__(self) -> None:
        self.registry = Registry(inactive_producer_timeout_ns=300, tombstone_lifetime_ns=45)
        self.session = Session(self.registry, "10.0.0.1:9", INFO)

    def exchange(self, data: bytes, now_ns: int = 0) -> list[bytes]:
        self.session.receive_data(data, now_ns)
        return self.answers()

    def answers(self) -> list[bytes]:
        return AnswerDecoder(answer_size_max=1 << 21).feed(self.session.data_to_send())


@pytest.fixture
def talk() -> Conversation:
    conversation = Conversation()
    assert conversation.exchange(MAGIC_V1) == []
    return conversation


@pytest.fixture
def known(talk: Conversation) -> Conversation:
    assert talk.exchange(IDENTIFY) == [encode_info(INFO)]
    return talk


def test_identify_is_answered_and_makes_a_peer(known: Conversation) -> None:
    (peer,) = known.registry.active_peers(0)
    assert (peer, peer.node, peer.remote_address) == (known.session.peer, NODE, "10.0.0.1:9")
    assert not known.session.ended


def test_all_commands_of_a_read_are_answered_in_one_write(talk: Conversation) -> None:
    commands = PING + IDENTIFY + encode_register(b"t", b"c") + encode_register(b"u") + encode_unregister(b"u")
    assert talk.exchange(commands) == [b"OK", encode_info(INFO), b"OK", b"OK", b"OK"]
    assert talk.registry.topics() == [b"t", b"u"]
    assert talk.registry.channels(b"t") == [b"c"]
    assert [len(talk.registry.producers(name, 0)) for name in (b"t", b"u")] == [1, 0]


@pytest.mark.parametrize("line", [b"REGISTER t  c\n", b"REGISTER t \n", b"REGISTER t\r\n"])
def test_an_empty_channel_means_no_channel(line: bytes, known: Conversation) -> None:
    assert known.exchange(line) == [b"OK"]
    assert known.registry.topics() == [b"t"]
    assert known.registry.channels(b"t") == []


def test_further_words_are_ignored(known: Conversation) -> None:
    assert known.exchange(b"REGISTER t c x$ y\nPING x\nUNREGISTER t c x$\n") == [b"OK"] * 3
    assert known.registry.channels(b"t") == [b"c"]


def test_a_ping_updates_the_peer(known: Conversation) -> None:
    assert known.registry.active_peers(301) == []
    assert known.exchange(PING, 5) == [b"OK"]
    assert known.registry.active_peers(305) == [known.session.peer]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"FOO\n", b"E_INVALID invalid command FOO"),
        (b"\n", b"E_INVALID invalid command "),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"end\n", b"E_INVALID invalid command end"),
        (b"\xff\x00 x\n", b"E_INVALID invalid command \xff\x00"),
        (b"REGISTER\n", b"E_INVALID client must IDENTIFY"),
        (b"REGISTER a$\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n" + encode_answer(b""), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n" + encode_answer(b"{}"), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n" + pack(">i", -1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
    ],
)
def test_refusals(sent: bytes, answer: bytes, talk: Conversation) -> None:
    assert talk.exchange(PING + sent + PING) == [b"OK", answer]
    assert talk.session.ended
    assert talk.exchange(PING) == []


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER  t\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"REGISTER * c\n", b"E_BAD_TOPIC REGISTER topic name '*' is not valid"),
        (b"UNREGISTER a\xff c$\n", b"E_BAD_TOPIC UNREGISTER topic name 'a\xff' is not valid"),
        (b"REGISTER t *\n", b"E_BAD_CHANNEL REGISTER channel name '*' is not valid"),
        (b"UNREGISTER t a$b\n", b"E_BAD_CHANNEL UNREGISTER channel name 'a$b' is not valid"),
        (
            b"REGISTER t " + b"c" * 65 + b"\n",
            b"E_BAD_CHANNEL REGISTER channel name '%b' is not valid" % (b"c" * 65),
        ),
    ],
)
def test_refusals_of_a_known_peer_end_its_registrations(sent: bytes, answer: bytes, known: Conversation) -> None:
    known.exchange(encode_register(b"t", b"c"))
    assert known.exchange(sent) == [answer]
    assert known.session.ended
    assert known.registry.active_peers(0) == known.registry.producers(b"t", 0) == []
    assert known.registry.channels(b"t") == [b"c"]


def test_another_magic_is_refused() -> None:
    conversation = Conversation()
    assert conversation.exchange(b"  V2") == [b"E_BAD_PROTOCOL"]
    assert conversation.session.ended


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"", []),
        (b"PIN", []),
        (b"IDENTIFY\n\0", [b"E_BAD_BODY IDENTIFY failed to read body size"]),
        (b"IDENTIFY\n\0\0\0\5{}", [b"E_BAD_BODY IDENTIFY failed to read body"]),
    ],
)
def test_eof_ends_the_session(sent: bytes, answers: list[bytes], talk: Conversation) -> None:
    assert talk.exchange(sent) == []
    for _ in range(2):
        talk.session.receive_eof(0)
    assert talk.answers() == answers
    assert talk.session.ended


def test_eof_removes_registrations(known: Conversation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known.exchange(encode_register(b"t"))
    known.session.receive_eof(0)
    assert known.session.has_output
    assert known.registry.producers(b"t", 0) == []
    assert [record.getMessage() for record in caplog.records][-3:] == [
        "PROTOCOL(V1): [10.0.0.1:9] exiting ioloop - EOF",
        "DB: client(10.0.0.1:9) UNREGISTER category:topic key:t subkey:",
        "DB: client(10.0.0.1:9) UNREGISTER category:client key: subkey:",
    ]


def test_a_too_long_line_ends_the_session(known: Conversation) -> None:
    assert known.exchange(b"x" * (LINE_LENGTH_MAX + 1)) == []
    assert known.session.ended


def test_long_input_is_cut_in_the_log(talk: Conversation, caplog: pytest.LogCaptureFixture) -> None:
    assert len(talk.exchange(b"x" * 100_000 + b"\n")[0]) > 100_000
    assert all(len(record.getMessage()) < 300 for record in caplog.records)


def test_unread_answers_fill_the_outbox(talk: Conversation) -> None:
    assert not talk.session.has_output
    talk.session.receive_data(PING * (OUTBOX_SIZE_MAX // len(OK_ANSWER)), 0)
    while talk.session.has_input:
        talk.session.process_input(0)
    assert not talk.session.outbox_full
    talk.session.receive_data(PING, 0)
    assert talk.session.outbox_full
    assert len(talk.session.data_to_send()) >= OUTBOX_SIZE_MAX
    assert not talk.session.outbox_full


lines = st.lists(
    st.sampled_from([b"REGISTER", b"UNREGISTER", b"PING", b"t", b"c#ephemeral", b"", b"a$"]), max_size=4
).map(lambda words: b" ".join(words) + b"\n")
documents = st.dictionaries(
    st.sampled_from(["broadcast_address", "tcp_port", "http_port", "version", "x"]),
    st.sampled_from(["b", "", 1, 0, None, 1.5]),
).map(lambda document: b"IDENTIFY\n" + encode_answer(json.dumps(document).encode()))


@given(st.data(), st.lists(st.one_of(lines, documents, st.just(IDENTIFY), st.binary(max_size=9)), max_size=9))
def test_any_bytes_in_any_pieces_have_the_same_result(data: st.DataObject, sent: list[bytes]) -> None:
    stream = MAGIC_V1 + b"".join(sent)
    whole, cut = Conversation(), Conversation()
    answers = whole.exchange(stream)
    assert [answer for piece in data.draw(strategies.chunkings(stream)) for answer in cut.exchange(piece)] == answers
    assert [list(each.registry.registrations())[1:] == [] for each in (whole, cut)].count(True) != 1
    for each in (whole, cut):
        each.session.receive_eof(0)
        assert each.session.ended
        assert all(not peers for _, peers in each.registry.registrations())


def test_a_call_processes_a_bounded_number_of_commands(known: Conversation) -> None:
    count = 3 * TURN_COUNT + 5
    known.session.receive_data(b"".join(encode_register(b"t%d" % number) for number in range(count)), 0)
    counts = [len(known.answers())]
    while known.session.has_input:
        known.session.process_input(0)
        counts.append(len(known.answers()))
    assert counts == [TURN_COUNT] * 3 + [5]
    assert len(known.registry.topics()) == count


def test_input_received_between_calls_is_processed_in_order(known: Conversation) -> None:
    known.session.receive_data(encode_register(b"t") * 2 * TURN_COUNT, 0)
    known.session.receive_data(encode_unregister(b"t"), 0)
    known.session.receive_eof(0)
    assert known.registry.active_peers(0)[0].topics
    while known.session.has_input:
        known.session.process_input(0)
    assert len(known.answers()) == 2 * TURN_COUNT + 1
    assert known.session.ended


def test_channels_of_a_topic_are_unregistered_in_bounded_parts(known: Conversation) -> None:
    session, count = known.session, 2 * TURN_COUNT + 5
    session.receive_data(b"".join(encode_register(b"t", b"c%d" % number) for number in range(count)), 0)
    while session.has_input:
        session.process_input(0)
    known.answers()
    assert session.peer is not None
    session.receive_data(encode_unregister(b"t") + encode_register(b"u"), 0)
    lefts = [len(session.peer.channels[b"t"])]
    while b"t" in session.peer.channels:
        assert known.answers() == []
        session.process_input(0)
        lefts.append(len(session.peer.channels.get(b"t", ())))
    assert lefts == [TURN_COUNT + 5, 5, 0]
    assert known.answers() == [b"OK", b"OK"]
    assert list(session.peer.topics) == [b"u"]


@pytest.mark.parametrize("how", ["eof", "end", "refusal"])
def test_registrations_are_removed_in_bounded_parts(known: Conversation, how: str) -> None:
    count = 3 * TURN_COUNT
    known.session.receive_data(b"".join(encode_register(b"t%d" % number) for number in range(count)), 0)
    while known.session.has_input:
        known.session.process_input(0)
        known.answers()
    match how:
        case "eof":
            known.session.receive_eof(0)
        case "end":
            known.session.end("why not")
        case _:
            known.session.receive_data(b"HELLO\n", 0)
    lefts: list[int] = []
    while known.session.has_input:
        assert not known.session.ended
        lefts.append(sum(len(peers) for _, peers in known.registry.registrations()))
        known.session.process_input(0)
    assert {before - after for before, after in pairwise(lefts)} <= {TURN_COUNT}
    assert lefts
    assert known.session.ended
    assert not any(peers for _, peers in known.registry.registrations())
    known.session.receive_data(PING, 0)
    known.session.receive_eof(0)
    assert known.answers() in ([], [b"E_INVALID invalid command HELLO"])


def test_a_full_outbox_stops_processing(known: Conversation) -> None:
    known.session.receive_data(PING * 100_000, 0)
    while known.session.has_input:
        known.session.process_input(0)
    assert known.session.outbox_full
    assert len(known.answers()) == -(-OUTBOX_SIZE_MAX // len(OK_ANSWER))
    assert known.session.has_input
