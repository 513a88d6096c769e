"""Group commit: who waits for which commit, and what becomes of them."""

from __future__ import annotations

from random import Random

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import DurableStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.file_store import DirectoryFileStore

NOW_NS = 1_700_000_000 * 10**9
PUB = b"PUB t\n\0\0\0\1x"
OK = b"\0\0\0\6\0\0\0\0OK"


@pytest.fixture
def broker(tmp_path):
    options = BrokerOptions(durability="fsync")
    return Broker(options, Random(1), DurableStorage(DirectoryFileStore(str(tmp_path)), options, pytest.fail))


def connected(broker: Broker) -> Session:
    session = broker.open_session("client:1", NOW_NS)
    session.receive_data(b"  V2", NOW_NS)
    return session


def said(session: Session) -> bytes:
    session.process_input(NOW_NS)
    return session.data_to_send(NOW_NS)


def test_a_publisher_is_answered_when_the_commit_has_ended(broker):
    session = connected(broker)
    session.receive_data(PUB, NOW_NS)
    assert broker.group_commit.wanted
    assert said(session) == b""
    ticket = broker.group_commit.begin()
    assert not broker.group_commit.wanted
    assert said(session) == b""
    broker.group_commit.end(ticket)
    assert said(session) == OK


def test_what_is_put_while_a_commit_runs_waits_for_the_next_one(broker):
    first, second = connected(broker), connected(broker)
    first.receive_data(PUB, NOW_NS)
    ticket = broker.group_commit.begin()
    first.receive_data(PUB, NOW_NS)
    second.receive_data(PUB, NOW_NS)
    broker.group_commit.end(ticket)
    assert (said(first), said(second)) == (OK, b"")
    broker.group_commit.end(broker.group_commit.begin())
    assert (said(first), said(second)) == (OK, OK)


def test_a_failed_commit_answers_nobody_and_ends_who_waits(broker):
    waiting, idle = connected(broker), connected(broker)
    waiting.receive_data(PUB, NOW_NS)
    broker.group_commit.begin()
    broker.group_commit.fail("No space left on device")
    assert waiting.ended
    assert waiting.end_reason == "commit failed: No space left on device"
    assert said(waiting) == b""
    assert not idle.ended


def test_who_has_gone_is_not_waited_for(broker):
    session = connected(broker)
    session.receive_data(PUB, NOW_NS)
    broker.close_session(session, NOW_NS)
    broker.group_commit.end(broker.group_commit.begin())
    assert session.ended


def test_an_upgrade_does_not_overtake_the_answers_before_it(broker):
    session = connected(broker)
    identify = b'{"feature_negotiation":true,"deflate":true}'
    session.receive_data(PUB + b"IDENTIFY\n" + len(identify).to_bytes(4, "big") + identify, NOW_NS)
    assert said(session) == b""
    broker.group_commit.end(broker.group_commit.begin())
    assert said(session).startswith(OK)
    assert session.compression == "deflate"


def test_what_waited_for_a_commit_is_acted_on_by_its_own_connection_and_not_by_the_commit(broker):
    session = connected(broker)
    identify = b"IDENTIFY\n\0\0\0\2{}"
    session.receive_data(PUB + identify + b"SUB t c\n", NOW_NS)
    broker.group_commit.end(broker.group_commit.begin())
    assert session.has_input
    assert session.channel is None
    session.process_input(NOW_NS)
    assert session.channel is not None
