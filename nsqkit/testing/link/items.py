"""The items of a connection: its commands and frames, one by one, each with its bytes.

A link (``nsqkit.testing.link.link``) divides both directions of a connection into items. Nothing is checked here: an
item may be refused by the broker, and its bytes are passed on as they came. The items of a direction, joined, are its
bytes.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import Final

import attrs

from nsqkit.wire.commands import LINE_LENGTH_MAX, MAGIC_V2
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, FRAME_SIZE_MAX, HEARTBEAT_FRAME, OK_FRAME
from nsqkit.wire.messages import MESSAGE_FRAME_TYPE

_INT32: Final = Struct(">i")
_FRAME: Final = Struct(">ii")
_WITH_BODY: Final = frozenset((b"IDENTIFY", b"AUTH", b"PUB", b"DPUB", b"MPUB"))
_KNOWN_FRAMES: Final = {OK_FRAME: "OK", HEARTBEAT_FRAME: "HEARTBEAT", CLOSE_WAIT_FRAME: "CLOSE_WAIT"}
_FRAME_NAMES: Final = {0: "RESPONSE", 1: "ERROR", MESSAGE_FRAME_TYPE: "MESSAGE"}


class Direction(enum.Enum):
    """The direction of an item."""

    TO_BROKER = "to_broker"
    TO_CLIENT = "to_client"

    @property
    def opposite(self) -> Direction:
        """The other direction."""
        return Direction.TO_CLIENT if self is Direction.TO_BROKER else Direction.TO_BROKER


@attrs.frozen
class Item:
    """One command or one frame.

    Attributes:
        name: of a command its first word, or ``MAGIC``; of a frame ``OK``, ``HEARTBEAT``, ``CLOSE_WAIT``, ``RESPONSE``,
            ``ERROR`` or ``MESSAGE``; ``BYTES`` for bytes that are not divided, such as those of TLS.
        data: all its bytes.
        fault: the name of the fault that dropped, changed or added it; empty for an item that is passed on as it came.
    """

    name: str
    data: bytes
    fault: str = ""

    @property
    def words(self) -> list[bytes]:
        """The words of a command after the first one."""
        return self.data[: self.data.find(b"\n")].rstrip(b"\r").split(b" ")[1:]

    @property
    def body(self) -> bytes:
        """The bytes after the size of a command with a body; of a frame those after its type."""
        if self.name in _FRAME_NAMES.values() or self.data in _KNOWN_FRAMES:
            return self.data[8:]
        return self.data[self.data.find(b"\n") + 5 :]


@attrs.define(eq=False)
class Connection:
    """The client of a connection, as its items describe it.

    Attributes:
        address: its address, or another name for it.
        client_id: from its IDENTIFY; empty before.
        topic: of its subscription; empty before SUB, as is ``channel``.
    """

    address: str
    client_id: str = ""
    topic: str = ""
    channel: str = ""


class Splitter:
    """Divides the bytes of one direction into items.

    Attributes:
        is_opaque: bytes are not divided any more: the connection has a layer such as TLS, or its bytes are wrong.
    """

    def __init__(self, direction: Direction) -> None:
        self.is_opaque = False
        self._next = self._next_command if direction is Direction.TO_BROKER else self._next_frame
        self._has_magic = direction is Direction.TO_CLIENT
        self._rest = b""

    def feed(self, data: bytes) -> list[Item]:
        """Return the items that ``data`` completes, in order."""
        if self._rest:
            data = self._rest + data
        items: list[Item] = []
        position = 0
        while position < len(data) and not self.is_opaque:
            item = self._next(data, position)
            if item is None:
                break
            items.append(item)
            position += len(item.data)
        self._rest = data[position:]
        if self.is_opaque and self._rest:
            items.append(Item("BYTES", self._rest))
            self._rest = b""
        return items

    def make_opaque(self) -> bytes:
        """Divide nothing from now on; return the bytes of an incomplete item."""
        rest, self._rest = self._rest, b""
        self.is_opaque = True
        return rest

    def _next_command(self, data: bytes, position: int) -> Item | None:
        if not self._has_magic:
            magic = data[position : position + len(MAGIC_V2)]
            self.is_opaque = not MAGIC_V2.startswith(magic)
            self._has_magic = magic == MAGIC_V2
            return Item("MAGIC", magic) if self._has_magic else None
        newline = data.find(b"\n", position, position + LINE_LENGTH_MAX)
        if newline < 0:
            self.is_opaque = len(data) - position >= LINE_LENGTH_MAX
            return None
        line = data[position:newline]
        verb = line.partition(b" ")[0].rstrip(b"\r")
        end = newline + 1
        if verb in _WITH_BODY:
            if end + 4 > len(data):
                return None
            size = _INT32.unpack_from(data, end)[0]
            if size < 0:
                self.is_opaque = True
                return None
            end += 4 + size
            if end > len(data):
                return None
        return Item(verb.decode("ascii", "replace"), data[position:end])

    def _next_frame(self, data: bytes, position: int) -> Item | None:
        if position + 8 > len(data):
            return None
        size, frame_type = _FRAME.unpack_from(data, position)
        if not 4 <= size <= FRAME_SIZE_MAX or frame_type not in _FRAME_NAMES:
            self.is_opaque = True
            return None
        end = position + 4 + size
        if end > len(data):
            return None
        frame = data[position:end]
        return Item(_KNOWN_FRAMES.get(frame) or _FRAME_NAMES[frame_type], frame)
