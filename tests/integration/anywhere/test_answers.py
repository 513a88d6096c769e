"""The ways in which a message is answered: finish, requeue, touch, timeout."""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial

import anyio
import pytest

from nsqkit import Consumer, Message
from nsqkit.clock import LoopClock
from nsqkit.consumer.dead_letter import DeadLetter
from tests.integration.anywhere.clients import (
    consuming,
    producing,
    running,
    take,
    until,
    until_channel,
    until_finished,
)
from tests.integration.anywhere.servers import WAIT_LIMIT, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

DELAY = 0.2
MSG_TIMEOUT = 1.0
"""Seconds; the minimum of nsqd."""
WORK = 1.25
"""Seconds; more than MSG_TIMEOUT."""


async def test_requeued_message_is_delivered_again(nsqd: Server, topic: str):
    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await producer.publish(topic, b"x")
        (first,) = await take(consumer, 1)
        requeued = time.monotonic()
        first.requeue(DELAY, backoff=False)
        (second,) = await take(consumer, 1)
        assert time.monotonic() - requeued >= DELAY
        second.requeue(0, backoff=False)
        (third,) = await take(consumer, 1)
        assert [message.attempts for message in (first, second, third)] == [1, 2, 3]
        assert {message.id for message in (first, second, third)} == {first.id}
        assert {message.timestamp_ns for message in (first, second, third)} == {first.timestamp_ns}
        third.finish()
        stats = await until_finished(1, nsqd, topic)
        assert stats.requeue_count == 2
        assert consumer.stats().requeued == 2


async def test_message_times_out_unless_touched(nsqd: Server, topic: str):
    attempts: dict[Consumer, dict[bytes, int]] = defaultdict(dict)  # the number of the first one that was begun
    clock = LoopClock()

    async def work(consumer: Consumer, message: Message) -> None:
        attempts[consumer].setdefault(message.body, message.attempts)
        begun = time.monotonic()
        # Longer than the timeout, and until nsqd has handled the timeout of the other message.
        while message.body == b"touched" and not message.is_answered:
            if time.monotonic() >= begun + WORK and b"left alone" in attempts[consumer]:
                break
            if consumer is by_hand:
                message.touch()
            await clock.wait_until(clock.now_ns() + round(MSG_TIMEOUT * 1e8))

    options = {"msg_timeout": MSG_TIMEOUT, "max_attempts": 0}
    async with (
        producing(nsqd) as producer,
        consuming(topic, nsqd, channel="by_hand", **options) as by_hand,
        consuming(topic, nsqd, channel="by_itself", **options) as by_itself,
    ):
        await by_hand.wait_connected()
        await by_itself.wait_connected()
        await producer.publish(topic, b"left alone")
        firsts = [*await take(by_hand, 1), *await take(by_itself, 1)]
        await producer.publish(topic, b"touched")
        async with (
            running(by_hand, partial(work, by_hand), concurrency=2),
            running(by_itself, partial(work, by_itself), concurrency=2, auto_touch=True),
        ):
            for first in firsts:
                assert first.attempts == 1
                await until(lambda: first.is_answered)  # noqa: B023
                first.finish()  # too late: it must not finish the next delivery
            for consumer, channel in ((by_hand, "by_hand"), (by_itself, "by_itself")):
                await until(lambda: consumer.stats().finished == 2)  # noqa: B023
                stats = await until_finished(2, nsqd, topic, channel)
                assert attempts[consumer].keys() == {b"touched", b"left alone"}
                assert attempts[consumer][b"left alone"] >= 2
                # If the machine stalls, the touched message may time out as well, and any before it is begun.
                assert stats.timeout_count == consumer.stats().received - 2
                assert consumer.stats().touched >= 1


async def test_message_that_fails_too_often_is_published_to_another_topic(nsqd: Server, topic: str):
    dead = f"{topic}_dead"
    attempts = []

    def fail(message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError(message.body)

    async with (
        producing(nsqd) as producer,
        consuming(topic, nsqd, max_attempts=3, max_backoff_duration=0) as consumer,
        consuming(dead, nsqd) as undertaker,
    ):
        await producer.publish(topic, b"hopeless")
        async with running(consumer, fail, giving_up=DeadLetter(producer, dead)):
            (message,) = await take(undertaker, 1)
            assert (message.body, message.attempts) == (b"hopeless", 1)
            message.finish()
            await until_finished(1, nsqd, dead)
            await until(lambda: consumer.stats().given_up == 1)
            stats = await until_finished(1, nsqd, topic)
        assert attempts == [1, 2, 3]
        assert stats.requeue_count == 2


async def test_leaving_consumer_requeues_unfinished_messages(nsqd: Server, topic: str):
    async with producing(nsqd) as producer:
        await producer.multi_publish(topic, [b"%d" % number for number in range(10)])
        async with consuming(topic, nsqd, max_in_flight=6) as leaving:
            finished, begun = await take(leaving, 2)
            await until(lambda: leaving.stats().in_flight == 6)
            finished.finish()
        assert begun.is_answered
        assert leaving.stats().requeued >= 5
        stats = await until_channel(lambda stats: stats.depth == 9, nsqd, topic)
        assert (stats.in_flight_count, stats.client_count) == (0, 0)
        async with consuming(topic, nsqd) as other:
            messages = await take(other, 9)
            attempts = sorted(message.attempts for message in messages)
            assert attempts[0] == 1
            assert attempts[-5:] == [2] * 5
            assert finished.id not in {message.id for message in messages}
            for message in messages:
                message.finish()
            stats = await until_finished(10, nsqd, topic)
        assert stats.timeout_count == 0


async def test_stopping_consumer_finishes_begun_messages(nsqd: Server, topic: str):
    begun, stopped = anyio.Event(), anyio.Event()
    handled = []

    async def handle(message: Message) -> None:
        begun.set()
        await stopped.wait()
        handled.append(message.id)

    async with producing(nsqd) as producer, consuming(topic, nsqd) as consumer:
        await producer.multi_publish(topic, [b"%d" % number for number in range(5)])
        async with running(consumer, handle):
            await begun.wait()
            await until(lambda: consumer.stats().in_flight == 5)
            consumer.stop()
            stopped.set()
        assert len(handled) == 1
    stats = await until_channel(lambda stats: stats.depth == 4, nsqd, topic)
    assert (stats.in_flight_count, stats.timeout_count) == (0, 0)
