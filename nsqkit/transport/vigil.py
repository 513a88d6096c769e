"""A vigil: where something comes soon after something else, the event loop looks again rather than sleeps.

The rule it guards: whoever sends one thing after the other and waits for each answer does not wait for a sleeper. To
fall asleep and be woken takes longer than to answer, and no less processor time than to look again. What comes further
apart finds the loop as it always is.

How to read it: ``keep`` begins a vigil or makes it last, ``_look_again`` is each of its turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from nsqkit.clock import Clock

VIGIL_NS: Final = 100_000
"""How close upon each other two things come for a vigil to begin, and how long it lasts after the last of them.

Measured: docs/decisions/0016-the-broker-keeps-vigil.md.
"""


class Vigil:
    """Keeps one event loop of asyncio's from sleeping, for moments.

    Args:
        loop: the event loop.
        clock: the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._came_ns = 0
        self._end_ns = 0
        self._is_kept = False

    def keep(self, came_ns: int) -> None:
        """Take note of when something came last; to say the same again changes nothing."""
        if 0 < came_ns - self._came_ns < VIGIL_NS:
            self._end_ns = came_ns + VIGIL_NS
            if not self._is_kept:
                self._is_kept = True
                self._loop.call_soon(self._look_again)
        self._came_ns = came_ns

    def _look_again(self) -> None:
        """Have another turn of the loop, which does not sleep before it."""
        self._is_kept = self._clock.now_ns() < self._end_ns
        if self._is_kept:
            self._loop.call_soon(self._look_again)
