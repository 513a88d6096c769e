"""The HTTP routes for operators of an nsqd."""

from __future__ import annotations

import pytest

from nsqkit import NsqdAdmin
from nsqkit.errors import RequestRefused
from tests.answering import PATIENT
from tests.integration.anywhere.clients import (
    CHANNEL,
    consuming,
    producing,
    take,
    topic_stats,
    until_channel,
    until_finished,
)
from tests.integration.anywhere.servers import WAIT_LIMIT, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]


@pytest.fixture
def admin(nsqd: Server) -> NsqdAdmin:
    return NsqdAdmin(nsqd.http_address, **PATIENT)


async def test_info(nsqd: Server, admin: NsqdAdmin):
    await admin.ping()
    info = await admin.info()
    assert f"{info.broadcast_address}:{info.tcp_port}" == nsqd.tcp_address
    assert f"{info.broadcast_address}:{info.http_port}" == nsqd.http_address
    assert (await admin.stats(include_mem=True)).memory is not None
    assert (await admin.stats()).health == "OK"
    assert await admin.get_config("nsqlookupd_tcp_addresses") == []
    await admin.put_config("log_level", "debug")
    await admin.put_config("log_level", "info")


async def test_stats_of_topic_channel_and_clients(nsqd: Server, admin: NsqdAdmin, topic: str):
    async with (
        producing(nsqd, client_id="the producer") as producer,
        consuming(topic, nsqd, client_id="the consumer", max_in_flight=2) as consumer,
    ):
        await consumer.wait_connected()
        await producer.multi_publish(topic, [b"one", b"two", b"three", b"four"])
        first, second = await take(consumer, 2)
        first.requeue(600, backoff=False)
        await until_channel(
            lambda stats: (stats.depth, stats.in_flight_count, stats.deferred_count) == (1, 2, 1), nsqd, topic
        )
        second.finish()
        stats = await until_channel(lambda stats: (stats.depth, stats.in_flight_count) == (0, 2), nsqd, topic)
        assert (stats.message_count, stats.requeue_count, stats.client_count) == (4, 1, 1)
        (client,) = stats.clients
        assert (client.client_id, client.ready_count) == ("the consumer", 2)
        assert (client.in_flight_count, client.message_count) == (2, 4)
        assert (client.finish_count, client.requeue_count) == (1, 1)
        whole = await topic_stats(nsqd, topic)
        assert (whole.message_count, whole.message_bytes, whole.depth) == (4, 15, 0)
        (publisher,) = [client for client in (await admin.stats()).producers if client.client_id == "the producer"]
        assert [(count.topic, count.count) for count in publisher.pub_counts] == [(topic, 4)]


async def test_paused_topic_keeps_its_messages(nsqd: Server, admin: NsqdAdmin, topic: str):
    await admin.create_topic(topic)
    await admin.pause_topic(topic)
    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await consumer.wait_connected()
        await producer.multi_publish(topic, [b"one", b"two"])
        whole = await topic_stats(nsqd, topic)
        assert whole.paused
        assert whole.depth == 2
        await admin.unpause_topic(topic)
        for message in await take(consumer, 2):
            message.finish()
        await until_finished(2, nsqd, topic)


async def test_paused_channel_delivers_nothing(nsqd: Server, admin: NsqdAdmin, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await consumer.wait_connected()
        await admin.pause_channel(topic, CHANNEL)
        await producer.publish(topic, b"one")
        stats = await until_channel(lambda stats: stats.depth == 1, nsqd, topic)
        assert stats.paused
        assert consumer.stats().received == 0
        await admin.unpause_channel(topic, CHANNEL)
        (message,) = await take(consumer, 1)
        message.finish()
        await until_finished(1, nsqd, topic)


async def test_emptied_and_deleted_messages_are_gone(nsqd: Server, admin: NsqdAdmin, topic: str):
    with pytest.raises(RequestRefused, match="TOPIC_NOT_FOUND"):
        await admin.delete_topic(topic)
    async with producing(nsqd) as producer:
        await producer.publish(topic, b"one")
        assert (await topic_stats(nsqd, topic)).depth == 1
        await admin.empty_topic(topic)
        assert (await topic_stats(nsqd, topic)).depth == 0
        await admin.create_channel(topic, CHANNEL)
        await producer.publish(topic, b"two")
        await until_channel(lambda stats: stats.depth == 1, nsqd, topic)
        await admin.empty_channel(topic, CHANNEL)
        await until_channel(lambda stats: stats.depth == 0, nsqd, topic)
        async with consuming(topic, nsqd) as consumer:
            await producer.publish(topic, b"three")
            (message,) = await take(consumer, 1)
            message.finish()
            await until_finished(2, nsqd, topic)
            await admin.delete_channel(topic, CHANNEL)
            # nsqd has closed the connection. The consumer returns, to a new channel of the same name.
            await until_channel(lambda stats: (stats.message_count, stats.client_count) == (0, 1), nsqd, topic)
        await admin.delete_topic(topic)
        assert topic not in {one.topic_name for one in (await admin.stats()).topics}
