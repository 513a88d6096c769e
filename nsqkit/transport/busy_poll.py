"""A vigil: where something comes soon after something else was answered, the event loop looks again, not sleeps.

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

BUSY_POLL_NS: Final = 100_000
"""How soon after an answer the next thing comes for a vigil to begin, and how long one lasts after each answer.

Measured, as the two below: docs/decisions/0016-busy-polling.md.
"""

WOKEN_NS: Final = 50_000
"""What a sleeper makes of that time: it sees what comes so much later."""

AGAIN_NS: Final = 2_000_000
"""How long after a vigil the next one begins only if even a sleeper was quick: vigils in vain are rare, then."""


class BusyPoll:
    """Keeps one event loop of asyncio's from sleeping, for moments.

    Args:
        loop: the event loop.
        clock: the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._came_ns = 0
        self._answered_ns = 0
        self._end_ns = 0
        self._over_ns = 0
        self._is_kept = False

    def keep(self, came_ns: int) -> None:
        """Take note of when something came that is answered now; to say the same again changes nothing."""
        if came_ns == self._came_ns:
            return
        self._came_ns = came_ns
        gap_ns = came_ns - self._answered_ns
        self._answered_ns = now_ns = self._clock.now_ns()
        if self._is_kept:
            self._end_ns = now_ns + BUSY_POLL_NS
        elif gap_ns < BUSY_POLL_NS or (
            gap_ns < BUSY_POLL_NS + WOKEN_NS and now_ns - self._over_ns > AGAIN_NS
        ):
            self._is_kept = True
            self._end_ns = now_ns + BUSY_POLL_NS
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        """Have another turn of the loop, which does not sleep before it."""
        now_ns = self._clock.now_ns()
        if now_ns < self._end_ns:
            self._loop.call_soon(self._look_again)
        else:
            self._is_kept = False
            self._over_ns = now_ns
