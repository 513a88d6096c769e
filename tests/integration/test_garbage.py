"""64 clients that send garbage leave a healthy broker.

Garbage over TCP, TLS, HTTP and HTTPS does not delay other clients and raises no internal error. Afterwards the broker
uses as many sessions, tasks, open files and as much memory as before.

A run takes some seconds; ``NSQKIT_GARBAGE_SECONDS=60`` makes it a minute.
"""

from __future__ import annotations

import gc
import logging
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random

import anyio
import attrs
import pytest

from nsqkit import Consumer, Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import LoopClock
from nsqkit.http.client import fetch
from nsqkit.transport.tcp import connect
from tests.certificates import write_files
from tests.integration.garbage import http_garbage, pieces, tcp_garbage
from tests.integration.stage import CHANNEL, TOPIC, channel_of, is_empty, take, until

SECONDS = float(os.environ.get("NSQKIT_GARBAGE_SECONDS", "3"))
WARM_UP_SECONDS = 0.5
"""For objects that are created once: modules, caches, buffers that stay."""

WAIT_LIMIT = 60.0
"""Seconds that a busy machine may take until a condition holds."""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(SECONDS + 2 * WAIT_LIMIT)]

CLIENTS = 64
MIB = 1 << 20


@attrs.frozen
class Footprint:
    """The resources that a process uses for a broker and its clients."""

    sessions: int
    tasks: int
    files: int

    @classmethod
    def of(cls, nsqd: Nsqd) -> Footprint:
        tasks = len(anyio.get_running_tasks())
        return cls(len(nsqd.broker.sessions), tasks, len(os.listdir("/dev/fd")))

    def is_within(self, other: Footprint) -> bool:
        return all(mine <= theirs for mine, theirs in zip(attrs.astuple(self), attrs.astuple(other), strict=True))


def memory() -> int:
    """Return the bytes that Python's objects use."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logged errors; pytest does not keep the thousands of other lines about bad clients."""
    found: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if record.exc_info:
            found.append(logging.Formatter().format(record))
        return False

    for name in ("nsqkit.broker", "nsqkit.http", "nsqkit.transport", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [note])
    return found


async def misbehave(address: str, garbage: Callable[[Random], bytes], random: Random) -> None:
    """Run one bad client after the other."""
    while True:
        try:
            async with await connect(address) as stream:
                for piece in pieces(garbage(random), random):
                    await stream.send(piece)
                    await anyio.lowlevel.checkpoint()
                if random.randrange(2):  # the others disconnect abruptly
                    await stream.send_eof()
                    while True:
                        await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass  # an OSError comes from ``send_eof`` where the broker has closed the connection


@asynccontextmanager
async def bad_clients(nsqd: Nsqd, seed: str) -> AsyncIterator[None]:
    """Run all bad clients during the block."""
    kinds = [(nsqd.tcp_address, tcp_garbage)] * 5 + [(nsqd.http_address, http_garbage)] * 2
    kinds.append((nsqd.https_address, http_garbage))
    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            address, garbage = kinds[number % len(kinds)]
            tasks.start_soon(misbehave, address, garbage, Random(f"{seed} {number}"))
        yield
        tasks.cancel_scope.cancel()


async def be_served(nsqd: Nsqd, producer: Producer, consumer: Consumer, seconds: float) -> None:
    """Publish, consume and query, at least once and for that long, and check all answers."""
    end = anyio.current_time() + seconds
    for number in count():
        await producer.publish(TOPIC, b"%d" % number)
        (message,) = await take(consumer, 1)
        assert (message.body, message.attempts) == (b"%d" % number, 1)
        message.finish()
        assert await ask(nsqd, "GET", "/ping") == b"OK"
        if anyio.current_time() >= end:
            return


async def ask(nsqd: Nsqd, method: str, target: str) -> bytes:
    url = f"http://{nsqd.http_address}{target}"
    answer = await fetch(method, url, clock=LoopClock(), connect_timeout=None, request_timeout=None, body_max=MIB)
    return answer.body


async def clean_up(nsqd: Nsqd) -> None:
    """Delete the topics that bad clients have created, with all their messages."""
    for name in set(nsqd.broker.topics) - {TOPIC.encode()}:
        await ask(nsqd, "POST", f"/topic/delete?topic={name.decode().replace('#', '%23')}")


async def test_garbage_leaves_a_healthy_broker(tmp_path: Path, traced: None, faults: list[str]):
    files = write_files(tmp_path)
    options = BrokerOptions(
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        https_address="127.0.0.1:0",
        tls_cert=files.certificate,
        tls_key=files.key,
    )
    with anyio.fail_after(SECONDS + 2 * WAIT_LIMIT):
        async with Nsqd(options, data_path=str(tmp_path)) as nsqd:
            producer = Producer(nsqd.tcp_address)
            consumer = Consumer(TOPIC, CHANNEL, nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10)
            async with producer, consumer:
                await be_served(nsqd, producer, consumer, 0)
                witnesses = list(nsqd.broker.sessions)
                footprint = Footprint.of(nsqd)
                before = None
                for seconds in (WARM_UP_SECONDS, SECONDS):
                    async with bad_clients(nsqd, f"for {seconds} s"):
                        await be_served(nsqd, producer, consumer, seconds)
                    await until(lambda: Footprint.of(nsqd).is_within(footprint))
                    await clean_up(nsqd)
                    after = memory()
                    assert before is None or after - before < MIB
                    before = after
                assert list(nsqd.broker.sessions) == witnesses
                await until(lambda: is_empty(channel_of(nsqd)))
    assert faults == []
