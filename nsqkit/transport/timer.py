"""A timer that calls a machine at its next deadline.

It sleeps until the earliest deadline instead of scanning. After anything that may have set an earlier deadline,
``check`` compares two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from nsqkit.transport.interrupts import without_interrupts

if TYPE_CHECKING:
    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Timed

_NEVER_NS = 1 << 100


class Timer:
    """Calls ``handle_deadline`` of one machine, then ``after`` with the time, to act on the machine's events."""

    def __init__(self, timed: Timed, clock: Clock, *, after: Callable[[int], None]) -> None:
        self._timed = timed
        self._clock = clock
        self._after = after
        self._armed_ns = _NEVER_NS
        self._sleep: anyio.CancelScope | None = None

    def check(self) -> None:
        """Wake up earlier if there is an earlier deadline now."""
        deadline_ns = self._timed.next_deadline()
        if deadline_ns is not None and deadline_ns < self._armed_ns and self._sleep is not None:
            self._armed_ns = deadline_ns
            self._sleep.cancel()

    async def run(self) -> None:
        """Handle deadlines until cancelled."""
        await without_interrupts(self._handle_deadlines)

    async def _handle_deadlines(self) -> None:
        while True:
            deadline_ns = self._timed.next_deadline()
            self._armed_ns = _NEVER_NS if deadline_ns is None else deadline_ns
            with anyio.CancelScope() as self._sleep:
                if deadline_ns is None:
                    await anyio.sleep_forever()
                else:
                    await self._clock.wait_until(deadline_ns)
                self._sleep = None
                now_ns = self._clock.now_ns()
                self._timed.handle_deadline(now_ns)
                self._after(now_ns)
