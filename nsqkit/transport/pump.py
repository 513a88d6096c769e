"""The pump: drives a machine over a byte stream.

One read is one call of the machine, and its answers are joined into one write; nothing is awaited per message. While
the machine's outbox is full, or a part of its input is left, nothing is read. The input that is left is processed in
later turns of the event loop, so that other connections get their turns in between.

There are two ways to read and two to write. A ``PushStream`` calls the pump with its data, and the pump writes in the
same turn of the event loop what the kernel takes at once. Any other stream has a task that receives. The task that
runs the pump is the writer: it writes output that has to wait, and closes the stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.clock import NS_PER_S, move_on_after
from nsqkit.errors import WriteTimeout
from nsqkit.transport.interrupts import without_interrupts
from nsqkit.transport.push_stream import PushStream
from nsqkit.transport.write_timeout import send_with_timeout

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.transport.machine import Machine

RECEIVE_SIZE = 256 * 1024

FULL_READ_SIZE = 250_000
"""A read of at least so many bytes was a full one; libuv would read again at once, up to 32 times, before others."""


class Pump:
    """Drives one machine over one stream until the machine has ended or the peer has closed the connection.

    Args:
        machine: the protocol.
        stream: the connection; closed when ``run`` returns.
        clock: the time, for the machine and for both limits below.
        after: called with the time to act on the machine's events: after each of its methods that takes input, and
            after ``data_to_send`` if that left an event. It may be called outside of any task.
        linger: seconds in which the peer can take the last bytes of a machine that has ended.
        wait_for_peer: after the last bytes, send the end of the stream and wait, within ``linger``, for the peer to
            close. Then the peer has read all of them; closing at once can discard bytes that it has not read.
        write_timeout: seconds in which the peer has to take some of the bytes that are sent.

    Attributes:
        after: as given; it may be replaced.
    """

    def __init__(
        self,
        machine: Machine,
        stream: ByteStream,
        clock: Clock,
        *,
        after: Callable[[int], None],
        linger: float = 1.0,
        wait_for_peer: bool = False,
        write_timeout: float = math.inf,
    ) -> None:
        self._machine = machine
        self._stream = stream
        self._clock = clock
        self.after = after
        self._linger = linger
        self._wait_for_peer = wait_for_peer
        self._has_write_timeout = not math.isinf(write_timeout)
        self._send = (
            partial(send_with_timeout, stream, timeout=write_timeout, clock=clock)
            if self._has_write_timeout
            else stream.send
        )
        self._push = stream if isinstance(stream, PushStream) else None
        self._scope = anyio.CancelScope()
        self._is_lingering = False
        self._error: Exception | None = None
        self._reading_paused = False
        self._may_read = anyio.Event()
        self._read_ended = anyio.Event()
        self._writer_waits = False
        self._wake = anyio.Event()
        self._flush_is_due = False
        self._turn_is_due = False
        self._is_processing = False

    async def run(self) -> None:
        """Read and write until the machine has ended or the peer has closed the connection.

        Raises:
            WriteTimeout: the peer took nothing for ``write_timeout``.
        """
        try:
            with self._scope:
                if self._push is not None:
                    self._push.set_receiver(self._on_data, self._on_end)
                    await self._write()
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(without_interrupts, self._read)
                        await self._write()
                        tasks.cancel_scope.cancel()
            if self._error is not None:
                raise self._error
        finally:
            if self._is_lingering:
                self._clock.cancel_at(self._scope, None)
            await anyio.aclose_forcefully(self._stream)

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        receive = self._stream.receive
        try:
            while self._wait_for_peer or not self._machine.ended:
                try:
                    data = await receive(RECEIVE_SIZE)
                except (EndOfStream, BrokenResourceError, ClosedResourceError):
                    self._read_ended.set()
                    self._process_eof()
                    self._wake.set()
                    await self._process_rest()
                    return
                self._process(data)
                await self._process_rest()
        finally:
            self._read_ended.set()

    async def _process_rest(self) -> None:
        """Process the input that is left, a turn at a time; return when the machine accepts more data."""
        while self._reading_paused:
            if self._machine.has_input:
                await anyio.lowlevel.checkpoint()
                self._process(None)
            else:
                self._may_read = anyio.Event()
                await self._may_read.wait()

    def _on_data(self, data: bytes) -> None:
        try:
            if self._wait_for_peer or not self._machine.ended:
                self._process(data)
                if len(data) >= FULL_READ_SIZE:
                    self._reading_paused = True
                    self._schedule_turn()
        except Exception as error:
            self.fail(error)
        if self._reading_paused or (self._machine.ended and not self._wait_for_peer):
            assert self._push is not None
            self._push.pause_reading()

    def _on_end(self) -> None:
        try:
            self._process_eof()
        except Exception as error:
            self.fail(error)
        self._read_ended.set()
        self._wake.set()

    def _process(self, data: bytes | None) -> None:
        """Pass data to the machine, or with None have it process its input that is left; then write its output."""
        machine = self._machine
        now_ns = self._clock.now_ns()
        self._is_processing = True
        try:
            if data is None:
                machine.process_input(now_ns)
            else:
                machine.receive_data(data, now_ns)
            self.after(now_ns)
        finally:
            self._is_processing = False
        if machine.ended or not self._send_now():
            self.wake()
        if machine.has_input:
            self._pause_if_full()
        else:
            self._reading_paused = machine.outbox_full and not machine.ended

    def _process_eof(self) -> None:
        now_ns = self._clock.now_ns()
        self._machine.receive_eof(now_ns)
        self.after(now_ns)
        self._pause_if_full()
        self.wake()

    def _pause_if_full(self) -> None:
        """Read nothing while the machine accepts nothing."""
        machine = self._machine
        self._reading_paused = (machine.has_input or machine.outbox_full) and not machine.ended
        if machine.has_input:
            self._schedule_turn()

    def _resume_reading(self) -> None:
        """Read again if the machine accepts more."""
        machine = self._machine
        if machine.has_input:
            self._schedule_turn()
        elif machine.ended or not machine.outbox_full:
            self._reading_paused = False
            self._may_read.set()
            if self._push is not None:
                self._push.resume_reading()

    def _schedule_turn(self) -> None:
        """Continue in the next turn of the event loop: in ``_take_turn``, or in the task that receives."""
        if self._push is None:
            self._may_read.set()
        elif not self._turn_is_due:
            self._turn_is_due = True
            self._push.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        try:
            if self._machine.has_input:
                self._process(None)
                self._reading_paused = True
            if self._reading_paused:
                self._resume_reading()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End, and have ``run`` raise ``error``, which occurred outside of it."""
        self._error = error
        self._scope.cancel()

    # ---- writing ---------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Write the machine's output soon: once for all calls in one turn of the event loop."""
        machine = self._machine
        if self._is_processing:
            return  # _process writes the output
        if machine.ended:
            self._wake.set()
            self._limit_time()
        elif self._push is None or not self._push.is_writable:
            if machine.has_output or self._reading_paused:  # else the writer would run for each read
                self._wake.set()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._push.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flush_is_due = False
        try:
            self.flush()
        except Exception as error:
            self.fail(error)

    def flush(self) -> None:
        """Write the machine's output now if the kernel takes it at once, else have the writer do it."""
        if self._machine.ended:
            self.wake()
        elif not self._send_now():
            self._wake.set()

    def _send_now(self) -> bool:
        """Write the output, and return True, if the stream is writable and the writer does not write."""
        push = self._push
        if push is None or not self._writer_waits or not push.is_writable:
            return False
        machine = self._machine
        if machine.has_output and (data := machine.data_to_send()):
            push.send_nowait(data)
            if self._has_write_timeout and not push.is_writable:
                self._wake.set()  # the writer limits the time for the rest
        if machine.has_events:
            self.after(self._clock.now_ns())
            if machine.ended:
                self.wake()
        if self._reading_paused:
            self._resume_reading()
        return True

    def _take_output(self) -> bytes:
        data = self._machine.data_to_send()
        if self._machine.has_events:
            self.after(self._clock.now_ns())
        return data

    async def _write(self) -> None:
        """Write all output that cannot be written at once, until the machine has ended; then close the stream."""
        machine, clock, send = self._machine, self._clock, self._send
        try:
            while True:
                # The event is renewed before the output is taken, so that any later output sets the new one.
                wake = self._wake = anyio.Event()
                await self._send_output()
                if self._has_write_timeout and self._push is not None and not self._push.is_writable:
                    await send(b"")
                if self._reading_paused:
                    self._resume_reading()
                if machine.ended:
                    await self._send_output()  # for input that has waited for the stream to be read again
                    break
                self._writer_waits = True
                await wake.wait()
                self._writer_waits = False
            self._limit_time()
            if self._push is not None:
                await send(b"")  # returns when the kernel has taken the bytes that were written without the writer
            if self._wait_for_peer:
                await self._stream.send_eof()
                await self._read_ended.wait()
            await self._stream.aclose()
        except (BrokenResourceError, ClosedResourceError, OSError):  # trio's send_eof raises an OSError
            if not machine.ended:
                # The peer takes nothing more, but the reason may be among the data that it has sent.
                with move_on_after(clock, self._linger):
                    await self._read_to_end()
            self._process_eof()
            await self._process_last_input()
        except WriteTimeout as timeout:
            self.fail(timeout)

    async def _send_output(self) -> None:
        while data := self._take_output():
            await self._send(data)

    def _make_room(self) -> None:
        """Discard the output of a machine that accepts no input otherwise; that of others counts as not sent."""
        if self._machine.outbox_full:
            self._take_output()

    async def _read_to_end(self) -> None:
        """Have the machine process the rest of the input, until the peer's end."""
        while not self._read_ended.is_set():
            wake = self._wake = anyio.Event()
            self._make_room()
            if self._reading_paused:
                self._resume_reading()
            await wake.wait()

    async def _process_last_input(self) -> None:
        """Have the machine process what the peer sent before it closed the connection."""
        machine, clock = self._machine, self._clock
        while not machine.ended:
            self._make_room()
            if not machine.has_input:
                break
            await anyio.lowlevel.checkpoint()
            now_ns = clock.now_ns()
            machine.process_input(now_ns)
            self.after(now_ns)

    def _limit_time(self) -> None:
        """End the pump after ``linger`` seconds; the first call counts."""
        if not self._is_lingering:
            self._is_lingering = True
            self._clock.cancel_at(self._scope, self._clock.now_ns() + round(self._linger * NS_PER_S))

    # ---- detaching -------------------------------------------------------------------------------------------------

    def detach(self) -> int | None:
        """Stop reading and writing until ``attach``, and return the file descriptor of the socket for the caller's use.

        None, and nothing has changed, if the stream has no such socket or if bytes wait in either direction.
        """
        is_idle = self._writer_waits and not self._flush_is_due and not self._machine.has_output
        return self._push.detach() if self._push is not None and is_idle else None

    def attach(self, unsent: bytes = b"") -> None:
        """Read and write again after ``detach``; first send ``unsent``, which the caller took and could not send."""
        assert self._push is not None
        if unsent:
            self._push.send_nowait(unsent)
            self._wake.set()
        self._push.resume_reading()

    def abort(self) -> None:
        """After ``detach``, close the connection at once, without sending the bytes that the machine has left."""
        assert self._push is not None
        self._push.abort()
        self._scope.cancel()
