"""Published messages arrive, by each way of publishing."""

from __future__ import annotations

import time

import anyio
import pytest

from nsqkit import HTTPProducer
from nsqkit.errors import BadMessage, MessageError, OptionError, RequestRefused
from tests.integration.anywhere.clients import (
    CHANNEL,
    consuming,
    producing,
    take,
    topic_stats,
    until_channel,
    until_finished,
)
from tests.integration.anywhere.conftest import MAX_MSG_SIZE
from tests.integration.anywhere.servers import WAIT_LIMIT, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

DELAY = 0.2


async def test_published_messages_are_consumed(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await producer.publish(topic, b"one")
        await producer.multi_publish(topic, [b"two", b"three"])
        messages = await take(consumer, 3)
        for message in messages:
            assert message.attempts == 1
            assert message.nsqd_address == nsqd.tcp_address
            assert 0 < message.timestamp_ns < message.received_ns < message.deadline_ns
            message.finish()
            assert message.is_answered
            with pytest.raises(MessageError):
                message.finish()
        assert {message.body for message in messages} == {b"one", b"two", b"three"}
        assert len({message.id for message in messages}) == 3
        assert producer.stats().message_count == 3
        stats = await until_finished(3, nsqd, topic)
        assert (stats.requeue_count, stats.timeout_count) == (0, 0)


async def test_deferred_message_arrives_when_due(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await consumer.wait_connected()
        published = time.monotonic()
        await producer.deferred_publish(topic, b"later", DELAY)
        (message,) = await take(consumer, 1)
        assert time.monotonic() - published >= DELAY
        assert (message.body, message.attempts) == (b"later", 1)
        message.finish()
        await until_finished(1, nsqd, topic)


async def test_many_tasks_publish(nsqd: Server, topic: str):
    bodies = {b"%d" % number for number in range(300)}
    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=50) as consumer:
        async with anyio.create_task_group() as tasks:
            for body in bodies:
                tasks.start_soon(producer.publish, topic, body)
        received: list[bytes] = []
        while len(received) < len(bodies):
            (message,) = await take(consumer, 1)
            received.append(message.body)
            message.finish()
        assert sorted(received) == sorted(bodies)
        await until_finished(len(bodies), nsqd, topic)


async def test_lingering_publishes_are_all_answered(nsqd: Server, topic: str):
    async with producing(nsqd, linger=0.01, linger_max_messages=20) as producer:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(producer.publish, topic, b"%d" % number)
        assert (await topic_stats(nsqd, topic)).message_count == 100
        assert producer.stats().message_count == 100


async def test_publishing_over_http(nsqd: Server, topic: str):
    producer = HTTPProducer(nsqd.http_address, connect_timeout=WAIT_LIMIT, publish_timeout=WAIT_LIMIT)
    await producer.ping()
    await producer.ensure_channel(topic, CHANNEL)
    async with consuming(topic, nsqd) as consumer:
        await producer.publish(topic, b"one")
        await producer.multi_publish(topic, [b"two\nlines", b"three"])
        messages = await take(consumer, 3)
        published = time.monotonic()
        await producer.deferred_publish(topic, b"later", DELAY)
        messages += await take(consumer, 1)
        assert time.monotonic() - published >= DELAY
        assert {message.body for message in messages} == {b"one", b"two\nlines", b"three", b"later"}
        for message in messages:
            message.finish()
        await until_finished(4, nsqd, topic)


async def test_nsqd_refuses_a_message_that_is_too_large(nsqd: Server, topic: str):
    too_large = bytes(MAX_MSG_SIZE + 1)
    async with producing(nsqd) as producer:
        with pytest.raises(BadMessage):
            await producer.publish(topic, too_large)
        await producer.publish(topic, b"the next one")  # nsqd closed the connection; the producer has connected again
        assert (producer.stats().refused_count, producer.stats().message_count) == (1, 1)
    with pytest.raises(RequestRefused, match="MSG_TOO_BIG") as refusal:
        await HTTPProducer(nsqd.http_address, connect_timeout=WAIT_LIMIT, publish_timeout=WAIT_LIMIT).publish(
            topic, too_large
        )
    assert refusal.value.status == 413
    assert (await topic_stats(nsqd, topic)).message_count == 1


async def test_invalid_arguments_are_not_sent(nsqd: Server, topic: str):
    async with producing(nsqd, max_msg_size=100) as producer:
        await producer.ping()
        for wrong_topic, wrong_body in (("no topic", b"body"), (topic, b""), (topic, bytes(101))):
            with pytest.raises(OptionError):
                await producer.publish(wrong_topic, wrong_body)
        assert producer.is_connected
        assert (await topic_stats(nsqd, topic)).message_count == 0


async def test_existing_channel_keeps_published_messages(nsqd: Server, topic: str):
    async with producing(nsqd, nsqd_http_addresses=[nsqd.http_address]) as producer:
        await producer.ensure_topic(topic)
        assert (await topic_stats(nsqd, topic)).channels == ()
        for _ in range(2):
            await producer.ensure_channel(topic, "first")
            await producer.ensure_channel(topic, "second")
        await producer.publish(topic, b"for both")
        for channel in ("first", "second"):
            await until_channel(lambda stats: stats.depth == 1, nsqd, topic, channel)
            async with consuming(topic, nsqd, channel=channel) as consumer:
                (message,) = await take(consumer, 1)
                assert message.body == b"for both"
                message.finish()
                await until_finished(1, nsqd, topic, channel)
