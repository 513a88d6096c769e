"""When to dial again: exponential delays with full jitter.

The rule it guards: after an outage, clients do not come back together. Each failure doubles the ceiling, up to the
maximum, and the delay is drawn at random below it; a connection that was of use starts again from the minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


class Reconnect:
    """The delays of one address.

    Args:
        delay_min_ns: the ceiling of the first delay.
        delay_max_ns: the ceiling of all.
        random: draws the delays.
    """

    __slots__ = ("_delay_max_ns", "_delay_min_ns", "_random", "failure_count")

    def __init__(self, *, delay_min_ns: int, delay_max_ns: int, random: Random) -> None:
        self._delay_min_ns = delay_min_ns
        self._delay_max_ns = delay_max_ns
        self._random = random
        self.failure_count = 0

    def connected(self) -> None:
        """Say that there was a connection that was of use."""
        self.failure_count = 0

    def next_delay_ns(self) -> int:
        """Say that a connection failed or ended; return how long to wait before the next."""
        # The exponent is bounded, or the number would grow for as long as an address is dead.
        ceiling_ns = min(self._delay_max_ns, self._delay_min_ns << min(self.failure_count, 64))
        self.failure_count += 1
        return self._random.randrange(ceiling_ns + 1)
