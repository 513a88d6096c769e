"""An nsqd ends and returns: on another port, but under the address that the clients use."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
import pytest

from nsqkit import Message
from tests.integration.anywhere.clients import (
    CHANNEL,
    consuming,
    dialling,
    producing,
    running,
    take,
    topic_stats,
    until,
    until_channel,
    until_finished,
)
from tests.integration.anywhere.servers import WAIT_LIMIT, Server, StartNsqd

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

in_thread = anyio.to_thread.run_sync  # so that the clients keep running meanwhile


async def test_clients_reconnect_to_a_killed_nsqd(start_nsqd: StartNsqd, topic: str):
    nsqd = start_nsqd()
    dial = dialling(nsqd)
    received = []

    def handle(message: Message) -> None:
        received.append(message.body)

    async with (
        producing(nsqd, dial=dial) as producer,
        consuming(topic, nsqd, dial=dial) as consumer,
        running(consumer, handle),
    ):
        await producer.publish(topic, b"before")
        await until(lambda: received)
        await until_finished(1, nsqd, topic)
        await in_thread(nsqd.kill)
        await until(lambda: consumer.unconnected and not producer.is_connected)
        await in_thread(nsqd.start)
        await producer.publish(topic, b"after")
        await until(lambda: len(received) == 2)
        await until_finished(1, nsqd, topic)
        assert received == [b"before", b"after"]
        (connection,) = consumer.stats().connections
        assert connection.connected
        assert connection.error is None


async def test_stopped_nsqd_keeps_unfinished_messages(start_nsqd: StartNsqd, topic: str):
    nsqd = start_nsqd()
    dial = dialling(nsqd)
    bodies = {b"%d" % number for number in range(20)}
    async with (
        producing(nsqd, dial=dial) as producer,
        consuming(topic, nsqd, dial=dial, max_in_flight=5) as consumer,
    ):
        await producer.multi_publish(topic, list(bodies))
        begun = await take(consumer, 5)
        for message in begun[:2]:
            message.finish()
            bodies.remove(message.body)
        await until_channel(lambda stats: stats.clients[0].finish_count == 2, nsqd, topic)
        await in_thread(nsqd.stop)
        await until(lambda: consumer.unconnected)
        assert all(message.is_answered for message in begun)
        begun[2].finish()  # too late: it is delivered again
        await in_thread(nsqd.start)
        left: set[bytes] = set()
        while left != bodies:
            (message,) = await take(consumer, 1)
            left.add(message.body)
            message.finish()
        await until_channel(lambda stats: stats.clients[0].finish_count == 18, nsqd, topic)


async def test_another_nsqd_of_the_pool_takes_over(start_nsqd: StartNsqd, topic: str):
    nsqds = [start_nsqd(), start_nsqd()]
    mortal, other = nsqds
    async with producing(*nsqds, dial=dialling(*nsqds), publish_attempts=3) as producer:
        await until(lambda: all(nsqd.is_connected for nsqd in producer.stats().nsqds))
        for number in range(10):
            await producer.publish(topic, b"%d" % number)
        assert [nsqd.message_count for nsqd in producer.stats().nsqds] == [5, 5]
        await in_thread(mortal.kill)
        for number in range(10, 20):
            await producer.publish(topic, b"%d" % number)
        assert (await topic_stats(other, topic)).message_count == 15
        await in_thread(mortal.start)
        await until(lambda: all(nsqd.is_connected for nsqd in producer.stats().nsqds))
        before = (await topic_stats(mortal, topic)).message_count  # a stopped nsqd has kept its messages
        await producer.multi_publish(topic, [b"20"])
        await producer.multi_publish(topic, [b"21"])
        assert (await topic_stats(mortal, topic)).message_count == before + 1
        assert (await topic_stats(other, topic)).message_count == 16


async def test_consumer_continues_with_the_remaining_nsqds(start_nsqd: StartNsqd, topic: str):
    nsqds: list[Server] = [start_nsqd(), start_nsqd()]
    mortal, other = nsqds
    async with (
        producing(other) as producer,
        consuming(topic, *nsqds, dial=dialling(*nsqds), max_in_flight=4) as consumer,
    ):
        await consumer.wait_connected()
        has_all = partial(until_channel, lambda stats: stats.clients[0].ready_count == 4, other, topic)
        await in_thread(mortal.kill)
        await has_all()
        await producer.publish(topic, b"x")
        (message,) = await take(consumer, 1)
        assert (message.body, message.nsqd_address) == (b"x", other.tcp_address)
        message.finish()
        await until_finished(1, other, topic, CHANNEL)
