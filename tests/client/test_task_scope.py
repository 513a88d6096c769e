from __future__ import annotations

import anyio
import pytest

from nsqkit.client.task_scope import TaskScope
from tests.peers import BACKENDS, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


class Block:
    """The least that uses it: a task that works until it was told to stop, and a good-bye that tells it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._tasks = TaskScope()
        self._stop = anyio.Event()
        self._stopped = anyio.Event()

    async def work(self) -> None:
        try:
            await self._stop.wait()
            await settle()
            self.log.append("said good-bye")
            self._stopped.set()
            await anyio.sleep_forever()
        except BaseException as error:
            self.log.append(type(error).__name__.lower())
            raise

    async def __aenter__(self) -> Block:
        await self._tasks.start()
        self._tasks.start_soon(self.work)
        return self

    async def __aexit__(self, *args) -> bool | None:
        self._stop.set()
        with anyio.move_on_after(1, shield=True):
            await self._stopped.wait()
        return await self._tasks.end(*args)


async def test_tasks_go_on_until_the_end():
    async with Block() as block:
        await settle()
        assert block.log == []
    assert block.log[0] == "said good-bye"
    assert "cancel" in block.log[1]


async def test_tasks_that_have_hardly_begun_end_as_well():
    with anyio.fail_after(1):
        tasks = TaskScope()
        await tasks.start()
        tasks.start_soon(anyio.sleep_forever)
        assert not await tasks.end(None, None, None)


async def test_when_the_block_is_cancelled_they_still_say_good_bye():
    with anyio.CancelScope() as scope:
        async with Block() as block:
            await settle()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert block.log[0] == "said good-bye"


async def test_an_exception_of_the_block_comes_out_as_itself():
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with Block() as block:
            await settle()
            raise error
    assert caught.value is error
    assert block.log[0] == "said good-bye"


async def test_an_error_of_a_task_cancels_the_block_and_comes_out():
    async def fail() -> None:
        raise KeyError("its")

    log: list[str] = []
    with pytest.raises(ExceptionGroup) as caught:
        async with Block() as block:
            block._tasks.start_soon(fail)
            await anyio.sleep_forever()
            log.append("not here")
    assert caught.group_contains(KeyError, match="its")
    assert log == []
    await anyio.lowlevel.checkpoint()  # whoever caught it is not cancelled any more


async def test_of_two_exceptions_the_one_of_the_task_comes_out():
    async def fail() -> None:
        raise KeyError("its")

    with pytest.raises(ExceptionGroup) as caught:
        async with Block() as block:
            block._tasks.start_soon(fail)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("mine")
    assert caught.group_contains(KeyError, match="its")


async def test_what_a_task_does_at_its_end_is_not_lost():
    async def tidy_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("at the end")

    with pytest.raises(ExceptionGroup) as caught:
        async with Block() as block:
            block._tasks.start_soon(tidy_up)
            await settle()
    assert caught.group_contains(KeyError, match="at the end")
