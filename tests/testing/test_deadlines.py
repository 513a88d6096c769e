from __future__ import annotations

import asyncio

import anyio
import pytest

from nsqkit.clock import NS_PER_S
from nsqkit.testing.deadlines import LoopDeadlines, running_loop


class Time:
    """A clock that shows the attribute ``ns``."""

    def __init__(self, *, stands: bool = True) -> None:
        self.ns = 0
        self.stands = stands

    def now_ns(self) -> int:
        return self.ns


@pytest.mark.anyio
async def test_scope_is_cancelled_when_the_clock_has_moved_and_turns_are_started() -> None:
    time = Time()
    deadlines = LoopDeadlines(running_loop(), time)
    with anyio.CancelScope() as scope:
        deadlines.set(scope, 5)
        assert deadlines.next_deadline(4) == 5
        assert deadlines.next_deadline(5) is None
        time.ns = 5
        done = deadlines.start_turns()
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert deadlines.next_deadline(-1) is None
    assert done is not None
    assert await anyio.to_thread.run_sync(done.wait, 60)


@pytest.mark.anyio
async def test_scope_of_a_running_clock_is_cancelled_at_its_time() -> None:
    deadlines = LoopDeadlines(running_loop(), Time(stands=False))
    with anyio.CancelScope() as scope:
        deadlines.set(scope, 1_000_000)
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_removed_scope_is_not_cancelled() -> None:
    time = Time(stands=False)
    deadlines = LoopDeadlines(running_loop(), time)
    with anyio.CancelScope() as scope:
        deadlines.set(scope, NS_PER_S)
        deadlines.remove(scope)
        deadlines.remove(scope)
        assert scope.deadline == float("inf")
        time.ns = NS_PER_S
        deadlines.apply()
        await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


@pytest.mark.anyio
async def test_scope_that_is_gone_is_forgotten() -> None:
    deadlines = LoopDeadlines(running_loop(), Time())
    deadlines.set(anyio.CancelScope(), 5)
    assert deadlines.next_deadline(0) is None


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_loop_that_has_ended_needs_no_turns(backend: str) -> None:
    async def make() -> LoopDeadlines:
        deadlines = LoopDeadlines(running_loop(), Time())
        assert deadlines.is_running
        assert not deadlines.has_ended
        return deadlines

    deadlines = anyio.run(make, backend=backend)
    assert deadlines.has_ended
    assert deadlines.start_turns() is None


def test_loop_between_two_runs_is_not_running() -> None:
    async def make() -> LoopDeadlines:
        return LoopDeadlines(running_loop(), Time())

    with asyncio.Runner() as runner:
        deadlines = runner.run(make())
        assert not deadlines.is_running
        assert not deadlines.has_ended
        turns = deadlines.start_turns()
        assert turns is not None
        assert not turns.is_set()
        assert deadlines.start_turns() is turns
        runner.run(anyio.to_thread.run_sync(turns.wait))


def test_outside_of_an_event_loop_there_is_none() -> None:
    with pytest.raises(RuntimeError):
        running_loop()
