from __future__ import annotations

import anyio
import pytest

from nsqkit.client.task_scope import TaskScope
from tests.peers import BACKENDS, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


class Block:
    """A user of ``TaskScope`` whose task runs until ``__aexit__`` stops it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self._tasks = TaskScope()
        self._stop = anyio.Event()
        self._stopped = anyio.Event()

    async def work(self) -> None:
        try:
            await self._stop.wait()
            await settle()
            self.log.append("cleaned up")
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


async def test_tasks_run_until_end():
    async with Block() as block:
        await settle()
        assert block.log == []
    assert block.log[0] == "cleaned up"
    assert "cancel" in block.log[1]


async def test_end_does_not_raise_the_exception_of_the_block_again():
    """An AsyncExitStack makes an exception that is raised again its own context; another stack then never ends."""
    raised = None
    with anyio.CancelScope() as scope:
        tasks = TaskScope()
        await tasks.start()
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            cancelled = error
            try:
                await tasks.end(type(error), error, error.__traceback__)
            except BaseException as another:
                raised = another
            raise
    assert raised is not cancelled


async def test_new_tasks_are_cancelled():
    with anyio.fail_after(1):
        tasks = TaskScope()
        await tasks.start()
        tasks.start_soon(anyio.sleep_forever)
        assert not await tasks.end(None, None, None)


async def test_cancelled_block_leaves_tasks_running_until_end():
    with anyio.CancelScope() as scope:
        async with Block() as block:
            await settle()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert block.log[0] == "cleaned up"


async def test_exception_of_block_is_not_wrapped():
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with Block() as block:
            await settle()
            raise error
    assert caught.value is error
    assert block.log[0] == "cleaned up"


async def test_error_of_task_cancels_block_and_is_raised():
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
    await anyio.lowlevel.checkpoint()  # the block is not cancelled any more


async def test_error_of_task_wins_over_error_of_block():
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


async def test_tasks_can_clean_up():
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
