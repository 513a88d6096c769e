"""The layers between a session and its socket, for either end of a connection.

      socket ─▶ TLS ─▶ snappy or deflate ─▶ session
      socket ◀─ TLS ◀─ snappy or deflate ◀─ session

The rule it guards: an upgrade takes effect between two bytes, in both directions, whatever the buffers held at that
moment. What was to be sent before it goes out in the layers of its time; what was received after it is handed to
``decode`` again, from the depth at which the new layer stands.

How to read it: ``Layers`` is a list of transforms (``nsqkit.wire.transform``), from the socket on. It is a list so
that asking whether there is any costs next to nothing: mostly there is none.
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
        self._unsent = b""  # went through the layers of its time, before another was added

    def add(self, layer: Transform, *, above: int, unsent: bytes) -> None:
        """Have what is sent and received from here on go through ``layer``.

        Args:
            layer: the new one, next to the session.
            above: how many of the layers stay, from the socket on; those above them are replaced.
            unsent: what is to be sent before it takes effect.
        """
        self._unsent = self.encode(unsent)
        self[above:] = [layer]

    def strip(self) -> bytes:
        """Take all layers away; return what goes before plain bytes: what the outermost still has to say."""
        last = self._unsent + self[0].encode(b"")
        self._unsent = b""
        self.clear()
        return last

    @property
    def has_output(self) -> bool:
        """True while there is something to send, even if the session has nothing to say."""
        if self._unsent:
            return True
        # Without a generator: this is asked for each buffer that comes.
        for layer in self:  # noqa: SIM110
            if layer.has_output:
                return True
        return False

    @property
    def at_end(self) -> bool:
        """True once the peer has said in one of the layers that it sends nothing more."""
        for layer in self:  # noqa: SIM110 (as above)
            if layer.at_end:
                return True
        return False

    def encode(self, data: bytes) -> bytes:
        """Return what to send for these plain bytes, after what is still to be sent."""
        for layer in reversed(self):
            if data or layer.has_output:
                data = layer.encode(data)
        if self._unsent:
            data = self._unsent + data
            self._unsent = b""
        return data

    def decode(self, data: bytes, depth: int = 0) -> Iterator[bytes]:
        """Yield the plain bytes of what was received, in pieces; a layer that is added meanwhile is for the next one.

        Args:
            data: the bytes.
            depth: how many layers they have come through, from the socket on.

        Raises:
            ProtocolError: the peer does not speak one of the layers.
        """
        if depth >= len(self):
            yield data
            return
        for piece in self[depth].decode(data):
            yield from self.decode(piece, depth + 1)
