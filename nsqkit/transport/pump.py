"""The pump: joins a machine to a byte stream.

The rule it guards: one read, one call, one write. A reader hands each receive buffer to the machine; a writer sends
what the machine has, joined, whenever it is woken. Nothing is awaited per message, and a peer that does not read
stops being read from.

Where the stream can send without waiting, as ``AsyncioStream`` can, the reader sends the answers to what it has just
read by itself, unless the writer is at it: that spares small requests two turns of the event loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.transport.asyncio_stream import AsyncioStream

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Machine

RECEIVE_SIZE = 256 * 1024


class Pump:
    """Drives one machine over one stream until either has come to its end.

    Args:
        machine: what speaks the protocol.
        stream: where the peer is; closed when ``run`` returns.
        clock: tells the machine the time.
        after_receive: called after the machine has been handed bytes or the end of the stream, to act on what
            happened there.
        linger: seconds that the peer has to take the last bytes of a machine that has ended.
        wait_for_peer: once the last bytes are sent, say so and wait (within ``linger``) for the peer to close. Then
            it has read them all; closing at once may throw away what it has not read yet.
    """

    def __init__(
        self,
        machine: Machine,
        stream: ByteStream,
        clock: Clock,
        *,
        after_receive: Callable[[], None],
        linger: float = 1.0,
        wait_for_peer: bool = False,
    ) -> None:
        self._machine = machine
        self._stream = stream
        self._clock = clock
        self._after_receive = after_receive
        self._linger = linger
        self._wait_for_peer = wait_for_peer
        self._read_ended = anyio.Event()
        self._wake = anyio.Event()
        self._drained = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._quick_stream = stream if isinstance(stream, AsyncioStream) else None
        self._writer_waits = False

    def wake(self) -> None:
        """Have the writer send what there is to send; it may be called any number of times."""
        if self._machine.has_output:
            self._wake.set()
        if self._machine.ended:
            self._limit_time()

    def flush(self) -> None:
        """Send what there is to send now if that needs no waiting, else have the writer do it."""
        if self._machine.ended or not self._send_now(self._clock.now_ns()):
            self.wake()

    async def run(self) -> None:
        """Read and write until the machine has ended or the peer has gone."""
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                tasks.start_soon(self._read)
                await self._write()
                tasks.cancel_scope.cancel()
        finally:
            await anyio.aclose_forcefully(self._stream)

    async def _read(self) -> None:
        machine, clock = self._machine, self._clock
        receive = self._stream.receive
        try:
            while self._wait_for_peer or not machine.ended:
                try:
                    data = await receive(RECEIVE_SIZE)
                except (EndOfStream, BrokenResourceError, ClosedResourceError):
                    self._end_of_stream()
                    return
                now_ns = clock.now_ns()
                machine.receive_data(data, now_ns)
                if machine.has_output:
                    self._send_now(now_ns)
                self._after_receive()
                if machine.outbox_full:
                    await self._wait_drained()
        finally:
            self._read_ended.set()

    def _send_now(self, now_ns: int) -> bool:
        """Send what there is to send, if that needs no waiting and the writer is not at it; tell whether it was so."""
        stream = self._quick_stream
        if stream is None or not self._writer_waits or not stream.is_writable:
            return False
        if data := self._machine.data_to_send(now_ns):
            stream.send_nowait(data)
        return True

    async def _wait_drained(self) -> None:
        while self._machine.outbox_full and not self._machine.ended:
            if self._drained.is_set():
                self._drained = anyio.Event()
            await self._drained.wait()

    async def _write(self) -> None:
        machine, clock, send = self._machine, self._clock, self._stream.send
        try:
            while True:
                # The event is renewed before looking, so that what is added from now on wakes the writer again.
                wake = self._wake = anyio.Event()
                while data := machine.data_to_send(clock.now_ns()):
                    await send(data)
                self._drained.set()
                if machine.ended:
                    break
                self._writer_waits = True
                await wake.wait()
                self._writer_waits = False
            self._limit_time()
            if self._quick_stream is not None:
                await send(b"")  # returns when the kernel has taken what the reader has sent
            if self._wait_for_peer:
                await self._stream.send_eof()
                await self._read_ended.wait()
            await self._stream.aclose()
        except (BrokenResourceError, ClosedResourceError, OSError):  # an OSError comes from trio's send_eof
            if not machine.ended:
                # The peer takes nothing more, but why it left may still be there to be read.
                with anyio.move_on_after(self._linger):
                    await self._read_ended.wait()
            self._end_of_stream()

    def _limit_time(self) -> None:
        """Leave the peer ``linger`` seconds; the first call counts."""
        if self._scope is not None and math.isinf(self._scope.deadline):
            self._scope.deadline = anyio.current_time() + self._linger

    def _end_of_stream(self) -> None:
        self._machine.receive_eof(self._clock.now_ns())
        self._after_receive()
        self.wake()
