"""A broker with smaller limits than the producer's refuses a whole batch for one of its messages.

Only the publish of that message fails; all others arrive, once each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from nsqkit import (
    BadMessage,
    BlockingConsumer,
    BlockingProducer,
    Closed,
    ConnectionLost,
    NotConnected,
    NSQError,
    Producer,
)
from nsqkit.clock import ManualClock
from nsqkit.producer import pool
from nsqkit.producer.pool_connection import Receipt
from nsqkit.testing.servers import NsqdServer
from tests.peers import ADDRESS, Peer, ScriptedBroker, settle
from tests.threads import WAIT_LIMIT

pytestmark = pytest.mark.anyio

LIMIT = 100
GOOD = [b"%d" % n for n in range(30)]
TOO_LARGE = {7: b"x" * (LIMIT + 1), 20: b"y" * (LIMIT + 1)}
BODIES = [TOO_LARGE.get(n, body) for n, body in enumerate(GOOD)]
ARRIVING = sorted(body for n, body in enumerate(GOOD) if n not in TOO_LARGE)


@pytest.fixture
def strict() -> Iterator[NsqdServer]:
    """A broker that takes short messages alone."""
    with NsqdServer(max_msg_size=LIMIT) as nsqd:
        yield nsqd


def arrived(nsqd: NsqdServer) -> list[bytes]:
    """Return the messages of the topic."""
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=100) as consumer:
        count = nsqd.inspect(lambda broker: broker.topics[b"t"].message_count)
        messages = [consumer.receive(WAIT_LIMIT) for _ in range(count)]
        return sorted(message.body for message in messages if message is not None)


def check(outcomes: Mapping[int, Exception | None]) -> None:
    failed = {n: error for n, error in outcomes.items() if error is not None}
    assert failed.keys() == TOO_LARGE.keys(), failed
    assert all(isinstance(error, BadMessage) for error in failed.values())


@pytest.mark.parametrize("more", [{}, {"max_outstanding_bytes": 10_000}], ids=["free", "limited"])
async def test_only_the_message_that_is_too_large_fails(strict, more):
    outcomes: dict[int, NSQError | None] = {}
    async with Producer(strict.tcp_address, linger=0.01, connect_timeout=60, **more) as producer:
        await producer.wait_connected(WAIT_LIMIT)

        async def publish(n: int) -> None:
            try:
                await producer.publish("t", BODIES[n])
                outcomes[n] = None
            except NSQError as error:
                outcomes[n] = error

        with anyio.fail_after(WAIT_LIMIT):
            async with anyio.create_task_group() as tasks:
                for n in range(len(BODIES)):
                    tasks.start_soon(publish, n)
        stats = producer.stats()
    check(outcomes)
    assert (stats.message_count, stats.refused_count, stats.outstanding_bytes) == (28, 2, 0)
    assert arrived(strict) == ARRIVING


@pytest.mark.parametrize("more", [{}, {"max_outstanding_bytes": 10_000}], ids=["free", "limited"])
async def test_only_the_receipt_of_the_message_that_is_too_large_fails(strict, more):
    outcomes: dict[int, NSQError | None] = {}
    async with Producer(strict.tcp_address, linger=0.01, connect_timeout=60, **more) as producer:
        await producer.wait_connected(WAIT_LIMIT)
        receipts = [producer.publish_nowait("t", body) for body in BODIES]
        with anyio.fail_after(WAIT_LIMIT):
            for n, receipt in enumerate(receipts):
                try:
                    await receipt
                    outcomes[n] = None
                except NSQError as error:
                    outcomes[n] = error
        stats = producer.stats()
    check(outcomes)
    assert (stats.message_count, stats.refused_count, stats.outstanding_bytes) == (28, 2, 0)
    assert arrived(strict) == ARRIVING


async def test_leaving_waits_for_messages_that_are_sent_again(strict):
    async with Producer(strict.tcp_address, linger=0.01, connect_timeout=60) as producer:
        await producer.wait_connected(WAIT_LIMIT)
        receipts = [producer.publish_nowait("t", body) for body in BODIES]
    check({n: receipt.error for n, receipt in enumerate(receipts)})
    assert all(receipt.is_answered for receipt in receipts)
    assert arrived(strict) == ARRIVING


async def test_leaving_fails_receipts_that_get_no_answer_in_time(strict, monkeypatch):
    monkeypatch.setattr(pool, "DRAIN_TIMEOUT", 0.0)
    async with Producer(strict.tcp_address, linger=0.01, connect_timeout=60) as producer:
        await producer.wait_connected(WAIT_LIMIT)
        receipts = [producer.publish_nowait("t", body) for body in BODIES]
        with anyio.fail_after(WAIT_LIMIT):
            while producer.is_connected:  # until the batch is refused
                await anyio.lowlevel.checkpoint()
    assert all(receipt.is_answered for receipt in receipts)
    assert {type(receipt.error) for receipt in receipts} <= {Closed, ConnectionLost, NotConnected}


@attrs.define
class Leaving:
    """A producer whose batch of three messages was refused, and that is left while they are sent again.

    Attributes:
        broker: the broker, for its next connection.
        clock: the time.
        receipts: one for each message.
    """

    broker: ScriptedBroker
    clock: ManualClock
    receipts: list[Receipt] = attrs.field(factory=list)

    async def reconnect(self) -> Peer:
        """Return the next connection."""
        await settle()
        self.clock.advance(1)  # the longest first delay
        return await self.broker.handshake()

    def outcomes(self) -> list[type[Exception | None]]:
        return [type(receipt.error) for receipt in self.receipts]


@asynccontextmanager
async def leaving(**options: Any) -> AsyncIterator[Leaving]:
    """Leave such a producer; its time to leave ends after the block."""
    broker, clock = ScriptedBroker(), ManualClock()
    stage = Leaving(broker, clock)

    async def produce() -> None:
        async with Producer(
            ADDRESS, dial=broker.dial, clock=clock, linger=0.01, connect_timeout=60, **options
        ) as producer:
            await producer.wait_connected()
            stage.receipts += [producer.publish_nowait("t", b"%d" % n) for n in range(3)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        peer = await broker.handshake()
        assert (await peer.command())[0] == b"MPUB t"
        await peer.send(BadMessage("too large"))
        await peer.close()
        yield stage
        await settle()
        clock.advance(pool.DRAIN_TIMEOUT)
        await settle()
        clock.advance(pool.CLOSE_TIMEOUT)


async def test_messages_that_were_not_sent_again_are_not_lost():
    async with leaving() as stage:
        stage.broker.hanging = True
    assert stage.outcomes() == [Closed, Closed, Closed]


async def test_message_that_was_sent_again_may_have_arrived():
    async with leaving() as stage:
        peer = await stage.reconnect()
        assert await peer.command() == (b"PUB t", b"0")
    await peer.close()
    assert stage.outcomes() == [ConnectionLost, Closed, Closed]


async def test_message_that_waits_after_a_lost_connection_may_have_arrived():
    async with leaving(publish_attempts=2) as stage:
        peer = await stage.reconnect()
        assert await peer.command() == (b"PUB t", b"0")
        stage.broker.hanging = True
        await peer.close()
    assert stage.outcomes() == [ConnectionLost, Closed, Closed]


async def test_batch_that_is_too_large_arrives_in_parts():
    large = [body.zfill(20) for body in GOOD]
    with NsqdServer(max_body_size=300) as nsqd:
        async with Producer(nsqd.tcp_address, linger=0.01, connect_timeout=60) as producer:
            await producer.wait_connected(WAIT_LIMIT)
            with anyio.fail_after(WAIT_LIMIT):
                async with anyio.create_task_group() as tasks:
                    for body in large:
                        tasks.start_soon(producer.publish, "t", body)
        assert arrived(nsqd) == sorted(large)


@pytest.mark.parametrize("waits", [True, False])
def test_only_the_message_that_is_too_large_fails_for_threads(strict, waits):
    with (
        BlockingProducer(strict.tcp_address, linger=0.01, connect_timeout=60) as producer,
        ThreadPoolExecutor(len(BODIES)) as threads,
    ):
        producer.wait_connected(WAIT_LIMIT)
        if waits:
            futures = [threads.submit(producer.publish, "t", body) for body in BODIES]
        else:
            futures = [producer.publish_nowait("t", body) for body in BODIES]
        outcomes = {n: future.exception(WAIT_LIMIT) for n, future in enumerate(futures)}
    assert {n: type(error) for n, error in outcomes.items() if error} == dict.fromkeys(TOO_LARGE, BadMessage)
    assert arrived(strict) == ARRIVING
