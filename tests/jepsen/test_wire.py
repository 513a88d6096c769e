"""The paths of clients, in front of a server that echoes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.jepsen.wire import TO_BROKER, TO_CLIENT, Wire

pytestmark = pytest.mark.anyio

LIMIT = 30


async def echo(stream: SocketStream) -> None:
    async with stream:
        with suppress(anyio.BrokenResourceError):
            async for data in stream:
                await stream.send(data)


@asynccontextmanager
async def wired() -> AsyncIterator[tuple[Wire, SocketStream]]:
    """Yield a wire to an echo, and a connection over it on which one byte has come back."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with Wire(listener.extra(SocketAttribute.local_port), Random(1)).running() as wire:
            with anyio.fail_after(LIMIT):
                async with await anyio.connect_tcp("127.0.0.1", wire.port) as client:
                    await client.send(b"?")
                    assert await client.receive() == b"?"
                    yield wire, client
        tasks.cancel_scope.cancel()


async def receive(client: SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await client.receive()
    return data


async def test_sliced_bytes_are_the_same_bytes():
    data = Random(2).randbytes(1000)
    async with wired() as (wire, client):
        wire.slice()
        await client.send(data)
        assert await receive(client, len(data)) == data


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
async def test_stalled_bytes_come_when_it_ends(direction: str):
    async with wired() as (wire, client):
        wire.stall(direction)
        await client.send(b"late")
        with anyio.move_on_after(0.05) as scope:
            await client.receive()
        assert scope.cancelled_caught
        wire.heal()
        assert await receive(client, 4) == b"late"


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
async def test_half_open_connection_stays_silent_and_new_ones_do_not(direction: str):
    async with wired() as (wire, client):
        wire.half_open(direction)
        await client.send(b"lost")
        wire.heal()
        async with await anyio.connect_tcp("127.0.0.1", wire.port) as other:
            await other.send(b"!")
            assert await other.receive() == b"!"
        with anyio.move_on_after(0.05) as scope:
            await client.receive()
        assert scope.cancelled_caught


async def test_cut_connection_ends_after_a_part_of_the_bytes():
    async with wired() as (wire, client):
        wire.cut()
        await client.send(bytes(1000))
        received = b""
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            while True:
                received += await client.receive()
        assert len(received) < 200
