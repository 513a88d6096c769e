"""Frames: the bytes from a broker to a client.

    size int32 | type int32 | payload        type 0 response, 1 error, 2 message; size counts type and payload

``FrameDecoder.feed`` processes a whole receive buffer at a time and returns the list of all frames that are complete.
It keeps at most one incomplete frame, and refuses a size beyond the limit when the size is read, before the payload
arrives.

The caller's ``make_messages`` makes a value from the four parts of each message, so that a consumer gets its
``Message`` objects without other objects in between. Consecutive messages of one size are unpacked in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import starmap
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar, overload

import attrs

from nsqkit.errors import BrokerError, ProtocolError
from nsqkit.wire.error_codes import decode_error_text, encode_error_text
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, MESSAGE_FRAME_TYPE, RECORD_HEADER_LENGTH

RESPONSE_FRAME_TYPE: Final = 0
ERROR_FRAME_TYPE: Final = 1

OK: Final = b"OK"
HEARTBEAT: Final = b"_heartbeat_"
CLOSE_WAIT: Final = b"CLOSE_WAIT"

FRAME_SIZE_MAX: Final = 64 << 20
"""The default limit of a frame's size in bytes; nsqd's default for a message is 1 MiB."""

_SIZE_AND_TYPE = Struct(">ii")
_SIZE = Struct(">i")
_MESSAGE = Struct(">qH16s")
_HEAD_LENGTH = 8  # of size and type
_layout = lru_cache(maxsize=256)(lambda size: Struct(f">8xqH16s{size - 4 - RECORD_HEADER_LENGTH}s"))
_RUN_LENGTH_MIN = 16  # consecutive messages of one size for which a separate pass is faster
_CHUNKS_MAX = 1024  # pieces of an incomplete frame before they are joined, since each piece has overhead

M = TypeVar("M")

Row: TypeAlias = "tuple[int, int, bytes, bytes]"
"""The parts of a message: timestamp (ns), attempts, id and body."""

MakeMessages: TypeAlias = Callable[[Iterable[Row]], list[M]]
Frames: TypeAlias = "list[Response | BrokerError | M]"


@attrs.frozen
class Response:
    """A response frame: ``OK``, ``_heartbeat_``, ``CLOSE_WAIT`` or the JSON answer to IDENTIFY."""

    payload: bytes


@attrs.frozen
class MessageFrame:
    """The parts of a message frame, for callers without a ``make_messages``."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def encode_response(payload: bytes) -> bytes:
    return _SIZE_AND_TYPE.pack(4 + len(payload), RESPONSE_FRAME_TYPE) + payload


def encode_error(error: BrokerError) -> bytes:
    payload = encode_error_text(error)
    return _SIZE_AND_TYPE.pack(4 + len(payload), ERROR_FRAME_TYPE) + payload


OK_FRAME: Final = encode_response(OK)
HEARTBEAT_FRAME: Final = encode_response(HEARTBEAT)
CLOSE_WAIT_FRAME: Final = encode_response(CLOSE_WAIT)

OK_RESPONSE: Final = Response(OK)
"""One object for every OK; a producer gets as many as it publishes messages."""


def message_frames(rows: Iterable[Row]) -> list[MessageFrame]:
    return list(starmap(MessageFrame, rows))


class FrameDecoder:
    """Turn received bytes into frames of at most ``frame_size_max`` bytes."""

    __slots__ = ("_buffer", "_chunks", "_missing", "frame_size_max")

    def __init__(self, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frame_size_max = frame_size_max
        self._buffer = b""  # an incomplete frame …
        self._chunks: list[bytes] = []  # … and its later pieces, joined when it is complete
        self._missing = 4  # bytes until the frame, or at least its size, is complete

    @overload
    def feed(self, data: bytes) -> Frames[MessageFrame]: ...
    @overload
    def feed(self, data: bytes, make_messages: MakeMessages[M]) -> Frames[M]: ...
    def feed(self, data: bytes, make_messages: MakeMessages[Any] = message_frames) -> Frames[Any]:
        """Return the frames that ``data`` completes, in order; ``make_messages`` makes consecutive messages.

        Raises:
            ProtocolError: an invalid size or type. The decoder must not be used afterwards.
        """
        if not self._buffer:
            if data == OK_FRAME:  # the answer to a single publish
                return [OK_RESPONSE]
            return self._decode(data, 0, make_messages)
        missing = self._missing
        if len(data) < missing:
            self._missing -= len(data)
            self._chunks.append(data)
            if len(self._chunks) == _CHUNKS_MAX:
                self._chunks = [b"".join(self._chunks)]
            return []
        # Only the incomplete frame is joined: the bytes after it may be a thousand times as long.
        cut = b"".join((self._buffer, *self._chunks, data[:missing]))
        self._chunks.clear()
        frames = self._decode(cut, 0, make_messages)
        if self._buffer:  # only the size was complete
            return self.feed(data[missing:], make_messages)
        if missing < len(data):
            frames += self._decode(data, missing, make_messages)
        return frames

    def feed_one(self, data: bytes, make_messages: MakeMessages[Any] = message_frames) -> tuple[Any, bytes]:
        """Return the frame that ``data`` completes, or None, and the bytes after it.

        A client needs this while a frame may change the meaning of the bytes after it.

        Raises:
            ProtocolError: as ``feed``.
        """
        start = 0
        while start < len(data):
            end = start + self._missing
            frames = self.feed(data[start:end], make_messages)
            if frames:
                return frames[0], data[end:]
            start = end
        return None, b""

    def _decode(self, data: bytes, position: int, make_messages: MakeMessages[M]) -> Frames[M]:
        frames: Frames[M] = []
        rows: list[Row] = []  # the messages after the last frame in ``frames``
        append = rows.append
        size_and_type = _SIZE_AND_TYPE.unpack_from
        message = _MESSAGE.unpack_from
        frame_size_max = self.frame_size_max
        end = len(data)
        last_size = look_at = 0
        while position + _HEAD_LENGTH <= end:
            size, frame_type = size_and_type(data, position)
            if not 4 <= size <= frame_size_max:
                raise self._bad_size(size)
            after = position + 4 + size
            if after > end:
                break
            if frame_type == MESSAGE_FRAME_TYPE:
                if size == last_size and position >= look_at:
                    # An equal head that far ahead makes a long run likely.
                    look_at = position + (_RUN_LENGTH_MIN - 1) * (4 + size)
                    if data[look_at : look_at + _HEAD_LENGTH] == data[position : position + _HEAD_LENGTH]:
                        frames += make_messages(rows)
                        rows.clear()
                        position = self._decode_run(data, position, size, frames, make_messages)
                        continue
                if size < 4 + RECORD_HEADER_LENGTH:
                    raise ProtocolError(f"message of size {size} is shorter than {4 + RECORD_HEADER_LENGTH}")
                last_size = size
                timestamp_ns, attempts, message_id = message(data, position + 8)
                append((timestamp_ns, attempts, message_id, data[position + FRAME_HEADER_LENGTH : after]))
            else:
                if rows:
                    frames += make_messages(rows)
                    rows.clear()
                if data[position:after] == OK_FRAME:
                    frames.append(OK_RESPONSE)
                else:
                    frames.append(_decode_other(frame_type, data[position + 8 : after]))
            position = after
        if rows:
            frames += make_messages(rows)
        if position == end:
            self._buffer = b""
            self._missing = 4
        else:
            self._keep(data[position:])
        return frames

    def _decode_run(
        self, data: bytes, position: int, size: int, frames: Frames[M], make_messages: MakeMessages[M]
    ) -> int:
        """Decode consecutive messages of one size, twice as fast; return the end of the run."""
        whole_size = 4 + size
        head = data[position : position + _HEAD_LENGTH]
        layout = _layout(size)
        view = memoryview(data)
        count_max = 4 * _RUN_LENGTH_MIN
        while True:
            count = _count_alike(data, position, head, whole_size, count_max)
            end = position + count * whole_size
            frames += make_messages(layout.iter_unpack(view[position:end]))
            if count < count_max:
                return end
            # The next look ahead is bounded by the run so far, or short runs of many sizes would cost too much.
            position = end
            count_max *= 2

    def _keep(self, rest: bytes) -> None:
        """Keep an incomplete frame until all of it, or at least its size, has come."""
        self._buffer = rest
        self._missing = 4 - len(rest)
        if self._missing <= 0:
            size: int = _SIZE.unpack_from(rest)[0]
            if not 4 <= size <= self.frame_size_max:
                raise self._bad_size(size)
            self._missing += size

    def _bad_size(self, size: int) -> ProtocolError:
        return ProtocolError(f"frame size {size} is out of range 4-{self.frame_size_max}")


def _count_alike(data: bytes, position: int, head: bytes, whole_size: int, count_max: int) -> int:
    """Return the number of consecutive whole frames with this head, up to a maximum."""
    count = min((len(data) - position) // whole_size, count_max)
    for offset in range(_HEAD_LENGTH):
        # One byte of each head; usually all are equal, else the equal ones at the beginning are counted.
        column = data[position + offset : position + count * whole_size : whole_size]
        byte = head[offset : offset + 1]
        if column != byte * count:
            count -= len(column.lstrip(byte))
    return count


def _decode_other(frame_type: int, payload: bytes) -> Response | BrokerError:
    if frame_type == RESPONSE_FRAME_TYPE:
        return Response(payload)
    if frame_type == ERROR_FRAME_TYPE:
        return decode_error_text(payload)
    raise ProtocolError(f"frame type {frame_type} is none of 0 (response), 1 (error), 2 (message)")
