from __future__ import annotations

import anyio
import pytest

from nsqkit.consumer.message import Message
from tests.consumer.test_consumer import consuming, fin, req
from tests.peers import BACKENDS, body_of, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


async def test_a_batch_is_finished_when_the_handler_returns():
    handled: list[list[bytes]] = []

    async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
        await peer.deliver(1, 2, 3)
        await settle()
        tasks.start_soon(
            lambda: consumer.run_batches(
                lambda batch: handled.append([it.body for it in batch]), max_messages=2
            )
        )
        assert [await peer.line() for _ in range(3)] == [fin(1), fin(2), fin(3)]
        assert handled == [[body_of(1), body_of(2)], [body_of(3)]]
        tasks.cancel_scope.cancel()


async def test_a_batch_that_fails_is_one_failure():
    async def handle(batch: list[Message]) -> None:
        batch[0].finish()
        raise ValueError("no")

    async with (
        consuming(b"CLS", default_requeue_delay=1) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        await peer.deliver(1, 2, 3)
        await settle()
        tasks.start_soon(lambda: consumer.run_batches(handle))
        assert {await peer.line() for _ in range(4)} == {b"RDY 0", fin(1), req(2, 1000), req(3, 1000)}
        assert consumer.backoff.counter == 1
        tasks.cancel_scope.cancel()


async def test_what_came_too_often_is_not_in_the_batch():
    handled: list[list[bytes]] = []
    async with consuming(max_attempts=1) as (consumer, peer), anyio.create_task_group() as tasks:
        await peer.deliver(1, attempts=2)
        await peer.deliver(2)
        await settle()
        tasks.start_soon(
            lambda: consumer.run_batches(lambda batch: handled.append([it.body for it in batch]))
        )
        assert {await peer.line(), await peer.line()} == {fin(1), fin(2)}
        assert handled == [[body_of(2)]]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_cancelled_it_gives_back_all_of_the_batch(concurrency):
    async def handle(batch: list[Message]) -> None:
        await anyio.sleep_forever()

    async with consuming() as (consumer, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run_batches(handle, concurrency=concurrency))
            await peer.deliver(1, 2)
            await settle()
            tasks.cancel_scope.cancel()
        assert {await peer.line(), await peer.line()} == {req(1), req(2)}
