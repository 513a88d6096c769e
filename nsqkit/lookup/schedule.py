"""When an nsqlookupd is asked next.

The rule it guards: clients do not ask together. The first question is asked at once; after an answer the wait is the
interval and, drawn afresh each time, a random part of ``jitter`` times the interval. After a failure it is asked
again sooner: the wait doubles from one second up to the interval, and at least half of it is waited, at random.
Somebody who has lost a connection may want an answer earlier (``wake``); they get it at once if the last one is a
second old, else a second after it, each with a little jitter, since many have lost a connection to the same nsqd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

__all__ = ["PollSchedule"]

_SECOND_NS: Final = 1_000_000_000

GAP_NS: Final = _SECOND_NS
"""The first wait after a failure, and the least time between two questions that are not due."""


class PollSchedule:
    """The times at which one nsqlookupd is asked.

    Args:
        interval_ns: the time between an answer and the next question, without jitter.
        jitter: 0 to 1, how much of the interval is added to it at most.
        random: draws the jitter.
        now_ns: the time it is, at which the first question is due.

    Attributes:
        next_poll_ns: when the next question is due.
        failure_count: how many questions in a row had no good answer.
    """

    __slots__ = (
        "_gap_ns",
        "_interval_ns",
        "_is_asking",
        "_jitter",
        "_last_ns",
        "_random",
        "_woken",
        "failure_count",
        "next_poll_ns",
    )

    def __init__(self, *, interval_ns: int, jitter: float, random: Random, now_ns: int) -> None:
        self._interval_ns = interval_ns
        self._gap_ns = min(GAP_NS, interval_ns)
        self._jitter = jitter
        self._random = random
        self._last_ns = now_ns - self._gap_ns
        self._is_asking = False
        self._woken = False
        self.next_poll_ns = now_ns
        self.failure_count = 0

    def begin(self) -> None:
        """Say that it is being asked."""
        self._is_asking = True

    def answered(self, now_ns: int) -> None:
        """Say that it has given a good answer."""
        self.failure_count = 0
        self._end(now_ns, self._interval_ns + self._part_of(self._interval_ns))

    def failed(self, now_ns: int) -> None:
        """Say that it has given none."""
        # The exponent is bounded, or the number would grow for as long as the nsqlookupd is down.
        ceiling_ns = min(self._interval_ns, self._gap_ns << min(self.failure_count, 32))
        self.failure_count += 1
        self._end(now_ns, ceiling_ns - self._random.randrange(ceiling_ns // 2 + 1))

    def wake(self, now_ns: int) -> None:
        """Say that an answer is wanted before it is due; one that is under way may be too old to count."""
        if self._is_asking:
            self._woken = True
            return
        soonest_ns = max(now_ns, self._last_ns + self._gap_ns) + self._part_of(self._gap_ns)
        self.next_poll_ns = min(self.next_poll_ns, soonest_ns)

    def _end(self, now_ns: int, wait_ns: int) -> None:
        self._is_asking = False
        self._last_ns = now_ns
        self.next_poll_ns = now_ns + wait_ns
        if self._woken:
            self._woken = False
            self.wake(now_ns)

    def _part_of(self, duration_ns: int) -> int:
        return int(self._random.random() * self._jitter * duration_ns)
