"""The pump: joins a machine to a byte stream.

The rule it guards: one read, one call, one write. Each receive buffer is handed to the machine; what the machine has
to say is sent, joined, whenever the pump is woken. Nothing is awaited per message, and a peer that does not read
stops being read from. In a turn of the event loop one buffer is read at most, and a machine that has not worked through
it goes on in the next turn, after whatever else is ready by then; nothing is read before it is through.

There are two ways to read and two to write, and one rule for when. A stream that hands on what comes (``AsyncioStream``
does) is not received from: its calls go straight to the machine, and what needs no waiting is sent in the same turn of
the event loop. All other streams have a task that receives, and the writer, which is the task that runs the pump,
sends. The writer also does what has to wait, on either kind: sending to a peer that is slow, and the end.

How to read it: ``run``, then reading, then writing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.errors import WriteTimeout
from nsqkit.transport.asyncio_stream import AsyncioStream, asyncio_loop
from nsqkit.transport.write_timeout import send_with_timeout

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Machine

RECEIVE_SIZE = 256 * 1024

FULL_READ_SIZE = 250_000
"""A read of so many bytes was a full one; libuv would read on at once, up to 32 times, before all others."""


class Pump:
    """Drives one machine over one stream until either has come to its end.

    Args:
        machine: what speaks the protocol.
        stream: where the peer is; closed when ``run`` returns.
        clock: tells the machine the time.
        after: called to act on what has happened in the machine: after it was handed bytes or the end of the stream,
            and after a full outbox was taken, since room there may let it go on, or others through it. It may be
            called outside of any task.
        linger: seconds that the peer has to take the last bytes of a machine that has ended.
        wait_for_peer: once the last bytes are sent, say so and wait (within ``linger``) for the peer to close. Then
            it has read them all; closing at once may throw away what it has not read yet.
        write_timeout: seconds in which the peer has to take something while there is something to send.
    """

    def __init__(
        self,
        machine: Machine,
        stream: ByteStream,
        clock: Clock,
        *,
        after: Callable[[], None],
        linger: float = 1.0,
        wait_for_peer: bool = False,
        write_timeout: float = math.inf,
    ) -> None:
        self._machine = machine
        self._stream = stream
        self._clock = clock
        self._after = after
        self._linger = linger
        self._wait_for_peer = wait_for_peer
        self._watches_writes = not math.isinf(write_timeout)
        self._send = (
            partial(send_with_timeout, stream, timeout=write_timeout) if self._watches_writes else stream.send
        )
        self._direct = stream if isinstance(stream, AsyncioStream) else None
        self._loop = asyncio_loop()
        self._scope = anyio.CancelScope()
        self._fault: Exception | None = None
        self._reading_paused = False
        self._may_read = anyio.Event()
        self._read_ended = anyio.Event()
        self._writer_waits = False
        self._wake = anyio.Event()
        self._flush_is_due = False
        self._turn_is_due = False
        self._is_taking = False

    async def run(self) -> None:
        """Read and write until the machine has ended or the peer has gone.

        Raises:
            WriteTimeout: the peer took nothing for ``write_timeout``.
        """
        try:
            with self._scope:
                if self._direct is not None:
                    self._direct.hand_to(self._on_data, self._on_end)
                    await self._write()
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._read)
                        await self._write()
                        tasks.cancel_scope.cancel()
            if self._fault is not None:
                raise self._fault
        finally:
            await anyio.aclose_forcefully(self._stream)

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Receive from a stream that has to be asked."""
        receive = self._stream.receive
        try:
            while self._wants_data:
                try:
                    data = await receive(RECEIVE_SIZE)
                except (EndOfStream, BrokenResourceError, ClosedResourceError):
                    self._read_ended.set()
                    self._end_of_stream()
                    await self._take_turns()
                    return
                self._take(data)
                await self._take_turns()
        finally:
            self._read_ended.set()

    async def _take_turns(self) -> None:
        """Have the machine go on, a turn at a time; return when it takes more."""
        while self._reading_paused:
            if self._machine.has_input:
                await anyio.lowlevel.checkpoint()
                self._take(None)
            else:
                self._may_read = anyio.Event()
                await self._may_read.wait()

    def _on_data(self, data: bytes) -> None:
        """Take what a stream hands on; no caller is there who could be told of an error."""
        assert self._direct is not None
        try:
            if self._wants_data:
                self._take(data)
                if len(data) >= FULL_READ_SIZE:
                    self._reading_paused = True
                    self._wait_for_turn()
        except Exception as fault:
            self.fail(fault)
        if self._reading_paused or not self._wants_data:
            self._direct.pause_reading()

    def _on_end(self) -> None:
        try:
            self._end_of_stream()
        except Exception as fault:
            self.fail(fault)
        self._read_ended.set()

    @property
    def _wants_data(self) -> bool:
        """False once whatever comes would be of no use."""
        return self._wait_for_peer or not self._machine.ended

    def _take(self, data: bytes | None) -> None:
        """Hand the machine what one read returned, or have it go on with what is left, and send the answers."""
        machine = self._machine
        now_ns = self._clock.now_ns()
        self._is_taking = True
        try:
            if data is None:
                machine.process_input(now_ns)
            else:
                machine.receive_data(data, now_ns)
            self._after()
        finally:
            self._is_taking = False
        if machine.ended or (machine.has_output and not self._send_now(now_ns)):
            self.wake()
        if machine.has_input:
            self._pause_if_full()
        else:
            self._reading_paused = machine.outbox_full and not machine.ended

    def _pause_if_full(self) -> None:
        """Have nothing read while the machine takes nothing more."""
        machine = self._machine
        self._reading_paused = (machine.has_input or machine.outbox_full) and not machine.ended
        if machine.has_input:
            self._wait_for_turn()

    def _read_on(self) -> None:
        """Read again once the machine takes more."""
        machine = self._machine
        if machine.has_input:
            self._wait_for_turn()
        elif machine.ended or not machine.outbox_full:
            self._reading_paused = False
            self._may_read.set()
            if self._direct is not None:
                self._direct.resume_reading()

    def _wait_for_turn(self) -> None:
        """Have ``_turn_due`` called in the next turn of the event loop; where a task receives, it goes on."""
        if self._direct is None or self._loop is None:
            self._may_read.set()
        elif not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn_due)

    def _turn_due(self) -> None:
        self._turn_is_due = False
        try:
            if self._machine.has_input:
                self._take(None)
                self._reading_paused = True
            if self._reading_paused:
                self._read_on()
        except Exception as fault:
            self.fail(fault)

    def _end_of_stream(self) -> None:
        self._machine.receive_eof(self._clock.now_ns())
        self._after()
        self._pause_if_full()
        self.wake()

    def fail(self, fault: Exception) -> None:
        """End, and have ``run`` raise ``fault``, which came up outside of it."""
        self._fault = fault
        self._scope.cancel()

    # ---- writing ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have sent what there is to send, once for all calls in a turn of the event loop."""
        machine = self._machine
        if self._is_taking:
            return  # what there is by its end is sent then
        if machine.ended:
            self._wake.set()
            self._limit_time()
        elif machine.has_output or self._reading_paused:
            if self._direct is None or self._loop is None or not self._direct.is_writable:
                self._wake.set()
            elif not self._flush_is_due:
                self._flush_is_due = True
                self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._flush_is_due = False
        try:
            self.flush()
        except Exception as fault:
            self.fail(fault)

    def flush(self) -> None:
        """Send what there is to send now if that needs no waiting, else have the writer do it."""
        if self._machine.ended:
            self.wake()
        elif not self._send_now(self._clock.now_ns()):
            self._wake.set()

    def _send_now(self, now_ns: int) -> bool:
        """Send what there is to send, if that needs no waiting and the writer is not at it; tell whether it was so."""
        stream = self._direct
        if stream is None or not self._writer_waits or not stream.is_writable:
            return False
        if data := self._take_output(now_ns):
            stream.send_nowait(data)
            if self._watches_writes and not stream.is_writable:
                self._wake.set()  # the writer watches over the rest
        if self._reading_paused:
            self._read_on()
        return True

    def _take_output(self, now_ns: int) -> bytes:
        machine = self._machine
        was_full = machine.outbox_full
        data = machine.data_to_send(now_ns)
        if was_full or machine.has_events:
            self._after()
        return data

    # ---- detaching -------------------------------------------------------------------------------------------------

    def detach(self) -> int | None:
        """Stop reading and writing until ``attach``, and return the file descriptor of the socket for the caller's use.

        None, and nothing has changed, if the stream has no such socket or if bytes wait in either direction.
        """
        is_idle = self._writer_waits and not self._flush_is_due and not self._machine.has_output
        return self._direct.detach() if self._direct is not None and is_idle else None

    def attach(self, unsent: bytes = b"") -> None:
        """Read and write again after ``detach``; first send ``unsent``, which the caller took and could not send."""
        assert self._direct is not None
        if unsent:
            self._direct.send_nowait(unsent)
            self._wake.set()
        self._direct.resume_reading()

    def abort(self) -> None:
        """Close the connection at once, after ``detach``, without sending the bytes that the machine has left."""
        assert self._direct is not None
        self._direct.abort()
        self._scope.cancel()

    # ---- writing, where it has to wait -----------------------------------------------------------------------------

    async def _write(self) -> None:
        machine, clock, send = self._machine, self._clock, self._send
        try:
            while True:
                # The event is renewed before looking, so that what is added from now on wakes the writer again.
                wake = self._wake = anyio.Event()
                while data := self._take_output(clock.now_ns()):
                    await send(data)
                if self._watches_writes and self._direct is not None and not self._direct.is_writable:
                    await send(b"")
                if self._reading_paused:
                    self._read_on()
                if machine.ended:
                    break
                self._writer_waits = True
                await wake.wait()
                self._writer_waits = False
            self._limit_time()
            if self._direct is not None:
                await send(b"")  # returns when the kernel has taken what was sent without the writer
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
            await self._work_off()
        except WriteTimeout as timeout:
            self.fail(timeout)

    async def _work_off(self) -> None:
        """Have the machine work on what the peer has sent before it left; no answers are sent."""
        machine, clock = self._machine, self._clock
        while not machine.ended:
            machine.data_to_send(clock.now_ns())
            if not machine.has_input:
                break
            await anyio.lowlevel.checkpoint()
            machine.process_input(clock.now_ns())
            self._after()

    def _limit_time(self) -> None:
        """Leave the peer ``linger`` seconds; the first call counts."""
        if math.isinf(self._scope.deadline):
            now = anyio.current_time() if self._loop is None else self._loop.time()
            self._scope.deadline = now + self._linger
