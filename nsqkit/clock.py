"""Clocks: the only source of time in nsqkit.

A program has one clock, in integer nanoseconds since the Unix epoch. Drivers read it and pass the time to machines as
an argument. Every timeout follows it, so a test that controls the clock controls every timeout.

``LoopClock`` reads the wall clock once and then follows the event loop's time. So it never goes back, and trio's
autojumping test clock moves it. ``ManualClock`` moves only when a test calls ``advance``.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """A source of time."""

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        ...

    async def wait_until(self, deadline_ns: int) -> None:
        """Return at ``deadline_ns``, or a rounding error before it."""
        ...

    def cancel_at(self, scope: anyio.CancelScope, deadline_ns: int | None) -> None:
        """Cancel ``scope`` at ``deadline_ns``; None for never. A later call for the same scope replaces the time."""
        ...


class LoopClock:
    """The real time, as the running event loop measures it. Create it in that event loop."""

    def __init__(self) -> None:
        self._loop_time = _loop_time()
        # asyncio's loops use the monotonic clock; reading it directly takes a twentieth of the time.
        is_monotonic = abs(self._loop_time() - time.monotonic()) < 0.1
        self._elapsed_ns = time.monotonic_ns if is_monotonic else self._loop_time_ns
        self._anchor_ns = time.time_ns() - self._elapsed_ns()

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        return self._anchor_ns + self._elapsed_ns()

    async def wait_until(self, deadline_ns: int) -> None:
        """Return at ``deadline_ns``, or a rounding error before it."""
        # Event loops wait for whole milliseconds. Rounded up, a wait is seldom too short; callers read the clock again.
        await anyio.sleep(max(math.ceil((deadline_ns - self.now_ns()) / 1e6), 0) / 1e3)

    def cancel_at(self, scope: anyio.CancelScope, deadline_ns: int | None) -> None:
        """Cancel ``scope`` at ``deadline_ns``; None for never. A later call for the same scope replaces the time."""
        left = math.inf if deadline_ns is None else (deadline_ns - self.now_ns()) / NS_PER_S
        scope.deadline = self._loop_time() + left

    def _loop_time_ns(self) -> int:
        return int(self._loop_time() * NS_PER_S)


def _loop_time() -> Callable[[], float]:
    """Return the function that reads the running event loop's time: in tasks, in callbacks and in other threads."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        import trio

        return trio.lowlevel.current_clock().current_time


class ManualClock:
    """A clock that moves only when ``advance`` is called.

    Args:
        start_ns: the first time it shows, in ns; by default 2024-01-01, so that runs are repeatable.

    Call ``advance`` in the event loop that waits for the clock.
    """

    def __init__(self, start_ns: int = 1_704_067_200 * NS_PER_S) -> None:
        self._now_ns = start_ns
        self._waiters: dict[anyio.Event, int] = {}
        self._scopes: WeakKeyDictionary[anyio.CancelScope, int] = WeakKeyDictionary()

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and wake or cancel everything that is due.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock advances by 0 seconds or more, not by {seconds}")
        self._now_ns += round(seconds * NS_PER_S)
        for event, deadline_ns in self._waiters.items():
            if deadline_ns <= self._now_ns:
                event.set()
        self._cancel_due()

    async def wait_until(self, deadline_ns: int) -> None:
        """Return at ``deadline_ns`` or later."""
        if deadline_ns <= self._now_ns:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        self._waiters[event] = deadline_ns
        try:
            await event.wait()
        finally:
            del self._waiters[event]

    def cancel_at(self, scope: anyio.CancelScope, deadline_ns: int | None) -> None:
        """Cancel ``scope`` at ``deadline_ns``; None for never. A later call for the same scope replaces the time."""
        if deadline_ns is None:
            self._scopes.pop(scope, None)
        else:
            self._scopes[scope] = deadline_ns
            self._cancel_due()

    def _cancel_due(self) -> None:
        due = [scope for scope, deadline_ns in self._scopes.items() if deadline_ns <= self._now_ns]
        for scope in due:
            del self._scopes[scope]
            scope.cancel()


@contextmanager
def move_on_after(clock: Clock, seconds: float | None, *, shield: bool = False) -> Iterator[anyio.CancelScope]:
    """Cancel the block after ``seconds`` of ``clock``, as ``anyio.move_on_after`` does by the event loop's time.

    Args:
        clock: the time.
        seconds: the limit; None for no limit.
        shield: protect the block from cancellation from outside.

    Yields:
        The scope of the block; its ``cancelled_caught`` is True afterwards if the limit ended the block.
    """
    with anyio.CancelScope(shield=shield) as scope:
        clock.cancel_at(scope, None if seconds is None else clock.now_ns() + round(seconds * NS_PER_S))
        try:
            yield scope
        finally:
            clock.cancel_at(scope, None)
