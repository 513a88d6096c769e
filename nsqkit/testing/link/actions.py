"""The actions of faults: the treatment of an item, or of a connection, that a rule selects.

Each action belongs to a slot. An item gets at most one action of each slot, that of the first rule that selects it. So
an item is dropped or duplicated, but not both, and in either case it can also be delayed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from nsqkit.testing.link.items import COMMANDS, FRAMES, WITH_BODY

if TYPE_CHECKING:
    from nsqkit.errors import BrokerError
    from nsqkit.testing.link.items import Direction, Item

ANSWERED: Final = (*WITH_BODY, "SUB", "CLS")
"""The commands with an answer when they succeed; answers have the order of their commands."""

_INT32: Final = Struct(">i")


@attrs.frozen
class Action:
    """The treatment of an item or a connection.

    Attributes:
        slot: of which an item gets one action.
        names: the items that it can be done with; None for all, and for bytes that are not divided;
            empty for an action with new connections.
    """

    slot: ClassVar[str] = "item"
    names: ClassVar[tuple[str, ...] | None] = None


# ---- with new connections --------------------------------------------------------------------------------------------


class Refuse(Action):
    """Accept no connection."""

    slot = "refuse"
    names = ()


class CloseOnAccept(Action):
    """Close a new connection at once."""

    slot = "accept"
    names = ()


class Silence(Action):
    """Accept a connection, and lose everything that is sent on it."""

    slot = "accept"
    names = ()


# ---- with a connection, when a certain item has come -----------------------------------------------------------------


class Reset(Action):
    """Reset the connection instead of passing the item on."""


@attrs.frozen
class CloseAt(Action):
    """Close the connection after the first ``byte`` bytes of the item."""

    byte: int


@attrs.frozen
class HalfOpen(Action):
    """From the item on lose everything of one direction, or with None of both."""

    direction: Direction | None

    slot = "half_open"


# ---- with the item ---------------------------------------------------------------------------------------------------


class Drop(Action):
    """Do not pass it on."""


class DropAnswer(Action):
    """Pass it on, but not the broker's answer."""

    names = ANSWERED


@attrs.frozen
class Refusal(Action):
    """Do not pass it on, and answer with an error."""

    error: BrokerError

    names = COMMANDS


class Duplicate(Action):
    """Pass it on twice."""

    names = ("MESSAGE",)


@attrs.frozen
class Redeliver(Action):
    """Pass it on, and once more after a time, with attempts one higher."""

    delay_ns: int

    names = ("MESSAGE",)


class Change(Action):
    """Pass on other bytes."""

    def change(self, item: Item) -> bytes:
        """Return the bytes that are passed on instead."""
        raise NotImplementedError


@attrs.frozen
class Garbage(Change):
    """Pass on other bytes."""

    data: bytes

    def change(self, item: Item) -> bytes:
        return self.data


@attrs.frozen
class WrongLength(Change):
    """Pass it on with another number in place of its length."""

    length: int

    names = (*WITH_BODY, *FRAMES)

    def change(self, item: Item) -> bytes:
        start = _start_of_length(item)
        return item.data[:start] + _INT32.pack(self.length) + item.data[start + 4 :]


@attrs.frozen
class Oversize(Change):
    """Pass it on with zeros at its end, so that its length is ``size``."""

    size: int

    names = (*WITH_BODY, *FRAMES)

    def change(self, item: Item) -> bytes:
        start = _start_of_length(item)
        rest = item.data[start + 4 :]
        return item.data[:start] + _INT32.pack(max(self.size, len(rest))) + rest.ljust(self.size, b"\0")


@attrs.frozen
class WrongType(Change):
    """Pass a frame on with another number in place of its type."""

    frame_type: int

    names = FRAMES

    def change(self, item: Item) -> bytes:
        return item.data[:4] + _INT32.pack(self.frame_type) + item.data[8:]


def _start_of_length(item: Item) -> int:
    return item.data.find(b"\n") + 1 if item.name in WITH_BODY else 0


# ---- with the bytes of the item --------------------------------------------------------------------------------------


@attrs.frozen
class Delay(Action):
    """Pass them on after a time."""

    delay_ns: int

    slot = "delay"


@attrs.frozen
class Bandwidth(Action):
    """Pass them on at a limited rate, in bytes per second."""

    rate: int

    slot = "bandwidth"


@attrs.frozen
class Slices(Action):
    """Pass them on in slices of at most ``size`` bytes."""

    size: int

    slot = "slices"
