"""The pace of a world: turns of the event loop for each second of virtual time, and the tasks of a world that stands.

Time stands still while anything is ready to run. So a loop that never becomes idle would run for ever, and a world in
which nothing is ready and no timer is set would wait for ever. Both end the world, by ``on_failure``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import anyio

from tests.simulation.broken import Broken

TURNS_MAX: Final = 200_000
"""Turns of the event loop within one second of virtual time; most worlds need less than a hundredth of that."""


class Pace:
    """Counts the turns of one event loop.

    Attributes:
        turns: of the loop so far.
        failure: the error that ends the world.
        on_failure: called once when there is one; it cancels the world.
        on_idle: called when nothing is ready; the world ends with the ``Broken`` that it raises.
    """

    def __init__(self, coroutines: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        self.turns = 0
        self.failure: Broken | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self.on_idle: Callable[[], object] = lambda: None
        self._coroutines = coroutines
        self._second_end = 0.0
        self._turns_max = TURNS_MAX

    def jump(self, now: float) -> None:
        """Record that time has moved."""
        if self.failure is None:
            try:
                self.on_idle()
            except Broken as error:
                self.failure = error
                self.on_failure()
        if now >= self._second_end:
            self._second_end = now + 1
            self._turns_max = self.turns + TURNS_MAX

    def turn(self) -> None:
        """Record a turn."""
        self.turns += 1
        if self.turns > self._turns_max:
            self._turns_max += TURNS_MAX
            self.fail("the loop is never idle")

    def fail(self, reason: str) -> None:
        """End the world.

        Raises:
            Broken: it was to end before, and did not.
        """
        if self.failure is not None:
            raise self.failure
        waits = "; ".join(f"{name} in {place(coroutine)}" for name, coroutine in self._coroutines())
        self.failure = Broken(29, f"{reason}: {waits}")
        self.on_failure()


async def pass_time(seconds: float) -> None:
    """Return after so many seconds of virtual time, in which no test waits."""
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


def place(coroutine: Coroutine[Any, Any, Any] | None) -> str:
    """Return the functions in which a coroutine waits, the innermost last."""
    names = []
    inner: Any = coroutine
    while inner is not None:
        code = getattr(inner, "cr_code", None) or getattr(inner, "gi_code", None)
        if code is None:
            break
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        names.append(f"{code.co_qualname}:{frame.f_lineno if frame is not None else 0}")
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return " > ".join(names[-4:]) or "a callback"
