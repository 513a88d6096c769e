from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from nsqkit.clock import NS_PER_S, LoopClock, ManualClock
from nsqkit.transport.timer import Timer
from tests.peers import BACKENDS, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]

S = NS_PER_S


class Timetable:
    """Deadlines, and the times at which each was handled."""

    def __init__(self, *deadlines_ns: int) -> None:
        self.deadlines_ns = {*deadlines_ns}
        self.handled: list[int] = []
        self.calls: list[int] = []

    def next_deadline(self) -> int | None:
        return min(self.deadlines_ns, default=None)

    def handle_deadline(self, now_ns: int) -> None:
        self.calls.append(now_ns)
        self.handled += sorted(due_ns for due_ns in self.deadlines_ns if due_ns <= now_ns)
        self.deadlines_ns = {due_ns for due_ns in self.deadlines_ns if due_ns > now_ns}


@asynccontextmanager
async def running(timetable, clock, after=lambda now_ns: None) -> AsyncIterator[Timer]:
    timer = Timer(timetable, clock, after=after)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timer.run)
        await settle()
        yield timer
        tasks.cancel_scope.cancel()


async def test_deadline_is_handled_and_after_called():
    clock = ManualClock(0)
    timetable = Timetable(2 * S)
    seen: list[list[int]] = []
    async with running(timetable, clock, lambda _: seen.append([*timetable.handled])):
        clock.advance(1.999999999)
        await settle()
        assert timetable.calls == []
        clock.advance(0.000000001)
        await settle()
    assert timetable.calls == [2 * S]
    assert seen == [[2 * S]]


async def test_deadlines_are_handled_in_order():
    clock = ManualClock(0)
    timetable = Timetable(1 * S, 2 * S, 4 * S)
    async with running(timetable, clock):
        for _ in range(5):
            clock.advance(1)
            await settle()
    assert timetable.calls == [1 * S, 2 * S, 4 * S]


async def test_past_deadline_is_due_at_once():
    timetable = Timetable(5 * S, 7 * S)
    async with running(timetable, ManualClock(7 * S)):
        assert timetable.calls == [7 * S]
        assert timetable.handled == [5 * S, 7 * S]


async def test_deadline_by_real_clock():
    clock = LoopClock()
    timetable = Timetable(clock.now_ns() + 2_000_000)
    handled = anyio.Event()
    async with running(timetable, clock, lambda _: handled.set() if timetable.handled else None):
        with anyio.fail_after(60):
            await handled.wait()


async def test_timer_without_deadline_sleeps_until_check():
    clock = ManualClock(0)
    timetable = Timetable()
    async with running(timetable, clock) as timer:
        timer.check()
        timetable.deadlines_ns.add(1 * S)
        timer.check()
        await settle()
        assert timetable.calls == []
        clock.advance(1)
        await settle()
    assert timetable.calls == [1 * S]


async def test_earlier_deadline_wakes_timer():
    clock = ManualClock(0)
    timetable = Timetable(9 * S)
    async with running(timetable, clock) as timer:
        for due_ns in (3 * S, 1 * S, 2 * S):  # no other task runs between these checks
            timetable.deadlines_ns.add(due_ns)
            timer.check()
        await settle()
        for _ in range(3):
            clock.advance(1)
            await settle()
        assert timetable.calls == [1 * S, 2 * S, 3 * S]
        clock.advance(6)
        await settle()
    assert timetable.handled[-1] == 9 * S


async def test_postponed_deadline_is_read_again_once():
    clock = ManualClock(0)
    timetable = Timetable(1 * S)
    async with running(timetable, clock) as timer:
        timetable.deadlines_ns = {5 * S}
        timer.check()
        clock.advance(1)
        await settle()
        assert timetable.calls == [1 * S]
        assert timetable.handled == []
        clock.advance(4)
        await settle()
    assert timetable.handled == [5 * S]


async def test_after_can_set_new_deadline():
    clock = ManualClock(0)
    timetable = Timetable(1 * S)

    def after(now_ns: int) -> None:
        if clock.now_ns() == 1 * S:
            timetable.deadlines_ns.add(1 * S + 1)
            timetable.deadlines_ns.add(3 * S)
        timer.check()

    async with running(timetable, clock, after) as timer:
        clock.advance(1)
        await settle()
        clock.advance(1e-9)
        await settle()
        clock.advance(2)
        await settle()
    assert timetable.handled == [1 * S, 1 * S + 1, 3 * S]


@pytest.mark.parametrize("check_first", [True, False])
async def test_check_at_deadline_is_harmless(check_first):
    clock = ManualClock(0)
    timetable = Timetable(2 * S)
    async with running(timetable, clock) as timer:
        timetable.deadlines_ns.add(1 * S)
        if check_first:
            timer.check()
        clock.advance(2)
        timer.check()
        await settle()
        assert timetable.handled == [1 * S, 2 * S]
        timetable.deadlines_ns.add(3 * S)
        timer.check()
        await settle()
        clock.advance(1)
        await settle()
    assert timetable.handled == [1 * S, 2 * S, 3 * S]


async def test_check_before_and_after_run_is_harmless():
    clock = ManualClock(0)
    timetable = Timetable(1 * S)
    timer = Timer(timetable, clock, after=lambda now_ns: None)
    timer.check()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timer.run)
        timer.check()
        await settle()
        tasks.cancel_scope.cancel()
    timetable.deadlines_ns = {0}
    timer.check()
    await settle()
    assert timetable.calls == []


async def test_error_of_machine_is_raised():
    class Broken(Timetable):
        def handle_deadline(self, now_ns: int) -> None:
            raise RuntimeError("broken machine")

    with pytest.raises(RuntimeError, match="broken machine"):
        await Timer(Broken(1), ManualClock(1), after=lambda now_ns: None).run()


@pytest.mark.parametrize("seed", range(5))
async def test_random_deadlines_are_handled_in_time(seed):
    random = Random(seed)
    clock = ManualClock(0)
    timetable = Timetable()
    missed: list[int] = []
    async with running(timetable, clock) as timer:
        for _ in range(100):
            for _ in range(random.randrange(3)):
                timetable.deadlines_ns.add(clock.now_ns() + random.randrange(6) * S)
                timer.check()
                if random.random() < 0.3:
                    await anyio.lowlevel.checkpoint()
            if timetable.deadlines_ns and random.random() < 0.2:
                timetable.deadlines_ns.discard(random.choice(sorted(timetable.deadlines_ns)))
            await settle()
            clock.advance(random.choice([0, 1, 1, 2]))
            if random.random() < 0.5:
                timer.check()
            await settle()
            missed += [due_ns for due_ns in timetable.deadlines_ns if due_ns <= clock.now_ns()]
    assert missed == []
    assert timetable.handled
