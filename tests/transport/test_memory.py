from __future__ import annotations

import anyio
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.transport.memory import BUFFERED_WRITES_MAX, memory_pair
from tests.peers import BACKENDS, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


async def test_bytes_arrive_in_order():
    a, b = memory_pair()
    async with a, b:
        await a.send(b"ab")
        await a.send(b"c")
        await b.send(b"z")
        assert [await b.receive(), await b.receive(), await a.receive()] == [b"ab", b"c", b"z"]


async def test_receive_returns_at_most_max_bytes():
    a, b = memory_pair()
    async with a, b:
        await a.send(b"abcde")
        await a.send(b"f")
        assert [await b.receive(2), await b.receive(2), await b.receive(2), await b.receive(2)] == [
            b"ab",
            b"cd",
            b"e",
            b"f",
        ]


async def test_sent_bytes_are_copied():
    a, b = memory_pair()
    async with a, b:
        data = bytearray(b"abc")
        await a.send(data)  # type: ignore[arg-type]
        data[0] = 0
        assert await b.receive() == b"abc"


async def test_empty_send_is_ignored():
    a, b = memory_pair()
    async with a, b:
        await a.send(b"")
        await a.send(b"x")
        assert await b.receive() == b"x"


async def test_close_ends_stream_after_data():
    a, b = memory_pair()
    async with b:
        await a.send(b"last")
        await a.aclose()
        assert await b.receive() == b"last"
        with pytest.raises(EndOfStream):
            await b.receive()


async def test_half_closed_stream_receives():
    a, b = memory_pair()
    async with a, b:
        await a.send_eof()
        with pytest.raises(EndOfStream):
            await b.receive()
        await b.send(b"answer")
        assert await a.receive() == b"answer"
        with pytest.raises(ClosedResourceError):
            await a.send(b"more")


async def test_send_to_closed_peer_fails():
    a, b = memory_pair()
    async with a:
        await b.aclose()
        with pytest.raises(BrokenResourceError):
            await a.send(b"x")


async def test_closed_end_refuses_use():
    a, b = memory_pair()
    async with b:
        await a.aclose()
        with pytest.raises(ClosedResourceError):
            await a.send(b"x")
        with pytest.raises(ClosedResourceError):
            await a.receive()
        await a.aclose()


async def test_sender_waits_for_reader():
    a, b = memory_pair()
    async with a, b, anyio.create_task_group() as tasks:
        for _ in range(BUFFERED_WRITES_MAX):
            await a.send(b".")
        log: list[str] = []

        async def send_one_more():
            await a.send(b"!")
            log.append("sent")

        tasks.start_soon(send_one_more)
        await settle()
        assert log == []
        await b.receive()
        await settle()
        assert log == ["sent"]


async def test_waiting_sender_fails_when_peer_closes():
    a, b = memory_pair()
    async with a, anyio.create_task_group() as tasks:
        for _ in range(BUFFERED_WRITES_MAX):
            await a.send(b".")

        async def send_one_more():
            with pytest.raises(BrokenResourceError):
                await a.send(b"!")

        tasks.start_soon(send_one_more)
        await settle()
        await b.aclose()


async def test_cancelled_receive_loses_no_data():
    a, b = memory_pair()
    async with a, b:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await b.receive()
        await a.send(b"x")
        assert await b.receive() == b"x"


async def test_memory_stream_has_no_attributes():
    a, b = memory_pair()
    async with a, b:
        assert a.extra_attributes == {}
