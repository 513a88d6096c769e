"""An asyncio event loop without sockets, in which time jumps to the next timer as soon as nothing is ready.

The order in which ready callbacks run is asyncio's own, or one that a seed shuffles: code that depends on the order of
tasks fails in some worlds. Nothing but callbacks, tasks and timers works in it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from itertools import count
from random import Random
from typing import Any
from unittest import mock

import anyio._backends._asyncio as anyio_backend
import sniffio

from tests.simulation.driver.pace import Pace
from tests.simulation.driver.pipe import Pipe

START: float = 1_000_000.0
"""The first time of the loop: not near that of the real monotonic clock."""


class OrderedSet(dict[Any, None]):
    """A set that is iterated in the order of insertion, in each process the same."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop.

    Args:
        random: shuffles the callbacks that are ready; None for asyncio's order.

    Attributes:
        pace: counts its turns.
        faults: the errors that the loop's exception handler got.
    """

    def __init__(self, random: Random | None) -> None:
        super().__init__()
        self._now = START
        self._shuffle = None if random is None else random.shuffle
        # Tuples are compared in a tenth of the time of handles.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self.pace = Pace(self._coroutines)
        self.faults: list[str] = []
        self.set_exception_handler(self._record_fault)

    def _record_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _coroutines(self) -> Iterator[tuple[str, Any]]:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return ((task.get_name(), task.get_coro()) for task in tasks)

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it is due."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread calls this loop."""

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._jump()
        self.pace.turn()
        batch = list(ready)
        ready.clear()
        if self._shuffle is not None and len(batch) > 1:
            self._shuffle(batch)
        for handle in batch:
            if not handle._cancelled:
                handle._run()

    def _jump(self) -> None:
        """Move the time to the next timer, and make ready all that is due then."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            self.pace.fail("nothing is ready, and no timer is set")
            return
        self._now = max(self._now, timers[0][0])
        self.pace.jump(self._now)
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)  # type: ignore[attr-defined]

    def leftovers(self) -> list[str]:
        """Return the timers that are set and the tasks that have not ended, but for bytes on their way."""
        callbacks = [timer._callback for _, _, timer in self._timers if not timer.cancelled()]  # type: ignore[attr-defined]
        timers = [repr(each) for each in callbacks if not isinstance(getattr(each, "__self__", None), Pipe)]
        return timers + [name for name, _ in self._coroutines()]


@contextmanager
def _ordered_sets() -> Iterator[None]:
    """Have anyio iterate its sets of tasks and scopes in the order of insertion."""
    anyio_backend.set = OrderedSet  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del anyio_backend.set  # type: ignore[attr-defined]


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]], random: Random | None) -> VirtualLoop:
    """Run a coroutine in a new loop; return the loop, which is closed.

    Raises:
        Broken: the loop was never idle, or waited for ever.
    """
    loop = VirtualLoop(random)
    with _ordered_sets(), mock.patch.object(sniffio.thread_local, "name", "asyncio"):
        try:
            loop.run_until_complete(main(loop))
        finally:
            loop.close()
            if loop.pace.failure is not None:
                raise loop.pace.failure
    return loop
