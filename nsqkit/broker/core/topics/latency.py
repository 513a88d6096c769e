"""How long messages take from publishing to finishing: percentiles over the last minutes, in little memory.

Memory does not grow with the number of messages. Latencies are counted in buckets, equally many between any two powers
of two. So a percentile has no error of rank, its value has an error of at most 1 part in 256, and counts of several
channels can be added without a further error.

A channel has a ``Latency`` if percentiles are configured; that of a topic is merged from its channels. Two counts
alternate every half window, and the older one is emptied when it is used again. So a result covers between a half and a
whole window, as in nsqd (internal/quantile). nsqd's sketch is another one: where both of its streams have messages, it
can be wrong by any number of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final

RANKS_ABOVE: Final = 2
"""A value is taken so many ranks above that of its percentile, if there are as many. nsqd's streams do so with up to a
hundred messages; of a few messages it is the greatest."""

_DIGITS: Final = 8
"""Leading binary digits of a latency that its bucket keeps."""

_TIMESTAMP: Final = Struct(">8xq").unpack_from  # of a message's frame: size, type, timestamp, …


class Latency:
    """The latencies of one channel's messages, or of all channels of a topic; percentiles are above 0 and up to 1."""

    def __init__(self, percentiles: Sequence[float], window_ns: int, now_ns: int) -> None:
        self._percentiles = percentiles
        self._half_window_ns = max(window_ns // 2, 1)
        self._turned_ns = now_ns
        self._current: Counter[int] = Counter()
        self._older: Counter[int] = Counter()

    def add_finished(self, frames: Iterable[bytes], now_ns: int) -> None:
        """Count messages that are finished now; the frames are those that were sent."""
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
        """Return the sum of one or more counts of the same window."""
        first = latencies[0]
        whole = cls(first._percentiles, 2 * first._half_window_ns, now_ns)
        for latency in latencies:
            latency._take_turns(now_ns)
            whole._current.update(latency._current)
            whole._older.update(latency._older)
        return whole

    def result(self, now_ns: int) -> dict[str, Any]:
        """Return the number of latencies and their percentiles, under the names of ``/stats``; 0 without latencies."""
        self._take_turns(now_ns)
        both = sorted((self._current + self._older).items())
        count = sum(number for _, number in both)
        percentiles = []
        for percentile in self._percentiles:
            rank = min(math.ceil(percentile * count) + RANKS_ABOVE, count)
            quantile = percentile if percentile < 1 else 1  # Go writes a whole number without a fraction
            percentiles.append({"quantile": quantile, "value": _at_rank(both, rank)})
        return {"count": count, "percentiles": percentiles}

    def _take_turns(self, now_ns: int) -> None:
        """Alternate the counts as often as is due."""
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
    """Return the latency in the middle of a bucket."""
    shift, digits = divmod(bucket, 1 << _DIGITS)
    return (digits << shift) + (1 << shift >> 1)
