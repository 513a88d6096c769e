"""Brokers as processes whose clock was set back over a restart: no id comes twice, so no message hides another."""

from __future__ import annotations

import signal
import socket
import struct
import time
from pathlib import Path

import pytest

from tests.integration.test_durability import broker, read_frame

COUNT = 300
DAY_NS = 86_400 * 10**9
STORAGE = {"memory": (), "disk": ("--mem-queue-size=0",), "fsync": ("--durability=fsync",)}


def publish(address: tuple[str, int], numbers: range) -> None:
    """Publish these numbers, each of which is answered."""
    with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as file:
        bodies = [b"%d" % number for number in numbers]
        client.sendall(b"  V2" + b"".join(b"PUB t\n" + struct.pack(">i", len(body)) + body for body in bodies))
        for _ in bodies:
            assert read_frame(file) == (0, b"OK")


def hold_all(address: tuple[str, int], count: int) -> list[int]:
    """Return the numbers of so many messages, of which none is finished before the last has come."""
    with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as file:
        client.sendall(b"  V2SUB t c\nRDY 2500\n")
        assert read_frame(file) == (0, b"OK")
        frames = [read_frame(file) for _ in range(count)]
        assert {kind for kind, _ in frames} == {2}
        ids = [payload[10:26] for _, payload in frames]
        client.sendall(b"".join(b"FIN %s\n" % message_id for message_id in ids) + b"CLS\n")
        assert read_frame(file) == (0, b"CLOSE_WAIT")  # and no FIN has failed
    return sorted(int(payload[26:]) for _, payload in frames)


@pytest.mark.parametrize(
    ("storage", "end"),
    [
        *((storage, signal.SIGTERM) for storage in STORAGE),
        ("disk", signal.SIGKILL),
        ("fsync", signal.SIGKILL),
    ],
)
def test_two_runs_at_the_same_time_share_no_id(tmp_path: Path, storage: str, end: signal.Signals):
    flags = STORAGE[storage]
    now_ns = time.time_ns() + DAY_NS  # the files are older, so that their times do not help
    for first in (0, COUNT):
        with broker(tmp_path, *flags, now_ns=now_ns) as (process, address):
            publish(address, range(first, first + COUNT))
            process.send_signal(end)
            process.wait(timeout=60)
    with broker(tmp_path, *flags, now_ns=now_ns) as (_, address):
        assert hold_all(address, 2 * COUNT) == [*range(2 * COUNT)]


@pytest.mark.parametrize("mark", [None, b"", b"1625125122070 00000000\n", "a directory"])
@pytest.mark.parametrize("storage", ["memory", "fsync"])
def test_ids_begin_after_the_newest_file_without_a_mark(tmp_path: Path, storage: str, mark: bytes | str | None):
    now_ns = time.time_ns()
    path = tmp_path / "nsqkit.ids.dat"
    with broker(tmp_path, *STORAGE[storage], now_ns=now_ns) as (process, address):
        publish(address, range(COUNT))
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    path.unlink()
    if isinstance(mark, bytes):
        path.write_bytes(mark)
    elif mark is not None:
        path.mkdir()
    with broker(tmp_path, *STORAGE[storage], now_ns=now_ns) as (_, address):
        publish(address, range(COUNT, 2 * COUNT))
        assert hold_all(address, 2 * COUNT) == [*range(2 * COUNT)]
