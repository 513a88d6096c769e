"""Message ids: 64 bits in 16 hexadecimal digits, ascending within one broker.

    (time in ns >> 20) - epoch : 42 bits | node id : 10 bits | sequence : 12 bits       (nsqd/guid.go)

No id is given twice, also when the clock goes back or the broker restarts. When the 4096 ids of one tick (about 1 ms)
are used up nsqd sleeps, and when the clock went back it refuses; this factory takes the next tick early.
A restarted broker has to skip the ticks of its earlier runs, so the factory announces in ``reserved_tick`` how far it
may get; ``nsqkit.broker.core.disk.id_mark`` keeps that on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from nsqkit.wire.messages import ID

EPOCH_TICKS: Final = 1288834974288
TICK_LAST: Final = EPOCH_TICKS + (1 << 42) - 1
"""The last tick that 42 bits can hold, in the year 2158."""

SEQUENCE_LENGTH: Final = 4096

BLOCK_TICKS: Final = (60 * 10**9) >> 20
"""Ticks that are reserved at a time, one minute: the next block is reserved when half of one is used, so that there is
half a minute to write it."""

_PREFIX_MASK = (1 << 52) - 1  # a time before the epoch (of a test's clock) wraps, as Go's numbers do
_SUFFIXES = tuple(b"%03x" % sequence for sequence in range(SEQUENCE_LENGTH))

Run: TypeAlias = tuple[bytes, Sequence[bytes]]
"""Ids with a common prefix: the prefix, and the rest of each."""


class GuidFactory:
    """Gives the ids of one broker, whose ``--node-id`` is 0 to 1023.

    Attributes:
        tick: of the newest id, -1 before the first.
        used_tick: the last tick of earlier runs; all ids are of later ticks.
        reserved_tick: no id is of a later tick, unless the reservation could not be written; -1 before the first id.
        gave_all: all messages of the broker have ids of this factory. Otherwise two messages may have the same id.
    """

    __slots__ = (
        *("_node_id", "_prefix", "_reserve_after", "_sequence"),
        *("gave_all", "reserved_tick", "tick", "used_tick"),
    )

    def __init__(self, node_id: int) -> None:
        self.tick = -1
        self.used_tick = -1
        self.reserved_tick = -1
        self.gave_all = True
        self._node_id = node_id
        self._reserve_after = -1  # a later tick needs a new reservation
        self._prefix = b""
        self._sequence = 0

    def take(self, count: int, now_ns: int) -> list[Run]:
        """Return the next ``count`` ids: a run for each tick that they need."""
        tick = now_ns >> 20
        if tick > self.tick:
            self._begin(tick)
        runs: list[Run] = []
        while (end := self._sequence + count) > SEQUENCE_LENGTH:
            if rest := _SUFFIXES[self._sequence :]:
                runs.append((self._prefix, rest))
            count = end - SEQUENCE_LENGTH
            self._begin(self.tick + 1)
        runs.append((self._prefix, _SUFFIXES[self._sequence : end]))
        self._sequence = end
        return runs

    def renew(self, frame: bytes) -> bytes:
        """Return a message's frame with a new id."""
        ((prefix, (suffix,)),) = self.take(1, 0)[-1:]
        return frame[: ID.start] + prefix + suffix + frame[ID.stop :]

    def skip(self, tick: int) -> None:
        """Give ids of later ticks only."""
        if tick > self.tick:
            self._begin(tick)
            self._sequence = SEQUENCE_LENGTH

    def _begin(self, tick: int) -> None:
        if tick > self._reserve_after:
            tick = max(tick, self.used_tick + 1)
            self._reserve_after = tick + BLOCK_TICKS // 2
            self.reserved_tick = tick + BLOCK_TICKS
        self.tick = tick
        self._prefix = b"%013x" % (((tick - EPOCH_TICKS) << 10 | self._node_id) & _PREFIX_MASK)
        self._sequence = 0
