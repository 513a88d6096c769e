"""How long messages take from publishing to finishing: percentiles over the last minutes, in little memory.

The rule it guards: what nsqd would show for the same latencies (nsqd, internal/quantile), with memory that does not
grow with the number of messages. Latencies go into one of two streams, which take turns every half window: the older
one is emptied when its turn comes, so a result covers between a half and a whole window.

How to read it: ``Latency`` is what a channel has if percentiles are wanted. ``TargetedStream`` below is the sketch, of
the kind described in "Effective Computation of Biased Quantiles over Data Streams" by Cormode, Korn, Muthukrishnan and
Srivastava: a sorted list of samples, each of which stands for some latencies up to its own. Its error is one of rank:
what it gives as the percentile q of n latencies is at most ``2 * EPSILON * n + 2`` places away from the true one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, TypeAlias, TypedDict

EPSILON: Final = 0.01
"""The error that the sketch is made for, as a part of the number of latencies; nsqd's."""

BUFFER_SIZE: Final = 500
"""Latencies that are collected before they are worked into the sketch; nsqd's, since it decides what is exact."""

_TIMESTAMP: Final = Struct(">8xq").unpack_from  # of a message's frame: size, type, timestamp

_Sample: TypeAlias = tuple[int, float, float]
"""A latency; how many it stands for, itself included; how many more there may be between those before and it."""


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
        self._moved_ns = now_ns
        self._current = TargetedStream(percentiles)
        self._other = TargetedStream(percentiles)

    def add_finished(self, frames: Iterable[bytes], now_ns: int) -> None:
        """Take the latencies of messages that are finished now, given as the frames in which they were sent."""
        self.add([now_ns - _TIMESTAMP(frame)[0] for frame in frames], now_ns)

    def add(self, latencies_ns: Sequence[int], now_ns: int) -> None:
        """Take latencies."""
        self._move_window(now_ns)
        self._current.add(latencies_ns)

    def merge(self, other: Latency, now_ns: int) -> None:
        """Take the latencies that another has kept, which keeps them."""
        self._move_window(now_ns)
        other._move_window(now_ns)
        self._current.merge(other._current.samples())
        self._other.merge(other._other.samples())

    def result(self, now_ns: int) -> LatencyStats:
        """Return what there is to tell; of no latencies, the percentiles are 0."""
        self._move_window(now_ns)
        both = TargetedStream(self._percentiles)
        both.merge(self._other.samples())
        both.merge(self._current.samples())
        percentiles: list[Percentile] = [
            {"quantile": percentile, "value": both.query(percentile)} for percentile in self._percentiles
        ]
        return {"count": both.count, "percentiles": percentiles}

    def _move_window(self, now_ns: int) -> None:
        """Let the streams take turns as often as is due."""
        turns = (now_ns - self._moved_ns - 1) // self._half_window_ns
        if turns <= 0:
            return
        self._moved_ns += turns * self._half_window_ns
        if turns > 1:
            self._current.clear()
        self._current, self._other = self._other, self._current
        self._current.clear()


class TargetedStream:
    """A sketch of numbers from which some percentiles can be told.

    Args:
        percentiles: those that can be told.
    """

    def __init__(self, percentiles: Sequence[float]) -> None:
        self._percentiles = percentiles
        self._buffer: list[int] = []  # not yet among the samples
        self._samples: list[_Sample] = []
        self._width = 0.0  # of all samples: how many numbers they stand for

    @property
    def count(self) -> int:
        """How many numbers it was given."""
        return len(self._buffer) + int(self._width)

    def clear(self) -> None:
        """Forget all numbers."""
        self._buffer = []
        self._samples = []
        self._width = 0.0

    def add(self, values: Sequence[int]) -> None:
        """Take numbers."""
        self._buffer += values
        while len(self._buffer) >= BUFFER_SIZE:
            values, self._buffer = self._buffer[:BUFFER_SIZE], self._buffer[BUFFER_SIZE:]
            self._insert([(value, 1.0, 0.0) for value in sorted(values)])
            self._compress()

    def merge(self, samples: Iterable[_Sample]) -> None:
        """Take the samples of another stream."""
        self._insert(sorted(samples))

    def samples(self) -> list[_Sample]:
        """Return samples that stand for all numbers; few if there are many numbers."""
        buffered = [(value, 1.0, 0.0) for value in sorted(self._buffer)]
        if not self._samples:
            return buffered
        self._buffer = []
        self._insert(buffered)
        self._compress()
        return self._samples

    def query(self, percentile: float) -> int:
        """Return one of the percentiles; 0 if there are no numbers."""
        samples = self.samples()
        if not samples:
            return 0
        wanted = math.ceil(percentile * self._width)
        wanted += math.ceil(self._allowed_error(wanted) / 2)
        before = 0.0
        value, previous_width, _ = samples[0]
        for next_value, width, slack in samples[1:]:
            if before + width + slack > wanted:
                break
            before += previous_width
            value, previous_width = next_value, width
        return value

    def _insert(self, new: Iterable[_Sample]) -> None:
        """Work samples in, which are sorted."""
        old, merged = self._samples, []
        position, rank = 0, 0.0
        for value, width, _ in new:
            while position < len(old) and old[position][0] <= value:
                merged.append(old[position])
                rank += old[position][1]
                position += 1
            slack = self._allowed_error(rank) // 1 - 1 if position < len(old) else 0.0
            merged.append((value, width, slack))
            self._width += width
        self._samples = merged + old[position:]

    def _compress(self) -> None:
        """Let a sample stand for those before it, too, as far as the error allows."""
        kept: list[_Sample] = []
        value, width, slack = self._samples[-1]
        rank = self._width - 1 - width
        for sample in reversed(self._samples[:-1]):
            if sample[1] + width + slack <= self._allowed_error(rank):
                width += sample[1]
            else:
                kept.append((value, width, slack))
                value, width, slack = sample
            rank -= sample[1]
        kept.append((value, width, slack))
        self._samples = kept[::-1]

    def _allowed_error(self, rank: float) -> float:
        """Return how many numbers a sample at this rank may stand for; the fewer, the nearer to a percentile."""
        total = self._width
        allowed = math.inf
        for percentile in self._percentiles:
            if percentile * total <= rank:
                allowed = min(allowed, 2 * EPSILON * rank / percentile)
            elif percentile < 1:
                allowed = min(allowed, 2 * EPSILON * (total - rank) / (1 - percentile))
        return allowed
