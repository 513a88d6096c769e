"""Tests of ``nsqkit.broker.core.disk.group_commit``, alone and behind the sessions of a broker."""

from __future__ import annotations

from random import Random

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.group_commit import GroupCommit
from nsqkit.broker.core.disk.storage import DurableStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.core.session.sessions import SessionEnded
from nsqkit.broker.core.topics.batch import PART_COUNT_MAX
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.wire.commands import encode_multi_publish

NOW_NS = 1_700_000_000 * 10**9
PUB = b"PUB t\n\0\0\0\1x"
OK = b"\0\0\0\6\0\0\0\0OK"


@pytest.fixture
def broker(tmp_path):
    options = BrokerOptions(durability="fsync")
    return Broker(options, Random(1), DurableStorage(DirectoryFileStore(str(tmp_path)), options))


def test_commit_releases_its_holders_and_keeps_those_of_the_next():
    commits: GroupCommit[str] = GroupCommit()
    assert (commits.hold("a"), commits.hold("b")) == (1, 1)
    ticket = commits.begin()
    assert (commits.hold("b"), commits.hold("c")) == (2, 2)
    assert commits.end(ticket) == ["a", "b", "c"]
    assert commits.fail() == ["b", "c"]
    assert commits.end(commits.begin()) == []


def connected(broker: Broker) -> Session:
    session = broker.open_session("client:1", NOW_NS)
    session.receive_data(b"  V2", NOW_NS)
    return session


def sent(session: Session) -> bytes:
    session.process_input(NOW_NS)
    return session.data_to_send()


def test_publisher_is_answered_when_the_commit_has_ended(broker):
    session = connected(broker)
    session.receive_data(PUB, NOW_NS)
    assert broker.group_commit.wanted
    assert sent(session) == b""
    ticket = broker.group_commit.begin()
    assert not broker.group_commit.wanted
    assert sent(session) == b""
    broker.end_commit(ticket)
    assert sent(session) == OK


@pytest.mark.parametrize("count", [1, 2])
def test_publisher_that_sends_nothing_more_has_all_answers(broker, count):
    session = connected(broker)
    for _ in range(count):
        session.receive_data(PUB, NOW_NS)
        ticket = broker.group_commit.begin()
    session.receive_eof(NOW_NS)
    for each in range(1, ticket + 1):
        assert not session.ended
        broker.end_commit(each)
    assert session.ended
    assert sent(session) == OK * count


def test_message_put_during_a_commit_waits_for_the_next_one(broker):
    first, second = connected(broker), connected(broker)
    first.receive_data(PUB, NOW_NS)
    ticket = broker.group_commit.begin()
    first.receive_data(PUB, NOW_NS)
    second.receive_data(PUB, NOW_NS)
    broker.end_commit(ticket)
    assert (sent(first), sent(second)) == (OK, b"")
    broker.end_commit(broker.group_commit.begin())
    assert (sent(first), sent(second)) == (OK, OK)


def test_failed_commit_ends_the_waiting_connections_without_an_answer(broker):
    waiting, idle = connected(broker), connected(broker)
    waiting.receive_data(PUB, NOW_NS)
    broker.group_commit.begin()
    broker.fail_commit("No space left on device")
    assert waiting.ended
    assert waiting.events() == (SessionEnded("commit failed: No space left on device"),)
    assert sent(waiting) == b""
    assert not idle.ended


def test_failed_commit_ends_a_publisher_of_which_it_has_a_part(broker):
    session = connected(broker)
    session.receive_data(encode_multi_publish(b"t", [b"x"] * (2 * PART_COUNT_MAX)), NOW_NS)
    assert session.has_input
    broker.group_commit.begin()
    broker.fail_commit("Input/output error")
    assert session.ended
    assert sent(session) == b""


@pytest.mark.parametrize(("refused", "error"), [(b"FOO\n", b"E_INVALID invalid command FOO"), (bytes(70_000), None)])
@pytest.mark.parametrize("is_at_end", [False, True])
def test_refusal_follows_the_answers_that_wait(broker, refused, error, is_at_end):
    session = connected(broker)
    session.receive_data(PUB + refused + PUB, NOW_NS)
    if is_at_end:
        session.receive_eof(NOW_NS)
    else:
        session.receive_data(PUB, NOW_NS)
    assert (sent(session), session.ended, session.outbox_full) == (b"", False, True)
    broker.end_commit(broker.group_commit.begin())
    assert session.ended
    assert sent(session) == OK + (b"" if error is None else b"\0\0\0\x21\0\0\0\1" + error)
    assert broker.topics[b"t"].message_count == 1


def test_refusal_behind_answers_is_not_sent_if_their_commit_fails(broker):
    session = connected(broker)
    session.receive_data(PUB + b"FOO\n", NOW_NS)
    broker.group_commit.begin()
    broker.fail_commit("Input/output error")
    assert session.ended
    assert session.events() == (SessionEnded("commit failed: Input/output error"),)
    assert sent(session) == b""


def test_messages_behind_an_answer_that_waits_leave_no_event_until_they_are_sent(broker):
    session = connected(broker)
    session.receive_data(b"SUB t c\nRDY 2\n", NOW_NS)
    session.data_to_send()
    session.receive_data(2 * (b"PUB t\n\0\x0c\0\0" + bytes(0xC0000)), NOW_NS)
    broker.settle(NOW_NS)
    assert session.outbox_full
    assert (sent(session), session.has_events) == (b"", False)  # else the pump would call it again and again
    broker.end_commit(broker.group_commit.begin())
    assert len(sent(session)) > 2 * 0xC0000
    assert session.has_events
    assert not session.outbox_full


def test_closed_session_is_forgotten(broker):
    session = connected(broker)
    session.receive_data(PUB, NOW_NS)
    broker.close_session(session, NOW_NS)
    broker.end_commit(broker.group_commit.begin())
    assert session.ended


def test_upgrade_does_not_overtake_the_answers_before_it(broker):
    session = connected(broker)
    identify = b'{"feature_negotiation":true,"deflate":true}'
    session.receive_data(PUB + b"IDENTIFY\n" + len(identify).to_bytes(4, "big") + identify, NOW_NS)
    assert sent(session) == b""
    broker.end_commit(broker.group_commit.begin())
    assert sent(session).startswith(OK)
    assert session.compression == "deflate"


def test_command_that_waited_for_a_commit_runs_in_its_own_connection(broker):
    session = connected(broker)
    identify = b"IDENTIFY\n\0\0\0\2{}"
    session.receive_data(PUB + identify + b"SUB t c\n", NOW_NS)
    broker.end_commit(broker.group_commit.begin())
    assert session.has_input
    assert session.channel is None
    session.process_input(NOW_NS)
    assert session.channel is not None
