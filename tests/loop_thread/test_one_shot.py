from __future__ import annotations

from functools import partial

import anyio
import pytest

from nsqkit.loop_thread.one_shot import OneShot
from tests.threads import WAIT_LIMIT, start

OUTCOMES = pytest.mark.parametrize("error", [None, ValueError("no")], ids=["result", "error"])


def make() -> OneShot[int]:
    return OneShot()


async def collect(one_shot: OneShot[int], results: list[object]) -> None:
    try:
        results.append(await one_shot)
    except ValueError as error:
        results.append(error)


@pytest.mark.anyio
class TestTasks:
    @OUTCOMES
    async def test_every_task_gets_the_result_before_and_after_it_is_set(self, error):
        one_shot = make()
        results: list[object] = []
        with anyio.fail_after(WAIT_LIMIT):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(collect, one_shot, results)
                await anyio.wait_all_tasks_blocked()
                assert (one_shot.is_answered, results) == (False, [])
                one_shot.resolve(error, 7)
            await collect(one_shot, results)
        assert results == [error or 7] * 4
        assert one_shot.error is error

    async def test_a_cancelled_wait_changes_nothing(self):
        one_shot = make()
        results: list[object] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(collect, one_shot, results)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        one_shot.resolve(None, 7)
        await collect(one_shot, results)
        assert results == [7]

    async def test_a_result_may_be_set_while_a_wait_is_being_cancelled(self):
        one_shot = make()
        results: list[object] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, one_shot, results)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            one_shot.resolve(None, 7)
        assert one_shot.result() == 7


@OUTCOMES
def test_callbacks_are_called_once_in_order(error):
    calls: list[tuple[str, Exception | None]] = []

    def record(name: str, error: Exception | None) -> None:
        calls.append((name, error))

    one_shot = make()
    for name in ("first", "second", "third"):
        one_shot.call_back(partial(record, name))
    assert not calls
    one_shot.resolve(error)
    one_shot.call_back(partial(record, "late"))
    assert calls == [(name, error) for name in ("first", "second", "third", "late")]


@OUTCOMES
@pytest.mark.parametrize("is_early", [False, True], ids=["during the wait", "before the wait"])
def test_a_thread_gets_the_result(error, is_early):
    one_shot = make()
    if is_early:
        one_shot.resolve(error, 7)
    waiting = start(one_shot.get)
    if not is_early:
        one_shot.resolve(error, 7)
    assert waiting.exception(WAIT_LIMIT) is error
    if error is None:
        assert waiting.result() == 7


def test_a_thread_may_wait_for_a_limited_time_again_and_again():
    one_shot = make()
    for _ in range(2):
        assert not one_shot.join(0.01)
    one_shot.resolve(None, 7)
    for _ in range(2):
        assert one_shot.join(WAIT_LIMIT)
    assert one_shot.get() == 7
