"""TCP on asyncio's event loops, as an anyio byte stream that costs less for small reads and writes than anyio's own.

anyio's stream stops and restarts the polling of the socket at each read, and yields to the event loop at each write.
This one stops reading only when ``READ_AHEAD_MAX`` bytes wait, and a write that the kernel takes at once returns at
once. It is a ``PushStream``, too. Otherwise it behaves as anyio's. It does not exist on trio, where
``nsqkit.transport.tcp`` uses anyio's streams.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import SocketAttribute

from nsqkit.transport.push_stream import PushStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ADDRESSES = ((SocketAttribute.remote_address, "peername"), (SocketAttribute.local_address, "sockname"))

READ_AHEAD_MAX = 256 * 1024
"""Bytes that may wait for ``receive`` before the socket is not read any more."""

READ_SIZE = 256 * 1024
"""Bytes that one read returns at most; the same as in asyncio."""


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop if it is one of asyncio's, None on trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncioStream(PushStream, asyncio.Protocol):
    """One TCP connection, and the protocol of its asyncio transport; ``on_connect`` is called with the stream."""

    def __init__(self, on_connect: Callable[[AsyncioStream], None] | None = None) -> None:
        self._on_connect = on_connect
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[bytes] = deque()
        self._waiting_size = 0
        self._is_reading = True
        self._at_end = False
        self._closed = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._on_data: Callable[[bytes], None] | None = None
        self._on_end: Callable[[], None] | None = None
        self._transport: asyncio.Transport
        self._addresses: dict[Any, tuple[str, int]] = {}
        self.is_writable = True
        self.call_soon = self._loop.call_soon

    # ---- called by the transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.send_nowait = self._transport.write
        # So a send returns only when the kernel has taken all of it, and is_writable is False until then.
        self._transport.set_write_buffer_limits(0)
        # Once the connection is lost, uvloop's transports raise an error instead.
        for attribute, name in ADDRESSES:
            if (address := transport.get_extra_info(name)) is not None:
                self._addresses[attribute] = address
        if self._on_connect is not None:
            self._on_connect(self)

    def data_received(self, data: bytes) -> None:
        if self._on_data is not None and self._is_reading:
            self._on_data(data)
            return
        self._chunks.append(data)
        self._waiting_size += len(data)
        if self._waiting_size >= READ_AHEAD_MAX:
            self.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        self._at_end = True
        self._wake_reader()
        self._pass_on()
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self._at_end = True
        self._error = exc
        self.is_writable = False
        self._is_reading = True  # no data follow that a pause could hold back
        self._wake_reader()
        self._pass_on()
        self._wake_writers()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = not self._closed
        self._wake_writers()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        for writer in self._writers:
            if not writer.done():
                writer.set_result(None)
        self._writers.clear()

    # ---- PushStream ----------------------------------------------------------------------------------------------

    def set_receiver(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data, self._on_end = on_data, on_end
        self.resume_reading()
        self._pass_on()

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
            self._pass_on()

    def detach(self) -> int | None:
        sock = self._transport.get_extra_info("socket")
        if sock is None or self._chunks or self._at_end or not (self._is_reading and self.is_writable):
            return None
        self.pause_reading()
        fileno: int = sock.fileno()
        return fileno

    def _pass_on(self) -> None:
        while self._chunks and self._on_data is not None and self._is_reading:
            chunk = self._chunks.popleft()
            self._waiting_size -= len(chunk)
            self._on_data(chunk)
        if self._at_end and self._on_end is not None and self._is_reading and not self._chunks:
            on_end, self._on_end = self._on_end, None
            on_end()

    # ---- anyio's byte stream -------------------------------------------------------------------------------------

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._chunks:
            self._check_open()
            if self._at_end:
                raise EndOfStream
            self._reader = self._loop.create_future()
            await self._reader
        chunk = self._chunks.popleft()
        if len(chunk) > max_bytes:
            self._chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._waiting_size -= len(chunk)
        if self._waiting_size < READ_AHEAD_MAX:
            self.resume_reading()
        return chunk

    @property
    def unsent_size(self) -> int:
        return self._transport.get_write_buffer_size()

    async def send(self, item: bytes) -> None:
        """Send ``item``, and return when the kernel has taken all of it."""
        self._check_open()
        self._transport.write(item)
        while not self.is_writable:
            self._check_open()
            if self._transport.is_closing():
                raise BrokenResourceError
            writer = self._loop.create_future()
            self._writers.append(writer)
            await writer

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError
        if self._error is not None:
            raise BrokenResourceError from self._error

    async def send_eof(self) -> None:
        if not self._transport.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        self._closed = True
        self.is_writable = False
        self._on_data = self._on_end = None
        self._transport.abort()

    async def aclose(self) -> None:
        self.abort()
        await asyncio.sleep(0)

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """The socket, and the addresses of both ends; the peer's only if it was still connected at the start."""
        return {
            SocketAttribute.raw_socket: partial(self._transport.get_extra_info, "socket"),
            **{attribute: partial(self._addresses.__getitem__, attribute) for attribute in self._addresses},
        }


class BufferedStream(AsyncioStream, asyncio.BufferedProtocol):
    """The same, with a buffer to read into that all streams of a thread share.

    It is for asyncio's own loops, which otherwise allocate ``READ_SIZE`` bytes for each read; that was up to a tenth of
    a consumer's cost. uvloop has such a buffer itself.
    """

    def __init__(self, on_connect: Callable[[AsyncioStream], None] | None = None) -> None:
        super().__init__(on_connect)
        self._buffer = _thread.buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_SIZE))


_thread = _Thread()


def make_stream(on_connect: Callable[[AsyncioStream], None] | None = None) -> AsyncioStream:
    """Return a new stream for the running event loop, as the protocol of its transport."""
    is_asyncios = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    return BufferedStream(on_connect) if is_asyncios else AsyncioStream(on_connect)
