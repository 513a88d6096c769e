"""The items of a connection: its commands and frames, one by one, each with its bytes.

A link (``nsqkit.testing.link.link``) divides both directions of a connection into items. Nothing is checked here: an
item may be refused by the broker, and its bytes are passed on as they came. The items of a direction, joined, are its
bytes.
"""

from __future__ import annotations

import enum
import re
from struct import Struct
from typing import Final

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.wire.commands import LINE_LENGTH_MAX, MAGIC_V2
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, FRAME_SIZE_MAX, HEARTBEAT_FRAME, OK_FRAME
from nsqkit.wire.identify import decode_response
from nsqkit.wire.messages import MESSAGE_FRAME_TYPE

PUBLISHES: Final = ("PUB", "MPUB", "DPUB")
WITH_BODY: Final = ("IDENTIFY", "AUTH", *PUBLISHES)
COMMANDS: Final = ("MAGIC", *WITH_BODY, "SUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP")
"""The names of items from a client, except ``BYTES``."""

FRAMES: Final = ("OK", "HEARTBEAT", "CLOSE_WAIT", "RESPONSE", "ERROR", "MESSAGE")
"""The names of items from a broker, except ``BYTES``."""

_INT32: Final = Struct(">i")
_FRAME: Final = Struct(">ii")
_FIRST_WORDS_WITH_BODY: Final = frozenset(name.encode() for name in WITH_BODY)
_KNOWN_FRAMES: Final = {OK_FRAME: "OK", HEARTBEAT_FRAME: "HEARTBEAT", CLOSE_WAIT_FRAME: "CLOSE_WAIT"}
_FRAME_NAMES: Final = {0: "RESPONSE", 1: "ERROR", MESSAGE_FRAME_TYPE: "MESSAGE"}

_READ: Final = frozenset(("IDENTIFY", "SUB", "RESPONSE", "ERROR"))
"""Items whose contents a link reads."""

_RUNS: Final = {"FIN": re.compile(rb"(?:FIN [^ \r\n]{16}\n)+"), "OK": re.compile(b"(?:" + re.escape(OK_FRAME) + b")+")}
"""Runs of items of one length."""


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


@attrs.frozen
class Scan:
    """The items of some bytes: all their bytes, and the number of those with each name."""

    data: bytes
    counts: dict[str, int]


class Splitter:
    """Divides the bytes of one direction into items.

    Attributes:
        is_opaque: bytes are not divided any more: the connection has a layer such as TLS, or its bytes are wrong.
        is_upgraded: the broker has answered to IDENTIFY that the connection continues with TLS or compression.
        rest_size: the bytes of the incomplete item.
        rest_name: its name; empty if there is none, or while too little of it has come.
    """

    def __init__(self, direction: Direction) -> None:
        self.is_opaque = self.is_upgraded = False
        self.rest_size = 0
        self.rest_name = ""
        self._measure = self._measure_command if direction is Direction.TO_BROKER else self._measure_frame
        self._has_magic = direction is Direction.TO_CLIENT
        self._rest: list[bytes] = []
        self._line, self._line_name = b"", ""  # the last one of a command with a body; the next one often equals it
        self._needed = 0  # bytes of the incomplete item with which it has to be measured again

    def feed(self, data: bytes) -> list[Item]:
        """Return the items that ``data`` completes, in order."""
        if self._rest:
            self._rest.append(data)
            self.rest_size += len(data)
            if self.rest_size < self._needed:
                return []
            data = self.rest()
        items: list[Item] = []
        position, after, end, name = 0, 0, len(data), ""
        while position < end and not self.is_opaque:
            name, after = self._measure(data, position)
            if after > end:
                break
            items.append(Item(name, data[position:after]))
            position = after
            if name == "RESPONSE" and _has_upgrade(items[-1].body):
                self.is_opaque = self.is_upgraded = True
        if position < end and self.is_opaque:
            items.append(Item("BYTES", data[position:]))
            position = end
        self._keep(data, position, after, name)
        return items

    def scan(self, data: bytes) -> Scan | None:
        """Return what ``feed`` would return, but without the items, or None if their contents are needed.

        It costs a fraction of ``feed``. After None nothing has changed, and ``feed`` is to be called with the data.
        """
        if self.is_opaque or not self._has_magic:
            return None
        if self._rest:
            if self.rest_size + len(data) < self._needed:
                self.feed(data)
                return Scan(b"", {})
            data = b"".join((*self._rest, data))
        counts: dict[str, int] = {}
        position, after, end, name = 0, 0, len(data), ""
        while position < end:
            name, after = self._measure(data, position)
            if after > end:
                break
            if name in _READ:
                return None
            count = 1
            if name in _RUNS and (run := _RUNS[name].match(data, position)) is not None:
                count = (run.end() - position) // (after - position)
                after = position + count * (after - position)
            counts[name] = counts.get(name, 0) + count
            position = after
        if self.is_opaque:  # from this position on
            self.is_opaque = False
            return None
        self._keep(data, position, after, name)
        return Scan(data[:position] if position < end else data, counts)

    def _keep(self, data: bytes, position: int, needed: int, name: str) -> None:
        """Keep the incomplete item, of which ``name`` is known or empty, at the end of the data."""
        self.rest_size = len(data) - position
        self.rest_name = name if self.rest_size else ""
        self._rest = [data[position:]] if self.rest_size else []
        self._needed = needed - position

    def rest(self, start: int = 0) -> bytes:
        """Return the bytes of the incomplete item from ``start`` on."""
        return b"".join(self._rest)[start:] if start < self.rest_size else b""

    def make_opaque(self) -> bytes:
        """Divide nothing from now on; return the bytes of the incomplete item."""
        rest = self.rest()
        self._rest.clear()
        self.rest_size, self.rest_name = 0, ""
        self.is_opaque = True
        return rest

    # Both return the name of the item at a position and its end. An end beyond the data is where the item, or the part
    # of it that has its size, ends; the name is empty if it is not there yet.

    def _measure_command(self, data: bytes, position: int) -> tuple[str, int]:
        incomplete = "", len(data) + 1
        if not self._has_magic:
            magic = data[position : position + len(MAGIC_V2)]
            self.is_opaque = not MAGIC_V2.startswith(magic)
            self._has_magic = magic == MAGIC_V2
            return ("MAGIC", position + len(MAGIC_V2)) if self._has_magic else incomplete
        if self._line and data.startswith(self._line, position):
            return self._end_of_body(data, self._line_name, position + len(self._line))
        newline = data.find(b"\n", position, position + LINE_LENGTH_MAX)
        if newline < 0:
            self.is_opaque = len(data) - position >= LINE_LENGTH_MAX
            return incomplete
        verb = data[position:newline].partition(b" ")[0].rstrip(b"\r")
        name = verb.decode("ascii", "replace")
        end = newline + 1
        if verb not in _FIRST_WORDS_WITH_BODY:
            return name, end
        self._line, self._line_name = data[position:end], name
        return self._end_of_body(data, name, end)

    def _end_of_body(self, data: bytes, name: str, position: int) -> tuple[str, int]:
        end = position + 4
        if end <= len(data):
            size = _INT32.unpack_from(data, position)[0]
            if not 0 <= size <= FRAME_SIZE_MAX:
                self.is_opaque = True
                return "", len(data) + 1
            end += size
        return name, end

    def _measure_frame(self, data: bytes, position: int) -> tuple[str, int]:
        if position + 8 > len(data):
            return "", position + 8
        size, frame_type = _FRAME.unpack_from(data, position)
        if not 4 <= size <= FRAME_SIZE_MAX or frame_type not in _FRAME_NAMES:
            self.is_opaque = True
            return "", len(data) + 1
        end = position + 4 + size
        if frame_type == MESSAGE_FRAME_TYPE:
            return "MESSAGE", end
        if end > len(data):
            return "", end
        return _KNOWN_FRAMES.get(data[position:end]) or _FRAME_NAMES[frame_type], end


def _has_upgrade(payload: bytes) -> bool:
    """Return whether a response is that to IDENTIFY, and the connection continues with TLS or compression."""
    try:
        answer = decode_response(payload)
    except ProtocolError:
        return False
    return answer.tls_v1 or answer.deflate or answer.snappy
