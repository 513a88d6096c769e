"""Handlers: concurrent, keyed, in threads, of batches."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

import anyio
import pytest

from nsqkit import Message
from tests.integration.anywhere.clients import consuming, producing, running, take, until, until_finished
from tests.integration.anywhere.servers import WAIT_LIMIT, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

BODIES = [b"%d" % number for number in range(60)]


async def test_concurrent_handlers(nsqd: Server, topic: str):
    handling: set[bytes] = set()
    handled = Counter[bytes]()
    most = 0
    three_are_here = anyio.Event()

    async def handle(message: Message) -> None:
        nonlocal most
        handling.add(message.body)
        most = max(most, len(handling))
        if len(handling) == 3:
            three_are_here.set()
        await three_are_here.wait()
        handling.remove(message.body)
        handled[message.body] += 1

    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await producer.multi_publish(topic, BODIES)
        async with running(consumer, handle, concurrency=3):
            await until(lambda: consumer.stats().finished == len(BODIES))
            await until_finished(len(BODIES), nsqd, topic)
    assert handled == Counter(BODIES)
    assert most == 3


async def test_messages_of_a_key_are_handled_in_order(nsqd: Server, topic: str):
    busy: set[bytes] = set()
    handled: dict[bytes, list[bytes]] = defaultdict(list)
    other_keys = anyio.Event()

    def key(message: Message) -> bytes:
        return message.body[-1:]

    async def handle(message: Message) -> None:
        assert key(message) not in busy
        busy.add(key(message))
        if key(message) == b"0":
            await other_keys.wait()
        elif len(handled[key(message)]) == 1:
            other_keys.set()
        await anyio.lowlevel.checkpoint()
        busy.remove(key(message))
        handled[key(message)].append(message.body)

    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=40) as consumer:
        await producer.multi_publish(topic, BODIES)
        async with running(consumer, handle, concurrency=4, key=key):
            await until(lambda: consumer.stats().finished == len(BODIES))
            await until_finished(len(BODIES), nsqd, topic)
    assert handled == {b"%d" % last: BODIES[last::10] for last in range(10)}


async def test_handlers_in_threads(nsqd: Server, topic: str):
    together = threading.Barrier(3)
    threads = set()

    def handle(message: Message) -> None:
        together.wait(WAIT_LIMIT)
        threads.add(threading.get_ident())
        if message.body == b"0":
            message.finish()

    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await producer.multi_publish(topic, BODIES)
        async with running(consumer, handle, concurrency=3, in_threads=True):
            await until(lambda: consumer.stats().finished == len(BODIES))
            await until_finished(len(BODIES), nsqd, topic)
    assert len(threads) >= 3
    assert threading.get_ident() not in threads


async def test_batches_in_a_loop(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=30) as consumer:
        await producer.multi_publish(topic, BODIES)
        received = Counter[bytes]()
        async for batch in consumer.batches(max_messages=8, max_wait=0.05):
            assert 1 <= len(batch) <= 8
            received.update(message.body for message in batch)
            for message in batch:
                message.finish()
            if received.total() == len(BODIES):
                break
        await until_finished(len(BODIES), nsqd, topic)
    assert received == Counter(BODIES)


async def test_batch_handler(nsqd: Server, topic: str):
    handled = Counter[bytes]()
    has_failed = False

    async def handle(batch: list[Message]) -> None:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise ValueError(batch)
        handled.update(message.body for message in batch)
        if handled.total() == len(BODIES):
            consumer.stop()

    async with (
        producing(nsqd) as producer,
        consuming(topic, nsqd, max_in_flight=30, max_backoff_duration=0) as consumer,
    ):
        await producer.multi_publish(topic, BODIES)
        await consumer.run_batches(handle, max_messages=30, concurrency=2)
    assert handled == Counter(BODIES)
    stats = await until_finished(len(BODIES), nsqd, topic)
    assert stats.requeue_count >= 1


async def test_failed_handler_is_called_again(nsqd: Server, topic: str):
    attempts = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise ValueError(message.body)

    async with (
        producing(nsqd) as producer,
        consuming(topic, nsqd, max_backoff_duration=0) as consumer,
        running(consumer, handle),
    ):
        await producer.publish(topic, b"x")
        await until(lambda: consumer.stats().finished == 1)
        await until_finished(1, nsqd, topic)
    assert attempts == [1, 2]


async def test_each_channel_gets_every_message_and_its_consumers_share_them(nsqd: Server, topic: str):
    received: dict[str, list[bytes]] = defaultdict(list)
    async with (
        producing(nsqd, nsqd_http_addresses=[nsqd.http_address]) as producer,
        consuming(topic, nsqd, max_in_flight=5) as left,
        consuming(topic, nsqd, max_in_flight=5) as right,
        consuming(topic, nsqd, channel="archive", max_in_flight=100) as archive,
    ):
        for consumer in (left, right, archive):
            await consumer.wait_connected()
        await producer.multi_publish(topic, BODIES)
        for name, consumer in (("left", left), ("right", right)):
            messages = await take(consumer, 5)  # neither consumer can have all of them
            received[name] = [message.body for message in messages]
            assert not any(message.is_answered for message in messages)
        received["archive"] = [message.body for message in await take(archive, len(BODIES))]
    assert not set(received["left"]) & set(received["right"])
    assert Counter(received["archive"]) == Counter(BODIES)
