from __future__ import annotations

import anyio
import pytest
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.transport.memory import BUFFERED_WRITES_MAX, memory_pair
from tests.peers import BACKENDS, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


async def test_bytes_arrive_in_order_in_both_directions():
    a, b = memory_pair()
    async with a, b:
        await a.send(b"ab")
        await a.send(b"c")
        await b.send(b"z")
        assert [await b.receive(), await b.receive(), await a.receive()] == [b"ab", b"c", b"z"]


async def test_a_read_returns_no_more_than_it_was_asked_for():
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


async def test_what_was_sent_stays_as_it_was():
    a, b = memory_pair()
    async with a, b:
        data = bytearray(b"abc")
        await a.send(data)  # type: ignore[arg-type]
        data[0] = 0
        assert await b.receive() == b"abc"


async def test_nothing_is_not_sent():
    a, b = memory_pair()
    async with a, b:
        await a.send(b"")
        await a.send(b"x")
        assert await b.receive() == b"x"


async def test_closing_is_the_end_of_the_stream_after_what_was_sent():
    a, b = memory_pair()
    async with b:
        await a.send(b"last")
        await a.aclose()
        assert await b.receive() == b"last"
        with pytest.raises(EndOfStream):
            await b.receive()


async def test_a_half_closed_stream_still_receives():
    a, b = memory_pair()
    async with a, b:
        await a.send_eof()
        with pytest.raises(EndOfStream):
            await b.receive()
        await b.send(b"answer")
        assert await a.receive() == b"answer"
        with pytest.raises(ClosedResourceError):
            await a.send(b"more")


async def test_nothing_can_be_sent_to_whom_has_closed():
    a, b = memory_pair()
    async with a:
        await b.aclose()
        with pytest.raises(BrokenResourceError):
            await a.send(b"x")


async def test_a_closed_end_is_of_no_use():
    a, b = memory_pair()
    async with b:
        await a.aclose()
        with pytest.raises(ClosedResourceError):
            await a.send(b"x")
        with pytest.raises(ClosedResourceError):
            await a.receive()
        await a.aclose()


async def test_a_sender_waits_while_the_other_side_does_not_read():
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


async def test_a_sender_that_waits_is_told_when_the_other_side_closes():
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


async def test_a_cancelled_read_loses_nothing():
    a, b = memory_pair()
    async with a, b:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await b.receive()
        await a.send(b"x")
        assert await b.receive() == b"x"


async def test_there_is_no_socket_behind_it():
    a, b = memory_pair()
    async with a, b:
        assert a.extra_attributes == {}
