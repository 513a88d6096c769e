"""How long messages take from publishing to finishing: percentiles over the last minutes, in little memory.

The rule it guards: memory does not grow with the number of messages, and what is told of n latencies is at most 1 part
in 256 away from one of them. Latencies are counted in buckets, as many between any two powers of two; so a percentile
has no error of rank, and counts can be added up without one.

How to read it: ``Latency`` is what a channel has if percentiles are wanted, and what is made of all channels for their
topic. Two counts take turns every half window, and the older one is emptied when its turn comes; so a result covers
between a half and a whole window, as in nsqd (nsqd, internal/quantile). Its sketch is another one: where both of its
streams have messages, it can be wrong by any number of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, TypedDict

RANKS_ABOVE: Final = 2
"""How far above a percentile's own rank its value is taken, if there is one: so much nsqd's streams are above it with
up to a hundred messages, which for a few of them means the greatest."""

_DIGITS: Final = 8
"""Leading binary digits of a latency that its bucket keeps."""

_TIMESTAMP: Final = Struct(">8xq").unpack_from  # of a message's frame: size, type, timestamp, …


class Percentile(TypedDict):
    """One percentile, under the names of ``/stats``."""

    quantile: float
    value: int


class LatencyStats(TypedDict):
    """The number of latencies and their percentiles; nsqd shows this object even where it measures nothing."""

    count: int
    percentiles: list[Percentile] | None


class Latency:
    """The latencies of one channel's messages, or of all channels of a topic.

    Args:
        percentiles: those that are wanted, above 0 and up to 1.
        window_ns: the time over which they are taken.
        now_ns: the time it is.
    """

    def __init__(self, percentiles: Sequence[float], window_ns: int, now_ns: int) -> None:
        self._percentiles = percentiles
        self._half_window_ns = max(window_ns // 2, 1)
        self._turned_ns = now_ns
        self._current: Counter[int] = Counter()
        self._older: Counter[int] = Counter()

    def add_finished(self, frames: Iterable[bytes], now_ns: int) -> None:
        """Count messages that are finished now, given as the frames in which they were sent."""
        self.add([now_ns - _TIMESTAMP(frame)[0] for frame in frames], now_ns)

    def add(self, latencies_ns: Iterable[int], now_ns: int) -> None:
        """Count latencies."""
        self._take_turns(now_ns)
        self._current.update(
            [
                ((shift := latency.bit_length() - _DIGITS) << _DIGITS) + (latency >> shift)
                if latency >> _DIGITS > 0
                else max(latency, 0)  # the clock may have been set back
                for latency in latencies_ns
            ]
        )

    @classmethod
    def merged(cls, latencies: Sequence[Latency], now_ns: int) -> Latency:
        """Return the latencies of all, of which there is at least one and which are of the same window."""
        first = latencies[0]
        whole = cls(first._percentiles, 2 * first._half_window_ns, now_ns)
        for latency in latencies:
            latency._take_turns(now_ns)
            whole._current.update(latency._current)
            whole._older.update(latency._older)
        return whole

    def result(self, now_ns: int) -> LatencyStats:
        """Return what there is to tell; of no latencies, the percentiles are 0."""
        self._take_turns(now_ns)
        both = sorted((self._current + self._older).items())
        count = sum(number for _, number in both)
        percentiles: list[Percentile] = []
        for percentile in self._percentiles:
            rank = min(math.ceil(percentile * count) + RANKS_ABOVE, count)
            quantile = percentile if percentile < 1 else 1  # Go writes a whole number without a fraction
            percentiles.append({"quantile": quantile, "value": _at_rank(both, rank)})
        return {"count": count, "percentiles": percentiles}

    def _take_turns(self, now_ns: int) -> None:
        """Let the counts take turns as often as is due."""
        turns = (now_ns - self._turned_ns - 1) // self._half_window_ns
        if turns <= 0:
            return
        self._turned_ns += turns * self._half_window_ns
        self._older = self._current if turns == 1 else Counter()
        self._current = Counter()


def _at_rank(counts: Iterable[tuple[int, int]], rank: int) -> int:
    """Return the latency of a rank from 1 on, given the sorted buckets and their counts; 0 if there are none."""
    for bucket, number in counts:
        rank -= number
        if rank <= 0:
            return _middle(bucket)
    return 0


def _middle(bucket: int) -> int:
    """Return the latency in the middle of those that a bucket is for."""
    shift, digits = divmod(bucket, 1 << _DIGITS)
    return (digits << shift) + (1 << shift >> 1)
