"""Records: messages in the format of nsqd's files (nsqd/message.go).

    record  length uint32 = 26 + body | timestamp int64 | attempts uint16 | id, 16 bytes | body        (big-endian)

A record has the bytes of a message's frame, but for the head and the attempts: a record counts the deliveries so far,
and the frame in a queue is ready for the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, groupby
from operator import itemgetter
from struct import Struct, iter_unpack
from typing import Final

from nsqkit.wire.messages import ATTEMPTS_MAX, ID, MESSAGE_FRAME_TYPE, RECORD_HEADER_LENGTH

LENGTH_SIZE: Final = 4
"""Bytes of the length before each record."""

_UINT32 = Struct(">I")
_RECORD_BEGIN = Struct(">IqH")  # the fields before the id
_FRAME_BEGIN = Struct(">IIqH")
_begin_of = itemgetter(slice(ID.start))
_rest_of = itemgetter(slice(ID.start, None))


def record_size(frame: bytes) -> int:
    """Return the size of the record of a frame in bytes, its length field included."""
    return len(frame) - 8 + LENGTH_SIZE


def fitting_count(frames: Iterable[bytes], room: int) -> int:
    """Return how many of the frames, from the first on, have records that fit into ``room`` bytes together."""
    return bisect_right(list(accumulate(map(record_size, frames))), room)


def to_records(frames: Iterable[bytes]) -> bytes:
    """Return the records of these frames, one behind the other.

    Messages that were published together have the same bytes before their ids, so one join makes their records.
    """
    runs = []
    for begin, run in groupby(frames, _begin_of):
        size, _, timestamp, attempts = _FRAME_BEGIN.unpack(begin)
        head = _RECORD_BEGIN.pack(size - 4, timestamp, (attempts - 1) & ATTEMPTS_MAX)
        runs.append(head + head.join(map(_rest_of, run)))
    return b"".join(runs)


def record_end(data: bytes, position: int, body_size_max: int) -> int | None:
    """Return the end of the record at ``position``, which may be beyond ``data``; None if its length is invalid."""
    length: int = _UINT32.unpack_from(data, position)[0]
    if not RECORD_HEADER_LENGTH <= length <= RECORD_HEADER_LENGTH + body_size_max:
        return None
    return position + LENGTH_SIZE + length


def record_ends(data: bytes, body_size_max: int) -> list[int]:
    """Return the ends of the whole records, from the beginning of ``data`` to the first that is not whole."""
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
    """Return the frames of up to ``count`` whole records, and the position of the next one.

    It stops before a record that is not whole, and before an invalid length.
    """
    frames: list[bytes] = []
    end: int | None
    while count > 0 and position + LENGTH_SIZE <= len(data):
        end = record_end(data, position, body_size_max)
        if end is None or end > len(data):
            break
        size = end - position
        run = min(count, (len(data) - position) // size)
        if run > 1 and data[end : end + LENGTH_SIZE] == data[position : position + LENGTH_SIZE]:
            found = _from_equals(data, position, size, run)
        else:
            found = [_frame_begin(data[position : position + _RECORD_BEGIN.size]) + data[position + 14 : end]]
        frames += found
        count -= len(found)
        position += size * len(found)
    return frames, position


def _from_equals(data: bytes, position: int, size: int, count: int) -> list[bytes]:
    """Return the frames of up to ``count`` records, as long as they have the length of the first."""
    frames: list[bytes] = []
    append = frames.append
    length = data[position : position + LENGTH_SIZE]
    last = head = b""
    view = memoryview(data)[position : position + size * count]
    for begin, rest in iter_unpack(f"{_RECORD_BEGIN.size}s{size - _RECORD_BEGIN.size}s", view):
        if begin != last:
            if not begin.startswith(length):
                break
            last, head = begin, _frame_begin(begin)
        append(head + rest)
    return frames


def _frame_begin(begin: bytes) -> bytes:
    """Return the bytes before the id of a frame, from those of its record."""
    length, timestamp, attempts = _RECORD_BEGIN.unpack(begin)
    return _FRAME_BEGIN.pack(length + 4, MESSAGE_FRAME_TYPE, timestamp, (attempts + 1) & ATTEMPTS_MAX)
