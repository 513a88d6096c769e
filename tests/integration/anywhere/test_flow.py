"""Flow control: max_in_flight, pause, and backoff."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from nsqkit import Message
from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.stats import BackoffStats
from tests.integration.anywhere.clients import (
    channel_stats,
    consuming,
    producing,
    running,
    take,
    until,
    until_channel,
    until_finished,
)
from tests.integration.anywhere.servers import WAIT_LIMIT, Server, StartNsqd

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]


async def test_at_most_max_in_flight_messages_are_delivered(nsqd: Server, topic: str):
    count, limit = 500, 7
    in_flight = set()

    async def handle(message: Message) -> None:
        in_flight.add(consumer.stats().in_flight)
        if message.body.endswith(b"0"):
            in_flight.add((await channel_stats(nsqd, topic)).in_flight_count)

    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=limit) as consumer:
        await producer.multi_publish(topic, [b"%d" % number for number in range(count)])
        async with running(consumer, handle, concurrency=20):
            await until(lambda: consumer.stats().finished == count)
            await until_finished(count, nsqd, topic)
    assert max(in_flight) == limit


async def test_max_in_flight_is_shared_by_all_nsqds(nsqd: Server, start_nsqd: StartNsqd, topic: str):
    nsqds = [nsqd, start_nsqd()]
    bodies = Counter(b"%d" % number for number in range(20))
    async with consuming(topic, *nsqds, max_in_flight=5) as consumer:
        shares = []
        for place in nsqds:
            stats = await until_channel(
                lambda stats: stats.clients and stats.clients[0].ready_count in {2, 3}, place, topic
            )
            shares.append(stats.clients[0].ready_count)
        assert sorted(shares) == [2, 3]
        for place, share in zip(nsqds, shares, strict=True):
            async with producing(place) as producer:
                await producer.multi_publish(topic, list(bodies))
            await until_channel(
                lambda stats: (stats.in_flight_count, stats.depth) == (share, 20 - share),  # noqa: B023
                place,
                topic,
            )
        received = Counter[bytes]()
        while received.total() < 40:
            (message,) = await take(consumer, 1)
            assert consumer.stats().in_flight <= 5
            received[message.body] += 1
            message.finish()
        assert received == bodies + bodies
        for place in nsqds:
            await until_finished(20, place, topic)


async def test_pause_and_resume(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=4) as consumer:
        await until_channel(lambda stats: stats.clients and stats.clients[0].ready_count == 4, nsqd, topic)
        consumer.pause()
        await until_channel(lambda stats: stats.clients[0].ready_count == 0, nsqd, topic)
        await producer.multi_publish(topic, [b"%d" % number for number in range(6)])
        await until_channel(lambda stats: stats.depth == 6, nsqd, topic)
        assert consumer.stats().received == 0
        consumer.resume()
        for message in await take(consumer, 4):
            message.finish()
        for message in await take(consumer, 2):
            message.finish()
        await until_finished(6, nsqd, topic)


async def test_max_in_flight_changes_at_run_time(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=0) as consumer:
        await consumer.wait_connected()
        await producer.multi_publish(topic, [b"%d" % number for number in range(10)])
        for limit in (2, 5):
            consumer.change_max_in_flight(limit)
            await until_channel(
                lambda stats: (stats.in_flight_count, stats.depth) == (limit, 10 - limit),  # noqa: B023
                nsqd,
                topic,
            )
        messages = await take(consumer, 5)
        assert consumer.is_starved
        consumer.change_max_in_flight(1)
        for message in messages:
            message.finish()
        await until_channel(
            lambda stats: (stats.in_flight_count, stats.depth) == (1, 4) and stats.clients[0].finish_count == 5,
            nsqd,
            topic,
        )


async def test_failures_slow_down_and_successes_end_backoff(nsqd: Server, topic: str):
    states: list[BackoffState] = []
    failed = Counter[bytes]()

    def note(backoff: BackoffStats) -> None:
        states.append(backoff.state)

    async def handle(message: Message) -> None:
        if states.count(BackoffState.PROBING) < 2:  # until the second test message
            failed[message.body] += 1
            raise ValueError(message.body)

    async with (
        producing(nsqd) as producer,
        consuming(
            topic,
            nsqd,
            on_backoff=note,
            max_attempts=0,
            backoff_multiplier=0.02,
            max_backoff_duration=0.1,
        ) as consumer,
        running(consumer, handle),
    ):
        await producer.multi_publish(topic, [b"%d" % number for number in range(20)])
        await until(lambda: consumer.stats().finished == 20)
        stats = await until_finished(20, nsqd, topic)
        await until(lambda: consumer.backoff.state is BackoffState.RUNNING)
        await until_channel(lambda stats: stats.clients[0].ready_count == 10, nsqd, topic)
    assert stats.requeue_count == failed.total()
    # One failure, one test message that fails, and for each of them one that succeeds.
    assert states == [BackoffState.WAITING, BackoffState.PROBING] * 3 + [BackoffState.RUNNING]


async def test_starved_consumer_is_reported(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd, max_in_flight=2) as consumer:
        assert not consumer.is_starved
        await producer.multi_publish(topic, [b"one", b"two", b"three"])
        first, second = await take(consumer, 2)
        assert consumer.is_starved
        with anyio.fail_after(WAIT_LIMIT):
            first.finish()
            second.finish()
            (third,) = await take(consumer, 1)
            assert not consumer.is_starved
            third.finish()
        await until_finished(3, nsqd, topic)
