from __future__ import annotations

import anyio
import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import BadMessage, ConnectionLost, FinishFailed, NotConnected
from nsqkit.loop_thread import OneShot
from nsqkit.producer.linger import Linger
from nsqkit.producer.pool_connection import PoolConnection, Receipt
from nsqkit.producer.send_window import SendWindow
from nsqkit.producer.session import OUTBOX_SIZE_MAX, ProducerSession
from nsqkit.wire.commands import NOP, encode_publish
from nsqkit.wire.frames import OK_FRAME, encode_error
from tests.producer.fakes import connected
from tests.threads import WAIT_LIMIT


class FakeConnection:
    """A connection that records its calls."""

    address = "nsqd:4150"

    def __init__(self, session: ProducerSession | None) -> None:
        self.session = session
        self.error: Exception | None = None
        self.calls: list[str] = []

    def wake(self) -> None:
        self.calls.append("wake")

    def flush(self) -> None:
        self.calls.append("flush")

    async def run(self) -> None:
        """Do nothing."""


def make(
    session: ProducerSession | None,
    linger: Linger | None = None,
    window: SendWindow[OneShot[None]] | None = None,
) -> tuple[PoolConnection, FakeConnection]:
    connection = FakeConnection(session)
    return PoolConnection(connection, linger, ManualClock(), window), connection  # type: ignore[arg-type]


def receipt(count: int = 1, size: int = 0) -> Receipt:
    return Receipt(count, size)


@pytest.mark.parametrize("state", ["none", "ended", "full"])
def test_an_nsqd_that_is_not_ready_accepts_nothing(state):
    session = None if state == "none" else connected()
    if session is not None and state == "ended":
        session.end(None)
    if session is not None and state == "full":
        session.publish(bytes(OUTBOX_SIZE_MAX), receipt())
    nsqd, connection = make(session)
    assert not nsqd.is_ready
    assert nsqd.offer(None, b"x", receipt()) is None
    assert connection.calls == []


def test_a_single_publish_is_flushed_and_several_share_a_write():
    session = connected()
    nsqd, connection = make(session)
    assert nsqd.is_idle
    assert nsqd.offer(None, b"1", receipt()) is session
    assert connection.calls == ["flush"]
    session.data_to_send()
    for _ in range(3):
        nsqd.offer(None, b"x", receipt())
    assert connection.calls == ["flush", "wake"]
    assert session.data_to_send() == b"xxx"
    assert nsqd.outstanding_count == 4
    assert not nsqd.is_idle


def test_publishes_that_linger_request_one_write():
    linger = Linger(linger_ns=10, count_max=3, size_max=1000)
    session = connected(linger)
    nsqd, connection = make(session, linger)
    for _ in range(2):
        assert nsqd.offer(b"t", b"x", receipt()) is session
    assert connection.calls == ["wake"]
    assert nsqd.outstanding_count == 2
    session.data_to_send()
    nsqd.offer(b"t", b"y", receipt())
    assert connection.calls == ["wake"]  # an answer is awaited
    assert linger.next_deadline() == ManualClock().now_ns() + 10
    nsqd.flush()
    assert connection.calls == ["wake", "wake"]
    assert session.data_to_send() == encode_publish(b"t", b"y")


def test_pool_connection_runs_its_connection_and_a_linger_timer():
    assert len(make(connected())[0].tasks) == 1
    assert len(make(connected(), Linger(linger_ns=1, count_max=2, size_max=100))[0].tasks) == 2


def test_answers_resolve_receipts_are_counted_and_release_bytes():
    window: SendWindow[OneShot[None]] = SendWindow(100)
    session = connected()
    nsqd, connection = make(session, window=window)
    connection.error = ConnectionRefusedError("no")
    receipts = [receipt(3, 40), receipt(1, 60), receipt(9, 0), receipt(1, 0)]
    waiter: OneShot[None] = OneShot()
    assert window.take(100)
    window.wait(70, waiter)
    for each in receipts[:3]:
        nsqd.offer(None, b"x", each)
    session.data_to_send()
    nsqd.offer(None, b"x", receipts[3])
    session.receive_data(OK_FRAME + encode_error(FinishFailed("?")), 0)
    assert nsqd.process_events() == []
    assert [each.is_answered for each in receipts] == [True, True, False, False]
    assert waiter.is_answered
    assert window.size == 70
    stats = nsqd.stats()
    assert (stats.address, stats.is_connected, stats.outstanding_count) == ("nsqd:4150", True, 2)
    assert stats.error is connection.error
    session.receive_eof(0)
    nsqd.process_events()
    assert [type(each.error) for each in receipts] == [type(None), FinishFailed, ConnectionLost, NotConnected]
    stats = nsqd.stats()
    assert (stats.message_count, stats.refused_count, stats.lost_count) == (3, 1, 1)


def test_receipts_of_a_refused_batch_are_returned_if_they_are_to_be_sent_again():
    linger = Linger(linger_ns=10, count_max=3, size_max=1000)
    session = connected(linger)
    nsqd, _ = make(session, linger)
    again, other = Receipt(1, 0, (b"t", b"x", None)), receipt()
    for each in (again, other):
        nsqd.offer(b"t", b"x", each)
    session.data_to_send()
    session.receive_data(encode_error(BadMessage("too big")), 0)
    assert nsqd.process_events() == [again]
    assert (again.is_answered, other.is_answered) == (False, True)
    assert isinstance(other.error, NotConnected)


def test_pool_connection_is_awaited_until_the_answer():
    session = connected()
    nsqd, _ = make(session)
    nsqd.offer(None, b"x", receipt())
    assert nsqd.is_awaited
    session.data_to_send()
    assert nsqd.is_awaited
    session.receive_data(OK_FRAME, 0)
    assert not nsqd.is_awaited


def test_commands_without_an_answer_are_sent_until_it_is_closed():
    session = connected()
    nsqd, connection = make(session)
    nsqd.send(NOP)
    assert session.data_to_send() == NOP
    assert nsqd.close()
    assert session.ended
    assert connection.calls == ["wake", "wake"]
    assert not nsqd.close()
    nsqd.send(NOP)
    assert session.data_to_send() == b""


def test_without_a_connection_nothing_is_outstanding():
    nsqd, _ = make(None)
    assert not nsqd.is_connected
    assert not nsqd.is_awaited
    assert not nsqd.is_idle
    assert nsqd.outstanding_count == 0
    assert nsqd.process_events() == []
    assert not nsqd.close()


# Receipts.


@pytest.mark.anyio
async def test_a_receipt_can_be_awaited_before_and_after_the_answer():
    receipt = Receipt(2, 30)
    assert (receipt.is_answered, receipt.error, receipt.count, receipt.size) == (False, None, 2, 30)
    with anyio.fail_after(WAIT_LIMIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receipt.wait)
            await anyio.wait_all_tasks_blocked()
            receipt.resolve(None)
        await receipt
    assert (receipt.is_answered, receipt.error) == (True, None)


@pytest.mark.anyio
async def test_a_refusal_is_raised_each_time_and_kept():
    receipt = Receipt(1, 0)
    refusal = BadMessage("no")
    receipt.resolve(refusal)
    assert receipt.error is refusal
    for _ in range(2):
        with pytest.raises(BadMessage):
            await receipt
