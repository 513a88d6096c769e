"""The alarm: calls a machine when its next deadline has come.

The rule it guards: one exact timer for each thing that keeps time, not a scan. The alarm sleeps until the earliest
deadline; whoever may have made an earlier one calls ``check``, which compares two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Timed

_NEVER_NS = 1 << 100


class Timer:
    """Keeps the deadlines of one machine.

    Args:
        timed: whose deadlines they are.
        clock: the time they are in.
        after: called after each ``handle_deadline``, to act on what happened there.
    """

    def __init__(self, timed: Timed, clock: Clock, *, after: Callable[[], None]) -> None:
        self._timed = timed
        self._clock = clock
        self._after = after
        self._armed_ns = _NEVER_NS
        self._sleep: anyio.CancelScope | None = None

    def check(self) -> None:
        """Wake up earlier if there is a deadline before the one that is slept for."""
        deadline_ns = self._timed.next_deadline()
        if deadline_ns is not None and deadline_ns < self._armed_ns and self._sleep is not None:
            self._armed_ns = deadline_ns
            self._sleep.cancel()

    async def run(self) -> None:
        """Keep the deadlines until cancelled."""
        while True:
            deadline_ns = self._timed.next_deadline()
            self._armed_ns = _NEVER_NS if deadline_ns is None else deadline_ns
            with anyio.CancelScope() as self._sleep:
                if deadline_ns is None:
                    await anyio.sleep_forever()
                else:
                    await self._clock.wait_until(deadline_ns)
                self._sleep = None
                self._timed.handle_deadline(self._clock.now_ns())
                self._after()
