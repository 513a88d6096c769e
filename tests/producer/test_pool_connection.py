from __future__ import annotations

import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import BadMessage, ConnectionLost, NotConnected
from nsqkit.producer.linger import Linger
from nsqkit.producer.pool_connection import PoolConnection
from nsqkit.producer.session import OUTBOX_SIZE_MAX, ProducerSession
from nsqkit.wire.commands import NOP, encode_publish
from nsqkit.wire.frames import OK_FRAME
from tests.producer.fakes import FakeWaiter, greeted, waiters


class FakeConnection:
    """A connection that only notes what it is asked for."""

    address = "nsqd:4150"

    def __init__(self, session: ProducerSession | None) -> None:
        self.session = session
        self.error: Exception | None = None
        self.asked: list[str] = []

    def wake(self) -> None:
        self.asked.append("wake")

    def flush(self) -> None:
        self.asked.append("flush")

    async def run(self) -> None:
        """Do nothing."""


def make(
    session: ProducerSession | None, linger: Linger | None = None
) -> tuple[PoolConnection, FakeConnection]:
    connection = FakeConnection(session)
    return PoolConnection(connection, linger, ManualClock()), connection  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["none", "ended", "full"])
def test_what_is_not_ready_takes_nothing(state):
    session = None if state == "none" else greeted()
    if session is not None and state == "ended":
        session.end(None)
    if session is not None and state == "full":
        session.publish(bytes(OUTBOX_SIZE_MAX), FakeWaiter())
    destination, connection = make(session)
    assert not destination.is_ready
    assert destination.offer(None, b"x", FakeWaiter()) is None
    assert connection.asked == []


def test_a_lone_publish_is_sent_at_once_and_a_crowd_shares_a_write():
    session = greeted()
    destination, connection = make(session)
    told = waiters(4)
    assert destination.offer(None, b"1", told[0]) is session
    assert connection.asked == ["flush"]
    session.data_to_send(0)
    for waiter in told[1:]:
        destination.offer(None, b"x", waiter)
    assert connection.asked == ["flush", "wake"]
    assert session.data_to_send(0) == b"xxx"
    assert destination.outstanding_count == 4


def test_what_may_lingers_gathers_and_asks_for_a_write_once():
    linger = Linger(linger_ns=10, count_max=3, size_max=1000)
    session = greeted(linger)
    destination, connection = make(session, linger)
    for waiter in waiters(2):
        assert destination.offer(b"t", b"x", waiter) is session
    assert connection.asked == ["wake"]
    assert destination.outstanding_count == 2
    session.data_to_send(0)
    destination.offer(b"t", b"y", FakeWaiter())
    assert connection.asked == ["wake"]  # an answer is awaited
    assert linger.next_deadline() == ManualClock().now_ns() + 10
    destination.hurry()
    assert connection.asked == ["wake", "wake"]
    assert session.data_to_send(0) == encode_publish(b"t", b"y")


def test_it_runs_its_connection_and_an_alarm_where_something_lingers():
    assert len(make(greeted())[0].tasks) == 1
    assert len(make(greeted(), Linger(linger_ns=1, count_max=2, size_max=100))[0].tasks) == 2


def test_what_comes_of_publishes_is_counted():
    destination, connection = make(greeted())
    connection.error = ConnectionRefusedError("no")
    for error, count in (
        (None, 3),
        (None, 1),
        (BadMessage("no"), 1),
        (ConnectionLost(), 9),
        (NotConnected(), 1),
    ):
        destination.settle(error, count, 0)
    stats = destination.stats()
    assert (stats.message_count, stats.refused_count, stats.lost_count) == (4, 1, 1)
    assert (stats.address, stats.is_connected, stats.outstanding_count) == ("nsqd:4150", True, 0)
    assert stats.error is connection.error


def test_somebody_waits_until_the_answer_is_there():
    session = greeted()
    destination, _ = make(session)
    destination.offer(None, b"x", FakeWaiter())
    assert destination.is_awaited
    session.data_to_send(0)
    assert destination.is_awaited
    session.receive_data(OK_FRAME, 0)
    assert not destination.is_awaited


def test_it_says_what_has_no_answer_and_goodbye():
    session = greeted()
    destination, connection = make(session)
    destination.say(NOP)
    assert session.data_to_send(0) == NOP
    assert destination.say_goodbye()
    assert session.ended
    assert connection.asked == ["wake", "wake"]
    assert not destination.say_goodbye()
    destination.say(NOP)
    assert session.data_to_send(0) == b""


def test_without_a_connection_there_is_nothing():
    destination, _ = make(None)
    assert not destination.is_connected
    assert not destination.is_awaited
    assert destination.outstanding_count == 0
    assert not destination.say_goodbye()
