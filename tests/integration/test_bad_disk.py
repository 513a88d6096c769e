"""A full disk and a damaged data path: acknowledged messages are delivered, and errors are reported.

A publisher whose message cannot be stored gets an error. Messages that were acknowledged are delivered while the disk
is full and afterwards. Data that cannot be read is set aside, and logged.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.broker.server import Nsqd
from nsqkit.clock import LoopClock
from nsqkit.http.client import fetch
from nsqkit.http.messages import Response
from nsqkit.testing.disk import Disk, FaultyFileStore
from tests.integration.garbage import sized
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.stage import CHANNEL, TOPIC, bodies_of, channel_of, is_empty, take, until

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 15.0
PUB = f"PUB {TOPIC}\n".encode()
NO_ROOM = b"No space left on device"
LONG = bytes(1000)  # there may be room for less after a message that was refused


@asynccontextmanager
async def broker(data_path: str | DirectoryFileStore, **options: Any) -> AsyncIterator[Nsqd]:
    given = BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", mem_queue_size=0, **options)
    with anyio.fail_after(WAIT_LIMIT):
        async with Nsqd(given, data_path=data_path) as nsqd:
            yield nsqd


def consumer(nsqd: Nsqd) -> Consumer:
    return Consumer(TOPIC, CHANNEL, nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=100)


async def consume(nsqd: Nsqd, count: int) -> list[bytes]:
    """Return the bodies of that many messages, which are finished and all that there are."""
    async with consumer(nsqd) as messages:
        taken = await take(messages, count)
        for message in taken:
            message.finish()
        await until(lambda: is_empty(channel_of(nsqd)))
        return bodies_of(taken)


# ---- full ----------------------------------------------------------------------------------------------------------


async def publish_until_full(client: RawClient) -> list[bytes]:
    """Publish until a message is refused; return the others."""
    kept: list[bytes] = []
    while True:
        body = b"message %d" % len(kept)
        await client.send(PUB, sized(body))
        answer = await client.answer()
        if answer != b"OK":
            assert answer == b"E_PUB_FAILED PUB failed " + NO_ROOM
            return kept
        kept.append(body)


async def ask(nsqd: Nsqd, method: str, target: str, body: bytes = b"") -> Response:
    url = f"http://{nsqd.http_address}{target}"
    return await fetch(
        method,
        url,
        body=body,
        clock=LoopClock(),
        connect_timeout=None,
        request_timeout=None,
        body_max=1 << 20,
    )


async def refusals(nsqd: Nsqd) -> list[tuple[bytes, object]]:
    """Publish in every way; return the answers."""
    found: list[tuple[bytes, object]] = []
    for verb, words, body in (
        (b"PUB", b"", LONG),
        (b"MPUB", b"", b"\0\0\0\1" + sized(LONG)),
        (b"DPUB", b" 1000", LONG),
    ):
        async with raw_client(nsqd) as client:
            await client.send(verb + b" t" + words + b"\n", sized(body))
            found.append((verb, await client.answers()))
    for target in ("/pub?topic=t", "/mpub?topic=t"):
        answer = await ask(nsqd, "POST", target, LONG)
        found.append((target.encode(), (answer.status, json.loads(answer.body)["message"])))
    return found


@pytest.mark.parametrize("durability", ["nsqd", "fsync"])
async def test_full_disk_refuses_publishers_and_recovers(tmp_path: Path, durability: str):
    disk = Disk(str(tmp_path))
    async with broker(FaultyFileStore(disk), durability=durability) as nsqd:
        async with raw_client(nsqd) as client:
            await client.send(PUB, sized(b"first"))
            assert await client.answer() == b"OK"
            disk.full(after=1_000)
            kept = await publish_until_full(client)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):  # it is fatal, as in nsqd
                await client.answer()
        assert 10 < len(kept) < 100
        answer = await ask(nsqd, "GET", "/ping")
        assert (answer.status, answer.body) == (500, b"NOK - " + NO_ROOM)
        assert json.loads((await ask(nsqd, "GET", "/stats?format=json")).body)["health"].startswith("NOK - ")
        assert await refusals(nsqd) == [
            (b"PUB", [b"E_PUB_FAILED PUB failed " + NO_ROOM]),
            (b"MPUB", [b"E_MPUB_FAILED MPUB failed " + NO_ROOM]),
            (b"DPUB", [b"E_DPUB_FAILED DPUB failed " + NO_ROOM]),
            (b"/pub?topic=t", (503, "EXITING")),
            (b"/mpub?topic=t", (503, "EXITING")),
        ]
        # When the disk fails as the channel gets them, memory holds some of them, which come before the others.
        assert sorted(await consume(nsqd, 1 + len(kept))) == sorted([b"first", *kept])
        disk.heal()
        async with raw_client(nsqd) as client:
            await client.send(PUB, sized(b"last"))
            assert await client.answer() == b"OK"
        answer = await ask(nsqd, "GET", "/ping")
        assert (answer.status, answer.body) == (200, b"OK")
        assert await consume(nsqd, 1) == [b"last"]
    async with broker(disk.path, durability=durability) as nsqd:
        assert is_empty(channel_of(nsqd))


# ---- damaged -------------------------------------------------------------------------------------------------------

COUNT = 60


def files_of(path: Path) -> list[Path]:
    return sorted(path.glob("t.diskqueue.0*.dat"))


def numbers_in(data: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"number (\d+)", data)]


def no_size(path: Path) -> None:
    """Make the size before the first record one that cannot be."""
    path.write_bytes(b"\xff" * 4 + path.read_bytes()[4:])


def zeros(path: Path) -> None:
    """Make nothing of the second half, as some file systems do after a power cut."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def torn(path: Path) -> None:
    """Cut off the end."""
    path.write_bytes(path.read_bytes()[:-10])


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", [no_size, zeros, torn, missing])
async def test_readable_messages_of_a_damaged_data_path_are_delivered(
    tmp_path: Path, damage: Callable[[Path], None], where: str, caplog: pytest.LogCaptureFixture
):
    async with broker(str(tmp_path), max_bytes_per_file=500) as nsqd, raw_client(nsqd) as client:
        for number in range(COUNT):
            await client.send(PUB, sized(b"number %d" % number))
            assert await client.answer() == b"OK"
    files = files_of(tmp_path)
    assert len(files) > 3
    damaged = files[{"first": 0, "middle": len(files) // 2, "last": -1}[where]]
    in_danger = set(numbers_in(damaged.read_bytes()))
    damage(damaged)
    async with broker(str(tmp_path), max_bytes_per_file=500) as nsqd, consumer(nsqd) as messages:
        seen: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish_all, messages, seen)
            await until(lambda: CHANNEL.encode() in nsqd.broker.topics[b"t"].channels)
            await until(lambda: not nsqd.broker.topics[b"t"].queue and is_empty(channel_of(nsqd)))
            await ask(nsqd, "POST", "/pub?topic=t", b"number %d" % COUNT)
            await until(lambda: COUNT in seen)
            tasks.cancel_scope.cancel()
    assert seen == sorted(set(seen))
    assert set(range(COUNT + 1)) - set(seen) <= in_danger
    whole = set() if damage in (no_size, missing) else {min(in_danger)}
    assert whole <= set(seen)
    assert any(record.levelno == logging.ERROR and damaged.name in record.message for record in caplog.records)
    assert damage is missing or damaged.with_name(f"{damaged.name}.bad").exists()


async def finish_all(messages: Consumer, seen: list[int]) -> None:
    async for message in messages:
        seen += numbers_in(message.body)
        message.finish()
