from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import pytest
from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ByteStream

from nsqkit.errors import ProtocolError
from nsqkit.transport.memory import memory_pair
from nsqkit.transport.tls import TLS
from nsqkit.transport.tls_stream import TLSStream
from tests.certificates import HOST, client_context, server_context

pytestmark = pytest.mark.anyio


Pair: TypeAlias = tuple[TLSStream, TLSStream, ByteStream]


@asynccontextmanager
async def new_pair(client_rules: ssl.SSLContext | None = None) -> AsyncIterator[Pair]:
    """Give out a server's stream, its client's, and what lies below the client's."""
    ours, theirs = memory_pair()
    client = TLS(client_rules or client_context(), server_hostname=HOST)
    async with ours, theirs:
        yield TLSStream(ours, TLS(server_context())), TLSStream(theirs, client), theirs


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    """Give out the same after the handshake."""
    async with new_pair() as (server, client, below):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.handshake)
            tasks.start_soon(client.handshake)
        yield server, client, below


async def test_bytes_go_both_ways():
    async with connected() as (server, client, _):
        await client.send(b"hello")
        assert await server.receive() == b"hello"
        await server.send(bytes(100_000))
        received = b""
        while len(received) < 100_000:
            received += await client.receive()
        assert received == bytes(100_000)


async def test_a_read_returns_no_more_than_was_asked_for():
    async with connected() as (server, client, _):
        await client.send(b"hello")
        assert [await server.receive(3), await server.receive(3)] == [b"hel", b"lo"]


async def test_bytes_below_are_not_plain():
    async with connected() as (server, client, below):
        await server.send(b"secret")
        assert b"secret" not in await below.receive()
        await client.aclose()


async def test_the_end_that_is_said_inside_is_an_end():
    async with connected() as (server, client, _):
        await client.send(b"last words")
        await client.send_eof()
        assert await server.receive() == b"last words"
        with pytest.raises(EndOfStream):
            await server.receive()
        await server.send(b"the other direction is open")
        assert await client.receive() == b"the other direction is open"


async def test_closing_closes_what_is_below():
    async with connected() as (server, client, _):
        await client.aclose()
        with pytest.raises(EndOfStream):
            await server.receive()


async def test_a_client_that_refuses_tells_the_server():
    async with new_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as (server, client, _):
        async with anyio.create_task_group() as tasks:

            async def refused() -> None:
                with pytest.raises(ProtocolError, match="tls: failed to verify server certificate"):
                    await client.handshake()

            tasks.start_soon(refused)
            # With TLS 1.3 a server hears of it only after its own handshake.
            with pytest.raises((ProtocolError, BrokenResourceError)):
                await server.handshake()
                await server.receive()


async def test_a_client_that_speaks_something_else_is_a_protocol_error():
    async with new_pair() as (server, _, below):
        await below.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ProtocolError, match="first record does not look like a TLS handshake"):
            await server.handshake()


async def test_a_client_that_leaves_in_the_handshake_is_an_end():
    async with new_pair() as (server, _, below):
        await below.aclose()
        with pytest.raises(EndOfStream):
            await server.handshake()


async def test_a_damaged_record_breaks_the_stream():
    async with connected() as (server, _, below):
        await below.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(BrokenResourceError) as broken:
            await server.receive()
        assert isinstance(broken.value.__cause__, ProtocolError)


async def test_an_alert_that_nobody_takes_does_not_hide_why():
    async with new_pair() as (server, _, below):
        await below.send(b"\x16\x03\x01\x00\x05abcde")
        await below.aclose()
        with pytest.raises(ProtocolError, match="tls: unexpected message"):
            await server.handshake()


async def test_its_attributes_are_those_of_what_is_below():
    async with new_pair() as (server, _, _):
        assert server.extra_attributes == {}
