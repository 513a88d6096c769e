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
    """Yield the server's stream, the client's, and the client's connection."""
    ours, theirs = memory_pair()
    client = TLS(client_rules or client_context(), server_hostname=HOST)
    async with ours, theirs:
        yield TLSStream(ours, TLS(server_context())), TLSStream(theirs, client), theirs


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    """Yield the same after the handshake."""
    async with new_pair() as (server, client, below):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.handshake)
            tasks.start_soon(client.handshake)
        yield server, client, below


async def test_bytes_pass_in_both_directions():
    async with connected() as (server, client, _):
        await client.send(b"hello")
        assert await server.receive() == b"hello"
        await server.send(bytes(100_000))
        received = b""
        while len(received) < 100_000:
            received += await client.receive()
        assert received == bytes(100_000)


async def test_receive_returns_at_most_max_bytes():
    async with connected() as (server, client, _):
        await client.send(b"hello")
        assert [await server.receive(3), await server.receive(3)] == [b"hel", b"lo"]


async def test_connection_carries_no_plain_bytes():
    async with connected() as (server, client, below):
        await server.send(b"secret")
        assert b"secret" not in await below.receive()
        await client.aclose()


async def test_closed_tls_is_end_of_stream():
    async with connected() as (server, client, _):
        await client.send(b"last words")
        await client.send_eof()
        assert await server.receive() == b"last words"
        with pytest.raises(EndOfStream):
            await server.receive()
        await server.send(b"the other direction is open")
        assert await client.receive() == b"the other direction is open"


async def test_close_closes_connection():
    async with connected() as (server, client, _):
        await client.aclose()
        with pytest.raises(EndOfStream):
            await server.receive()


async def test_refusal_of_client_reaches_server():
    async with new_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as (server, client, _):
        async with anyio.create_task_group() as tasks:

            async def refused() -> None:
                with pytest.raises(ProtocolError, match="tls: failed to verify server certificate"):
                    await client.handshake()

            tasks.start_soon(refused)
            # With TLS 1.3 the server gets the alert only after its own handshake.
            with pytest.raises((ProtocolError, BrokenResourceError)):
                await server.handshake()
                await server.receive()


async def test_other_protocol_is_protocol_error():
    async with new_pair() as (server, _, below):
        await below.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ProtocolError, match="first record does not look like a TLS handshake"):
            await server.handshake()


async def test_eof_during_handshake_is_end_of_stream():
    async with new_pair() as (server, _, below):
        await below.aclose()
        with pytest.raises(EndOfStream):
            await server.handshake()


async def test_damaged_record_breaks_stream():
    async with connected() as (server, _, below):
        await below.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(BrokenResourceError) as broken:
            await server.receive()
        assert isinstance(broken.value.__cause__, ProtocolError)


async def test_failed_alert_does_not_hide_error():
    async with new_pair() as (server, _, below):
        await below.send(b"\x16\x03\x01\x00\x05abcde")
        await below.aclose()
        with pytest.raises(ProtocolError, match="tls: unexpected message"):
            await server.handshake()


async def test_attributes_are_those_of_connection():
    async with new_pair() as (server, _, _):
        assert server.extra_attributes == {}
