"""The times of the requests to one nsqlookupd.

Random waits keep many clients from sending their requests at the same time. The first request is sent at once. After a
response the wait is the interval plus a random part of ``jitter`` times the interval. After a failure the wait doubles,
from one second up to the interval, minus a random part of up to a half. A client that has lost a connection to an nsqd
calls ``wake`` for an earlier request: at once if the last one was at least a second ago, else a second after it, each
plus a little jitter, since many clients may have lost their connection to the same nsqd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

_SECOND_NS: Final = 1_000_000_000

GAP_NS: Final = _SECOND_NS
"""The first wait after a failure, and the minimum time before a request for which ``wake`` was called."""


class PollSchedule:
    """The schedule of one nsqlookupd.

    Args:
        interval_ns: the time between a response and the next request, without jitter.
        jitter: the part of the interval, 0 to 1, up to which jitter is added.
        now_ns: the time of the first request.

    Attributes:
        next_poll_ns: the time of the next request.
        failure_count: the number of failed requests since the last response.
    """

    def __init__(self, *, interval_ns: int, jitter: float, random: Random, now_ns: int) -> None:
        self._interval_ns = interval_ns
        self._gap_ns = min(GAP_NS, interval_ns)
        self._jitter = jitter
        self._random = random
        self._last_ns = now_ns - self._gap_ns
        self._is_polling = False
        self._woken = False
        self.next_poll_ns = now_ns
        self.failure_count = 0

    def begin(self) -> None:
        self._is_polling = True

    def answered(self, now_ns: int) -> None:
        """Record a successful response, and schedule the next request."""
        self.failure_count = 0
        self._end(now_ns, self._interval_ns + self._draw_jitter(self._interval_ns))

    def failed(self, now_ns: int) -> None:
        """Record a failure, and schedule the next request."""
        # The bound of the exponent keeps the number small if the nsqlookupd is down for long.
        ceiling_ns = min(self._interval_ns, self._gap_ns << min(self.failure_count, 32))
        self.failure_count += 1
        self._end(now_ns, ceiling_ns - self._random.randrange(ceiling_ns // 2 + 1))

    def wake(self, now_ns: int) -> None:
        """Send the next request earlier; a response to a request that is under way may be out of date already."""
        if self._is_polling:
            self._woken = True
            return
        soonest_ns = max(now_ns, self._last_ns + self._gap_ns) + self._draw_jitter(self._gap_ns)
        self.next_poll_ns = min(self.next_poll_ns, soonest_ns)

    def _end(self, now_ns: int, wait_ns: int) -> None:
        self._is_polling = False
        self._last_ns = now_ns
        self.next_poll_ns = now_ns + wait_ns
        if self._woken:
            self._woken = False
            self.wake(now_ns)

    def _draw_jitter(self, duration_ns: int) -> int:
        return int(self._random.random() * self._jitter * duration_ns)
