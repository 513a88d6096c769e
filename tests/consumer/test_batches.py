from __future__ import annotations

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.clock import ManualClock
from nsqkit.errors import OptionError
from tests.consumer.test_consumer import consuming, fin, in_memory, req
from tests.peers import ADDRESS, body_of, settle

pytestmark = pytest.mark.anyio


class Taker:
    """Takes one batch in its own task."""

    def __init__(self, consumer: Consumer, max_messages: int | None = None, max_wait: float = 0.0) -> None:
        self._batches = consumer.batches(max_messages, max_wait)
        self.bodies: list[bytes] | None = None
        self.ended = False

    async def take(self) -> None:
        try:
            batch = await anext(self._batches)
        except StopAsyncIteration:
            self.ended = True
            return
        self.bodies = [message.body for message in batch]
        for message in batch:
            message.finish()


@in_memory
class TestBatches:
    async def test_a_batch_has_no_more_than_the_limit(self):
        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2, 3)
            await settle()
            for expected in ([1, 2], [3]):
                taker = Taker(consumer, 2)
                await taker.take()
                assert taker.bodies == [body_of(n) for n in expected]
            for _ in range(3):
                await peer.line()

    async def test_batch_finish_skips_answered_messages(self):
        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2, 3, 4)
            await settle()
            batch = await anext(consumer.batches(3))
            batch[1].requeue(0, backoff=False)
            batch.finish()
            batch.finish()
            assert [await peer.line() for _ in range(3)] == [req(2), fin(1), fin(3)]
            assert all(message.is_answered for message in batch)
            (await anext(consumer)).finish()
            assert await peer.line() == fin(4)

    async def test_batch_waits_until_full(self):
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            taker = Taker(consumer, 3, 1000.0)
            tasks.start_soon(taker.take)
            await peer.deliver(1, 2)
            await settle()
            assert taker.bodies is None
            await peer.deliver(3, 4)
            await settle()
            assert taker.bodies == [body_of(n) for n in (1, 2, 3)]
            (await anext(consumer)).finish()
            for _ in range(4):
                await peer.line()

    async def test_batch_is_returned_after_max_wait(self):
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            await peer.deliver(1, 2)
            taker = Taker(consumer, 3, 5.0)
            tasks.start_soon(taker.take)
            await settle()
            assert taker.bodies is None
            assert isinstance(consumer.subscription.clock, ManualClock)
            consumer.subscription.clock.advance(5)
            await settle()
            assert taker.bodies == [body_of(1), body_of(2)]
            for _ in range(2):
                await peer.line()

    async def test_starved_consumer_does_not_wait_for_more(self):
        async with consuming(max_in_flight=2) as (consumer, peer):
            await peer.deliver(1, 2)
            taker = Taker(consumer, 3, 1000.0)
            with anyio.fail_after(15):
                await taker.take()
            assert taker.bodies == [body_of(1), body_of(2)]
            for _ in range(2):
                await peer.line()

    async def test_stop_ends_the_wait(self):
        async with consuming(b"RDY 0", b"REQ %016x 0" % 1, b"CLS") as (consumer, peer):
            takers = [Taker(consumer, 3, 1000.0), Taker(consumer)]
            await peer.deliver(1)
            await settle()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(takers[0].take)
                await settle()
                consumer.stop()
                tasks.start_soon(takers[1].take)
            assert all(taker.ended and taker.bodies is None for taker in takers)

    async def test_batch_waits_again_if_inbox_was_emptied_meanwhile(self):
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            await peer.deliver(1)
            await settle()
            taker = Taker(consumer, 3, 5.0)
            tasks.start_soon(taker.take)
            (await anext(consumer)).finish()
            await settle()
            assert isinstance(consumer.subscription.clock, ManualClock)
            consumer.subscription.clock.advance(5)
            await settle()
            await peer.deliver(2)
            await settle()
            consumer.subscription.clock.advance(5)
            for _ in range(2):
                await peer.line()
            assert taker.bodies == [body_of(2)]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ((0,), "max_messages is 0; allowed is None, or a whole number of at least 1"),
        ((1.5,), "max_messages is 1.5; allowed is None, or a whole number of at least 1"),
        ((1, -1), "max_wait is -1; allowed is 0 seconds or more"),
        ((1, float("nan")), "max_wait is nan; allowed is 0 seconds or more"),
        ((1, "5"), "max_wait is '5'; allowed is 0 seconds or more"),
        ((None, 5), "max_wait is 5; allowed is 0 where max_messages is None"),
    ],
)
def test_invalid_limits_are_refused(limits, sentence):
    with pytest.raises(OptionError) as caught:
        Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS]).batches(*limits)
    assert str(caught.value) == sentence
