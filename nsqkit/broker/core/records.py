"""Messages as nsqd keeps them on disk.

    record  length uint32 = 26 + body | timestamp int64 | attempts uint16 | id, 16 bytes | body        (big-endian)

The rule it guards: the bytes are nsqd's, both ways. They are those of a message's frame but for the head, and for the
attempts: a record counts the deliveries so far, the frame in a queue is ready for the next one.

How to read it: ``to_records`` writes, ``from_records`` reads, ``record_end`` and ``record_ends`` tell where they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from nsqkit.wire.messages import ATTEMPTS_MAX, MESSAGE_FRAME_TYPE, RECORD_HEADER_LENGTH, attempts_of

LENGTH_SIZE: Final = 4
"""Bytes before each record, which tell its length."""

_UINT32 = Struct(">I")
_HEAD = Struct(">II")
_UINT16 = Struct(">H")
_FIRST = b"\x00\x01"  # attempts of a frame that was never delivered
_NONE = b"\x00\x00"


def to_records(frames: Sequence[bytes]) -> list[bytes]:
    """Return the record of each frame, its length before it."""
    pack = _UINT32.pack
    records = []
    for frame in frames:
        count = _NONE if frame[16:18] == _FIRST else _UINT16.pack((attempts_of(frame) - 1) & ATTEMPTS_MAX)
        records.append(pack(len(frame) - 8) + frame[8:16] + count + frame[18:])
    return records


def record_end(data: bytes, position: int, body_size_max: int) -> int | None:
    """Return where the record at ``position`` ends, which may be beyond ``data``; None if it can be none."""
    length: int = _UINT32.unpack_from(data, position)[0]
    if not RECORD_HEADER_LENGTH <= length <= RECORD_HEADER_LENGTH + body_size_max:
        return None
    return position + LENGTH_SIZE + length


def record_ends(data: bytes, body_size_max: int) -> list[int]:
    """Return where each record ends that is whole, as far as they follow one another."""
    ends: list[int] = []
    position = 0
    while position + LENGTH_SIZE <= len(data):
        end = record_end(data, position, body_size_max)
        if end is None or end > len(data):
            break
        ends.append(end)
        position = end
    return ends


def from_records(data: bytes, position: int, count: int, body_size_max: int) -> tuple[list[bytes], int]:
    """Return the frames of up to ``count`` whole records, and where the next one begins.

    It stops before a record that is not whole and before one that can be none.
    """
    unpack, pack, size = _UINT32.unpack_from, _HEAD.pack, len(data)
    frames: list[bytes] = []
    append = frames.append
    length = -1
    head = b""
    while len(frames) < count and position + LENGTH_SIZE <= size:
        found: int = unpack(data, position)[0]
        if found != length:
            if not RECORD_HEADER_LENGTH <= found <= RECORD_HEADER_LENGTH + body_size_max:
                break
            length = found
            head = pack(length + 4, MESSAGE_FRAME_TYPE)
        end = position + LENGTH_SIZE + length
        if end > size:
            break
        attempts = data[position + 12 : position + 14]
        if attempts == _NONE:
            attempts = _FIRST
        else:
            attempts = _UINT16.pack((_UINT16.unpack(attempts)[0] + 1) & ATTEMPTS_MAX)
        append(head + data[position + 4 : position + 12] + attempts + data[position + 14 : end])
        position = end
    return frames, position
