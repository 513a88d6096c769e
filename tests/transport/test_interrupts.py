from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

from nsqkit.client.task_scope import TaskScope
from nsqkit.clock import ManualClock
from nsqkit.transport.interrupts import without_interrupts
from nsqkit.transport.timer import Timer
from tests.peers import BACKENDS, settle
from tests.transport.test_pump import Recorder, pumping


def ctrl_c(*args: object) -> None:
    signal.raise_signal(signal.SIGINT)


async def wait_for_ctrl_c(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` in a task until Ctrl-C interrupts this one."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        try:
            await anyio.sleep_forever()
        except KeyboardInterrupt:
            await settle()
            tasks.cancel_scope.cancel()


def run_on_trio(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    anyio.run(wait_for_ctrl_c, work, backend="trio")


def test_ctrl_c_is_raised_in_the_main_task():
    log: list[str] = []

    async def work() -> None:
        ctrl_c()
        await settle()
        log.append("the task goes on")

    run_on_trio(lambda: without_interrupts(work))
    assert log == ["the task goes on"]


def test_ctrl_c_does_not_end_a_timer():
    class Timetable:
        deadline_ns = 0

        def next_deadline(self) -> int:
            return self.deadline_ns

        def handle_deadline(self, now_ns: int) -> None:
            self.deadline_ns += 1
            ctrl_c()

    run_on_trio(lambda: Timer(Timetable(), ManualClock(0), after=lambda now_ns: None).run())


def test_ctrl_c_does_not_end_the_reading_of_a_pump():
    async def work() -> None:
        async with pumping(Recorder(receive)) as (_, link):
            link.feed(b"a")
            await anyio.sleep_forever()

    received: list[bytes] = []

    def receive(machine: Recorder, data: bytes) -> None:
        ctrl_c()
        received.append(data)

    run_on_trio(work)
    assert received == [b"a"]


def test_ctrl_c_does_not_end_a_task_of_a_client():
    log: list[str] = []

    async def work() -> None:
        ctrl_c()
        await settle()
        log.append("the task goes on")

    async def client() -> None:
        tasks = TaskScope()
        await tasks.start()
        try:
            tasks.start_soon(work)
            await anyio.sleep_forever()
        finally:
            await tasks.end(None, None, None)

    run_on_trio(client)
    assert log == ["the task goes on"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", BACKENDS)
async def test_function_is_called():
    called: list[bool] = []

    async def work() -> None:
        await settle()
        called.append(True)

    await without_interrupts(work)
    assert called == [True]
