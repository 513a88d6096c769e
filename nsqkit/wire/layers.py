"""The layers between a session and its socket, for either end of a connection.

      socket ─▶ TLS ─▶ snappy or deflate ─▶ session
      socket ◀─ TLS ◀─ snappy or deflate ◀─ session

An upgrade takes effect between two bytes, in both directions, with any content of the buffers. Bytes that
were to be sent before it pass through the earlier layers; bytes that were received after it are decoded again from the
depth of the new layer.

``Layers`` is a list of transforms (``nsqkit.wire.transform``), from the socket on. It is a list so that the check
whether there is any is fast, since most connections have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqkit.wire.transform import Transform


class Layers(list["Transform"]):
    """All layers of one connection, from the socket on; empty at first."""

    __slots__ = ("_unsent",)

    def __init__(self) -> None:
        super().__init__()
        self._unsent = b""  # encoded before the last layer was added

    def add(self, layer: Transform, *, above: int, unsent: bytes) -> None:
        """Pass all later bytes in both directions through ``layer``, next to the session, once ``unsent`` is sent.

        ``above`` is the number of layers that stay, from the socket on; the others are replaced.
        """
        self._unsent = self.encode(unsent)
        self[above:] = [layer]

    def strip(self) -> bytes:
        """Remove all layers; return the last bytes of the outermost one, to be sent before plain bytes."""
        last = self._unsent + self[0].encode(b"")
        self._unsent = b""
        self.clear()
        return last

    @property
    def has_output(self) -> bool:
        """True while a layer has bytes to send."""
        if self._unsent:
            return True
        # Without a generator: this is called for each received buffer.
        for layer in self:  # noqa: SIM110
            if layer.has_output:
                return True
        return False

    @property
    def at_end(self) -> bool:
        """True once the peer has ended its stream in one of the layers."""
        for layer in self:  # noqa: SIM110 (as above)
            if layer.at_end:
                return True
        return False

    def encode(self, data: bytes) -> bytes:
        """Return the bytes to send for these plain bytes, after those that are still to be sent."""
        for layer in reversed(self):
            if data or layer.has_output:
                data = layer.encode(data)
        if self._unsent:
            data = self._unsent + data
            self._unsent = b""
        return data

    def decode(self, data: bytes, depth: int = 0) -> Iterator[bytes]:
        """Yield the plain bytes in pieces; a layer that is added meanwhile takes effect after the current piece.

        ``depth`` is the number of layers, from the socket on, that have already decoded the data.

        Raises:
            ProtocolError: the bytes are not valid in one of the layers.
        """
        if depth >= len(self):
            yield data
            return
        for piece in self[depth].decode(data):
            yield from self.decode(piece, depth + 1)
