"""Memory is bounded by the flags, regardless of what clients send or do not read.

The broker keeps bytes that a client sends or does not read up to a limit, and no client waits for another. The clients
are real sockets in the broker's process, so the counted memory includes theirs.
"""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.frame_buffer import OUTBOX_SIZE_MAX
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.core.session.turns import SHORT_TURN_WORDS_MAX
from nsqkit.broker.server import Nsqd
from nsqkit.wire.commands import encode_finish
from nsqkit.wire.frames import MessageFrame
from tests.integration.garbage import sized
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.stage import TOPIC, channel_of, until

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 60.0
KIB, MIB = 1 << 10, 1 << 20
PUB = f"PUB {TOPIC}\n".encode()


@asynccontextmanager
async def broker(**options: Any) -> AsyncIterator[Nsqd]:
    """Run a broker; one with a ``data_path`` keeps as much in memory as its flags allow."""
    given = BrokerOptions(tcp_address="127.0.0.1:0", http_address="", **options)
    with anyio.fail_after(WAIT_LIMIT):
        async with Nsqd(given, data_path=given.data_path or None) as nsqd:
            yield nsqd


@pytest.fixture
def traced(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, logger="nsqkit")  # pytest would keep all log records
    tracemalloc.start()
    yield
    tracemalloc.stop()


def memory() -> int:
    """Return the bytes that Python's objects use now, and reset the peak."""
    gc.collect()
    tracemalloc.reset_peak()
    return tracemalloc.get_traced_memory()[0]


def peak() -> int:
    return tracemalloc.get_traced_memory()[1]


@asynccontextmanager
async def stalled(nsqd: Nsqd, *, channel: str = "c", rdy: int = 2500) -> AsyncIterator[Session]:
    """Subscribe and read nothing; return the broker's session."""
    async with raw_client(nsqd) as client:
        await client.send(f"SUB {TOPIC} {channel}\n".encode())
        assert await client.answer() == b"OK"
        *_, subscription = channel_of(nsqd, channel.encode()).subscriptions
        await client.send(b"RDY %d\n" % rdy)
        await until(lambda: subscription.rdy_count == rdy)
        yield nsqd.broker.sessions.by_subscription[subscription]


def held_count(session: Session) -> int:
    """Return the number of messages in flight to a consumer."""
    assert session.subscription is not None
    return len(session.subscription.in_flight)


async def publish(nsqd: Nsqd, count: int, size: int) -> None:
    """Publish that many bodies, each a separate object; wait for each answer."""
    async with Producer(nsqd.tcp_address) as producer:
        for number in range(count):
            await producer.publish(TOPIC, b"%d" % number + bytes(size))


async def finish_all(nsqd: Nsqd, channel: str, counts: dict[str, int]) -> None:
    """Consume and count all messages."""
    async with Consumer(TOPIC, channel, nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10) as consumer:
        async for message in consumer:
            message.finish()
            counts[channel] = counts.get(channel, 0) + 1


async def test_subscriber_that_reads_nothing_gets_little_and_delays_no_other(traced: None):
    counts: dict[str, int] = {}
    async with broker() as nsqd, stalled(nsqd) as session, anyio.create_task_group() as tasks:
        tasks.start_soon(finish_all, nsqd, "c", counts)
        tasks.start_soon(finish_all, nsqd, "d", counts)
        await until(lambda: set(nsqd.broker.topics[b"t"].channels) == {b"c", b"d"})
        await until(lambda: len(channel_of(nsqd).subscriptions) == 2)
        before = memory()
        await publish(nsqd, 800, 64 * KIB)
        # Messages that it has not read count as in flight; all others go to the other consumers.
        await until(lambda: counts["d"] == 800 and counts["c"] == 800 - held_count(session))
        assert session.outbox_full
        assert session._buffer.size < 2 * OUTBOX_SIZE_MAX
        assert held_count(session) < 400  # its buffers and the kernel's; of 800
        assert peak() - before < 25 * MIB  # of 50
        tasks.cancel_scope.cancel()


async def test_messages_beyond_the_memory_limit_are_on_disk(tmp_path: Path, traced: None):
    counts: dict[str, int] = {}
    async with broker(mem_queue_size=10, data_path=str(tmp_path)) as nsqd, AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(stalled(nsqd)) for _ in range(3)]
        before = memory()
        await publish(nsqd, 800, 64 * KIB)
        await until(lambda: all(session.outbox_full for session in sessions))
        assert peak() - before < 35 * MIB  # of 50: three times the kernel's buffers, and the read-ahead
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish_all, nsqd, "c", counts)
            await until(lambda: counts.get("c") == 800 - sum(held_count(session) for session in sessions))
            tasks.cancel_scope.cancel()
        assert peak() - before < 35 * MIB


async def test_ephemeral_channel_drops_messages_beyond_its_limit(traced: None):
    async with broker(mem_queue_size=10) as nsqd, stalled(nsqd, channel="c#ephemeral", rdy=0):
        before = memory()
        await publish(nsqd, 400, 64 * KIB)
        assert len(channel_of(nsqd, b"c#ephemeral").queue) == 10
        assert peak() - before < 5 * MIB  # of 25


async def test_large_messages_are_shared_by_all_consumers(traced: None):
    async with broker() as nsqd, AsyncExitStack() as stack:
        names = [f"c{number}" for number in range(10)]
        sessions = [await stack.enter_async_context(stalled(nsqd, channel=name)) for name in names]
        before = memory()
        await publish(nsqd, 30, MIB - KIB)
        await until(lambda: all(session.outbox_full for session in sessions))
        assert all(session._buffer.size <= 2 * OUTBOX_SIZE_MAX for session in sessions)
        assert peak() - before < 120 * MIB  # the 30 messages, and those in buffers; of 300


async def test_many_connections_use_bounded_memory_and_leave_nothing(traced: None):
    async with broker() as nsqd:
        async with AsyncExitStack() as stack:  # objects that the first connections create once
            await connect(nsqd, stack, 10)
        before = memory()
        async with AsyncExitStack() as stack:
            clients = await connect(nsqd, stack, 150)
            assert peak() - before < 150 * 64 * KIB
            for client in clients:
                await client.send(b"MPUB other\n", (5 * MIB).to_bytes(4, "big"), b"\0\0\0\5", sized(bytes(64 * KIB)))
            await until(lambda: b"other" in nsqd.broker.topics)
            assert peak() - before < 150 * 3 * 64 * KIB
        await until(lambda: not nsqd.broker.sessions)
        # These are the test's own; a closed transport of asyncio takes 760 bytes more from Python 3.12 on.
        del clients, client
        assert memory() - before < MIB


async def connect(nsqd: Nsqd, stack: AsyncExitStack, count: int) -> list[RawClient]:
    """Return that many clients, not subscribed, after the broker has answered them."""
    clients = [await stack.enter_async_context(raw_client(nsqd)) for _ in range(count)]
    for client in clients:
        assert await client.is_alive()
    return clients


async def test_stalled_publisher_delays_no_other():
    # It has begun a message, and sends no more; another one does not read its answers.
    async with broker() as nsqd, raw_client(nsqd) as half, raw_client(nsqd) as deaf:
        await half.send(PUB, sized(bytes(KIB))[:-1])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_for_ever, deaf)
            await publish(nsqd, 100, KIB)
            await until(lambda: any(session.outbox_full for session in nsqd.broker.sessions))
            await publish(nsqd, 100, KIB)
            tasks.cancel_scope.cancel()


async def publish_for_ever(client: RawClient) -> None:
    while True:
        await client.send((b"PUB deaf#ephemeral\n" + sized(b"x")) * 10_000)


@pytest.mark.parametrize("leaves", [False, True])
async def test_many_answers_at_once_are_all_processed(leaves: bool):
    count = 10 * SHORT_TURN_WORDS_MAX
    async with broker() as nsqd, raw_client(nsqd) as client:
        await client.send(b"SUB %b c\nRDY %d\n" % (TOPIC.encode(), count), (PUB + sized(b"m")) * count)
        answers = [await client.answer() for _ in range(2 * count + 1)]
        channel = channel_of(nsqd)
        assert channel.in_flight_count == count
        await client.send(*(encode_finish(answer.id) for answer in answers if isinstance(answer, MessageFrame)))
        if leaves:
            await client.send_eof()
        await until(lambda: channel.in_flight_count == 0)
        assert leaves or await client.is_alive()
