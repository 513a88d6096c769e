"""Compression as a transform of bytes into bytes: raw deflate (no zlib header), and snappy's framing format.

The decompressed bytes of one buffer are returned in pieces, so that a small buffer that decompresses to gigabytes
reaches the protocol's limits before the memory's. Both formats are flushed at the end of each write, as by nsqd.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from struct import Struct
from typing import Final

from nsqkit.errors import ProtocolError

PIECE_SIZE_MAX = 256 * 1024
"""Bytes of one piece of decompressed data: the size of a read."""


class Deflate:
    """Raw deflate in both directions; the level is 1 (fast) to 9 (small)."""

    __slots__ = ("_compressor", "_decompressor")

    has_output = False

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def decode(self, data: bytes) -> Iterator[bytes]:
        decompressor = self._decompressor
        try:
            # After a full piece the decompressor may have more output, even if all input is used up.
            while len(piece := decompressor.decompress(data, PIECE_SIZE_MAX)) == PIECE_SIZE_MAX:
                yield piece
                data = decompressor.unconsumed_tail
        except zlib.error as error:
            raise ProtocolError(f"the stream is not deflate: {error}") from error
        if piece:
            yield piece
        if after := decompressor.unused_data:
            raise ProtocolError(f"{len(after)} bytes came after the end of the deflate stream")

    @property
    def at_end(self) -> bool:
        return self._decompressor.eof

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)


SNAPPY_CHUNK_SIZE_MAX: Final = 76490 + 4
"""Bytes of a chunk: the worst case of 64 KiB that cannot be compressed, and a checksum; as in nsqd."""

_BLOCK_SIZE_MAX: Final = 64 * 1024  # plain bytes of a chunk
_CHUNK_HEADER = Struct("<I")  # the kind is the lowest byte, the length the other three
_CHUNK_HEADER_LENGTH: Final = 4
_UNCOMPRESSED: Final = 0x01
_UNSKIPPABLE_MAX: Final = 0x7F
_IDENTIFIER_KIND: Final = 0xFF
_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_GROWTH_MAX: Final = 22
"""Decompressed bytes per compressed byte: a copy of up to 64 bytes takes three."""


@cache
def snappy_available() -> bool:
    """Return whether the library of the extra ``snappy`` is installed."""
    return find_spec("cramjam") is not None


class Snappy:
    """Snappy's framing format in both directions: chunks of up to 64 KiB, each with its checksum.

    This class divides the stream into chunks, because the library accepts only whole ones and checks the checksums.

    Raises:
        ImportError: cramjam is not installed.
    """

    __slots__ = ("_compressor", "_decompress", "_error", "_identified", "_rest")

    has_output: Final = False
    at_end: Final = False  # the format has no end

    def __init__(self) -> None:
        import cramjam

        self._compressor = cramjam.snappy.Compressor()
        self._decompress = cramjam.snappy.decompress
        self._error = cramjam.DecompressionError
        self._identified = False
        self._rest = b""  # the beginning of a chunk

    def decode(self, data: bytes) -> Iterator[bytes]:
        data = self._rest + data
        self._rest = b""
        if data and not self._identified:
            if data[0] != _IDENTIFIER_KIND:
                raise ProtocolError(
                    f"the stream is not snappy: it begins with a chunk of kind 0x{data[0]:02x}, not its identifier"
                )
            self._identified = True
        start = 0
        while (end := _end_of_run(data, start)) > start:
            try:
                # Each call decodes a whole stream, which has to begin with the identifier.
                piece = bytes(self._decompress(_IDENTIFIER + data[start:end]))
            except self._error as error:
                raise ProtocolError(f"the stream is not snappy: {error}") from error
            if piece:
                yield piece
            start = end
        self._rest = data[start:]

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        self._compressor.compress(data)
        return bytes(self._compressor.flush())


def _end_of_run(data: bytes, start: int) -> int:
    """Return the end of the whole chunks from ``start`` on that decompress to at most one piece."""
    end = start
    plain_size = 0
    last_header = len(data) - _CHUNK_HEADER_LENGTH
    while end <= last_header:
        (header,) = _CHUNK_HEADER.unpack_from(data, end)
        kind, size = header & 0xFF, header >> 8
        if size > SNAPPY_CHUNK_SIZE_MAX or _UNCOMPRESSED < kind <= _UNSKIPPABLE_MAX:
            if end > start:
                break  # the chunks before it are decoded first
            raise ProtocolError(
                f"the stream is not snappy: a chunk of kind 0x{kind:02x} and {size} bytes; "
                f"the limit is {SNAPPY_CHUNK_SIZE_MAX} bytes"
            )
        after = end + _CHUNK_HEADER_LENGTH + size
        plain_size += min(_GROWTH_MAX * size, _BLOCK_SIZE_MAX) if kind == 0 else size
        if after > len(data) or (plain_size > PIECE_SIZE_MAX and end > start):
            break
        end = after
    return end
