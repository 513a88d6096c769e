"""trio with a clock that jumps to the next deadline as soon as nothing is ready, and with an order from a seed.

trio runs the tasks of a turn in a random order. Here they are sorted by their age, and shuffled by the seed or not at
all. The callbacks of the network are called between two turns.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from tests.simulation.driver.pace import Pace


class VirtualTrio(trio.abc.Instrument):
    """The time of one run of trio, and the functions that are due at some time.

    Attributes:
        pace: counts its turns.
        faults: none; asyncio's loop has some.
    """

    def __init__(self) -> None:
        # trio has no public way to make another clock jump, and no subclass of this one.
        self.clock = MockClock(autojump_threshold=0)
        self.clock._autojump = self._jump  # type: ignore[method-assign]
        self.pace = Pace(self._coroutines)
        self.faults: list[str] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def time(self) -> float:
        return self.clock.current_time()

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), callback))

    def after_io_wait(self, timeout: float) -> None:
        self.pace.turn()

    def _jump(self) -> None:
        timers = self._timers
        runner: Any = trio_run.GLOBAL_RUN_CONTEXT.runner
        deadline = runner.deadlines.next_deadline()
        when = timers[0][0] if timers else math.inf
        if min(deadline, when) == math.inf:
            self.pace.fail("nothing is ready, and no deadline is set")
            return
        self.clock.jump(max(min(deadline, when) - self.time(), 0))
        now = self.time()
        self.pace.jump(now)
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2]()

    def leftovers(self) -> list[str]:
        """Return nothing: trio ends only when all tasks have ended."""
        return []

    def _coroutines(self) -> Iterator[tuple[str, Any]]:
        root = trio.lowlevel.current_root_task()
        left = [root] if root is not None else []
        while left:
            task = left.pop()
            yield task.name, task.coro
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


class _InOrder:
    def shuffle(self, tasks: list[Any]) -> None:
        """Put the oldest task last, from where trio takes the next one."""
        tasks.reverse()


@contextmanager
def _ordered(random: Random | None) -> Iterator[None]:
    module: Any = trio_run
    before = module._ALLOW_DETERMINISTIC_SCHEDULING, module._r
    module._ALLOW_DETERMINISTIC_SCHEDULING, module._r = True, random or _InOrder()
    try:
        yield
    finally:
        module._ALLOW_DETERMINISTIC_SCHEDULING, module._r = before


def run(main: Callable[[VirtualTrio], Coroutine[Any, Any, None]], random: Random | None) -> VirtualTrio:
    """Run a coroutine; return the time that it ran in.

    Raises:
        Broken: the loop was never idle, or waited for ever.
    """
    loop = VirtualTrio()
    with _ordered(random):
        try:
            trio.run(main, loop, clock=loop.clock, instruments=[loop])
        finally:
            if loop.pace.failure is not None:
                raise loop.pace.failure
    return loop
