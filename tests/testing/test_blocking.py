from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import anyio
import pytest

from nsqkit.testing.blocking import is_in_event_loop, wait


class Refused(Exception):
    pass


def refuse() -> None:
    raise Refused


def test_plain_caller_gets_the_result_at_once() -> None:
    threads: list[threading.Thread] = []
    wait(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    with pytest.raises(Refused):
        wait(refuse)


@pytest.mark.anyio
async def test_result_of_a_plain_caller_can_be_awaited() -> None:
    calls: list[int] = []
    done = await anyio.to_thread.run_sync(lambda: wait(lambda: calls.append(1)))
    await done
    assert calls == [1]


@pytest.mark.anyio
async def test_async_caller_waits_for_a_worker_thread() -> None:
    is_released = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        assert is_released.wait(60)
        threads.append(threading.current_thread())

    async def call() -> None:
        await wait(work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await anyio.lowlevel.checkpoint()
        assert threads == []
        is_released.set()
    assert threads != [threading.current_thread()]
    with pytest.raises(Refused):
        await wait(refuse)


@pytest.mark.anyio
async def test_cancelled_caller_does_not_wait_for_the_function() -> None:
    has_begun, is_released, has_ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        assert is_released.wait(60)
        has_ended.set()

    async def call() -> None:
        await wait(work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        assert await anyio.to_thread.run_sync(has_begun.wait, 60)
        tasks.cancel_scope.cancel()
    assert not has_ended.is_set()
    is_released.set()
    assert await anyio.to_thread.run_sync(has_ended.wait, 60)


@pytest.mark.anyio
async def test_python_warns_if_an_async_caller_does_not_await() -> None:
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        wait(refuse)


@pytest.mark.anyio
async def test_event_loop_is_found_in_tasks_and_not_in_threads() -> None:
    assert is_in_event_loop()
    assert not await anyio.to_thread.run_sync(is_in_event_loop)


def test_event_loop_is_found_in_callbacks_and_not_outside() -> None:
    async def find_in_callback() -> bool:
        found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: found.set_result(is_in_event_loop()))
        return await found

    assert asyncio.run(find_in_callback())
    assert not is_in_event_loop()


def test_uvloop_is_found() -> None:
    async def find() -> bool:
        await wait(lambda: None)
        return is_in_event_loop()

    assert anyio.run(find, backend_options={"use_uvloop": True})


def test_trio_is_not_imported() -> None:
    program = "import sys, nsqkit.testing.blocking as b; b.wait(lambda: 0); print('trio' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
