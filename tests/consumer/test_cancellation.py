from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from nsqkit.consumer.cancellation import failure_of
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.consumer.message import Message
from nsqkit.loop_thread import CarriedExit
from tests.consumer.test_consumer import consuming, fin, req
from tests.peers import BACKENDS, body_of, settle

pytestmark = pytest.mark.anyio
on_both = pytest.mark.parametrize("anyio_backend", BACKENDS)
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

TEXT = "CancelledError was raised, but this task was not cancelled"


async def wait_for_cancelled_task(argument: object = None) -> None:
    task = asyncio.create_task(anyio.sleep_forever())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


@on_both
async def test_an_exception_is_a_failure():
    error = ValueError("no")
    assert failure_of(error) is error
    for end in (KeyboardInterrupt(), SystemExit(), CarriedExit(SystemExit())):
        assert failure_of(end) is None


@on_both
async def test_cancellation_by_a_cancel_scope_is_no_failure():
    failures: list[object] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            failures.append(failure_of(error))
            raise
    assert failures == [None]


@on_asyncio
async def test_cancelled_error_is_a_failure_unless_the_task_was_cancelled():
    failures: list[object] = []

    async def work() -> None:
        for wait in (wait_for_cancelled_task, anyio.sleep_forever):
            try:
                await wait()
            except BaseException as error:
                failures.append(failure_of(error))

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    await task
    failure, none = failures
    assert isinstance(failure, RuntimeError)
    assert str(failure) == TEXT
    assert isinstance(failure.__cause__, asyncio.CancelledError)
    assert none is None


def test_cancelled_error_outside_of_an_event_loop_is_no_failure():
    assert failure_of(asyncio.CancelledError()) is None


@on_asyncio
@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"auto_touch": True}, {"cancel_at_timeout": True}])
async def test_a_handler_that_awaits_a_cancelled_task_has_failed(options, attempts):
    reasons: list[str] = []

    async def handle(message: Message) -> None:
        if message.body == body_of(1):
            await wait_for_cancelled_task(message)

    def give_up(message: Message, given_up: GivenUp) -> None:
        reasons.append(given_up.error_text)

    await check(attempts, handle, giving_up=give_up, **options)
    assert reasons == ([] if attempts == 1 else [TEXT])


async def check(attempts: int, handler: Any, **options: Any) -> None:
    """Deliver two messages to a handler that fails on the first one."""
    async with (
        consuming(default_requeue_delay=1, max_backoff_duration=0) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.run(handler, **options))
        await peer.deliver(1, attempts=attempts)
        assert await peer.line() == (req(1, 1000) if attempts == 1 else fin(1))
        await peer.deliver(2)
        assert await peer.line() == fin(2)
        tasks.cancel_scope.cancel()


@on_asyncio
async def test_giving_up_that_awaits_a_cancelled_task_has_failed():
    def fail(message: Message) -> None:
        raise ValueError("no")

    async with (
        consuming(default_requeue_delay=1, max_backoff_duration=0) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.run(fail, giving_up=wait_for_cancelled_task))
        for _ in range(2):
            await peer.deliver(1, attempts=5)
            assert await peer.line() == req(1, 5000)
        tasks.cancel_scope.cancel()


@on_asyncio
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_handler_of_batches_that_awaits_a_cancelled_task_has_failed(concurrency):
    async with (
        consuming(default_requeue_delay=1, max_backoff_duration=0) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.run_batches(wait_for_cancelled_task, concurrency=concurrency))
        for number in range(3):
            await peer.deliver(number)
            assert await peer.line() == req(number, 1000)
        tasks.cancel_scope.cancel()
