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
    """A machine that records what it is told, and says what the test puts into its outbox."""

    def __init__(self, on_data: Callable[[Recorder, bytes], None] = lambda recorder, data: None) -> None:
        self.outbox: list[bytes] = []
        self.outbox_full = False
        self.left: list[bytes] = []  # what it has put off
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

    def data_to_send(self, now_ns: int) -> bytes:
        data = b"".join(self.outbox)
        self.outbox.clear()
        if b"event" in data:
            self.left_events.append(data)
        self.outbox_full = False
        return data


class Link(ByteStream):
    """A stream whose sending the test can hold up or break; what was sent stands in ``sent``."""

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
        """Take nothing more for now."""
        self.may_send = anyio.Event()

    def say(self, data: bytes) -> None:
        """Be the peer: send ``data``."""
        self._feed.send_nowait(data)

    def leave(self) -> None:
        """Be the peer: send no more."""
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
    """A pump at work, with all that belongs to it."""

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

    def _after(self) -> None:
        self.machine.after_count += 1
        self.machine.events()
        self.pump.wake()

    async def run(self) -> None:
        await self.pump.run()
        self.finished.set()

    def say(self, *pieces: bytes) -> None:
        """Have the machine say something."""
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
    """Run a pump; at the end of the block it is cancelled, and has to have closed its stream."""
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
    async def test_each_read_is_one_call_with_the_time(self):
        async with pumping() as (bench, link):
            link.say(b"ab")
            await settle()
            bench.clock.advance(1e-9)
            link.say(b"c")
            await settle()
            assert bench.machine.received == [b"ab", b"c"]
            assert bench.machine.times == [7, 8]
            assert bench.machine.after_count == 2

    async def test_the_end_of_the_stream_is_told_once_and_what_is_left_is_sent(self):
        async with pumping() as (bench, link):
            bench.machine.outbox.append(b"last")
            link.leave()
            await bench.wait()
            assert bench.machine.eof_count == 1
            assert link.sent == [b"last"]
            assert link.closed

    async def test_a_machine_that_has_ended_is_told_nothing_more(self):
        def end(machine: Recorder, data: bytes) -> None:
            machine.ended = True

        async with pumping(Recorder(end)) as (bench, link):
            link.say(b"bye")
            link.say(b"more")
            await bench.wait()
            assert bench.machine.received == [b"bye"]
            assert bench.machine.eof_count == 0

    async def test_while_the_outbox_is_full_nothing_is_read(self):
        def fill(machine: Recorder, data: bytes) -> None:
            machine.outbox.append(data.upper())
            machine.outbox_full = True

        async with pumping(Recorder(fill)) as (bench, link):
            link.hold()
            for data in (b"a", b"b", b"c"):
                link.say(data)
            await settle()
            assert bench.machine.received == [b"a"]
            assert not link.receiving
            link.may_send.set()
            await settle()
            assert bench.machine.received == [b"a", b"b", b"c"]
            assert link.sent == [b"A", b"B", b"C"]
            assert link.receiving


def put_off(machine: Recorder, data: bytes) -> None:
    """Leave all of it for the next turns, a byte for each."""
    machine.left += [data[at : at + 1] for at in range(len(data))]


@in_memory
class TestTurns:
    async def test_what_is_left_is_worked_on_in_turns_and_nothing_is_read_before(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.say(b"ab")
            link.say(b"c")
            await settle()
            assert bench.machine.received == [b"ab", b"c"]
            assert b"".join(link.sent) == b"abc"
            assert link.receiving

    async def test_all_others_have_their_turn_in_between(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            turns = []
            link.say(b"x" * 100)
            while not bench.machine.received:
                await anyio.lowlevel.checkpoint()
            while bench.machine.left:
                turns.append(len(bench.machine.left))
                await anyio.lowlevel.checkpoint()
            assert len(turns) > 90

    async def test_a_full_outbox_stops_the_work(self):
        def put_off_and_fill(machine: Recorder, data: bytes) -> None:
            put_off(machine, data)
            fill(machine, b"first")

        async with pumping(Recorder(put_off_and_fill)) as (bench, link):
            link.hold()
            bench.say(b"x")
            await settle()
            link.say(b"ab")
            await settle()
            assert bench.machine.left == [b"a", b"b"]
            assert not link.receiving
            link.may_send.set()
            await settle()
            assert b"".join(link.sent) == b"xFIRSTab"
            assert link.receiving

    async def test_the_end_of_the_stream_comes_after_what_is_left(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.say(b"abc")
            link.leave()
            await bench.wait()
            assert b"".join(link.sent) == b"abc"
            assert bench.machine.eof_count == 1
            assert link.closed

    async def test_what_a_peer_has_sent_before_it_broke_off_is_worked_on_to_the_end(self):
        async with pumping(Recorder(put_off)) as (bench, link):
            link.broken = True
            link.say(b"x" * 1000)
            link.leave()
            await bench.wait()
            assert bench.machine.left == []
            assert link.closed


@in_memory
class TestWriting:
    async def test_what_is_said_between_two_writes_is_one_write(self):
        async with pumping() as (bench, link):
            for piece in (b"a", b"b", b"c"):
                bench.say(piece)
            await settle()
            assert link.sent == [b"abc"]

    async def test_what_is_said_during_a_write_is_the_next_one(self):
        async with pumping() as (bench, link):
            link.hold()
            bench.say(b"a")
            await settle()
            bench.say(b"b")
            bench.say(b"c")
            await settle()
            link.may_send.set()
            await settle()
            assert link.sent == [b"a", b"bc"]
            bench.say(b"d")
            await settle()
            assert link.sent == [b"a", b"bc", b"d"]

    async def test_room_in_a_full_outbox_is_acted_upon(self):
        async with pumping() as (bench, link):
            bench.machine.outbox_full = True
            bench.say(b"a")
            await settle()
            assert link.sent == [b"a"]
            assert bench.machine.after_count == 1

    async def test_after_is_called_once_more_if_taking_the_output_left_an_event(self):
        async with pumping() as (bench, link):
            bench.say(b"event")
            await settle()
            assert link.sent == [b"event"]
            assert bench.machine.after_count == 1

    async def test_waking_it_for_nothing_sends_nothing(self):
        async with pumping() as (bench, link):
            bench.pump.wake()
            await settle()
            assert link.sent == []
            assert not bench.finished.is_set()

    async def test_a_machine_that_has_something_to_say_at_the_start_says_it(self):
        machine = Recorder()
        machine.outbox.append(b"  V2")
        async with pumping(machine) as (_, link):
            assert link.sent == [b"  V2"]

    async def test_a_write_that_fails_is_the_end(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.say(b"x")
            await settle()
            link.leave()
            await bench.wait()
            assert bench.machine.eof_count == 1

    async def test_what_the_peer_said_before_a_write_failed_is_still_read(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.say(b"x")
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert not bench.finished.is_set()
            link.say(b"this is why")
            link.leave()
            await bench.wait()
            assert bench.machine.received == [b"this is why"]
            assert bench.machine.eof_count == 1

    async def test_a_peer_that_takes_nothing_and_does_not_leave_is_left(self):
        async with pumping() as (bench, link):
            link.broken = True
            bench.say(b"x")
            await bench.wait_until_limit()
            assert bench.machine.eof_count == 1


@in_memory
class TestEnding:
    async def test_the_last_bytes_are_sent_before_the_stream_is_closed(self):
        async with pumping() as (bench, link):
            bench.say(b"goodbye")
            bench.end()
            await bench.wait()
            assert link.sent == [b"goodbye"]
            assert not link.eof_sent
            assert link.closed
            assert bench.machine.eof_count == 0

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_a_machine_may_have_ended_before_the_start(self, wait_for_peer):
        machine = Recorder()
        machine.outbox.append(b"no")
        machine.ended = True
        async with pumping(machine, wait_for_peer=wait_for_peer) as (bench, link):
            if wait_for_peer:
                await bench.wait_until_limit()
            assert bench.finished.is_set()
            assert link.sent == [b"no"]

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_a_peer_that_never_reads_has_as_long_as_it_may_linger(self, wait_for_peer):
        async with pumping(wait_for_peer=wait_for_peer) as (bench, link):
            link.hold()
            bench.say(b"x")
            await settle()
            bench.end()
            await bench.wait_until_limit()
            assert link.sent == []
            assert link.closed

    async def test_waiting_for_the_peer_means_to_say_so_and_to_read_until_it_leaves(self):
        async with pumping(wait_for_peer=True) as (bench, link):
            bench.say(b"goodbye")
            bench.end()
            link.say(b"late")
            await settle()
            assert link.eof_sent
            link.leave()
            await bench.wait()
            assert bench.machine.received == [b"late"]

    async def test_a_peer_that_does_not_leave_is_left(self):
        async with pumping(wait_for_peer=True) as (bench, link):
            bench.end()
            await bench.wait_until_limit()
            assert link.closed

    async def test_it_can_be_woken_after_its_end(self):
        async with pumping() as (bench, _):
            bench.end()
            await bench.wait()
            bench.pump.wake()

    async def test_an_error_of_the_machine_is_not_swallowed_and_the_stream_is_closed(self):
        def fail(machine: Recorder, data: bytes) -> None:
            raise RuntimeError("broken machine")

        link = Link()
        bench = Bench(Recorder(fail), link, wait_for_peer=False)
        link.say(b"x")
        with pytest.raises(ExceptionGroup) as caught:
            await bench.run()
        assert [str(error) for error in caught.value.exceptions] == ["broken machine"]
        assert link.closed


@in_memory
class TestWriteTimeout:
    async def test_a_peer_that_takes_nothing_is_the_end(self):
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
        assert bench.machine.eof_count == 0, "that is for whoever runs the pump to tell"

    async def test_a_peer_that_reads_has_all_the_time_there_is(self):
        link = Link()
        bench = Bench(Recorder(), link, wait_for_peer=False, write_timeout=0.02)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.run)
            await settle()
            bench.say(b"a")
            await settle()
            bench.clock.advance(0.05)
            bench.say(b"b")
            await settle()
            assert link.sent == [b"a", b"b"]
            bench.end()


def reading(bench: Bench, link: Link) -> None:
    """Do nothing: the reader waits for the peer."""


def sending(bench: Bench, link: Link) -> None:
    link.hold()
    bench.say(b"x")


def draining(bench: Bench, link: Link) -> None:
    link.hold()
    bench.say(b"x")
    link.say(b"fill")


def lingering(bench: Bench, link: Link) -> None:
    bench.end()


def failing(bench: Bench, link: Link) -> None:
    link.broken = True
    bench.say(b"x")


@in_memory
@pytest.mark.parametrize("wait_for_peer", [False, True])
@pytest.mark.parametrize("state", [reading, sending, draining, lingering, failing])
async def test_wherever_it_is_cancelled_the_stream_is_closed(state, wait_for_peer):
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
async def test_at_whatever_step_it_is_cancelled_the_stream_is_closed(steps):
    ours, theirs = memory_pair()
    bench = Bench(Recorder(), ours, wait_for_peer=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        bench.say(b"x" * 10)
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


class Handed:
    """A pump over a stream that hands on what comes, above a transport that the test plays."""

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
        self.bench = Bench(
            self.machine, self.stream, wait_for_peer=wait_for_peer, write_timeout=write_timeout
        )

    async def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the event loop call ``function`` as it does, where no task runs; return when that was done."""
        asyncio.get_running_loop().call_soon(function, *args, context=Context())
        await settle()

    async def say(self, data: bytes) -> None:
        """Be the peer: send ``data``."""
        await self.call(self.stream.data_received, data)

    def hold(self) -> None:
        """Take nothing more from the next write on."""
        self.transport.when_written = self.stream.pause_writing

    def release(self) -> None:
        self.transport.when_written = lambda: None
        self.stream.resume_writing()


@asynccontextmanager
async def handed(machine: Recorder | None = None, *, wait_for_peer: bool = False) -> AsyncIterator[Handed]:
    """Run a pump over such a stream; at the end of the block it is cancelled, and has to have closed it."""
    it = Handed(machine, wait_for_peer=wait_for_peer)
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
class TestHandedOn:
    async def test_what_is_left_is_worked_on_in_turns_and_nothing_is_read_before(self):
        async with handed(Recorder(put_off)) as it:
            it.stream.data_received(b"abc")
            assert it.transport.calls[-1] == "pause"
            assert it.transport.written == []
            await settle()
            assert it.transport.written == [b"a", b"b", b"c"]
            assert it.transport.calls[-1] == "resume"

    async def test_each_turn_is_one_of_the_event_loops(self):
        async with handed(Recorder(put_off)) as it:
            it.stream.data_received(b"x" * 100)
            for left in range(99, 0, -1):
                await anyio.lowlevel.checkpoint()
                assert abs(len(it.machine.left) - left) <= 1

    async def test_the_end_of_the_stream_comes_after_what_is_left(self):
        async with handed(Recorder(put_off)) as it:
            it.stream.data_received(b"abc")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.transport.written == [b"a", b"b", b"c"]

    async def test_what_a_peer_has_sent_before_it_left_is_worked_on_to_the_end(self):
        async with handed(Recorder(put_off)) as it:
            it.stream.data_received(b"x" * 1000)
            await it.call(it.stream.connection_lost, ConnectionResetError("reset"))
            await it.bench.wait()
            assert it.machine.left == []

    async def test_an_error_in_a_later_turn_is_raised_where_the_pump_runs(self):
        it = Handed(Recorder(put_off))
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(RuntimeError, match="broken machine"):
                    await it.bench.run()
                it.bench.finished.set()

            tasks.start_soon(run)
            await settle()
            it.machine.process_input = fail  # type: ignore[method-assign, assignment]
            await it.say(b"x")
            await it.bench.wait()

    async def test_after_a_full_read_the_next_one_waits_for_the_next_turn(self):
        # libuv reads on at once, up to 32 times, as long as reads are full.
        async with handed(Recorder(echo)) as it:
            it.stream.data_received(b"x" * FULL_READ_SIZE)
            assert it.transport.calls[-1] == "pause"
            await settle()
            assert it.transport.calls[-1] == "resume"
            it.stream.data_received(b"x" * (FULL_READ_SIZE - 1))
            assert it.transport.calls[-1] == "resume"

    async def test_an_idle_connection_has_no_task_but_the_one_that_runs_the_pump(self):
        before = len(asyncio.all_tasks())
        async with handed():
            assert len(asyncio.all_tasks()) == before + 1

    async def test_a_read_is_answered_before_it_returns(self):
        async with handed(Recorder(echo)) as it:
            it.stream.data_received(b"a")
            assert it.transport.written == [b"A"]
            await it.say(b"b")
            assert it.machine.received == [b"a", b"b"]
            assert it.machine.times == [7, 7]
            assert it.machine.after_count == 2

    async def test_what_is_said_in_one_turn_is_one_write(self):
        async with handed() as it:
            for piece in (b"a", b"b", b"c"):
                it.bench.say(piece)
            assert it.transport.written == []
            await settle()
            assert it.transport.written == [b"abc"]

    async def test_what_can_be_flushed_is_sent_at_once(self):
        async with handed() as it:
            it.machine.outbox.append(b"a")
            it.bench.pump.flush()
            assert it.transport.written == [b"a"]

    async def test_what_is_said_to_a_slow_peer_waits(self):
        async with handed() as it:
            it.hold()
            it.bench.say(b"a")
            await settle()
            it.bench.say(b"b")  # the writer tries, and waits
            await settle()
            it.bench.say(b"c")
            it.machine.outbox.append(b"d")
            it.bench.pump.flush()
            await settle()
            assert it.transport.written == [b"a", b"b"]
            it.release()
            await settle()
            assert it.transport.written == [b"a", b"b", b"cd"]

    async def test_while_the_outbox_is_full_nothing_is_read(self):
        async with handed(Recorder(fill)) as it:
            it.hold()
            it.bench.say(b"x")
            await settle()
            await it.say(b"a")
            await it.say(b"b")
            assert it.machine.received == [b"a"]
            assert it.transport.calls[-1] == "pause"
            it.release()
            await settle()
            assert it.machine.received == [b"a", b"b"]
            assert it.transport.written == [b"x", b"A", b"B"]
            assert it.transport.calls[-1] == "resume"

    async def test_room_in_a_full_outbox_is_acted_upon_though_the_kernel_takes_all_at_once(self):
        # Nothing else may come after it, as with a consumer that has nothing to say.
        async with handed() as it:
            it.machine.outbox_full = True
            it.bench.say(b"a")
            await settle()
            assert it.transport.written == [b"a"]
            assert it.machine.after_count == 1

    async def test_after_is_called_once_more_if_taking_the_output_left_an_event(self):
        async with handed() as it:
            it.bench.say(b"event")
            await settle()
            assert it.transport.written == [b"event"]
            assert it.machine.after_count == 1

    async def test_a_machine_that_says_nothing_can_stop_reading_and_go_on(self):
        def stop(machine: Recorder, data: bytes) -> None:
            machine.outbox_full = True

        async with handed(Recorder(stop)) as it:
            await it.say(b"a")
            await it.say(b"b")
            assert it.machine.received == [b"a"]
            it.machine.outbox_full = False
            it.bench.pump.wake()
            await settle()
            assert it.machine.received == [b"a", b"b"]

    async def test_the_end_of_the_stream_is_told_once_and_what_is_left_is_sent(self):
        async with handed() as it:
            it.machine.outbox.append(b"last")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.machine.eof_count == 1
            assert it.transport.written == [b"last"]

    async def test_a_machine_that_has_ended_is_told_nothing_more(self):
        def end(machine: Recorder, data: bytes) -> None:
            machine.ended = True

        async with handed(Recorder(end)) as it:
            it.stream.data_received(b"bye")
            it.stream.data_received(b"more")
            it.transport.closing = True
            it.stream.connection_lost(None)
            await it.bench.wait()
            assert it.machine.received == [b"bye"]
            assert it.transport.calls[-1] == "pause"

    async def test_waiting_for_the_peer_means_to_say_so_and_to_read_until_it_leaves(self):
        async with handed(Recorder(echo), wait_for_peer=True) as it:
            it.bench.end()
            await settle()
            assert it.transport.calls[-1] == "eof"
            await it.say(b"late")
            await it.call(it.stream.eof_received)
            await it.bench.wait()
            assert it.machine.received == [b"late"]
            assert it.transport.written == []  # it is too late to answer

    async def test_a_peer_that_never_reads_has_as_long_as_it_may_linger(self):
        def end(machine: Recorder, data: bytes) -> None:
            echo(machine, data)
            machine.ended = True

        async with handed(Recorder(end)) as it:
            it.hold()
            await it.say(b"a")  # the time begins outside of any task
            await it.bench.wait_until_limit()
            assert it.transport.written == [b"A"]

    async def test_a_kernel_that_takes_nothing_is_the_end_even_if_nothing_more_is_said(self):
        it = Handed(Recorder(echo), write_timeout=0.02)
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                with pytest.raises(WriteTimeout):
                    await it.bench.run()
                it.bench.finished.set()

            tasks.start_soon(run)
            await settle()
            it.hold()
            await it.say(b"a")
            for _ in range(2):
                assert not it.bench.finished.is_set()
                it.bench.clock.advance(0.01)
                await settle()
            await it.bench.wait()
            assert it.transport.written == [b"A"]

    async def test_a_connection_lost_while_nothing_is_read_is_the_end(self):
        async with handed(Recorder(fill)) as it:
            it.hold()
            await it.say(b"a")
            await it.say(b"b")
            await it.call(it.stream.connection_lost, ConnectionResetError("reset"))
            await it.bench.wait()
            assert it.machine.eof_count == 1

    @pytest.mark.parametrize("verb", ["receive_data", "receive_eof", "data_to_send"])
    async def test_an_error_of_the_machine_is_raised_where_the_pump_runs(self, verb):
        it = Handed()
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

    async def test_after_its_end_nothing_is_told(self):
        async with handed() as it:
            it.bench.end()
            await it.bench.wait()
            await it.say(b"x")
            await it.call(it.stream.connection_lost, None)
            it.bench.pump.wake()
            it.bench.pump.flush()
            assert it.machine.received == []
            assert it.machine.after_count == 0


class TestOverSockets:
    async def test_what_was_sent_last_arrives_although_the_peer_still_sends(self):
        async with served(Recorder()) as (bench, client):
            await client.send(b"y" * 100_000)
            bench.say(b"z" * 500_000)
            bench.end()
            assert await count_to_end(client) == 500_000
            await client.aclose()
            await bench.wait()

    @pytest.mark.parametrize("wait_for_peer", [False, True])
    async def test_what_was_answered_last_arrives_even_if_the_peer_reads_it_late(self, wait_for_peer):
        # More than the kernel takes at once: closing must not throw the rest away.
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

    async def test_a_peer_that_reads_nothing_cannot_hold_it(self):
        async with served(Recorder()) as (bench, _):
            bench.say(b"z" * 50_000_000)
            await settle()
            bench.end()
            await bench.wait_until_limit()


async def count_to_end(stream: ByteStream) -> int:
    """Return how many bytes come before the end of a stream."""
    count = 0
    with anyio.fail_after(60), pytest.raises(EndOfStream):
        while True:
            count += len(await stream.receive())
    return count


@asynccontextmanager
async def served(
    machine: Recorder, *, wait_for_peer: bool = True, linger: float = LINGER
) -> AsyncIterator[tuple[Bench, ByteStream]]:
    """Run a pump at one end of a TCP connection and give the other to the test."""
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


@pytest.mark.parametrize("said", [b"", b"x"])
async def test_a_reset_connection_is_the_end_of_the_stream(said):
    machine = Recorder()
    finished = anyio.Event()

    async def serve(stream: ByteStream) -> None:
        bench = Bench(machine, stream, wait_for_peer=True)
        await bench.run()
        finished.set()

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        with socket.create_connection(listener.local_address) as client:
            client.sendall(said)
            while said and not machine.received:
                await anyio.lowlevel.checkpoint()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with anyio.fail_after(60):
            await finished.wait()
        assert machine.eof_count == 1
        tasks.cancel_scope.cancel()
