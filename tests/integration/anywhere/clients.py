"""Producers and consumers of these tests, and functions that wait for a condition.

No test depends on speed: each wait ends when the condition holds, or fails after WAIT_LIMIT. nsqd looks for timeouts in
a new channel only after 5 seconds, and shared machines stall.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import Any

import anyio
from anyio.abc import ByteStream

from nsqkit import Consumer, Message, NsqdAdmin, Producer
from nsqkit.admin.stats import ChannelStats, TopicStats
from nsqkit.client.dialler import Dial
from nsqkit.transport.tcp import connect
from tests.answering import PATIENT
from tests.integration.anywhere.servers import WAIT_LIMIT, Server

CHANNEL = "channel"

_LONG_TIMEOUTS: dict[str, Any] = {
    "dial_timeout": WAIT_LIMIT,
    "write_timeout": WAIT_LIMIT,
    "reconnect_delay_min": 0.01,
    "reconnect_delay_max": 0.1,
}


@asynccontextmanager
async def producing(*nsqds: Server, **options: Any) -> AsyncIterator[Producer]:
    """Run a producer for these nsqds."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    with anyio.fail_after(WAIT_LIMIT):
        async with Producer(*addresses, **{**_LONG_TIMEOUTS, "connect_timeout": WAIT_LIMIT, **options}) as producer:
            yield producer


@asynccontextmanager
async def consuming(topic: str, *nsqds: Server, channel: str = CHANNEL, **options: Any) -> AsyncIterator[Consumer]:
    """Run a consumer of a topic at these nsqds. A requeued message returns at once unless a delay is given."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    options = {**_LONG_TIMEOUTS, "max_in_flight": 10, "default_requeue_delay": 0, **options}
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer(topic, channel, nsqd_tcp_addresses=addresses, **options) as consumer:
            yield consumer


@asynccontextmanager
async def running(
    consumer: Consumer, handler: Callable[[Message], Awaitable[object] | None], **options: Any
) -> AsyncIterator[None]:
    """Handle a consumer's messages during the block."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(consumer.run, handler, **options))
        yield
        consumer.stop()


def dialling(*nsqds: Server) -> Dial:
    """Return an address map that leads from today's addresses to the nsqds, wherever they listen later."""
    places = {nsqd.tcp_address: nsqd for nsqd in nsqds}

    async def dial(address: str) -> ByteStream:
        return await connect(places[address].tcp_address)

    return dial


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Return the next messages."""
    return [await anext(consumer) for _ in range(count)]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; await it if it is async."""
    while True:
        holds = condition()
        if await holds if isawaitable(holds) else holds:
            return
        await anyio.lowlevel.checkpoint()


# ---- statistics of nsqd --------------------------------------------------------------------------------------------


async def topic_stats(nsqd: Server, topic: str) -> TopicStats:
    """Return nsqd's statistics of a topic; empty ones if it has no such topic."""
    topics = (await NsqdAdmin(nsqd.http_address, **PATIENT).stats(topic)).topics
    return topics[0] if topics else TopicStats(topic_name=topic)


async def channel_stats(nsqd: Server, topic: str, channel: str = CHANNEL) -> ChannelStats:
    """Return nsqd's statistics of a channel; empty ones if it has no such channel."""
    channels = (await topic_stats(nsqd, topic)).channels
    return next((one for one in channels if one.channel_name == channel), ChannelStats())


async def until_channel(
    condition: Callable[[ChannelStats], object], nsqd: Server, topic: str, channel: str = CHANNEL
) -> ChannelStats:
    """Wait until nsqd's statistics of a channel satisfy a condition, and return them."""
    stats = ChannelStats()

    async def holds() -> bool:
        nonlocal stats
        stats = await channel_stats(nsqd, topic, channel)
        return bool(condition(stats))

    await until(holds)
    return stats


async def until_finished(count: int, nsqd: Server, topic: str, channel: str = CHANNEL) -> ChannelStats:
    """Wait until a channel has received so many messages and holds none.

    A message on its way from the queue to a consumer is not counted for a moment. So call this only after the clients
    have answered all of them.
    """
    return await until_channel(lambda stats: stats.message_count == count and left_in(stats) == 0, nsqd, topic, channel)


def left_in(stats: ChannelStats) -> int:
    """Return how many messages a channel holds."""
    return stats.depth + stats.in_flight_count + stats.deferred_count
