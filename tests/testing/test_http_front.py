"""The faults of HTTP over real connections; each event loop has its own kind of stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from nsqkit.clock import LoopClock, ManualClock
from nsqkit.errors import RequestFailed
from nsqkit.http.client import fetch
from nsqkit.http.messages import Request, Response
from nsqkit.testing.http_front import HTTPFront
from nsqkit.testing.lookup_faults import LookupFaults
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.tcp import listen

pytestmark = pytest.mark.anyio

LISTED = Response.v1({"channels": [], "producers": []})


def handle(request: Request) -> Response:
    return LISTED


@asynccontextmanager
async def front(faults: LookupFaults, clock: ManualClock) -> AsyncIterator[str]:
    """Serve with faults; the value is the URL."""
    server = HTTPFront(handle, faults, clock)
    async with await listen("127.0.0.1:0") as listener, anyio.create_task_group() as tasks:

        async def serve(stream: anyio.abc.ByteStream) -> None:
            await server.serve(stream, remote_address(stream))

        tasks.start_soon(accept, listener, serve, tasks, logging.getLogger("test"), LoopClock())
        yield f"http://{listener.address}/lookup?topic=t"
        tasks.cancel_scope.cancel()


async def get(url: str) -> Response:
    return await fetch("GET", url, clock=LoopClock(), connect_timeout=10, request_timeout=10, body_max=10_000)


@pytest.fixture
def faults() -> LookupFaults:
    return LookupFaults(1)


async def test_answer_without_a_fault_is_that_of_the_server(faults: LookupFaults) -> None:
    async with front(faults, ManualClock()) as url:
        assert (await get(url)).body == LISTED.body


async def test_status_and_body_are_replaced(faults: LookupFaults) -> None:
    async with front(faults, ManualClock()) as url:
        with faults.status(500):
            answer = await get(url)
            assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
        with faults.status(503, b"<html>"):
            answer = await get(url)
            assert (answer.status, answer.body) == (503, b"<html>")
        with faults.malformed(b"{"):
            answer = await get(url)
            assert (answer.status, answer.body) == (200, b"{")
        with faults.stale("t", "gone:1"):
            assert b'"broadcast_address":"gone"' in (await get(url)).body
        with faults.hide(topic="t"):
            assert (await get(url)).status == 404


async def test_slow_answer_waits_for_the_clock(faults: LookupFaults) -> None:
    clock = ManualClock()
    faults.slow(30)
    async with front(faults, clock) as url:
        answers: list[Response] = []

        async def request() -> None:
            answers.append(await get(url))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request)
            while not clock._waiters:
                await anyio.lowlevel.checkpoint()
            assert answers == []
            clock.advance(30)
        assert answers[0].body == LISTED.body


async def test_connection_is_closed_without_an_answer(faults: LookupFaults) -> None:
    async with front(faults, ManualClock()) as url:
        for add in (partial(faults.reset, path="/lookup", topic="t"), partial(faults.close_on_accept, times=1)):
            with add() as fault, pytest.raises(RequestFailed):
                await get(url)
            assert fault.count == 1
        assert (await get(url)).status == 200


async def test_silent_server_does_not_answer(faults: LookupFaults) -> None:
    async with front(faults, ManualClock()) as url:
        with faults.silence() as fault:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(get, url)
                while not fault.count:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        assert (await get(url)).status == 200
