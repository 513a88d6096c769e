"""Message ids: 64 bits in 16 hexadecimal digits, ascending within one topic.

    (time in ns >> 20) - epoch : 42 bits | node id : 10 bits | sequence : 12 bits       (nsqd/guid.go)

The rule it guards: an id is never given twice. Where nsqd sleeps because the 4096 ids of one tick (about 1 ms) are
used up, or refuses because the clock went back, this takes the next tick early: it has no clock to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

EPOCH_TICKS = 1288834974288
SEQUENCE_LENGTH = 4096

_PREFIX_MASK = (1 << 52) - 1  # a time before the epoch (a test's clock may show it) wraps, as Go's numbers do
_SUFFIXES = tuple(b"%03x" % sequence for sequence in range(SEQUENCE_LENGTH))


Run: TypeAlias = tuple[bytes, Sequence[bytes]]
"""Ids that begin alike: what they begin with, and how each of them goes on."""


class GuidFactory:
    """Gives the ids of one topic.

    Args:
        node_id: 0 to 1023, the broker's ``--node-id``.
    """

    __slots__ = ("_node_id", "_prefix", "_sequence", "_tick")

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._sequence = 0
        self._begin(0)

    def take(self, count: int, now_ns: int) -> list[Run]:
        """Return the next ``count`` ids: a run for each tick that they need."""
        tick = now_ns >> 20
        if tick > self._tick:
            self._begin(tick)
        runs: list[Run] = []
        while (end := self._sequence + count) > SEQUENCE_LENGTH:
            if rest := _SUFFIXES[self._sequence :]:
                runs.append((self._prefix, rest))
            count = end - SEQUENCE_LENGTH
            self._begin(self._tick + 1)
        runs.append((self._prefix, _SUFFIXES[self._sequence : end]))
        self._sequence = end
        return runs

    def _begin(self, tick: int) -> None:
        self._tick = tick
        self._prefix = b"%013x" % (((tick - EPOCH_TICKS) << 10 | self._node_id) & _PREFIX_MASK)
        self._sequence = 0
