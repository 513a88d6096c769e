"""kill -9 of a broker in its ordinary mode, while messages are published and consumed: which of them are lost.

Messages that only the memory of the process had are lost:

- those in memory queues: at most ``--mem-queue-size`` messages of each topic and channel;
- those in flight: at most the RDY counts of the consumers, which had come from those queues or from disk;
- deferred messages.

Messages that had no room in memory and went to disk are not lost, synced or not, since the system has them; they are
there again in their order. After a power cut only synced messages are safe. A sync of a queue begins after
``--sync-every`` messages or ``--sync-timeout``; ``tests/simulation/test_power_cut.py`` shows that.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.integration.test_durability import broker, consume, publish_until_killed, read_frame
from tests.threads import until

WAIT_LIMIT = 15
MEMORY = 50
IN_FLIGHT = 30


@contextmanager
def connection(address: tuple[str, int]) -> Iterator[tuple[socket.socket, Any]]:
    with socket.create_connection(address, timeout=WAIT_LIMIT) as client, client.makefile("rb") as file:
        client.sendall(b"  V2")
        yield client, file


def name(data_path: Path, *channels: str) -> None:
    """Create the topic and these channels before the broker starts."""
    entries = [{"name": channel, "paused": False} for channel in channels]
    document = {"topics": [{"name": "t", "paused": False, "channels": entries}], "version": "1.3.0"}
    data_path.joinpath("nsqd.dat").write_text(json.dumps(document))


@pytest.mark.parametrize("seed", range(3))
def test_kill_without_memory_queue_loses_no_acknowledged_message(tmp_path, seed):
    """Not even without a sync, for a process that is killed; with two channels, in both of them."""
    random = Random(seed)
    name(tmp_path, "c", "d")
    flags = ("--mem-queue-size=0", f"--max-bytes-per-file={random.choice([20_000, 1 << 20])}")
    with broker(tmp_path, *flags) as (process, address):
        answered = publish_until_killed(process, address, random.randrange(1, 5_000))
        process.wait(timeout=WAIT_LIMIT)
    with broker(tmp_path, *flags) as (_, address):
        assert consume(address, "c", answered) >= set(range(answered))
        assert consume(address, "d", answered) >= set(range(answered))


@pytest.mark.parametrize("seed", range(5))
def test_kill_loses_the_messages_in_memory_alone(tmp_path, seed):
    random = Random(seed)
    name(tmp_path, "c")
    flags = (f"--mem-queue-size={MEMORY}", "--max-bytes-per-file=20000")
    with broker(tmp_path, *flags) as (process, address):
        with connection(address) as (consumer, frames):
            consumer.sendall(f"SUB t c\nRDY {IN_FLIGHT}\n".encode())
            assert read_frame(frames) == (0, b"OK")
            answered = publish_until_killed(process, address, random.randrange(IN_FLIGHT + MEMORY, 10_000))
            held = [int(body) for body in received(frames)]
        process.wait(timeout=WAIT_LIMIT)
    assert held == list(range(IN_FLIGHT)), "in flight, and never finished"
    lost_max = MEMORY + IN_FLIGHT  # the fewer, the more came in one read: memory was full before any was delivered
    with broker(tmp_path, *flags) as (_, address):
        found = consume(address, "c", answered, first=lost_max)
    first = min(found, default=lost_max)
    assert MEMORY <= first <= lost_max, "the oldest were in memory"
    assert found >= set(range(first, answered)), "all others were on disk"


def received(frames: Any) -> Iterator[bytes]:
    """Yield the bodies that have come until the connection was lost."""
    try:
        while True:
            kind, payload = read_frame(frames)
            if kind == 2:
                yield payload[26:]
    except (EOFError, OSError):
        return


def test_synced_positions_keep_finished_messages_from_coming_again(tmp_path):
    name(tmp_path, "c")
    flags = ("--mem-queue-size=0", "--sync-every=1")
    with broker(tmp_path, *flags) as (process, address), connection(address) as (client, frames):
        client.sendall(b"DPUB t 3600000\n" + struct.pack(">i", 2) + b"99")
        client.sendall(b"".join(b"PUB t\n\0\0\0\1%d" % number for number in range(6)))
        assert [read_frame(frames) for _ in range(7)] == [(0, b"OK")] * 7
        client.sendall(b"SUB t c\nRDY 2\n")
        assert read_frame(frames) == (0, b"OK")
        ids = [payload[10:26] for _, payload in (read_frame(frames), read_frame(frames))]
        client.sendall(b"".join(b"FIN %s\n" % message_id for message_id in ids) + b"RDY 0\nNOPE\n")
        while (frame := read_frame(frames))[0] == 2:
            pass  # what came before RDY 0
        assert frame[0] == 1, "all before it has been done"
        positions = tmp_path / "t:c.diskqueue.meta.dat"
        until(lambda: int(positions.read_bytes().split()[1].partition(b",")[2]) >= 62)  # synced in a thread
        process.kill()
        process.wait(timeout=WAIT_LIMIT)
    with broker(tmp_path, *flags) as (_, address), connection(address) as (client, frames):
        client.sendall(b"PUB t\n\0\0\0\1e" + b"SUB t c\nRDY 100\n")
        assert [read_frame(frames) for _ in range(2)] == [(0, b"OK")] * 2
        bodies: list[bytes] = []
        while bodies[-1:] != [b"e"]:
            bodies.append(read_frame(frames)[1][26:])
    # 2 and 3 were in flight, or not yet: the FINs may have made room before RDY 0 came.
    assert bodies[-3:] == [b"4", b"5", b"e"]
    assert set(bodies) <= {b"2", b"3", b"4", b"5", b"e"}
