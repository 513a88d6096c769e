"""Compression as a transform of bytes into bytes.

The rule it guards: an upgrade after IDENTIFY is a transform inside the session, not another stream outside it.
The session receives what the socket gave and returns what the socket is to send, compressed or not; the pump does
not know, and the bytes that came after the last plain command simply go through the transform.

What one buffer decompresses to is handed on in pieces, so that a small buffer which holds gigabytes meets the
limits of the protocol before it meets those of the memory.

Deflate is raw (no zlib header), flushed at the end of each write, as nsqd does it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

from nsqkit.errors import ProtocolError

PIECE_SIZE_MAX = 256 * 1024
"""Bytes of one piece of decompressed data: as much as one read returns."""


class Transform(Protocol):
    """Both directions of one layer between the session and the socket."""

    @property
    def has_output(self) -> bool:
        """True while the layer has bytes of its own to send; ``encode`` returns them, even for no plain bytes."""
        ...

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of what was received, in pieces."""
        ...

    def encode(self, data: bytes) -> bytes:
        """Return what to send for these plain bytes, so that the peer can read all of them now."""
        ...


class Deflate:
    """Raw deflate in both directions.

    Args:
        level: 1 (fast) to 9 (small).
    """

    __slots__ = ("_compressor", "_decompressor")

    has_output = False

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the plain bytes of what was received.

        Raises:
            ProtocolError: the bytes are not deflate, or come after its end.
        """
        decompressor = self._decompressor
        try:
            # A full piece may hide more output inside the decompressor, even when all input is used up.
            while len(piece := decompressor.decompress(data, PIECE_SIZE_MAX)) == PIECE_SIZE_MAX:
                yield piece
                data = decompressor.unconsumed_tail
        except zlib.error as error:
            raise ProtocolError(f"the stream is not deflate: {error}") from error
        if piece:
            yield piece
        if after := decompressor.unused_data:
            raise ProtocolError(f"{len(after)} bytes came after the end of the deflate stream")

    def encode(self, data: bytes) -> bytes:
        """Return the compressed bytes, flushed."""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
