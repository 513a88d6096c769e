"""TLS over a byte stream, for code that uses streams and no session, such as the HTTP server.

It is for one task, which reads and writes in turn, so nothing is locked. The layer's own records are sent before the
next byte is received. Call ``handshake`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

from nsqkit.errors import ProtocolError

if TYPE_CHECKING:
    from nsqkit.transport.tls import TLS

RECEIVE_SIZE = 64 * 1024


class TLSStream(ByteStream):
    """A byte stream in TLS over another one, which is closed with it."""

    def __init__(self, stream: ByteStream, tls: TLS) -> None:
        self._stream = stream
        self._tls = tls
        self._plain = b""

    async def handshake(self) -> None:
        """Do the handshake.

        Raises:
            ProtocolError: it failed; an alert was sent.
            EndOfStream: the peer closed the connection.
            BrokenResourceError: the connection is broken.
        """
        await self._send_own()
        while not self._tls.is_ready:
            await self._receive()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._plain:
            if self._tls.at_end:
                raise EndOfStream
            try:
                await self._receive()
            except ProtocolError as error:
                raise BrokenResourceError from error
        data, self._plain = self._plain[:max_bytes], self._plain[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        await self._stream.send(self._tls.encode(item))

    async def send_eof(self) -> None:
        """Close TLS."""
        await self._stream.send(self._tls.end())

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def _receive(self) -> None:
        data = await self._stream.receive(RECEIVE_SIZE)
        try:
            self._plain += b"".join(self._tls.decode(data))
        finally:
            await self._send_own()

    async def _send_own(self) -> None:
        if self._tls.has_output:
            try:
                await self._stream.send(self._tls.encode(b""))
            except (BrokenResourceError, ClosedResourceError):
                # The data that the peer sent before can still be received.
                return
