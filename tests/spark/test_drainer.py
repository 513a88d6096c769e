"""A partition without Spark: which messages are processed, finished and requeued."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from nsqkit import Message
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.errors import NotConnected, OptionError
from nsqkit.spark.batch_plan import PartitionShare, named_nodes, plan_spec
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.drainer import (
    FINISH,
    Ack,
    PartitionStats,
    Requeue,
    drain_to_handler,
    drain_to_handler_async,
    receive_rows,
)
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.reception import Reception
from nsqkit.spark.schema import MessageRow
from nsqkit.testing import NsqdServer
from tests.peers import settle
from tests.spark.time_limits import FIRST_DELIVERY_MAX

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

BODIES = [b"%d" % n for n in range(100)]


def make_spec(*addresses: str, **options) -> ConsumerSpec:
    options = {"empty_for": FIRST_DELIVERY_MAX, "partitions": 1, **options}
    return ConsumerSpec(topics="t", channel="c", nsqd_tcp_addresses=addresses, **options)


def make_share(spec: ConsumerSpec) -> PartitionShare:
    return plan_spec(spec, named_nodes(spec))[0]


def run(broker: Broker, process: Callable, **options) -> PartitionStats:
    spec = make_spec(broker.address, linger=0.01, **options)
    return drain_to_handler(spec, make_share(spec), process)


def test_everything_is_processed_and_finished(broker: Broker):
    broker.publish("t", BODIES)
    rows: list = []
    stats = run(broker, rows.extend, max_in_flight=20)
    assert sorted(row.body for row in rows) == sorted(BODIES)
    assert {(row.nsqd_address, row.topic, row.attempts) for row in rows} == {(broker.address, "t", 1)}
    assert len({row.key for row in rows}) == 100
    assert broker.depth("t", "c") == 0
    assert (stats.partition, stats.finished_count, stats.byte_count) == (0, 100, 190)
    assert stats.chunk_count >= 10
    assert stats.stop_reason is StopReason.EMPTY


def test_nothing_is_finished_before_it_is_processed(broker: Broker):
    broker.publish("t", BODIES)
    processed = 0

    def process(rows):
        nonlocal processed
        assert broker.depth("t", "c") >= 100 - processed
        processed += len(rows)

    run(broker, process, max_in_flight=20, max_messages=100)
    assert processed == 100
    assert broker.depth("t", "c") == 0


def test_an_exception_of_process_is_raised_and_all_messages_are_requeued(broker: Broker):
    broker.publish("t", BODIES)

    def process(rows):
        raise ZeroDivisionError("that chunk")

    with pytest.raises(ZeroDivisionError, match="that chunk"):
        run(broker, process, max_in_flight=20)
    assert broker.depth("t", "c") == 100
    assert broker.in_flight("t", "c") == 0
    rows: list = []
    run(broker, rows.extend)
    assert len(rows) == 100
    assert {row.attempts for row in rows} >= {2}


def test_max_messages_are_taken_and_the_rest_stays(broker: Broker):
    broker.publish("t", BODIES)
    rows: list = []
    stats = run(broker, rows.extend, max_messages=30, empty_for=None)
    assert len(rows) == stats.finished_count == 30
    assert stats.stop_reason is StopReason.COUNT
    assert broker.depth("t", "c") == 70
    assert broker.in_flight("t", "c") == 0


def test_a_deadline_ends_a_partition(broker: Broker):
    stats = run(broker, print, empty_for=None, deadline=0.05)
    assert stats.stop_reason is StopReason.DEADLINE
    assert stats.finished_count == 0


def test_one_partition_consumes_from_several_nsqds(make_broker: Callable[[], Broker]):
    brokers = [make_broker(), make_broker()]
    for broker in brokers:
        broker.publish("t", BODIES)
    spec = make_spec(*(broker.address for broker in brokers), max_messages=200)
    rows: list = []
    drain_to_handler(spec, make_share(spec), rows.extend)
    assert len(rows) == len({row.key for row in rows}) == 200


def test_an_unreachable_nsqd_raises_not_connected():
    spec = make_spec("127.0.0.1:1", connect_timeout=1.5)
    with pytest.raises(NotConnected, match=r"no subscription within 1.5 seconds: 127\.0\.0\.1:1: cannot conn"):
        drain_to_handler(spec, make_share(spec), print)


@pytest.mark.anyio
async def test_the_connect_timeout_follows_the_clock():
    async def consume() -> None:
        with pytest.raises(NotConnected, match="no subscription within 100 seconds"):
            await drain_to_handler_async(spec, make_share(spec), print, clock)

    clock = ManualClock()
    spec = make_spec("127.0.0.1:1", connect_timeout=100.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await settle()
        clock.advance(100.0)


@pytest.mark.anyio
async def test_the_deadline_follows_the_clock():
    async def consume() -> None:
        stats.append(await drain_to_handler_async(spec, make_share(spec), print, clock))

    clock = ManualClock()
    stats: list[PartitionStats] = []
    options = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")
    async with Nsqd(options) as nsqd, anyio.create_task_group() as tasks:
        spec = make_spec(nsqd.tcp_address, empty_for=None, deadline=0.9)
        tasks.start_soon(consume)
        while not any(subscription.rdy_count for subscription in nsqd.broker.sessions.by_subscription):
            await anyio.lowlevel.checkpoint()
        clock.advance(0.9)
    assert [found.stop_reason for found in stats] == [StopReason.DEADLINE]
    assert stats[0].seconds == 0.9


def test_a_partition_without_connection_is_not_empty(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
):
    broker = make_broker()
    broker.publish("t", [b"before"])
    address = broker.address
    bodies: list[bytes] = []
    wait_connected = Reception.wait_connected

    async def wait_connected_again(self: Reception) -> None:
        if bodies:
            make_broker(tcp_address=address).publish("t", [b"after"])
        await wait_connected(self)

    def process(rows):
        bodies.extend(row.body for row in rows)
        if bodies == [b"before"]:
            broker.stop()

    monkeypatch.setattr(Reception, "wait_connected", wait_connected_again)
    run(broker, process, empty_for=1)  # the second broker delivers within that time
    assert bodies == [b"before", b"after"]


def test_unfinished_messages_are_touched(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    broker.publish("t", BODIES[:4])
    touched, all_touched = set(), threading.Event()
    touch = Message.touch

    def record(self: Message) -> None:
        touched.add(self.body)
        if len(touched) == 4:
            all_touched.set()
        touch(self)

    def process(rows):
        assert all_touched.wait(10)

    monkeypatch.setattr(Message, "touch", record)
    run(broker, process, max_in_flight=4, msg_timeout=1.0, max_messages=4)


def acks_of(rows: list[MessageRow]) -> list[Ack]:
    return [Requeue(5) if row.body == b"7" else FINISH for row in rows]


def test_an_ack_requeues_one_message_and_finishes_the_others(broker: Broker):
    broker.publish("t", BODIES)
    stats = run(broker, acks_of, max_in_flight=20, max_messages=100)
    assert (stats.finished_count, stats.requeued_count, stats.finish_failed_count) == (99, 1, 0)
    assert broker.depth("t", "c") == 0
    deferred = broker.portal.call(lambda: len(broker.channel("t", "c").deferred))
    assert deferred == 1


@pytest.mark.parametrize(
    ("acks", "sentence"),
    [
        ([FINISH], "the handler returned 1 Acks for 2 messages; allowed is None, or one for each message"),
        (5, "the handler returned 5; allowed is None, or a list with an Ack for each message"),
        ([FINISH, "x"], r"the handler returned \[Finish\(\), 'x'\]; allowed is None"),
        ("xx", "the handler returned 'xx'; allowed is None"),
    ],
)
def test_an_answer_that_is_no_list_of_acks_fails_the_partition(broker: Broker, acks: object, sentence: str):
    broker.publish("t", BODIES[:4])
    with pytest.raises(OptionError, match=sentence):
        run(broker, lambda rows: acks, max_messages=4)
    assert broker.depth("t", "c") == 4
    assert broker.in_flight("t", "c") == 0


def test_a_refused_fin_is_counted():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES[:4])
        spec = make_spec(nsqd.tcp_address, max_messages=4)
        late: list[MessageRow] = []

        def handle(rows: list[MessageRow]) -> None:
            if not late:
                nsqd.clock.advance(60)  # this end does not follow nsqd's clock, and touches nothing
            late.extend(rows)

        stats = drain_to_handler(spec, make_share(spec), handle)
        assert stats.finish_failed_count >= 2
        assert stats.finished_count + stats.finish_failed_count == 4


def test_received_rows_are_finished_before_they_are_returned(broker: Broker):
    broker.publish("t", BODIES)
    spec = make_spec(broker.address, linger=0.01)
    rows, stats = receive_rows(spec, make_share(spec))
    assert sorted(row.body for row in rows) == sorted(BODIES)
    assert broker.depth("t", "c") == 0
    assert (stats.received_count, stats.finished_count, stats.stop_reason) == (100, 100, StopReason.EMPTY)


def test_a_row_whose_fin_may_have_failed_is_not_returned():
    """At most once: nsqd has finished the messages, and the connection ended before its answer."""
    with NsqdServer() as nsqd:
        nsqd.publish("t", *BODIES[:4])
        spec = make_spec(nsqd.tcp_address)
        nsqd.faults.reset(command="ERROR", times=1)
        rows, stats = receive_rows(spec, make_share(spec))
        assert (rows, stats.received_count, stats.finished_count) == ([], 4, 0)


def test_figures_pickle(broker: Broker):
    broker.publish("t", BODIES)
    stats = run(broker, print)
    assert pickle.loads(pickle.dumps(stats)) == stats
