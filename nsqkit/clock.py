"""Where the time comes from.

The rule it guards: there is one clock in a program, in integer nanoseconds since the Unix epoch, and nobody but the
pumps and alarms asks it; machines are told. A test that owns the clock therefore owns every timeout.

``LoopClock`` is anchored once on the wall clock and then follows the event loop's own time, so it never goes back
and trio's autojumping test clock moves it as well. ``ManualClock`` moves when a test says so.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Tells the time, and waits for it."""

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        ...

    async def wait_until(self, deadline_ns: int) -> None:
        """Return when the clock shows ``deadline_ns``, or a rounding error before it."""
        ...


class LoopClock:
    """The real time, as the running event loop measures it.

    To be made inside the event loop.
    """

    def __init__(self) -> None:
        # asyncio's loops run on the monotonic clock; asking that directly takes a twentieth of the time.
        is_monotonic = abs(anyio.current_time() - time.monotonic()) < 0.1
        self._elapsed_ns = time.monotonic_ns if is_monotonic else _loop_time_ns()
        self._anchor_ns = time.time_ns() - self._elapsed_ns()

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        return self._anchor_ns + self._elapsed_ns()

    async def wait_until(self, deadline_ns: int) -> None:
        """Return when the clock shows ``deadline_ns``, or a rounding error before it."""
        # Event loops wait for whole milliseconds. Rounded up, a wait is seldom short of its time; and whoever waits
        # looks at the time again.
        await anyio.sleep(max(math.ceil((deadline_ns - self.now_ns()) / 1e6), 0) / 1e3)


def _loop_time_ns() -> Callable[[], int]:
    """Return what tells the running event loop's time, in tasks and in callbacks."""
    try:
        # Outside of a task, anyio does not know that asyncio runs, unless anyio has started it.
        loop_time = asyncio.get_running_loop().time
    except RuntimeError:
        loop_time = anyio.current_time
    return lambda: int(loop_time() * NS_PER_S)


class ManualClock:
    """A clock that stands until it is moved.

    Args:
        start_ns: the first time it shows; by default 2024-01-01, so that runs are alike.

    Its waiters run in the event loop that waits; ``advance`` is to be called there, too.
    """

    def __init__(self, start_ns: int = 1_704_067_200 * NS_PER_S) -> None:
        self._now_ns = start_ns
        self._waiters: dict[anyio.Event, int] = {}

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move the clock and wake those whose time has come.

        Raises:
            ValueError: the way back is closed.
        """
        if seconds < 0:
            raise ValueError(f"a clock advances by 0 seconds or more, not by {seconds}")
        self._now_ns += round(seconds * NS_PER_S)
        for event, deadline_ns in self._waiters.items():
            if deadline_ns <= self._now_ns:
                event.set()

    async def wait_until(self, deadline_ns: int) -> None:
        """Return when the clock shows ``deadline_ns`` or later."""
        if deadline_ns <= self._now_ns:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        self._waiters[event] = deadline_ns
        try:
            await event.wait()
        finally:
            del self._waiters[event]


async def wait_at_most(clock: Clock, seconds: float | None, wait: Callable[[], Awaitable[object]]) -> bool:
    """Await ``wait()`` for at most some seconds of a clock; tell whether it has returned.

    Args:
        clock: the time.
        seconds: how long; None for as long as it takes.
        wait: what is awaited; it is cancelled when the time is over, and what it raises is raised.
    """
    if seconds is None:
        await wait()
        return True
    deadline_ns = clock.now_ns() + round(seconds * NS_PER_S)
    outcome: list[Exception | None] = []

    async def finish() -> None:
        try:
            await wait()
        except Exception as error:
            outcome.append(error)
        else:
            outcome.append(None)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        await clock.wait_until(deadline_ns)
        tasks.cancel_scope.cancel()
    if outcome and outcome[0] is not None:
        raise outcome[0]
    return bool(outcome)
