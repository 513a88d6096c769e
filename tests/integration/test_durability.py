"""kill -9 while 100,000 messages are published with ``--durability=fsync``: no acknowledged message is lost."""

from __future__ import annotations

import json
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

import pytest

ROUNDS = 20
MESSAGES = 100_000
OUTSTANDING = 200
OK = b"\0\0\0\6\0\0\0\0OK"


AT_ANOTHER_TIME = """
import sys, time
now_ns = int(sys.argv.pop(1))
time.time_ns, time.monotonic_ns = lambda: now_ns, lambda: 0
from nsqkit.__main__ import main
sys.exit(main())
"""


@contextmanager
def broker(
    data_path: Path, *flags: str, now_ns: int | None = None, log: list[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """Start a broker as a separate process; it is killed at the end.

    Args:
        data_path: its directory.
        flags: more flags.
        now_ns: the time of its clock; by default the real time.
        log: gets the lines that it writes before it listens.
    """
    program = ["-m", "nsqkit"] if now_ns is None else ["-c", AT_ANOTHER_TIME, str(now_ns)]
    words = [sys.executable, *program, "nsqd", "--tcp-address=127.0.0.1:0", "--http-address=", *flags]
    with subprocess.Popen([*words, f"--data-path={data_path}"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log = [] if log is None else log
            while not (found := re.search(r"TCP: listening on 127\.0\.0\.1:(\d+)", "".join(log[-1:]))):
                log.append(process.stderr.readline())
                assert log[-1], "".join(log)
            yield process, ("127.0.0.1", int(found[1]))
        finally:
            process.kill()


def read_frame(file) -> tuple[int, bytes]:
    head = file.read(8)
    if len(head) < 8:
        raise EOFError
    size, kind = struct.unpack(">ii", head)
    return kind, file.read(size - 4)


def publish_until_killed(process: subprocess.Popen[str], address: tuple[str, int], kill_at: int) -> int:
    """Publish the numbers from 0 on, kill the broker after ``kill_at`` answers; return how many were answered."""
    answered = 0
    with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as file:
        client.sendall(b"  V2")
        try:
            for start in range(0, MESSAGES, OUTSTANDING):
                bodies = [b"%d" % number for number in range(start, start + OUTSTANDING)]
                client.sendall(b"".join(b"PUB t\n" + struct.pack(">i", len(body)) + body for body in bodies))
                for _ in bodies:
                    assert read_frame(file) == (0, b"OK")
                    answered += 1
                    if answered == kill_at:
                        process.kill()
        except (EOFError, OSError):
            pass
    return answered


def consume(address: tuple[str, int], channel: str, end: int, first: int = 0) -> set[int]:
    """Return the numbers that a new consumer finishes, until those from ``first`` to ``end`` have arrived."""
    missing, seen = set(range(first, end)), set[int]()
    with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as file:
        client.sendall(f"  V2SUB t {channel}\nRDY 2500\n".encode())
        while missing:
            kind, payload = read_frame(file)
            if kind == 2:
                seen.add(int(payload[26:]))
                missing.discard(int(payload[26:]))
                client.sendall(b"FIN " + payload[10:26] + b"\n")
            else:
                assert kind == 0, payload
    return seen


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_acknowledged_messages_are_not_lost(tmp_path, seed):
    random = Random(seed)
    with_channel = seed % 2 == 0
    if with_channel:
        names = '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}'
        tmp_path.joinpath("nsqd.dat").write_text(names)
    flags = ("--durability=fsync", f"--max-bytes-per-file={random.choice([20_000, 1 << 20])}")
    with broker(tmp_path, *flags) as (process, address):
        answered = publish_until_killed(process, address, random.randrange(1, 5_000))
        process.wait(timeout=60)
    with broker(tmp_path, *flags) as (process, address):
        assert consume(address, "c", answered) >= set(range(answered))


def http(address: str, method: str, target: str) -> Any:
    """Return the broker's answer to a request over HTTP, decoded if it is JSON."""
    connection = HTTPConnection(address, timeout=60)
    with closing(connection):
        connection.request(method, target)
        body = connection.getresponse().read()
    return json.loads(body) if body[:1] == b"{" else body


def test_deferred_messages_wait_in_the_topic_while_the_disk_is_full(tmp_path: Path):
    names = '{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}'
    tmp_path.joinpath("nsqd.dat").write_text(names)
    count = 50
    with broker(tmp_path, "--durability=fsync", "--keep-deferred", "--http-address=127.0.0.1:0") as (
        process,
        address,
    ):
        assert process.stderr is not None
        found = re.search(r"HTTP: listening on (.*)", process.stderr.readline())
        assert found is not None
        with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as file:
            bodies = [b"%d" % number for number in range(count)]
            client.sendall(b"  V2" + b"".join(b"DPUB t 100\n" + struct.pack(">i", len(body)) + body for body in bodies))
            assert [read_frame(file) for _ in bodies] == [(0, b"OK")] * count
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, most))
        http(found[1], "POST", "/topic/unpause?topic=t")
        (topic,) = http(found[1], "GET", "/stats?format=json")["topics"]
        assert topic["depth"] == count
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        assert consume(address, "c", count) == set(range(count))
        (topic,) = http(found[1], "GET", "/stats?format=json")["topics"]
        assert topic["depth"] == 0
