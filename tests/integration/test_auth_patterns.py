"""Large patterns, and many of them, from an auth server: a broker process continues to serve all other clients."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from nsqkit.transport.tcp import connect
from tests.answering import answering, http_answer
from tests.integration.anywhere.servers import PROCESS, WAIT_LIMIT, Kind, Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(2 * WAIT_LIMIT)]

WAIT_MAX = 0.5
"""Seconds that another client may wait for an answer. On an idle machine it takes a millisecond."""


def entry(topic: str) -> dict[str, Any]:
    return {"topic": topic, "channels": [".*"], "permissions": ["publish"]}


async def authenticate(address: str) -> bytes:
    """Send AUTH; return the answer's text."""
    async with await connect(address) as stream:
        await stream.send(b"  V2AUTH\n\0\0\0\1s")
        received = BufferedByteReceiveStream(stream)
        size = int.from_bytes(await received.receive_exactly(4), "big")
        return (await received.receive_exactly(size))[4:]


async def ask_again_and_again(stream: ByteStream, is_over: anyio.Event, waits: list[float]) -> None:
    """Request /ping repeatedly, and record the duration of each answer."""
    received = BufferedByteReceiveStream(stream)
    while not is_over.is_set():
        asked = anyio.current_time()
        await stream.send(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
        head = await received.receive_until(b"\r\n\r\n", 1000)
        assert head.startswith(b"HTTP/1.1 200")
        await received.receive_exactly(2)
        waits.append(anyio.current_time() - asked)


async def longest_wait(nsqd: Server, answer: bytes) -> float:
    """Return how long another client waits while one authenticates, in seconds."""
    waits: list[float] = []
    is_over = anyio.Event()
    async with await connect(nsqd.http_address) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(ask_again_and_again, other, is_over, waits)
        assert (await authenticate(nsqd.tcp_address)).startswith(answer)
        is_over.set()
    return max(waits)


@pytest.mark.parametrize(
    ("patterns", "answer"),
    [
        pytest.param(["a" * 1_000_000], b"E_AUTH_FAILED AUTH failed", id="one of a megabyte"),
        pytest.param(
            [rf"^(\w{{30}}){{30}}{number}$" for number in range(2000)],
            b"E_AUTH_FAILED AUTH failed",
            id="2,000 that are large",
        ),
        pytest.param([f"^orders-{number}$" for number in range(2000)], b'{"identity":"', id="2,000 names"),
    ],
)
async def test_other_clients_are_served_while_patterns_are_compiled(tmp_path: Path, patterns: list[str], answer: bytes):
    grant = json.dumps({"ttl": 60, "authorizations": [entry(pattern) for pattern in patterns]}).encode()
    async with answering(lambda _: http_answer(grant)) as auth:
        nsqd = Kind(PROCESS).nsqd(tmp_path, f"--auth-http-address={auth.address}")
        await anyio.to_thread.run_sync(nsqd.start)
        try:
            # Each round compiles all patterns again; a single wait may be due to the machine.
            waits = [await longest_wait(nsqd, answer) for _ in range(5)]
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(nsqd.stop)
    assert median(waits) < WAIT_MAX
