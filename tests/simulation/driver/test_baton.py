"""The threads of worlds, on both loops."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from nsqkit.loop_thread import OneShot
from tests.simulation.driver import asyncio_loop, trio_loop
from tests.simulation.driver.baton import BatonFuture, Ended, Lock, Thread, Threads, ask, call
from tests.simulation.driver.network import HOST
from tests.simulation.driver.pace import pass_time

LOOPS = pytest.mark.parametrize("loop", [asyncio_loop, trio_loop], ids=["asyncio", "trio"])


def run(loop, function):
    """Run a function in a thread of a world; return its result, and the time that it took."""
    results = []

    async def main(running):
        HOST.set("host")
        async with anyio.create_task_group() as tasks:
            begun = running.time()
            result = await Threads(tasks, "seed", 0.0).run(function, "main")
            results.append((result, running.time() - begun))

    loop.run(main, None)
    return results[0]


@LOOPS
def test_wait_with_a_timeout_lasts_so_long(loop):
    def wait() -> bool:
        lock = Lock()
        lock.acquire()
        return lock.acquire(timeout=30)

    is_locked, lasted = run(loop, wait)
    assert not is_locked
    assert 30 <= lasted < 30.1


@LOOPS
def test_threads_wait_for_each_other(loop):
    def work() -> list[int]:
        lock, future, results = Lock(), BatonFuture[int](), []
        lock.acquire()

        def other() -> None:
            with lock:
                results.append(1)
            future.set_result(2)

        thread = Thread(target=other, name="other", daemon=True)
        thread.start()
        ask(pass_time, 1)
        results.append(0)
        lock.release()
        results.append(future.result(10))
        thread.join()
        return results

    assert run(loop, work)[0] == [0, 1, 2]


@LOOPS
def test_errors_of_threads_and_of_what_they_await_are_raised(loop):
    async def fail(kind):
        raise kind("an error")

    def work() -> None:
        with pytest.raises(KeyError):
            ask(fail, KeyError)
        raise LookupError("of the thread")

    async def main(running):
        HOST.set("host")
        async with anyio.create_task_group() as tasks:
            with pytest.raises(LookupError, match="of the thread"):
                await Threads(tasks, "seed", 0.0).run(work, "main")

    loop.run(main, None)


@LOOPS
def test_end_of_the_companion_ends_the_thread(loop):
    ends = []

    def work() -> None:
        try:
            BatonFuture[None]().result()
        except Ended:
            with pytest.raises(Ended):
                ask(pass_time, 1)
            ends.append("ended")
            raise

    async def main(running):
        HOST.set("host")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(Threads(tasks, "seed", 0.0).run, work, "main"))
            await pass_time(1)
            tasks.cancel_scope.cancel()

    loop.run(main, None)
    assert ends == ["ended"]


@LOOPS
def test_event_loop_never_waits_for_a_thread(loop):
    async def main(running):
        lock = Lock()
        lock.acquire()
        assert not lock.acquire(blocking=False)
        with pytest.raises(AssertionError, match="would wait for a thread"):
            lock.acquire()
        assert call(int) == 0

    loop.run(main, None)


@LOOPS
def test_loop_lets_a_thread_run_in_the_middle_of_a_callback(loop):
    order: list[str] = []

    def work() -> None:
        first: OneShot[str] = OneShot()  # its lines are shared
        order.append("thread")
        first.resolve(None, "")

    async def main(running):
        HOST.set("host")
        async with anyio.create_task_group() as tasks:
            threads = Threads(tasks, "seed", 1.0)
            tasks.start_soon(threads.run, work, "main")
            while not threads.paused:
                await pass_time(0.0001)
            while not order:
                second: OneShot[str] = OneShot()
                second.resolve(None, "")
                if order:
                    order.append("end of the callback")
                else:
                    await pass_time(0.0001)

    loop.run(main, None)
    assert order == ["thread", "end of the callback"]
