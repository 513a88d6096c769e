"""Producers and consumers of these tests, and what is waited for.

The rule it guards: nothing here or in the tests is fast or slow. Whoever waits, waits for a thing to have happened, for
up to PATIENCE: an nsqd looks for timeouts in a channel that is new after 5 seconds only, and machines stall.
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
from tests.integration.anywhere.servers import PATIENCE, Server

CHANNEL = "channel"
PAUSE = 0.02
"""Seconds between two looks at what is waited for."""

_PATIENT: dict[str, Any] = {
    "dial_timeout": PATIENCE,
    "write_timeout": PATIENCE,
    "reconnect_delay_min": 0.01,
    "reconnect_delay_max": 0.1,
}


@asynccontextmanager
async def producing(*nsqds: Server, **options: Any) -> AsyncIterator[Producer]:
    """Have a producer for nsqds."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    with anyio.fail_after(PATIENCE):
        async with Producer(*addresses, **{**_PATIENT, "connect_timeout": PATIENCE, **options}) as producer:
            yield producer


@asynccontextmanager
async def consuming(
    topic: str, *nsqds: Server, channel: str = CHANNEL, **options: Any
) -> AsyncIterator[Consumer]:
    """Have a consumer of a topic at nsqds. What it requeues comes again at once, unless it says when."""
    addresses = [nsqd.tcp_address for nsqd in nsqds]
    options = {**_PATIENT, "max_in_flight": 10, "default_requeue_delay": 0, **options}
    with anyio.fail_after(PATIENCE):
        async with Consumer(topic, channel, nsqd_tcp_addresses=addresses, **options) as consumer:
            yield consumer


@asynccontextmanager
async def running(
    consumer: Consumer, handler: Callable[[Message], Awaitable[object] | None], **options: Any
) -> AsyncIterator[None]:
    """Have a consumer's messages handled for as long as the block lasts."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(consumer.run, handler, **options))
        yield
        consumer.stop()


def dialling(*nsqds: Server) -> Dial:
    """Return how nsqds are reached under the addresses that they have now, wherever they listen later."""
    places = {nsqd.tcp_address: nsqd for nsqd in nsqds}

    async def dial(address: str) -> ByteStream:
        return await connect(places[address].tcp_address)

    return dial


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Return the next messages."""
    return [await anext(consumer) for _ in range(count)]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; one that is async is awaited."""
    while True:
        holds = condition()
        if await holds if isawaitable(holds) else holds:
            return
        await anyio.sleep(PAUSE)


# ---- what nsqd says ------------------------------------------------------------------------------------------------


async def topic_stats(nsqd: Server, topic: str) -> TopicStats:
    """Return what nsqd says of a topic; of one that it has not, that there is nothing in it."""
    topics = (await NsqdAdmin(nsqd.http_address, request_timeout=PATIENCE).stats(topic)).topics
    return topics[0] if topics else TopicStats(topic_name=topic)


async def channel_stats(nsqd: Server, topic: str, channel: str = CHANNEL) -> ChannelStats:
    """Return what nsqd says of a channel; of one that it has not, that there is nothing in it."""
    channels = (await topic_stats(nsqd, topic)).channels
    return next((one for one in channels if one.channel_name == channel), ChannelStats())


async def until_channel(
    condition: Callable[[ChannelStats], object], nsqd: Server, topic: str, channel: str = CHANNEL
) -> ChannelStats:
    """Wait until what nsqd says of a channel is as it should be, and return it."""
    stats = ChannelStats()

    async def holds() -> bool:
        nonlocal stats
        stats = await channel_stats(nsqd, topic, channel)
        return bool(condition(stats))

    await until(holds)
    return stats


async def until_finished(count: int, nsqd: Server, topic: str, channel: str = CHANNEL) -> ChannelStats:
    """Wait until a channel has had so many messages, and has none any more.

    A message on its way from the queue to a consumer is counted nowhere for a moment. So only ask this when the clients
    have answered all of them.
    """
    return await until_channel(
        lambda stats: stats.message_count == count and left_in(stats) == 0, nsqd, topic, channel
    )


def left_in(stats: ChannelStats) -> int:
    """Return how many messages a channel has."""
    return stats.depth + stats.in_flight_count + stats.deferred_count
