from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream

from nsqkit.clock import LoopClock
from nsqkit.testing.gate import Gate
from nsqkit.transport.accept import accept
from nsqkit.transport.tcp import connect, listen

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """Serve on a free port; the value is the address."""

    async def serve(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(accept, listener, serve, tasks, logging.getLogger("test"), LoopClock())
        yield listener.address
        tasks.cancel_scope.cancel()


async def test_open_gate_passes_bytes_and_ends_on() -> None:
    async with echo() as address, Gate(address, LoopClock()) as gate:
        async with await connect(gate.address) as client:
            await client.send(b"one")
            assert await client.receive() == b"one"
            await client.send_eof()
            with pytest.raises(EndOfStream):
                await client.receive()


async def test_closed_gate_passes_nothing_on_until_it_is_opened() -> None:
    async with echo() as address, Gate(address, LoopClock()) as gate:
        async with await connect(gate.address) as old:
            await old.send(b"one")
            assert await old.receive() == b"one"
            gate.close()
            await old.send(b"two")
            async with await connect(gate.address) as new:
                await new.send(b"three")
                received: list[bytes] = []

                async def receive(stream: anyio.abc.ByteStream) -> None:
                    received.append(await stream.receive())

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(receive, old)
                    tasks.start_soon(receive, new)
                    await anyio.wait_all_tasks_blocked()
                    assert received == []
                    gate.open()
                assert sorted(received) == [b"three", b"two"]


async def test_connection_to_a_stopped_server_is_closed() -> None:
    async with echo() as address:
        pass
    async with Gate(address, LoopClock()) as gate, await connect(gate.address) as client:
        with pytest.raises((EndOfStream, BrokenResourceError)):
            await client.receive()
