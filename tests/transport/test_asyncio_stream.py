"""Tests of the stream with a simulated transport; tests/transport/test_tcp.py has a real one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import SocketAttribute

from nsqkit.transport.asyncio_stream import (
    READ_AHEAD_MAX,
    READ_SIZE,
    AsyncioStream,
    BufferedStream,
    asyncio_loop,
    make_stream,
)
from tests.transport.played import PlayedTransport

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


@pytest.fixture
async def transport() -> PlayedTransport:
    return PlayedTransport()


@pytest.fixture
async def stream(transport: PlayedTransport) -> AsyncioStream:
    stream = AsyncioStream()
    stream.connection_made(transport)
    return stream


async def test_on_connect_is_called(transport: PlayedTransport) -> None:
    connected: list[AsyncioStream] = []
    stream = AsyncioStream(connected.append)
    stream.connection_made(transport)
    assert connected == [stream]
    assert transport.calls == ["limit 0"]


async def test_data_are_received_in_order_up_to_max_bytes(stream: AsyncioStream) -> None:
    stream.data_received(b"abc")
    stream.data_received(b"de")
    assert [await stream.receive(2), await stream.receive(2), await stream.receive(2)] == [b"ab", b"c", b"de"]


async def test_receive_waits_for_data(stream: AsyncioStream) -> None:
    async with anyio.create_task_group() as tasks:
        got: list[bytes] = []

        async def receive() -> None:
            got.append(await stream.receive())

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        stream.data_received(b"a")
        stream.data_received(b"b")
    assert got == [b"a"]
    assert await stream.receive() == b"b"


async def test_cancelled_receive_loses_no_data(stream: AsyncioStream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.receive()
    stream.data_received(b"a")
    assert await stream.receive() == b"a"


async def test_reading_pauses_at_read_ahead_max(stream: AsyncioStream, transport: PlayedTransport) -> None:
    transport.calls.clear()
    stream.data_received(b"x" * (READ_AHEAD_MAX - 1))
    assert transport.calls == []
    stream.data_received(b"xx")
    stream.data_received(b"xx")
    assert transport.calls == ["pause"]
    await stream.receive(1)
    assert transport.calls == ["pause"]
    await stream.receive(READ_AHEAD_MAX)
    assert transport.calls == ["pause", "resume"]


async def test_eof_comes_after_data(stream: AsyncioStream) -> None:
    stream.data_received(b"last")
    assert stream.eof_received()
    assert await stream.receive() == b"last"
    with pytest.raises(EndOfStream):
        await stream.receive()


async def test_lost_connection_breaks_both_directions(stream: AsyncioStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(BrokenResourceError):
                await stream.receive()

        async def send() -> None:
            with pytest.raises(BrokenResourceError):
                await stream.send(b"x")

        stream.pause_writing()
        tasks.start_soon(receive)
        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        stream.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(BrokenResourceError):
        await stream.send(b"y")
    assert not stream.is_writable


async def test_closed_connection_ends_waiting_send(stream: AsyncioStream, transport: PlayedTransport) -> None:
    stream.pause_writing()
    async with anyio.create_task_group() as tasks:

        async def send() -> None:
            with pytest.raises(BrokenResourceError):
                await stream.send(b"x")

        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        transport.closing = True
        stream.connection_lost(None)


async def test_send_returns_when_kernel_has_all(stream: AsyncioStream, transport: PlayedTransport) -> None:
    assert stream.is_writable
    await stream.send(b"at once")
    stream.send_nowait(b"without waiting")
    stream.pause_writing()
    assert not stream.is_writable
    sent = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def send() -> None:
            await stream.send(b"later")
            sent.set()

        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        assert not sent.is_set()
        stream.resume_writing()
        await sent.wait()
    assert transport.written == [b"at once", b"without waiting", b"later"]


async def test_closed_stream_refuses_use(stream: AsyncioStream, transport: PlayedTransport) -> None:
    await stream.send_eof()
    await stream.aclose()
    await stream.send_eof()
    assert transport.calls == ["limit 0", "eof"]
    assert transport.closing
    assert not stream.is_writable
    with pytest.raises(ClosedResourceError):
        await stream.send(b"x")
    with pytest.raises(ClosedResourceError):
        await stream.receive()


async def test_close_ends_waiting_receive(stream: AsyncioStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(ClosedResourceError):
                await stream.receive()

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
        stream.connection_lost(None)


async def test_stream_has_addresses(stream: AsyncioStream) -> None:
    assert stream.extra(SocketAttribute.remote_address) == ("1.2.3.4", 5)
    assert stream.extra(SocketAttribute.local_address) == ("6.7.8.9", 10)


async def test_addresses_outlive_connection(stream: AsyncioStream, transport: PlayedTransport) -> None:
    transport.get_extra_info = lambda name, default=None: default  # type: ignore[method-assign]
    assert stream.extra(SocketAttribute.remote_address) == ("1.2.3.4", 5)
    gone = AsyncioStream()
    gone.connection_made(transport)
    assert gone.extra(SocketAttribute.remote_address, None) is None


async def test_asyncio_loop_returns_loop() -> None:
    assert asyncio_loop() is asyncio.get_running_loop()


def test_asyncio_loop_returns_none_outside() -> None:
    assert asyncio_loop() is None


# ---- handed on -----------------------------------------------------------------------------------------------------


class Taker:
    """A receiver that pauses reading after ``full`` pieces."""

    def __init__(self, stream: AsyncioStream, full: int = 100) -> None:
        self.got: list[bytes | str] = []
        self._stream = stream
        self._full = full

    def on_data(self, data: bytes) -> None:
        self.got.append(data)
        if len(self.got) == self._full:
            self._stream.pause_reading()

    def on_end(self) -> None:
        self.got.append("end")


async def test_receiver_gets_earlier_and_later_data(stream: AsyncioStream) -> None:
    stream.data_received(b"a")
    taker = Taker(stream)
    stream.set_receiver(taker.on_data, taker.on_end)
    assert taker.got == [b"a"]
    stream.data_received(b"b")
    stream.eof_received()
    assert taker.got == [b"a", b"b", "end"]
    stream.connection_lost(None)
    assert taker.got[3:] == []


async def test_receiver_gets_earlier_eof(stream: AsyncioStream) -> None:
    stream.data_received(b"a")
    stream.eof_received()
    taker = Taker(stream)
    stream.set_receiver(taker.on_data, taker.on_end)
    assert taker.got == [b"a", "end"]


async def test_receiver_gets_nothing_during_pause(stream: AsyncioStream, transport: PlayedTransport) -> None:
    taker = Taker(stream, full=1)
    stream.data_received(b"a")
    stream.data_received(b"b")
    stream.set_receiver(taker.on_data, taker.on_end)
    stream.data_received(b"c")
    stream.eof_received()
    assert taker.got == [b"a"]
    stream.resume_reading()
    stream.resume_reading()
    assert taker.got == [b"a", b"b", b"c", "end"]
    assert transport.calls == ["limit 0", "pause", "resume"]


async def test_receiver_gets_eof_after_pause(stream: AsyncioStream) -> None:
    stream.data_received(b"a")
    stream.eof_received()
    taker = Taker(stream, full=1)
    stream.set_receiver(taker.on_data, taker.on_end)
    assert taker.got == [b"a"]
    stream.resume_reading()
    assert taker.got == [b"a", "end"]


async def test_set_receiver_resumes_paused_reading(stream: AsyncioStream, transport: PlayedTransport) -> None:
    stream.data_received(b"x" * READ_AHEAD_MAX)
    taker = Taker(stream)
    stream.set_receiver(taker.on_data, taker.on_end)
    assert taker.got == [b"x" * READ_AHEAD_MAX]
    assert transport.calls == ["limit 0", "pause", "resume"]


async def test_receiver_gets_loss_during_pause(stream: AsyncioStream) -> None:
    taker = Taker(stream, full=1)
    stream.set_receiver(taker.on_data, taker.on_end)
    stream.data_received(b"a")
    stream.data_received(b"b")
    stream.connection_lost(ConnectionResetError("reset"))
    assert taker.got == [b"a", b"b", "end"]


async def test_receiver_gets_nothing_after_close(stream: AsyncioStream) -> None:
    taker = Taker(stream)
    stream.set_receiver(taker.on_data, taker.on_end)
    stream.abort()
    stream.data_received(b"a")
    stream.connection_lost(None)
    assert taker.got == []


class TestBuffers:
    async def test_data_outlive_next_read_into_buffer(self, transport: PlayedTransport) -> None:
        stream = make_stream()
        assert isinstance(stream, BufferedStream)
        stream.connection_made(transport)
        for data in (b"abc", b"de"):
            stream.get_buffer(-1)[: len(data)] = data
            stream.buffer_updated(len(data))
        assert [await stream.receive(), await stream.receive()] == [b"abc", b"de"]

    async def test_streams_of_one_thread_share_buffer(self) -> None:
        def of_another_thread() -> memoryview:
            async def get() -> memoryview:
                return cast(BufferedStream, make_stream()).get_buffer(-1)

            return asyncio.run(get())

        one, two = (cast(BufferedStream, make_stream()) for _ in range(2))
        assert one.get_buffer(-1) is two.get_buffer(-1)
        assert one.get_buffer(-1) is not await anyio.to_thread.run_sync(of_another_thread)
        assert len(one.get_buffer(-1)) == READ_SIZE


def test_uvloop_gets_stream_without_buffer() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def make() -> AsyncioStream:
        return make_stream()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert type(runner.run(make())) is AsyncioStream


# ---- detaching ------------------------------------------------------------------------------------------------------


class Numbered:
    """A socket with a file descriptor only."""

    def fileno(self) -> int:
        return 7


class WithSocket(PlayedTransport):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return Numbered() if name == "socket" else super().get_extra_info(name, default)


async def test_idle_stream_is_detached() -> None:
    transport, stream = WithSocket(), AsyncioStream()
    stream.connection_made(transport)
    assert stream.detach() == 7
    assert transport.calls == ["limit 0", "pause"]
    assert stream.detach() is None
    stream.resume_reading()
    stream.pause_writing()
    assert stream.detach() is None
    stream.resume_writing()
    stream.data_received(b"a")
    assert stream.detach() is None
    await stream.receive()
    stream.eof_received()
    assert stream.detach() is None
    assert transport.calls == ["limit 0", "pause", "resume"]


async def test_stream_without_socket_is_not_detached(stream: AsyncioStream, transport: PlayedTransport) -> None:
    assert stream.detach() is None
    assert transport.calls == ["limit 0"]
