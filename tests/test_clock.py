from __future__ import annotations

import asyncio
import time

import anyio
import pytest

from nsqkit.clock import NS_PER_S, LoopClock, ManualClock, move_on_after
from tests.peers import BACKENDS, settle

pytestmark = pytest.mark.anyio
on_both = pytest.mark.parametrize("anyio_backend", BACKENDS)


async def waiter(clock, deadline_ns, log, name):
    await clock.wait_until(deadline_ns)
    log.append(name)


@on_both
class TestLoopClock:
    async def test_loop_clock_starts_at_wall_clock(self):
        assert abs(LoopClock().now_ns() - time.time_ns()) < NS_PER_S

    async def test_loop_clock_follows_event_loop_time(self):
        clock = LoopClock()
        before_ns, before = clock.now_ns(), anyio.current_time()
        await clock.wait_until(before_ns + 3_000_000)
        passed_ns = clock.now_ns() - before_ns
        assert passed_ns == pytest.approx((anyio.current_time() - before) * NS_PER_S, abs=NS_PER_S / 1000)
        assert passed_ns >= 2_900_000

    async def test_loop_clock_can_be_read_in_another_thread(self):
        clock = LoopClock()
        before_ns = clock.now_ns()
        read_ns = await anyio.to_thread.run_sync(clock.now_ns)
        assert before_ns <= read_ns <= clock.now_ns()

    async def test_two_waits_reach_any_deadline_exactly(self, anyio_backend):
        # One wait may end a rounding error too early. trio's test clock stands still here until all tasks wait, so a
        # third wait would not end.
        clock = LoopClock()
        real = anyio_backend == "asyncio"
        for n in range(1, 5 if real else 500):
            deadline_ns = clock.now_ns() + n * (100_003 if real else 123_456_789)
            await clock.wait_until(deadline_ns)
            assert clock.now_ns() > deadline_ns - 1000
            if clock.now_ns() < deadline_ns:
                await clock.wait_until(deadline_ns)
            assert clock.now_ns() >= deadline_ns
            assert real or clock.now_ns() < deadline_ns + 2_000_000

    async def test_wait_for_past_yields_and_returns(self):
        log: list[str] = []
        clock = LoopClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.lowlevel.checkpoint)
            await waiter(clock, clock.now_ns() - NS_PER_S, log, "past")
        assert log == ["past"]


class Ahead(asyncio.SelectorEventLoop):
    """An event loop whose time is not the monotonic clock's."""

    def time(self) -> float:
        return super().time() + 1000


def test_clock_can_be_read_in_callbacks():
    async def ask_in_callback() -> tuple[int, int]:
        clock = LoopClock()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        loop.call_soon(lambda: answer.set_result(clock.now_ns()))
        return clock.now_ns(), await answer

    with asyncio.Runner(loop_factory=Ahead) as runner:
        in_task_ns, in_callback_ns = runner.run(ask_in_callback())
    assert 0 <= in_callback_ns - in_task_ns < NS_PER_S


@on_both
class TestManualClock:
    async def test_manual_clock_stands_still(self):
        clock = ManualClock(7)
        await anyio.lowlevel.checkpoint()
        assert clock.now_ns() == 7

    async def test_manual_clock_starts_at_fixed_time(self):
        assert time.gmtime(ManualClock().now_ns() // NS_PER_S)[:6] == (2024, 1, 1, 0, 0, 0)

    async def test_advance_moves_clock(self):
        clock = ManualClock(0)
        clock.advance(1.5)
        clock.advance(0)
        clock.advance(1e-9)
        assert clock.now_ns() == 1_500_000_001

    async def test_advance_refuses_negative_seconds(self):
        clock = ManualClock(5)
        with pytest.raises(ValueError, match=r"by 0 seconds or more, not by -0\.1"):
            clock.advance(-0.1)
        assert clock.now_ns() == 5

    async def test_advance_wakes_due_waiters_only(self):
        clock = ManualClock(0)
        log: list[int] = []
        async with anyio.create_task_group() as tasks:
            for second in (3, 1, 2):
                tasks.start_soon(waiter, clock, second * NS_PER_S, log, second)
            await settle()
            clock.advance(0.999)
            await settle()
            assert log == []
            clock.advance(0.001)
            await settle()
            assert log == [1]
            clock.advance(9)
            await settle()
            assert sorted(log) == [1, 2, 3]

    async def test_wait_for_now_or_past_returns(self):
        clock = ManualClock(100)
        log: list[str] = []
        await waiter(clock, 100, log, "present")
        await waiter(clock, 99, log, "past")
        assert log == ["present", "past"]

    async def test_cancelled_wait_is_forgotten(self):
        clock = ManualClock(0)
        with anyio.move_on_after(0.001):
            await clock.wait_until(10)
        assert clock._waiters == {}
        async with anyio.create_task_group() as tasks:
            log: list[str] = []
            tasks.start_soon(waiter, clock, 10, log, "other")
            await settle()
            clock.advance(1)
        assert log == ["other"]


class TestMoveOnAfter:
    async def test_block_that_ends_in_time_is_not_cancelled(self):
        clock = ManualClock()
        for seconds in (5, None):
            with move_on_after(clock, seconds) as scope:
                await settle()
            assert not scope.cancelled_caught
        assert not clock._scopes

    async def test_block_is_cancelled_at_its_limit(self):
        clock = ManualClock()
        cancelled: list[bool] = []

        async def wait() -> None:
            with move_on_after(clock, 5) as scope:
                await anyio.sleep_forever()
            cancelled.append(scope.cancelled_caught)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settle()
            clock.advance(4.9)
            await settle()
            assert cancelled == []
            clock.advance(0.1)
        assert cancelled == [True]

    @pytest.mark.parametrize("clock_of", [LoopClock, ManualClock])
    async def test_elapsed_limit_cancels_at_first_checkpoint(self, clock_of):
        with move_on_after(clock_of(), 0) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught

    async def test_shielded_block_is_cancelled_by_its_limit_only(self):
        clock = ManualClock()
        with anyio.CancelScope() as outer:
            outer.cancel()
            with move_on_after(clock, 5, shield=True) as scope:
                await settle()
                clock.advance(5)
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    async def test_later_deadline_replaces_first(self):
        clock = ManualClock(0)
        with anyio.CancelScope() as scope:
            clock.cancel_at(scope, 10)
            clock.cancel_at(scope, 20)
            clock.advance(15e-9)
            await settle()
            clock.cancel_at(scope, None)
            clock.advance(15e-9)
            await settle()
        assert not scope.cancelled_caught
