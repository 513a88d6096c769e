"""Message ids: 64 bits in 16 hexadecimal digits, ascending within one broker.

    (time in ns >> 20) - epoch : 42 bits | node id : 10 bits | sequence : 12 bits       (nsqd/guid.go)

The rule it guards: an id is never given twice, whatever the clock does and however often the broker is restarted.
Where nsqd sleeps because the 4096 ids of one tick (about 1 ms) are used up, or refuses because the clock went back,
this takes the next tick early. Ticks are reserved before their first id is given, so that a later life of the broker
knows which ones to leave out; see ``nsqkit.broker.core.disk.id_mark``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from nsqkit.wire.messages import ID

EPOCH_TICKS: Final = 1288834974288
TICK_LAST: Final = EPOCH_TICKS + (1 << 42) - 1
"""The last tick that 42 bits can tell, in the year 2158."""

SEQUENCE_LENGTH: Final = 4096

_PREFIX_MASK = (1 << 52) - 1  # a time before the epoch (a test's clock may show it) wraps, as Go's numbers do
_SUFFIXES = tuple(b"%03x" % sequence for sequence in range(SEQUENCE_LENGTH))


Run: TypeAlias = tuple[bytes, Sequence[bytes]]
"""Ids that begin alike: what they begin with, and how each of them goes on."""

Reserve: TypeAlias = Callable[[int], tuple[int, int]]
"""Reserves ticks: takes the tick from which on some are needed, returns the first and the last that may be used."""


def reserve_all(tick: int) -> tuple[int, int]:
    """Reserve all ticks from ``tick`` on: what a broker needs that keeps nothing over its end."""
    return tick, TICK_LAST


class GuidFactory:
    """Gives the ids of one broker.

    Args:
        node_id: 0 to 1023, the broker's ``--node-id``.
        reserve: called before the first id of a tick is given that was not reserved yet.

    Attributes:
        tick: of the newest id, -1 before the first.
        gave_all: no message of the broker has an id of an earlier life, which might also be that of another message.
    """

    __slots__ = ("_node_id", "_prefix", "_reserve", "_reserved", "_sequence", "gave_all", "tick")

    def __init__(self, node_id: int, reserve: Reserve = reserve_all) -> None:
        self.tick = -1
        self.gave_all = True
        self._node_id = node_id
        self._reserve = reserve
        self._reserved = -1  # the last tick
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
        """Return a message's frame with a new id in it."""
        ((prefix, (suffix,)),) = self.take(1, 0)[-1:]
        return frame[: ID.start] + prefix + suffix + frame[ID.stop :]

    def _begin(self, tick: int) -> None:
        if tick > self._reserved:
            tick, self._reserved = self._reserve(tick)
        self.tick = tick
        self._prefix = b"%013x" % (((tick - EPOCH_TICKS) << 10 | self._node_id) & _PREFIX_MASK)
        self._sequence = 0
