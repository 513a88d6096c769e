"""The delays before reconnecting: exponential, with full jitter.

The jitter keeps clients from reconnecting at the same time after an outage. Each failure doubles the ceiling up to the
maximum; the delay is random, below the ceiling. After a useful connection the ceiling is the minimum again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


class Reconnect:
    """The delays of one address; ``delay_min_ns`` is the ceiling of the first one, ``delay_max_ns`` the highest."""

    def __init__(self, *, delay_min_ns: int, delay_max_ns: int, random: Random) -> None:
        self._delay_min_ns = delay_min_ns
        self._delay_max_ns = delay_max_ns
        self._random = random
        self.failure_count = 0

    def connected(self) -> None:
        """Record a useful connection."""
        self.failure_count = 0

    def next_delay_ns(self) -> int:
        """Record the end of a connection, or a failure to connect; return the delay before the next attempt."""
        # The bound of the exponent keeps the number small if an address is dead for long.
        ceiling_ns = min(self._delay_max_ns, self._delay_min_ns << min(self.failure_count, 64))
        self.failure_count += 1
        return self._random.randrange(ceiling_ns + 1)
