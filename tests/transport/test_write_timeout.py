from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ByteStream
from trio.testing import MockClock

from nsqkit.clock import LoopClock
from nsqkit.errors import WriteTimeout
from nsqkit.transport.asyncio_stream import AsyncioStream
from nsqkit.transport.memory import memory_pair
from nsqkit.transport.tcp import connect_tcp, listen
from nsqkit.transport.write_timeout import PIECE_SIZE, send_with_timeout
from tests.peers import BACKENDS
from tests.transport.played import PlayedTransport

pytestmark = pytest.mark.anyio

in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)
on_a_clock_that_jumps = pytest.mark.parametrize("anyio_backend", BACKENDS[1:])
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])

LONG = 60.0
SHORT = 0.02


@in_memory
async def test_data_are_sent_in_order_and_small_data_in_one_piece():
    ours, theirs = memory_pair()
    async with ours, theirs:
        await send_with_timeout(ours, b"small", LONG, LoopClock())
        await send_with_timeout(ours, b"", LONG, LoopClock())
        data = bytes(PIECE_SIZE) + b"x" * PIECE_SIZE + b"end"
        await send_with_timeout(ours, data, LONG, LoopClock())
        assert await theirs.receive() == b"small"
        received = b""
        while len(received) < len(data):
            received += await theirs.receive()
        assert received == data


@in_memory
async def test_peer_that_takes_nothing_is_a_timeout():
    ours, theirs = memory_pair()
    async with ours, theirs:
        with pytest.raises(WriteTimeout, match=r"the peer took nothing for 0\.02 seconds"):
            for _ in range(1000):
                await send_with_timeout(ours, b"x", SHORT, LoopClock())


@on_a_clock_that_jumps
async def test_slow_progress_is_no_timeout(anyio_backend: tuple[str, dict[str, MockClock]]):
    ours, theirs = memory_pair()
    size = 40 * PIECE_SIZE
    clock = LoopClock()

    async def read_slowly() -> None:
        count = 0
        while count < size:
            await clock.wait_until(clock.now_ns() + 900_000_000)
            count += len(await theirs.receive())

    async with ours, theirs, anyio.create_task_group() as tasks:
        tasks.start_soon(read_slowly)
        began = anyio.current_time()
        await send_with_timeout(ours, bytes(size), 1.0, clock)
        assert anyio.current_time() - began > 10


@on_asyncio
class TestAsyncioStream:
    @asynccontextmanager
    async def stuck(self) -> AsyncIterator[tuple[AsyncioStream, PlayedTransport]]:
        """A stream whose kernel takes nothing."""
        transport, stream = PlayedTransport(), AsyncioStream()
        stream.connection_made(transport)
        transport.when_written = stream.pause_writing
        transport.unsent_size = 100
        yield stream, transport
        await stream.aclose()

    async def test_unsent_size_is_read_twice_per_limit(self):
        async with self.stuck() as (stream, transport):
            looks: list[int] = []
            transport.when_asked = lambda: looks.append(len(transport.written))
            with pytest.raises(WriteTimeout):
                await send_with_timeout(stream, b"data", SHORT, LoopClock())
            assert transport.written == [b"data"], "nothing is sent twice"
            assert looks.count(1) >= 6, "once after progress, twice without"

    async def test_progress_of_kernel_is_no_timeout(self):
        async with self.stuck() as (stream, transport):

            def take_some() -> None:
                transport.unsent_size -= 10
                if transport.unsent_size == 0:
                    stream.resume_writing()

            transport.when_asked = take_some
            with anyio.fail_after(15):
                await send_with_timeout(stream, b"data", SHORT, LoopClock())
            assert transport.unsent_size <= 0
            assert transport.written == [b"data"]

    async def test_empty_send_waits_for_earlier_bytes(self):
        async with self.stuck() as (stream, _):
            stream.send_nowait(b"before")
            with pytest.raises(WriteTimeout):
                await send_with_timeout(stream, b"", SHORT, LoopClock())

    async def test_broken_connection_is_raised(self):
        async with self.stuck() as (stream, _), anyio.create_task_group() as tasks:

            async def send() -> None:
                with pytest.raises(BrokenResourceError):
                    await send_with_timeout(stream, b"data", LONG, LoopClock())

            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            stream.connection_lost(ConnectionResetError("reset"))


class TestOverSockets:
    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
        accepted: list[ByteStream] = []
        came = anyio.Event()

        async def serve(stream: ByteStream) -> None:
            accepted.append(stream)
            came.set()

        async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve, tasks)
            async with await connect_tcp(*listener.local_address) as client:
                await came.wait()
                async with accepted[0]:
                    yield client, accepted[0]
            tasks.cancel_scope.cancel()

    async def test_reading_peer_gets_all_data(self):
        size = 20_000_000
        async with self.connected() as (client, server), anyio.create_task_group() as tasks:

            async def send() -> None:
                await send_with_timeout(client, b"z" * size, LONG, LoopClock())
                await client.send_eof()

            tasks.start_soon(send)
            count = 0
            with anyio.fail_after(30), pytest.raises(EndOfStream):
                while True:
                    count += len(await server.receive())
            assert count == size

    async def test_peer_that_does_not_read_is_a_timeout(self):
        async with self.connected() as (client, _):
            with anyio.fail_after(15), pytest.raises(WriteTimeout):
                await send_with_timeout(client, b"z" * 100_000_000, 0.2, LoopClock())
