"""One end of a connection as a transport of asyncio: an ``AsyncioStream`` is its protocol, as it is with real sockets.

It calls its protocol when asyncio's own would: reads and writes that become possible, and the loss of the connection,
are callbacks of the loop. A program that does not read learns of a reset only when it reads or writes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from anyio.abc import SocketAttribute

from nsqkit.transport.asyncio_stream import READ_SIZE, AsyncioStream, BufferedStream
from tests.simulation.driver.asyncio_loop import VirtualLoop
from tests.simulation.driver.pipe import CAPACITY, Endpoint, Pipe

READ_MAXIMA: Final = (100, READ_SIZE, 1_460, READ_SIZE, READ_SIZE)
"""The most bytes of one read, since a network brings them in parts; each connection has one of these limits."""


class Transport(Endpoint, asyncio.Transport):
    """The transport.

    Attributes:
        on_detached_change: called when something has changed while a thread has the connection.
    """

    stream: AsyncioStream

    def __init__(self, out: Pipe, into: Pipe, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__(out, into, local, remote)
        assert isinstance(out.loop, VirtualLoop)
        self._loop = out.loop
        self.on_detached_change: Callable[[], object] = lambda: None
        self._is_open = False
        self._is_paused = False
        self._has_reader = True
        self._read_is_due = False
        self._is_full = False
        self._is_closing = False

    def open(self) -> None:
        """Make the stream; asyncio's loops have one that reads into a buffer, uvloop has the other."""
        number = sum(port for _, port in self._addresses.values())
        self.stream = BufferedStream() if number % 2 else AsyncioStream()
        self._read_max = READ_MAXIMA[number % len(READ_MAXIMA)]
        self._is_open = True
        self.stream.connection_made(self)
        self._schedule_read()

    # ---- called by the pipe and the peer -------------------------------------------------------------------------

    def _on_input(self) -> None:
        if self.is_detached:
            self.on_detached_change()
        else:
            self._schedule_read()

    def _schedule_read(self) -> None:
        has_input = self.unread or self._at_end
        if self._is_open and self._has_reader and has_input and not (self._read_is_due or self._is_closing):
            self._read_is_due = True
            self._loop.call_soon(self._read_ready)

    def _read_ready(self) -> None:
        self._read_is_due = False
        if not self._has_reader or self._is_closing:
            return
        if self.unread:
            self._receive(self._take(self._read_max))
        elif self._error is not None:
            self._lose(self._error)
        elif self._at_end:
            self._has_reader = False  # asyncio reads nothing more after the end
            self._note_loss()
            self.stream.eof_received()
        self._schedule_read()

    def _receive(self, data: bytes) -> None:
        if isinstance(self.stream, BufferedStream):
            self.stream.get_buffer(-1)[: len(data)] = data
            self.stream.buffer_updated(len(data))
        else:
            self.stream.data_received(data)

    def _take(self, size: int) -> bytes:
        data = b"".join(self.unread)
        self.unread.clear()
        if len(data) > size:
            self.unread.append(data[size:])
            data = data[:size]
        self._into.read(len(data))
        if self.wire is not None:
            self.wire.receive(data)
        return data

    def _note_loss(self) -> None:
        if self.wire is not None:
            self.wire.is_lost = True

    def on_room(self) -> None:
        if self.is_detached:
            self.on_detached_change()
        elif self._is_full:
            self._loop.call_soon(self._write_ready)

    def _write_ready(self) -> None:
        if self._error is not None:
            self._lose(self._error)
        elif self._is_full and self._out.size <= CAPACITY:
            self._is_full = False
            self.stream.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        self._note_loss()
        self.stream.connection_lost(error)
        self._close()

    # ---- asyncio's transport -------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        values = {
            "peername": self._addresses[SocketAttribute.remote_address],
            "sockname": self._addresses[SocketAttribute.local_address],
            "socket": _Descriptor(self),
        }
        return values.get(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        if not (self._is_closing or self._is_paused):
            self._is_paused, self._has_reader = True, False

    def resume_reading(self) -> None:
        self.is_detached = False
        if not self._is_closing and self._is_paused:
            self._is_paused, self._has_reader = False, True
            self._schedule_read()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return 0 if self._is_closing else max(self._out.size - CAPACITY, 0)

    def write(self, data: Any) -> None:
        if self._eof_sent:
            raise RuntimeError("write after the end")
        if self.wire is not None:
            self.wire.send(data)  # one that is broken takes bytes, too
        if self._is_closing or not data:
            return
        if self._error is not None:
            self._lose(self._error)
            return
        self._out.write(bytes(data))
        if self._out.size > CAPACITY and not self._is_full:
            self._is_full = True
            self.stream.pause_writing()

    def write_eof(self) -> None:
        if self._is_closing or self._eof_sent:
            return
        self._eof_sent = True
        if self.wire is not None:
            self.wire.is_over = True
        if self._error is None:
            self._out.write(None)

    def abort(self) -> None:
        if not (self._is_closing or self._eof_sent):
            self._out.drop_unsent()
        self._lose(None)

    # ---- while it is detached, as a socket that does not block -----------------------------------------------------

    @property
    def room(self) -> int:
        """The bytes that the kernel would take; one if it would refuse them with an error."""
        return 1 if self.is_over else CAPACITY - self._out.size

    @property
    def is_readable(self) -> bool:
        return bool(self.unread) or self._at_end or self.is_over

    def send_detached(self, data: bytes) -> None:
        if self.is_over:
            raise ConnectionResetError
        if self.wire is not None:
            self.wire.send(data)
        self._out.write(data)

    def receive_detached(self, size: int) -> bytes:
        if self.unread:
            return self._take(size)
        if self._error is not None:
            raise ConnectionResetError
        if self._at_end:
            return b""
        raise BlockingIOError


class _Descriptor:
    """The socket of a transport, from which nsqkit takes the descriptor for a thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def fileno(self) -> int:
        self._transport.is_detached = True
        return self._transport.local_port
