"""The message record and its frame.

    frame   size int32 | type int32 = 2 | record            size counts everything after itself
    record  timestamp int64, ns | attempts uint16 | id, 16 bytes | body         all numbers big-endian

A message's frame is built once, when the message is published, with attempts 1. Queues hold frames (``bytes``), so a
queued message is one object that the garbage collector does not track, many channels share it, and delivery is a join.
Only a redelivery makes a new frame. nsqd writes the same record to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Final

MESSAGE_FRAME_TYPE = 2
ID_LENGTH = 16
RECORD_HEADER_LENGTH = 8 + 2 + ID_LENGTH
FRAME_HEADER_LENGTH = 8 + RECORD_HEADER_LENGTH
ATTEMPTS_MAX = 0xFFFF

ID = slice(18, 34)
"""The place of the id in a frame."""

id_of: Final[Callable[[bytes], bytes]] = itemgetter(ID)
"""Return the id in a frame."""

_HEAD = Struct(">iiqH")
_ATTEMPTS = Struct(">H")
_TIMESTAMP = Struct(">q")


def encode_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    size = 4 + RECORD_HEADER_LENGTH + len(body)
    return _HEAD.pack(size, MESSAGE_FRAME_TYPE, timestamp_ns, attempts) + message_id + body


def encode_messages(
    timestamp_ns: int, ids: Sequence[bytes], bodies: Sequence[bytes], prefix: bytes = b""
) -> list[bytes]:
    """Return the frames of messages that were published together, each with attempts 1.

    The heads of equal sizes are packed once, since a batch usually has few sizes. The time is ns since the Unix epoch;
    each id begins with ``prefix``.
    """
    if len(bodies) == 1:
        return [encode_message(timestamp_ns, 1, prefix + ids[0], bodies[0])]
    heads = {length: _first_head(timestamp_ns, length) + prefix for length in set(map(len, bodies))}
    if len(heads) == 1:
        (head,) = heads.values()
        return [head + message_id + body for message_id, body in zip(ids, bodies, strict=True)]
    return [heads[len(body)] + message_id + body for message_id, body in zip(ids, bodies, strict=True)]


def _first_head(timestamp_ns: int, length: int) -> bytes:
    return _HEAD.pack(4 + RECORD_HEADER_LENGTH + length, MESSAGE_FRAME_TYPE, timestamp_ns, 1)


def timestamp_of(frame: bytes) -> int:
    """Return the time of publication in the frame, ns since the Unix epoch."""
    timestamp_ns: int = _TIMESTAMP.unpack_from(frame, 8)[0]
    return timestamp_ns


def attempts_of(frame: bytes) -> int:
    """Return the attempts in the frame: the deliveries, with the next one."""
    attempts: int = _ATTEMPTS.unpack_from(frame, 16)[0]
    return attempts


def for_redelivery(frame: bytes) -> bytes:
    """Return the frame with attempts one higher; it wraps at 65535, as nsqd's uint16 does."""
    return frame[:16] + _ATTEMPTS.pack((attempts_of(frame) + 1) & ATTEMPTS_MAX) + frame[18:]
