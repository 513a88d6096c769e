"""A consumer finds nsqds through nsqlookupd; both servers are of the same kind."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio.to_thread
import pytest

from nsqkit import Consumer, LookupdAdmin
from nsqkit.errors import RequestRefused
from nsqkit.lookup import lookup_nsqds, lookup_topics
from tests.answering import PATIENT
from tests.integration.anywhere.clients import CHANNEL, consuming, producing, take, until, until_finished
from tests.integration.anywhere.servers import WAIT_LIMIT, Server, StartNsqd

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

in_thread = anyio.to_thread.run_sync


def discovering(topic: str, nsqlookupd: Server, **options: Any) -> AbstractAsyncContextManager[Consumer]:
    """Run a consumer that is given nsqlookupd alone, and polls it often."""
    return consuming(
        topic,
        lookupd_http_addresses=[nsqlookupd.http_address],
        lookupd_poll_interval=0.05,
        lookupd_poll_timeout=WAIT_LIMIT,
        **options,
    )


async def test_nsqds_are_found_when_they_create_the_topic(nsqlookupd: Server, start_nsqd: StartNsqd, topic: str):
    nsqds = [start_nsqd(f"--lookupd-tcp-address={nsqlookupd.tcp_address}") for _ in range(2)]
    async with discovering(topic, nsqlookupd) as consumer:
        for nsqd in nsqds:
            async with producing(nsqd) as producer:
                await producer.publish(topic, nsqd.tcp_address.encode())
            (message,) = await take(consumer, 1)
            assert message.body == message.nsqd_address.encode() == nsqd.tcp_address.encode()
            message.finish()
            await until_finished(1, nsqd, topic)
        await consumer.wait_connected()
        addresses = {nsqd.tcp_address for nsqd in nsqds}
        assert {connection.address for connection in consumer.stats().connections} == addresses
        assert {*await lookup_nsqds([nsqlookupd.http_address], topic)} == addresses
        assert topic in await lookup_topics([nsqlookupd.http_address], topic)


async def test_nsqd_that_moves_is_found_again(nsqlookupd: Server, start_nsqd: StartNsqd, topic: str):
    nsqd = start_nsqd(f"--lookupd-tcp-address={nsqlookupd.tcp_address}")
    async with producing(nsqd) as producer:
        await producer.publish(topic, b"before")
    async with discovering(topic, nsqlookupd) as consumer:
        (before,) = await take(consumer, 1)
        before.finish()
        await until_finished(1, nsqd, topic)
        await in_thread(nsqd.kill)
        await until(lambda: not consumer.unconnected and not consumer.stats().connections)
        await in_thread(nsqd.start)
        async with producing(nsqd) as producer:
            await producer.publish(topic, b"after")
        (after,) = await take(consumer, 1)
        assert (after.body, after.nsqd_address) == (b"after", nsqd.tcp_address)
        after.finish()
        await until_finished(1, nsqd, topic)


async def test_nsqlookupd_admin_routes(nsqlookupd: Server, start_nsqd: StartNsqd, topic: str):
    nsqd = start_nsqd(f"--lookupd-tcp-address={nsqlookupd.tcp_address}")
    admin = LookupdAdmin(nsqlookupd.http_address, **PATIENT)
    await admin.ping()
    assert await admin.version()
    with pytest.raises(RequestRefused, match="TOPIC_NOT_FOUND"):
        await admin.lookup(topic)
    async with producing(nsqd) as producer, discovering(topic, nsqlookupd) as consumer:
        await producer.publish(topic, b"x")
        await consumer.wait_connected()

        async def is_listed() -> bool:
            return await admin.channels(topic) == [CHANNEL]

        await until(is_listed)
        found = await admin.lookup(topic)
        assert found.channels == [CHANNEL]
        (node,) = found.nodes
        assert f"{node.broadcast_address}:{node.tcp_port}" == nsqd.tcp_address
        assert f"{node.broadcast_address}:{node.http_port}" == nsqd.http_address
        assert topic in await admin.topics()
        assert [one.topics for one in await admin.nodes() if one.node == node] == [{topic: False}]
        await admin.tombstone_topic(topic, node)
        assert [one.topics for one in await admin.nodes() if one.node == node] == [{topic: True}]
        assert (await admin.lookup(topic)).nodes == []
        (message,) = await take(consumer, 1)  # no longer listed, but still connected
        message.finish()
        await until_finished(1, nsqd, topic)
