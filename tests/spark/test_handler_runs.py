"""Runs of a handler over all partitions of a spec, each partition in a thread as in a worker of Spark.

A11, A13 and A15 of the design are here, and a run after a crash.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import attrs
import pytest

from nsqkit import Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.spark.batch_plan import named_nodes, plan_spec
from nsqkit.spark.bounded_run import RunStats, run_bounded
from nsqkit.spark.discovery import Discovery
from nsqkit.spark.drainer import Handler, PartitionStats, drain_to_handler, drain_to_handler_async
from nsqkit.spark.message_handler import per_message
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.schema import MessageRow
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_identify, encode_ready, encode_subscribe
from tests.peers import settle
from tests.spark.time_limits import FIRST_DELIVERY_MAX

if TYPE_CHECKING:
    from tests.spark.conftest import Broker

HTTP = {"http_address": "127.0.0.1:0"}


def make_spec(brokers: Iterable[Broker], **options: Any) -> ConsumerSpec:
    brokers = list(brokers)
    options = {"partitions": 1, "empty_for": FIRST_DELIVERY_MAX, "linger": 0.01, **options}
    return ConsumerSpec(
        topics="t",
        channel="c",
        nsqd_tcp_addresses=[broker.address for broker in brokers],
        nsqd_http_addresses=[broker.nsqd.http_address for broker in brokers],
        **options,
    )


def run(spec: ConsumerSpec, handler: Handler) -> RunStats:
    """Run as ``foreach_partition`` does, in threads instead of workers."""

    def run_partitions(limited: ConsumerSpec) -> list[PartitionStats]:
        shares = plan_spec(limited, named_nodes(limited))
        with ThreadPoolExecutor(len(shares)) as threads:
            return list(threads.map(lambda share: drain_to_handler(limited, share, handler), shares))

    return run_bounded(spec, run_partitions, Discovery(spec).backlog)


def channel_count(broker: Broker, name: str) -> int:
    """Return a figure of the channel from /stats; 0 before it exists."""
    url = f"http://{broker.nsqd.http_address}/stats?format=json&topic=t&channel=c"
    with urllib.request.urlopen(url, timeout=10) as answer:
        topics = json.load(answer)["topics"]
    return sum(channel[name] for topic in topics for channel in topic["channels"])


@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_messages_in_flight_never_exceed_max_in_flight(make_broker: Callable[..., Broker], partitions: int):
    brokers = [make_broker(**HTTP), make_broker(**HTTP)]
    for broker in brokers:
        broker.publish("t", [b"%d" % number for number in range(1500)])
    samples: list[int] = []

    def sample(rows: list[MessageRow]) -> None:
        samples.append(sum(channel_count(broker, "in_flight_count") for broker in brokers))

    stats = run(make_spec(brokers, partitions=partitions, max_in_flight=96), sample)
    assert stats.finished_count == 3000
    assert len(samples) >= 3000 // 96
    assert 0 < max(samples) <= 96


def test_an_nsqd_gets_no_more_than_its_share(make_broker: Callable[..., Broker]):
    # With more, messages in flight would exceed max_in_flight as soon as the other nsqd is reached.
    broker, other = make_broker(**HTTP), make_broker(**HTTP)
    broker.publish("t", [b"%d" % number for number in range(200)])
    spec = make_spec([broker, other], max_in_flight=20, fail_on_node_loss=False)
    spec = attrs.evolve(spec, nsqd_http_addresses=())
    other.stop()
    samples: list[int] = []
    run(spec, lambda rows: samples.append(channel_count(broker, "in_flight_count")))
    assert 0 < max(samples) <= 10


def test_messages_that_fail_are_requeued_later_and_become_dead_letters(make_broker: Callable[..., Broker]):
    broker = make_broker(**HTTP)
    bodies = [b"%d" % number for number in range(2000)]
    poison = {body for body in bodies if int(body) % 100 == 0}
    broker.publish("t", bodies)
    spec = make_spec([broker], partitions=2, max_in_flight=200, max_attempts=3, dead_letter_topic="t.dead")
    seen: dict[bytes, list[int]] = {body: [] for body in bodies}

    def process(row: MessageRow) -> None:
        seen[row.body].append(row.attempts)
        if row.body in poison:
            raise ValueError("no attempt can process it")

    handler = per_message(process, default_requeue_delay=0.2)
    stats = run(spec, handler)
    assert stats.finished_count == 1980
    assert stats.left is not None
    while stats.left.deferred or stats.left.depth or stats.left.in_flight:
        stats = run(spec, handler)
    # A run that ends requeues what arrives meanwhile, and nsqd counts that delivery as an attempt, too.
    attempts_failed = [seen.pop(body) for body in sorted(poison)]
    attempts_left_out = 3 * len(poison) - sum(map(len, attempts_failed))
    requeued_at_ends = channel_count(broker, "requeue_count") - sum(map(len, attempts_failed))
    assert attempts_left_out <= requeued_at_ends
    assert all(attempts == sorted({1, 2, 3} & {*attempts}) for attempts in attempts_failed)
    assert all(attempts == [1] for attempts in seen.values())
    assert [channel_count(broker, name) for name in ("depth", "in_flight_count", "timeout_count")] == [0, 0, 0]
    dead = broker.nsqd.broker.topics[b"t.dead"]
    assert broker.portal.call(lambda: dead.message_count) == len(poison)


def test_a_delay_is_one_of_nsqd_and_fails_no_run(make_broker: Callable[..., Broker]):
    broker = make_broker(**HTTP)
    broker.publish("t", [b"poison", b"other"])

    def process(row: MessageRow) -> None:
        if row.body == b"poison":
            raise ValueError

    stats = run(make_spec([broker]), per_message(process, default_requeue_delay=60.0))
    assert stats.finished_count == 1
    assert stats.left is not None
    assert (stats.left.depth, stats.left.in_flight, stats.left.deferred) == (0, 0, 1)


def die_with_messages(broker: Broker, count: int, *, msg_timeout_ms: int) -> None:
    """Receive messages as a worker that is then killed: its connection ends without CLS, REQ or FIN."""
    identify = encode_identify(json.dumps({"msg_timeout": msg_timeout_ms}).encode())
    with socket.create_connection(split_address(broker.address)) as connection:
        connection.sendall(MAGIC_V2 + identify + encode_subscribe(b"t", b"c") + encode_ready(count))
        while connection.recv(65536):
            if broker.in_flight("t", "c") == count:
                return


def test_a_run_after_a_crash_reports_the_messages_in_flight(
    make_broker: Callable[..., Broker], caplog: pytest.LogCaptureFixture
):
    broker = make_broker(**HTTP)
    broker.publish("t", [b"%d" % number for number in range(30)])
    die_with_messages(broker, 20, msg_timeout_ms=60_000)
    stats = run(make_spec([broker]), print)
    assert stats.finished_count == 10
    assert "[t/c] a run finished 10 messages; left depth 0, in flight 20, deferred 0" in caplog.messages


def test_a_run_after_a_crash_waits_for_the_messages_in_flight(make_broker: Callable[..., Broker]):
    broker = make_broker(**HTTP)
    broker.publish("t", [b"%d" % number for number in range(30)])
    die_with_messages(broker, 20, msg_timeout_ms=1000)
    # Less than the message timeout, so that 20 messages are in flight when the first run ends.
    stats = run(make_spec([broker], empty_for=0.3, wait_in_flight=True), print)
    assert stats.finished_count == 30
    assert [channel_count(broker, name) for name in ("depth", "in_flight_count")] == [0, 0]


@pytest.mark.anyio
async def test_a_handler_may_take_longer_than_timeout_and_heartbeats():
    clock, go_on = ManualClock(), threading.Event()
    started = anyio.Event()
    stats: list[PartitionStats] = []

    def handler(rows: list[MessageRow]) -> None:
        anyio.from_thread.run_sync(started.set)
        assert go_on.wait(60)

    async def consume() -> None:
        (share,) = plan_spec(spec, named_nodes(spec))
        stats.append(await drain_to_handler_async(spec, share, handler, clock=clock))

    options = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")
    async with Nsqd(options, clock=clock) as nsqd, anyio.create_task_group() as tasks:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.multi_publish("t", [b"%d" % number for number in range(40)])
        spec = ConsumerSpec(
            topics="t", channel="c", nsqd_tcp_addresses=[nsqd.tcp_address], partitions=1, max_messages=40
        )
        tasks.start_soon(consume)
        await started.wait()
        channel = nsqd.broker.topics[b"t"].channels[b"c"]
        for _ in range(36):
            clock.advance(5.0)
            await settle()
        assert channel.timeout_count == 0
        go_on.set()
    assert channel.in_flight_count == len(channel.queue) == 0
    assert [found.finished_count for found in stats] == [40]
    assert stats[0].touched_count > 0
