from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context

import anyio
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream

from nsqkit.clock import ManualClock
from nsqkit.errors import WriteTimeout
from nsqkit.transport.asyncio_stream import AsyncioStream
from nsqkit.transport.memory import MemoryByteStream, memory_pair
from nsqkit.transport.pump import FULL_READ_SIZE, Pump
from nsqkit.transport.tcp import connect_tcp, listen
from tests.peers import BACKENDS, settle
from tests.transport.played import PlayedTransport

LINGER = 0.02
"""Seconds of the test's clock."""

in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)
pytestmark = pytest.mark.anyio


class Recorder:
    """A machine that records its input, and whose outbox the test fills."""

    def __init__(self, on_data: Callable[[Recorder, bytes], None] = lambda recorder, data: None) -> None:
        self.outbox: list[bytes] = []
        self.outbox_full = False
        self.left: list[bytes] = []  # input for process_input
        self.ended = False
        self.received: list[bytes] = []
        self.times: list[int] = []
        self.eof_count = 0
        self.after_count = 0
        self.left_events: list[object] = []  # recorded by data_to_send
        self._on_data = on_data

    @property
    def has_output(self) -> bool:
        return bool(self.outbox) or self.ended

    def receive_data(self, data: bytes, now_ns: int) -> None:
        self.received.append(data)
        self.times.append(now_ns)
        self._on_data(self, data)

    @property
    def has_input(self) -> bool:
        return bool(self.left) and not self.outbox_full

    def process_input(self, now_ns: int) -> None:
        if self.has_input:
            self.outbox.append(self.left.pop(0))
        self.ended = self.ended or (self.eof_count > 0 and not self.left)

    def receive_eof(self, now_ns: int) -> None:
        if not self.ended:
            self.eof_count += 1
            self.ended = not self.left

    @property
    def has_events(self) -> bool:
        return bool(self.left_events)

    def events(self) -> list[object]:
        events, self.left_events = self.left_events, []
        return events

    def data_to_send(self) -> bytes:
        data = b"".join(self.outbox)
        self.outbox.clear()
        if b"event" in data:
            self.left_events.append(data)
        if data:
            self.outbox_full = False
        return data


class Link(ByteStream):
    """A stream whose writes the test can block or break; ``sent`` records them."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False
        self.eof_sent = False
        self.broken = False
        self.receiving = False
        self.may_send = anyio.Event()
        self.may_send.set()
        self._feed, self._incoming = anyio.create_memory_object_stream[bytes](100)

    def hold(self) -> None:
        """Block writes."""
        self.may_send = anyio.Event()

    def feed(self, data: bytes) -> None:
        """Send ``data`` as the peer."""
        self._feed.send_nowait(data)

    def leave(self) -> None:
        """Close the peer's direction."""
        self._feed.close()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        self.receiving = True
        try:
            return await self._incoming.receive()
        finally:
            self.receiving = False

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        await self.may_send.wait()
        if self.broken:
            raise BrokenResourceError
        self.sent.append(item)

    async def send_eof(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.eof_sent = True

    async def aclose(self) -> None:
        self.closed = True
        self._feed.close()
        self._incoming.close()
        await anyio.lowlevel.checkpoint()


class Bench:
    """A pump, its machine and its clock."""

    def __init__(
        self,
        machine: Recorder,
        stream: ByteStream,
        *,
        wait_for_peer: bool,
        linger: float = LINGER,
        write_timeout: float = math.inf,
    ) -> None:
        self.machine = machine
        self.clock = ManualClock(7)
        self.finished = anyio.Event()
        self.pump = Pump(
            machine,
            stream,
            self.clock,
            after=self._after,
            linger=linger,
            wait_for_peer=wait_for_peer,
            write_timeout=write_timeout,
        )

    def _after(self, now_ns: int) -> None:
        self.machine.after_count += 1
        self.machine.events()
        self.pump.wake()

    async def run(self) -> None:
        await self.pump.run()
        self.finished.set()

    def feed(self, *pieces: bytes) -> None:
        """Put output into the machine's outbox."""
        self.machine.outbox += pieces
        self.pump.wake()

    def end(self) -> None:
        """End the machine."""
        self.machine.ended = True
        self.pump.wake()

    async def wait(self) -> None:
        with anyio.fail_after(60):
            await self.finished.wait()

    async def wait_until_limit(self) -> None:
        """Wait for the end, which must come at the end of ``LINGER`` and not before."""
        await settle()
        assert not self.finished.is_set()
        self.clock.advance(LINGER)
        await self.wait()


@asynccontextmanager
async def pumping(
    machine: Recorder | None = None, stream: ByteStream | None = None, *, wait_for_peer: bool = False
) -> AsyncIterator[tuple[Bench, Link]]:
    """Run a pump; at the end of the block it is cancelled, and must have closed its stream."""
    link = Link()
    bench = Bench(machine or Recorder(), stream or link, wait_for_peer=wait_for_peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        await settle()
        yield bench, link
        tasks.cancel_scope.cancel()
    assert link.closed or stream is not None
    await link.aclose()


@in_memory
class TestReading:
    async def test_each_read_is_one_call_with_time(self):
        async with pumping() as (bench, link):
            link.feed(b"ab")
            await settle()
            bench.clock.advance(1e-9)
            link.feed(b"c")
            await settle()
            assert bench.machine.received == [b"ab", b"c"]
            assert bench.machine.times == [7, 8]
            assert bench.machine.after_count == 2

    async def test_eof_is_passed_once_and_output_is_sent(self):
        async with pumping() as (bench, link):
            bench.machine.outbox.append(b"last")
            link.leave()
            await bench.wait()
            assert bench.machine.eof_count == 1
            assert link.sent == [b"last"]
            assert link.closed

    async def test_ended_machine_gets_no_input(self):
        def end(machine: Recorder, data: bytes) -> None:
            machine.ended = True

        async with pumping(Recorder(end)) as (bench, link):
            link.feed(b"bye")
            link.feed(b"more")
            await bench.wait()
            assert bench.machine.received == [b"bye"]
            assert bench.machine.eof_count == 0

    async def test_full_outbox_pauses_reading(self):
        def fill(machine: Recorder, data: bytes) -> None:
            machine.outbox.append(data.upper())
            machine.outbox_full = True

        async with pumping(Recorder(fill)) as (bench, link):
            link.hold()
            for data in (b"a", b"b", b"c"):
                link.feed(data)
            await settle()
            assert bench.machine.received == [b"a"]
            assert not link.receiving
            link.may_send.set()
            await settle()
            assert bench.machine.received == [b"a", b"b", b"c"]
            assert link.sent == [b"A", b"B", b"C"]
            assert link.receiving


def put_off(machine: Recorder, data: bytes) -> None:
    """Leave the input for later turns, a byte for each."""
    machine.left += [data[at : at + 1] for at in range(len(data))]


@in_memory
class TestTurns:
    async def test_rest_of_input_is_processed_before_next_read(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.feed(b"ab")
            link.feed(b"c")
            await settle()
            assert bench.machine.received == [b"ab", b"c"]
            assert b"".join(link.sent) == b"abc"
            assert link.receiving

    async def test_other_tasks_run_between_turns(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            turns = []
            link.feed(b"x" * 100)
            while not bench.machine.received:
                await anyio.lowlevel.checkpoint()
            while bench.machine.left:
                turns.append(len(bench.machine.left))
                await anyio.lowlevel.checkpoint()
            assert len(turns) > 90

    async def test_full_outbox_pauses_processing(self):
        def put_off_and_fill(machine: Recorder, data: bytes) -> None:
            put_off(machine, data)
            fill(machine, b"first")

        async with pumping(Recorder(put_off_and_fill)) as (bench, link):
            link.hold()
            bench.feed(b"x")
            await settle()
            link.feed(b"ab")
            await settle()
            assert bench.machine.left == [b"a", b"b"]
            assert not link.receiving
            link.may_send.set()
            await settle()
            assert b"".join(link.sent) == b"xFIRSTab"
            assert link.receiving

    async def test_eof_is_passed_after_rest_of_input(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.feed(b"abc")
            link.leave()
            await bench.wait()
            assert b"".join(link.sent) == b"abc"
            assert bench.machine.eof_count == 1
            assert link.closed

    async def test_input_before_broken_write_is_processed(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.broken = True
            link.feed(b"x" * 1000)
            link.leave()
            await bench.wait()
            assert bench.machine.left == []
            assert link.closed


@in_memory
class TestWriting:
    async def test_output_between_writes_is_one_write(self):
        async with pumping() as (bench, link):
            for piece in (b"a", b"b", b"c"):
                bench.feed(piece)
            await settle()
            assert link.sent == [b"abc"]

    async def test_output_during_a_write_is_the_next_write(self):
        async with pumping() as (bench, link):
            link.hold()
            bench.feed(b"a")
            await settle()
            bench.feed(b"b")
            bench.feed(b"c")
            await settle()
            link.may_send.set()
            await settle()
            assert link.sent == [b"a", b"bc"]
            bench.feed(b"d")
            await settle()
            assert link.sent == [b"a", b"bc", b"d"]

    async def test_after_is_called_when_data_to_send_left_event(self):
        async with pumping() as (bench, link):
            bench.feed(b"event")
            await settle()
            assert link.sent == [b"event"]
            assert bench.machine.after_count == 1

    async def test_read_without_output_does_not_run_the_writer(self, monkeypatch: pytest.MonkeyPatch):
        async with pumping() as (bench, link):
            await settle()
            takes: list[int] = []

            def take() -> bytes:
                takes.append(1)
                return b""

            with monkeypatch.context() as patch:
                patch.setattr(bench.machine, "data_to_send", take)
                link.feed(b"a")
                await settle()
            assert bench.machine.received == [b"a"]
            assert takes == []

    async def test_wake_without_output_sends_nothing(self):
        async with pumping() as (bench, link):
            bench.pump.wake()
            await settle()
            assert link.sent == []
            assert not bench.finished.is_set()

    async def test_initial_output_is_sent(self):
        machine = Recorder()
        machine.outbox.append(b"  V2")
        async with pumping(machine) as (_, link):
            assert link.sent == [b"  V2"]

    async def test_failed_write_ends_pump(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.feed(b"x")
            await settle()
            link.leave()
            await bench.wait()
            assert bench.machine.eof_count == 1

    async def test_input_before_failed_write_is_read(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.feed(b"x")
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert not bench.finished.is_set()
            link.feed(b"this is why")
            link.leave()
            await bench.wait()
            assert bench.machine.received == [b"this is why"]
            assert bench.machine.eof_count == 1

    async def test_output_behind_failed_write_stays_in_the_machine(self):
        async with pumping() as (bench, link):
            link.hold()
            bench.feed(b"given to the stream")
            await settle()
            bench.feed(b"not given to it")
            await settle()
            link.broken = True
            link.may_send.set()
            await settle()
            link.leave()
            await bench.wait()
            assert bench.machine.outbox == [b"not given to it"]

    async def test_failed_write_ends_pump_after_linger(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.feed(b"x")
            await bench.wait_until_limit()
            assert bench.machine.eof_count == 1


@in_memory
class TestEnding:
    async def test_last_output_is_sent_before_close(self):
        async with pumping() as (bench, link):
            bench.feed(b"goodbye")
            bench.end()
            await bench.wait()
            assert link.sent == [b"goodbye"]
            assert not link.eof_sent
            assert link.closed
            assert bench.machine.eof_count == 0

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_machine_can_end_before_run(self, wait_for_peer):
        machine = Recorder()
        machine.outbox.append(b"no")
        machine.ended = True
        async with pumping(machine, wait_for_peer=wait_for_peer) as (bench, link):
            if wait_for_peer:
                await bench.wait_until_limit()
            assert bench.finished.is_set()
            assert link.sent == [b"no"]

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_peer_that_does_not_read_has_linger_time(self, wait_for_peer):
        async with pumping(wait_for_peer=wait_for_peer) as (bench, link):
            link.hold()
            bench.feed(b"x")
            await settle()
            bench.end()
            await bench.wait_until_limit()
            assert link.sent == []
            assert link.closed

    async def test_wait_for_peer_sends_eof_and_reads(self):
        async with pumping(wait_for_peer=True) as (bench, link):
            bench.feed(b"goodbye")
            bench.end()
            link.feed(b"late")
            await settle()
            assert link.eof_sent
            link.leave()
            await bench.wait()
            assert bench.machine.received == [b"late"]

    async def test_peer_that_does_not_close_has_linger_time(self):
        async with pumping(wait_for_peer=True) as (bench, link):
            bench.end()
            await bench.wait_until_limit()
            assert link.closed

    async def test_wake_after_end_is_harmless(self):
        async with pumping() as (bench, _):
            bench.end()
            await bench.wait()
            bench.pump.wake()

    async def test_error_of_machine_is_raised_and_stream_closed(self):
        def fail(machine: Recorder, data: bytes) -> None:
            raise RuntimeError("broken machine")

        link = Link()
        bench = Bench(Recorder(fail), link, wait_for_peer=False)
        link.feed(b"x")
        with pytest.raises(ExceptionGroup) as caught:
            await bench.run()
        assert [str(error) for error in caught.value.exceptions] == ["broken machine"]
        assert link.closed


@in_memory
class TestWriteTimeout:
    async def test_write_timeout_ends_pump(self):
        link = Link()
        bench = Bench(Recorder(), link, wait_for_peer=True, write_timeout=0.02)
        link.hold()
        bench.machine.outbox.append(b"x")

        async def run() -> None:
            with pytest.raises(WriteTimeout):
                await bench.run()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await settle()
            bench.clock.advance(0.02)
        assert link.closed
        assert bench.machine.eof_count == 0

    async def test_write_timeout_ignores_idle_time(self):
        link = Link()
        bench = Bench(Recorder(), link, wait_for_peer=False, write_timeout=0.02)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.run)
            await settle()
            bench.feed(b"a")
            await settle()
            bench.clock.advance(0.05)
            bench.feed(b"b")
            await settle()
            assert link.sent == [b"a", b"b"]
            bench.end()


def reading(bench: Bench, link: Link) -> None:
    """Do nothing: the reader waits for the peer."""


def sending(bench: Bench, link: Link) -> None:
    link.hold()
    bench.feed(b"x")


def draining(bench: Bench, link: Link) -> None:
    link.hold()
    bench.feed(b"x")
    link.feed(b"fill")


def lingering(bench: Bench, link: Link) -> None:
    bench.end()


def failing(bench: Bench, link: Link) -> None:
    link.broken = True
    bench.feed(b"x")


@in_memory
@pytest.mark.parametrize("wait_for_peer", [False, True])
@pytest.mark.parametrize("state", [reading, sending, draining, lingering, failing])
async def test_cancellation_in_any_state_closes_stream(state, wait_for_peer):
    def fill(machine: Recorder, data: bytes) -> None:
        machine.outbox.append(data)
        machine.outbox_full = True

    link = Link()
    bench = Bench(Recorder(fill), link, wait_for_peer=wait_for_peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        await settle()
        state(bench, link)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert link.closed


@in_memory
@pytest.mark.parametrize("steps", range(12))
async def test_cancellation_at_any_step_closes_stream(steps):
    ours, theirs = memory_pair()
    bench = Bench(Recorder(), ours, wait_for_peer=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        bench.feed(b"x" * 10)
        for step in range(steps):
            await anyio.lowlevel.checkpoint()
            if step == 5:
                bench.end()
        tasks.cancel_scope.cancel()
    assert_closed(ours)
    await theirs.aclose()


def assert_closed(stream: MemoryByteStream) -> None:
    with pytest.raises(ClosedResourceError):
        stream._receive.receive_nowait()
    with pytest.raises(ClosedResourceError):
        stream._send.send_nowait(b"")


class PushBench:
    """A pump over a ``PushStream``, whose transport the test controls."""

    def __init__(
        self,
        machine: Recorder | None = None,
        *,
        wait_for_peer: bool = False,
        write_timeout: float = math.inf,
    ) -> None:
        self.transport = PlayedTransport()
        self.stream = AsyncioStream()
        self.stream.connection_made(self.transport)
        self.machine = machine or Recorder()
        self.bench = Bench(self.machine, self.stream, wait_for_peer=wait_for_peer, write_timeout=write_timeout)

    async def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the event loop call ``function`` outside of any task; return when that was done."""
        asyncio.get_running_loop().call_soon(function, *args, context=Context())
        await settle()

    async def feed(self, data: bytes) -> None:
        """Send ``data`` as the peer."""
        await self.call(self.stream.data_received, data)

    def hold(self) -> None:
        """Block writes after the next one."""
        self.transport.when_written = self.stream.pause_writing

    def release(self) -> None:
        self.transport.when_written = lambda: None
        self.stream.resume_writing()


@asynccontextmanager
async def pushing(machine: Recorder | None = None, *, wait_for_peer: bool = False) -> AsyncIterator[PushBench]:
    """Run a pump over such a stream; at the end of the block it is cancelled, and must close the stream."""
    it = PushBench(machine, wait_for_peer=wait_for_peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(it.bench.run)
        await settle()
        yield it
        tasks.cancel_scope.cancel()
    assert it.transport.closing


def echo(machine: Recorder, data: bytes) -> None:
    machine.outbox.append(data.upper())


def fill(machine: Recorder, data: bytes) -> None:
    machine.outbox.append(data.upper())
    machine.outbox_full = True


def fail(*_: object) -> None:
    raise RuntimeError("broken machine")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
class TestPushStream:
    async def test_rest_of_input_is_processed_before_next_read(self):
        async with pushing(Recorder(put_off)) as it:
            it.stream.data_received(b"abc")
            assert it.transport.calls[-1] == "pause"
            assert it.transport.written == []
            await settle()
            assert it.transport.written == [b"a", b"b", b"c"]
            assert it.transport.calls[-1] == "resume"

    async def test_each_turn_is_a_turn_of_event_loop(self):
        async with pushing(Recorder(put_off)) as it:
            it.stream.data_received(b"x" * 100)
            for left in range(99, 0, -1):
                await anyio.lowlevel.checkpoint()
                assert abs(len(it.machine.left) - left) <= 1

    async def test_eof_is_passed_after_rest_of_input(self):
        async with pushing(Recorder(put_off)) as it:
            it.stream.data_received(b"abc")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.transport.written == [b"a", b"b", b"c"]

    async def test_output_for_input_that_waited_is_sent_before_the_end(self):
        async with pushing(Recorder(fill)) as it:
            it.hold()
            await it.feed(b"a")
            await it.feed(b"b")
            assert it.transport.calls[-1] == "pause"
            await it.feed(b"c")
            await it.call(it.stream.eof_received)
            it.release()
            await it.bench.wait()
            assert it.transport.written == [b"A", b"B", b"C"]

    async def test_input_before_loss_is_processed(self):
        async with pushing(Recorder(put_off)) as it:
            it.stream.data_received(b"x" * 1000)
            await it.call(it.stream.connection_lost, ConnectionResetError("reset"))
            await it.bench.wait()
            assert it.machine.left == []

    async def test_error_in_later_turn_is_raised_by_run(self):
        it = PushBench(Recorder(put_off))
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(RuntimeError, match="broken machine"):
                    await it.bench.run()
                it.bench.finished.set()

            tasks.start_soon(run)
            await settle()
            it.machine.process_input = fail  # type: ignore[method-assign, assignment]
            await it.feed(b"x")
            await it.bench.wait()

    async def test_full_read_delays_next_read_by_a_turn(self):
        # libuv reads again at once, up to 32 times, while reads are full.
        async with pushing(Recorder(echo)) as it:
            it.stream.data_received(b"x" * FULL_READ_SIZE)
            assert it.transport.calls[-1] == "pause"
            await settle()
            assert it.transport.calls[-1] == "resume"
            it.stream.data_received(b"x" * (FULL_READ_SIZE - 1))
            assert it.transport.calls[-1] == "resume"

    async def test_idle_connection_has_one_task(self):
        before = len(asyncio.all_tasks())
        async with pushing():
            assert len(asyncio.all_tasks()) == before + 1

    async def test_answer_is_written_in_same_turn(self):
        async with pushing(Recorder(echo)) as it:
            it.stream.data_received(b"a")
            assert it.transport.written == [b"A"]
            await it.feed(b"b")
            assert it.machine.received == [b"a", b"b"]
            assert it.machine.times == [7, 7]
            assert it.machine.after_count == 2

    async def test_output_of_one_turn_is_one_write(self):
        async with pushing() as it:
            for piece in (b"a", b"b", b"c"):
                it.bench.feed(piece)
            assert it.transport.written == []
            await settle()
            assert it.transport.written == [b"abc"]

    async def test_machine_without_output_is_not_called_for_it(self, monkeypatch: pytest.MonkeyPatch):
        calls: list[str] = []
        take = Recorder.data_to_send

        def data_to_send(machine: Recorder) -> bytes:
            calls.append("take")
            return take(machine)

        monkeypatch.setattr(Recorder, "data_to_send", data_to_send)
        async with pushing() as it:
            calls.clear()
            it.stream.data_received(b"a")
            assert calls == []
            it.machine.outbox.append(b"b")
            it.bench.pump.flush()
            assert calls == ["take"]

    async def test_flush_writes_at_once(self):
        async with pushing() as it:
            it.machine.outbox.append(b"a")
            it.bench.pump.flush()
            assert it.transport.written == [b"a"]

    async def test_output_waits_for_slow_peer(self):
        async with pushing() as it:
            it.hold()
            it.bench.feed(b"a")
            await settle()
            it.bench.feed(b"b")  # the writer waits
            await settle()
            it.bench.feed(b"c")
            it.machine.outbox.append(b"d")
            it.bench.pump.flush()
            await settle()
            assert it.transport.written == [b"a", b"b"]
            it.release()
            await settle()
            assert it.transport.written == [b"a", b"b", b"cd"]

    async def test_full_outbox_pauses_reading(self):
        async with pushing(Recorder(fill)) as it:
            it.hold()
            it.bench.feed(b"x")
            await settle()
            await it.feed(b"a")
            await it.feed(b"b")
            assert it.machine.received == [b"a"]
            assert it.transport.calls[-1] == "pause"
            it.release()
            await settle()
            assert it.machine.received == [b"a", b"b"]
            assert it.transport.written == [b"x", b"A", b"B"]
            assert it.transport.calls[-1] == "resume"

    async def test_after_is_called_when_data_to_send_left_event(self):
        async with pushing() as it:
            it.bench.feed(b"event")
            await settle()
            assert it.transport.written == [b"event"]
            assert it.machine.after_count == 1

    async def test_machine_without_output_can_pause_and_resume_reading(self):
        def stop(machine: Recorder, data: bytes) -> None:
            machine.outbox_full = True

        async with pushing(Recorder(stop)) as it:
            await it.feed(b"a")
            await it.feed(b"b")
            assert it.machine.received == [b"a"]
            it.machine.outbox_full = False
            it.bench.pump.wake()
            await settle()
            assert it.machine.received == [b"a", b"b"]

    async def test_eof_is_passed_once_and_output_is_sent(self):
        async with pushing() as it:
            it.machine.outbox.append(b"last")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.machine.eof_count == 1
            assert it.transport.written == [b"last"]

    async def test_ended_machine_gets_no_input(self):
        def end(machine: Recorder, data: bytes) -> None:
            machine.ended = True

        async with pushing(Recorder(end)) as it:
            it.stream.data_received(b"bye")
            it.stream.data_received(b"more")
            it.transport.closing = True
            it.stream.connection_lost(None)
            await it.bench.wait()
            assert it.machine.received == [b"bye"]
            assert it.transport.calls[-1] == "pause"

    async def test_wait_for_peer_sends_eof_and_reads(self):
        async with pushing(Recorder(echo), wait_for_peer=True) as it:
            it.bench.end()
            await settle()
            assert it.transport.calls[-1] == "eof"
            await it.feed(b"late")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.machine.received == [b"late"]
            assert it.transport.written == []  # answers after the end are discarded

    async def test_peer_that_does_not_read_has_linger_time(self):
        def end(machine: Recorder, data: bytes) -> None:
            echo(machine, data)
            machine.ended = True

        async with pushing(Recorder(end)) as it:
            it.hold()
            await it.feed(b"a")  # linger starts outside of any task
            await it.bench.wait_until_limit()
            assert it.transport.written == [b"A"]

    async def test_write_timeout_holds_for_bytes_sent_before(self):
        it = PushBench(Recorder(echo), write_timeout=0.02)
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(WriteTimeout):
                    await it.bench.run()
                it.bench.finished.set()

            tasks.start_soon(run)
            await settle()
            it.hold()
            await it.feed(b"a")
            for _ in range(2):
                assert not it.bench.finished.is_set()
                it.bench.clock.advance(0.01)
                await settle()
            await it.bench.wait()
            assert it.transport.written == [b"A"]

    async def test_loss_while_reading_is_paused_ends_pump(self):
        async with pushing(Recorder(fill)) as it:
            it.hold()
            await it.feed(b"a")
            await it.feed(b"b")
            await it.call(it.stream.connection_lost, ConnectionResetError("reset"))
            await it.bench.wait()
            assert it.machine.eof_count == 1

    @pytest.mark.parametrize("verb", ["receive_data", "receive_eof", "data_to_send"])
    async def test_error_of_machine_is_raised_by_run(self, verb):
        it = PushBench()
        finished = anyio.Event()

        async def run() -> None:
            with pytest.raises(RuntimeError, match="broken machine"):
                await it.bench.run()
            finished.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await settle()
            setattr(it.machine, verb, fail)
            it.machine.outbox.append(b"x")
            provoke = {
                "receive_data": lambda: it.stream.data_received(b"x"),
                "receive_eof": it.stream.eof_received,
                "data_to_send": it.bench.pump.wake,
            }
            await it.call(provoke[verb])
            with anyio.fail_after(60):
                await finished.wait()
        assert it.transport.closing

    async def test_detached_pump_neither_reads_nor_writes(self):
        with socket.socket() as sock:
            async with pushing(Recorder(echo)) as it:
                it.transport.extra["socket"] = sock
                it.machine.outbox.append(b"x")
                assert it.bench.pump.detach() is None
                it.bench.pump.flush()
                assert it.bench.pump.detach() == sock.fileno()
                assert it.transport.calls[-1] == "pause"
                await it.call(it.bench.pump.attach, b"rest")
                assert it.transport.written == [b"x", b"rest"]
                assert it.transport.calls[-1] == "resume"
                await it.feed(b"a")
                assert it.transport.written == [b"x", b"rest", b"A"]

    async def test_abort_after_detach_discards_output(self):
        with socket.socket() as sock:
            async with pushing() as it:
                it.transport.extra["socket"] = sock
                assert it.bench.pump.detach() == sock.fileno()
                it.machine.outbox.append(b"x")
                it.machine.ended = True
                it.bench.pump.abort()
                await it.bench.wait()
                assert it.transport.written == []

    async def test_pump_without_push_stream_is_not_detached(self):
        async with pumping() as (bench, _):
            assert bench.pump.detach() is None

    async def test_ended_pump_calls_nothing(self):
        async with pushing() as it:
            it.bench.end()
            await it.bench.wait()
            await it.feed(b"x")
            await it.call(it.stream.connection_lost, None)
            it.bench.pump.wake()
            it.bench.pump.flush()
            assert it.machine.received == []
            assert it.machine.after_count == 0


class TestOverSockets:
    async def test_last_output_arrives_while_peer_sends(self):
        async with served(Recorder()) as (bench, client):
            await client.send(b"y" * 100_000)
            bench.feed(b"z" * 500_000)
            bench.end()
            assert await count_to_end(client) == 500_000
            await client.aclose()
            await bench.wait()

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_last_output_arrives_at_late_reader(self, wait_for_peer):
        # More than the kernel takes at once; closing must not discard the rest.
        def answer(machine: Recorder, data: bytes) -> None:
            machine.outbox.append(b"z" * 20_000_000)
            machine.ended = True

        async with served(Recorder(answer), wait_for_peer=wait_for_peer, linger=5) as (bench, client):
            await client.send(b"x")
            while not bench.machine.received:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert await count_to_end(client) == 20_000_000
            await client.aclose()
            await bench.wait()

    async def test_peer_that_reads_nothing_ends_after_linger(self):
        async with served(Recorder()) as (bench, _):
            bench.feed(b"z" * 50_000_000)
            await settle()
            bench.end()
            await bench.wait_until_limit()


async def count_to_end(stream: ByteStream) -> int:
    """Return the number of bytes before the end of a stream."""
    count = 0
    with anyio.fail_after(60), pytest.raises(EndOfStream):
        while True:
            count += len(await stream.receive())
    return count


@asynccontextmanager
async def served(
    machine: Recorder, *, wait_for_peer: bool = True, linger: float = LINGER
) -> AsyncIterator[tuple[Bench, ByteStream]]:
    """Run a pump at one end of a TCP connection; yield the other end."""
    benches: list[Bench] = []

    async def serve(stream: ByteStream) -> None:
        benches.append(Bench(machine, stream, wait_for_peer=wait_for_peer, linger=linger))
        await benches[0].run()

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        async with await connect_tcp(*listener.local_address) as client:
            while not benches:
                await anyio.lowlevel.checkpoint()
            yield benches[0], client
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("sent", [b"", b"x"])
async def test_reset_connection_is_eof(sent):
    machine = Recorder()
    finished = anyio.Event()

    async def serve(stream: ByteStream) -> None:
        bench = Bench(machine, stream, wait_for_peer=True)
        await bench.run()
        finished.set()

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        with socket.create_connection(listener.local_address) as client:
            client.sendall(sent)
            while sent and not machine.received:
                await anyio.lowlevel.checkpoint()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with anyio.fail_after(60):
            await finished.wait()
        assert machine.eof_count == 1
        tasks.cancel_scope.cancel()
