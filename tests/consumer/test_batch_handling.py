from __future__ import annotations

import anyio
import pytest

from nsqkit.consumer.batches import Batch
from nsqkit.consumer.dead_letter import GivenUp
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
            lambda: consumer.run_batches(lambda batch: handled.append([it.body for it in batch]), max_messages=2)
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


async def test_handler_may_change_its_list():
    async def handle(batch: list[Message]) -> None:
        assert isinstance(batch, Batch)
        bodies = []
        while batch:
            bodies.append(batch.pop().body)
        if body_of(3) in bodies:
            raise ValueError("no")

    async with (
        consuming(b"CLS", default_requeue_delay=1) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.run_batches(handle))
        await peer.deliver(1, 2)
        assert [await peer.line(), await peer.line()] == [fin(1), fin(2)]
        await peer.deliver(3, 4)
        assert {await peer.line() for _ in range(3)} == {b"RDY 0", req(3, 1000), req(4, 1000)}
        tasks.cancel_scope.cancel()


async def test_messages_at_their_last_attempt_are_given_up_when_their_batch_fails(caplog):
    given_up: list[tuple[bytes, int, str]] = []

    def fail(batch: list[Message]) -> None:
        raise ValueError("no")

    def give_up(message: Message, why: GivenUp) -> None:
        given_up.append((message.body, why.attempts, why.error_text))

    async with (
        consuming(b"CLS", max_attempts=2, default_requeue_delay=1) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        await peer.deliver(1, attempts=2)
        await peer.deliver(2)
        await settle()
        tasks.start_soon(lambda: consumer.run_batches(fail, giving_up=give_up))
        assert {await peer.line() for _ in range(3)} == {b"RDY 0", fin(1), req(2, 1000)}
        assert given_up == [(body_of(1), 2, "no")]
        assert consumer.stats().given_up == 1
        tasks.cancel_scope.cancel()


async def test_message_with_used_up_attempts_is_not_in_the_batch():
    handled: list[list[int]] = []
    given_up: list[tuple[bytes, Exception | None]] = []
    may_end = anyio.Event()

    async def handle(batch: list[Message]) -> None:
        handled.append([message.attempts for message in batch])
        await may_end.wait()

    def give_up(message: Message, why: GivenUp) -> None:
        given_up.append((message.body, why.error))

    async with consuming(max_attempts=2) as (consumer, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: consumer.run_batches(handle, giving_up=give_up))
        await peer.deliver(1, attempts=2)
        await settle()
        await peer.deliver(1, attempts=3)  # it has timed out meanwhile
        await peer.deliver(2, attempts=3)  # no handler here has begun this one
        await settle()
        may_end.set()
        assert {await peer.line(), await peer.line()} == {fin(1), fin(2)}
        assert (handled, given_up) == ([[2], [3]], [(body_of(1), None)])
        tasks.cancel_scope.cancel()


async def test_message_that_times_out_while_another_is_given_up_is_not_in_the_batch():
    handled: list[list[int]] = []
    given_up: list[bytes] = []
    may_return, may_give_up = anyio.Event(), anyio.Event()

    async def handle(batch: list[Message]) -> None:
        handled.append([message.attempts for message in batch])
        await may_return.wait()

    async def give_up(message: Message, why: GivenUp) -> None:
        given_up.append(message.body)
        await may_give_up.wait()

    async with consuming(max_attempts=2) as (consumer, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: consumer.run_batches(handle, giving_up=give_up))
        await peer.deliver(1, attempts=2)
        await settle()
        await peer.deliver(1, attempts=3)  # it has timed out
        await peer.deliver(2)
        await peer.deliver(3, attempts=2)
        await settle()
        may_return.set()
        await settle()
        await peer.deliver(2, attempts=2)
        await peer.deliver(3, attempts=3)
        await settle()
        may_give_up.set()
        assert [await peer.line() for _ in range(3)] == [fin(1), fin(2), fin(3)]
        assert (handled, given_up) == ([[2], [2, 3]], [body_of(1)])
        tasks.cancel_scope.cancel()


async def test_message_that_waits_for_one_that_is_given_up_counts_as_begun_by_no_handler():
    handled: list[list[int]] = []
    given_up: list[bytes] = []
    may_return = [anyio.Event(), anyio.Event()]
    may_give_up = anyio.Event()

    async def handle(batch: list[Message]) -> None:
        handled.append([message.attempts for message in batch])
        if may_return:
            await may_return.pop().wait()

    async def give_up(message: Message, why: GivenUp) -> None:
        given_up.append(message.body)
        await may_give_up.wait()

    async with consuming(max_attempts=2) as (consumer, peer), anyio.create_task_group() as tasks:
        later, sooner = may_return
        tasks.start_soon(lambda: consumer.run_batches(handle, concurrency=2, giving_up=give_up))
        await peer.deliver(1, attempts=2)
        await settle()
        await peer.deliver(2)
        await settle()
        await peer.deliver(1, attempts=3)  # it has timed out
        await peer.deliver(3, attempts=2)
        await settle()
        later.set()  # that of message 2
        await settle()
        assert given_up == [body_of(1)]
        await peer.deliver(3, attempts=3)  # it has timed out as well
        await settle()
        sooner.set()
        await settle()
        assert (handled, given_up) == ([[2], [1], [3]], [body_of(1)])
        may_give_up.set()
        assert {await peer.line() for _ in range(3)} == {fin(1), fin(2), fin(3)}
        tasks.cancel_scope.cancel()


async def test_cancelled_run_does_not_forget_that_a_handler_has_begun_the_last_attempt():
    handled: list[list[int]] = []
    may_return = anyio.Event()

    async def handle(batch: list[Message]) -> None:
        handled.append([message.attempts for message in batch])
        await may_return.wait()

    async def give_up(message: Message, why: GivenUp) -> None:
        await anyio.sleep_forever()

    async with consuming(max_attempts=2) as (consumer, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run_batches(handle, giving_up=give_up))
            await peer.deliver(1, attempts=2)
            await settle()
            await peer.deliver(1, attempts=3)
            await settle()
            may_return.set()
            await settle()
            tasks.cancel_scope.cancel()
        assert await peer.line() == req(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run_batches(handle))
            await peer.deliver(1, attempts=4)
            assert await peer.line() == fin(1)
            tasks.cancel_scope.cancel()
    assert handled == [[2]]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_cancelled_handler_requeues_the_whole_batch(concurrency):
    async def handle(batch: list[Message]) -> None:
        await anyio.sleep_forever()

    async with consuming() as (consumer, peer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run_batches(handle, concurrency=concurrency))
            await peer.deliver(1, 2)
            await settle()
            tasks.cancel_scope.cancel()
        assert {await peer.line(), await peer.line()} == {req(1), req(2)}


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_exit_of_a_handler_requeues_its_batch_and_is_raised_by_run_batches(concurrency):
    def leave(batch: list[Message]) -> None:
        raise SystemExit(3)

    async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: peer.deliver(1))
        with pytest.raises(SystemExit, match="3"):
            await consumer.run_batches(leave, concurrency=concurrency)
        assert await peer.line() == req(1)
