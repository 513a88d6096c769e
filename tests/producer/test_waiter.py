from __future__ import annotations

import asyncio

import anyio
import pytest

from nsqkit.errors import ConnectionLost, NSQError
from nsqkit.producer.waiter import EventWaiter, MakeWaiter, Waiter, waiter_factory

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["of the loop", "of an event"])
def make(request: pytest.FixtureRequest) -> object:
    return request.param


def factory(make: object) -> MakeWaiter:
    return waiter_factory() if make == "of the loop" else EventWaiter


async def keep(waiter: Waiter, kept: list[NSQError | None]) -> None:
    kept.append(await waiter)


@pytest.mark.parametrize("result", [None, ConnectionLost("gone")])
async def test_who_waits_gets_what_it_is_told(make, result):
    waiter = factory(make)()
    kept: list[NSQError | None] = []
    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep, waiter, kept)
            await anyio.wait_all_tasks_blocked()
            assert not waiter.done()
            waiter.set_result(result)
            assert waiter.done()
        assert await waiter is result  # and whoever comes later, too
    assert kept == [result]
    waiter.cancel()
    assert not waiter.cancelled()


async def test_who_is_cancelled_is_done_without_having_been_told(make):
    waiter = factory(make)()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep, waiter, [])
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    waiter.cancel()
    assert waiter.done()
    assert waiter.cancelled()


async def test_on_asyncio_it_is_the_loops_own(anyio_backend_name):
    expected = asyncio.Future if anyio_backend_name == "asyncio" else EventWaiter
    assert isinstance(waiter_factory()(), expected)
