"""A byte stream inside another one, through TLS: for those who speak over streams and not as a session, such as HTTP.

The rule it guards: it is for one task at a time, which reads and writes in turn, as a server of HTTP does; so nothing
has to be ordered here. Whatever the layer has to say itself is sent before the next byte is waited for.

How to read it: ``handshake`` first; then it is a stream like any other.
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
    """A stream inside another.

    Args:
        stream: where the peer is; closed with this one.
        tls: the layer between the two.
    """

    def __init__(self, stream: ByteStream, tls: TLS) -> None:
        self._stream = stream
        self._tls = tls
        self._plain = b""

    async def handshake(self) -> None:
        """Return when both sides have agreed.

        Raises:
            ProtocolError: they have not; the peer has been told.
            EndOfStream: the peer has gone.
            BrokenResourceError: the connection is broken.
        """
        await self._send_own()
        while not self._tls.is_ready:
            await self._receive()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte and at most ``max_bytes``."""
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
        """Send all of ``item``."""
        await self._stream.send(self._tls.encode(item))

    async def send_eof(self) -> None:
        """Say, inside TLS, that nothing more is sent."""
        await self._stream.send(self._tls.end())

    async def aclose(self) -> None:
        """Close the stream around this one."""
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the stream around this one."""
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
                # What the peer has sent before it went is still there to be read.
                return
