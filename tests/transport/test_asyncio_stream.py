"""The stream is held against a transport that the test plays; tests/transport/test_tcp.py has the real one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import SocketAttribute

from nsqkit.transport.asyncio_stream import READ_AHEAD_MAX, AsyncioStream, asyncio_loop

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("1.2.3.4", 5), "sockname": ("6.7.8.9", 10)})
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limit {high}")

    def write(self, data: Any) -> None:
        self.written.append(data)

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
async def transport() -> Transport:
    return Transport()


@pytest.fixture
async def stream(transport: Transport) -> AsyncioStream:
    stream = AsyncioStream()
    stream.connection_made(transport)
    return stream


async def test_who_made_it_is_told_of_the_connection(transport: Transport) -> None:
    told: list[AsyncioStream] = []
    stream = AsyncioStream(told.append)
    stream.connection_made(transport)
    assert told == [stream]
    assert transport.calls == ["limit 0"]


async def test_what_came_is_received_in_order_and_split_at_the_limit(stream: AsyncioStream) -> None:
    stream.data_received(b"abc")
    stream.data_received(b"de")
    assert [await stream.receive(2), await stream.receive(2), await stream.receive(2)] == [b"ab", b"c", b"de"]


async def test_a_receiver_waits_for_what_comes(stream: AsyncioStream) -> None:
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


async def test_a_cancelled_receive_loses_nothing(stream: AsyncioStream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.receive()
    stream.data_received(b"a")
    assert await stream.receive() == b"a"


async def test_reading_stops_while_a_whole_buffer_waits(stream: AsyncioStream, transport: Transport) -> None:
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


async def test_the_end_comes_after_what_was_sent_before_it(stream: AsyncioStream) -> None:
    stream.data_received(b"last")
    assert stream.eof_received()
    assert await stream.receive() == b"last"
    with pytest.raises(EndOfStream):
        await stream.receive()


async def test_a_lost_connection_is_broken_for_both_directions(stream: AsyncioStream) -> None:
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


async def test_a_connection_closed_without_an_error_ends_a_send_that_waits(
    stream: AsyncioStream, transport: Transport
) -> None:
    stream.pause_writing()
    async with anyio.create_task_group() as tasks:

        async def send() -> None:
            with pytest.raises(BrokenResourceError):
                await stream.send(b"x")

        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        transport.closing = True
        stream.connection_lost(None)


async def test_a_send_returns_when_the_kernel_has_taken_all(
    stream: AsyncioStream, transport: Transport
) -> None:
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


async def test_after_closing_nothing_goes(stream: AsyncioStream, transport: Transport) -> None:
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


async def test_closing_ends_a_receive_that_waits(stream: AsyncioStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(ClosedResourceError):
                await stream.receive()

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
        stream.connection_lost(None)


async def test_it_knows_its_addresses(stream: AsyncioStream) -> None:
    assert stream.extra(SocketAttribute.remote_address) == ("1.2.3.4", 5)
    assert stream.extra(SocketAttribute.local_address) == ("6.7.8.9", 10)


async def test_it_knows_them_when_the_transport_does_not_any_more(
    stream: AsyncioStream, transport: Transport
) -> None:
    transport.get_extra_info = lambda name, default=None: default  # type: ignore[method-assign]
    assert stream.extra(SocketAttribute.remote_address) == ("1.2.3.4", 5)
    gone = AsyncioStream()
    gone.connection_made(transport)
    assert gone.extra(SocketAttribute.remote_address, None) is None


async def test_the_loop_is_known() -> None:
    assert asyncio_loop() is asyncio.get_running_loop()


def test_there_is_no_loop_outside_of_one() -> None:
    assert asyncio_loop() is None
