"""The items that a case receives, and the two ways in which a case ends early.

The suite reads frames itself instead of with ``nsqkit.wire``, so that an error there cannot hide the same error in
nsqkit's own broker.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import attrs

from nsqkit.errors import NSQError

END: Final = "the end of the connection"
NOTHING: Final = "nothing"

_SIZE = Struct(">i")
_HEAD = Struct(">ii")
_MESSAGE = Struct(">qH16s")
_FRAME_SIZE_MAX = 64 << 20
_SHOWN_BYTES_MAX = 160
_KINDS = {0: "response", 1: "error", 2: "message"}


class Mismatch(NSQError):
    """The broker breaks the rule of a case.

    Attributes:
        expected: a phrase for the expected item.
        came: a phrase for the item that came instead.
    """

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}; came {came}")
        self.expected = expected
        self.came = came


class Skipped(NSQError):
    """The rule of a case cannot be checked on this broker; the text says why."""


@attrs.frozen
class Message:
    """The parts of a message frame: the time of publishing in ns, deliveries so far, 16 bytes of id, and the body."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


@attrs.frozen
class Received:
    """One item from the broker.

    Attributes:
        kind: ``response``, ``error``, ``message``, another type of frame, END or NOTHING.
        payload: the bytes of a frame after its type.
    """

    kind: str
    payload: bytes = b""

    def __str__(self) -> str:
        if self.kind in {END, NOTHING}:
            return self.kind
        if self.kind == "message" and len(self.payload) >= _MESSAGE.size:
            message = self.message()
            return f"message {message.id.decode(errors='replace')}, attempt {message.attempts}, {show(message.body)}"
        return f"{self.kind} {show(self.payload)}"

    def message(self) -> Message:
        """Return the parts of a message.

        Raises:
            Mismatch: this is no message, or a malformed one.
        """
        if self.kind != "message" or len(self.payload) < _MESSAGE.size:
            raise Mismatch("a message", str(self))
        timestamp_ns, attempts, message_id = _MESSAGE.unpack_from(self.payload)
        return Message(timestamp_ns, attempts, message_id, self.payload[_MESSAGE.size :])


def split_frame(data: bytes) -> tuple[Received | None, bytes]:
    """Return the first frame of received bytes, or None if it is incomplete, and the bytes after it."""
    if len(data) < _SIZE.size:
        return None, data
    (size,) = _SIZE.unpack_from(data)
    if not 4 <= size <= _FRAME_SIZE_MAX:
        return Received(f"a frame of size {size}, with", data[4:]), b""
    if len(data) < 4 + size:
        return None, data
    _, frame_type = _HEAD.unpack_from(data)
    kind = _KINDS.get(frame_type, f"a frame of type {frame_type}, with")
    return Received(kind, data[8 : 4 + size]), data[4 + size :]


def show(data: bytes) -> str:
    """Return bytes as a Python literal, shortened if they are many."""
    if len(data) <= _SHOWN_BYTES_MAX:
        return repr(data)
    return f"{data[:_SHOWN_BYTES_MAX]!r}… ({len(data)} bytes)"


def escape(text: str) -> str:
    """Return a text with an escape sequence for each character that is not printable, so that it is one line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
