"""A broker as a process on a data path with one damaged file: it serves all else, and its log names the file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_durability import broker, consume
from tests.integration.test_set_back_clock import publish

COUNT = 20
NAMES = """{"topics":[
    {"name":"damaged","paused":false,"channels":[{"name":"c","paused":false}]},
    {"name":"t","paused":true,"channels":null}
],"version":"1.3.0"}"""


def a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def content(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


META = "damaged.diskqueue.meta.dat"
DATA = "damaged.diskqueue.000000.dat"
DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "70 bits": (META, content(b"20\n0,%d\n0,%d\n" % (1 << 70, (1 << 70) + 5))),
    "5000 digits": (META, content(b"20\n0,0\n0,%s\n" % (b"9" * 5000))),
    "far away": (META, content(b"20\n0,0\n%d,5\n" % 10**12)),
    "positions are a directory": (META, a_directory),
    "messages are a directory": (DATA, a_directory),
    "deferred times are a directory": ("damaged:c.deferred.dat", a_directory),
    "ids are a directory": ("nsqkit.ids.dat", a_directory),
    "ids are zeros": ("nsqkit.ids.dat", content(bytes(23))),
}


@pytest.mark.parametrize("durability", ["nsqd", "fsync"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_affects_no_other_topic(tmp_path: Path, damage: str, durability: str):
    tmp_path.joinpath("nsqd.dat").write_text(NAMES)
    tmp_path.joinpath(META).write_text("1\n0,0\n0,35\n")
    tmp_path.joinpath(DATA).write_bytes(b"\0\0\0\x1f" + bytes(10) + b"0" * 16 + b"hello")
    flags = (f"--durability={durability}", "--keep-deferred")
    with broker(tmp_path, *flags) as (process, address):
        publish(address, range(COUNT))
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    name, do_damage = DAMAGES[damage]
    do_damage(tmp_path / name)
    tmp_path.joinpath("nsqd.dat").write_text(NAMES.replace("true", "false"))
    log: list[str] = []
    with broker(tmp_path, *flags, log=log) as (process, address):
        assert consume(address, "c", COUNT) == set(range(COUNT))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    named = "damaged.diskqueue.000001.dat to " if damage == "far away" else name
    assert any(" ERROR: " in line and named in line for line in log), log


@pytest.mark.parametrize("damage", ["a directory", "deep nesting", "empty"])
def test_damaged_names_fail_the_start_with_one_line(tmp_path: Path, damage: str):
    path = tmp_path / "nsqd.dat"
    if damage == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"[" * 100_000 if damage == "deep nesting" else b"")
    words = [sys.executable, "-m", "nsqkit", "nsqd", "--tcp-address=127.0.0.1:0", "--http-address="]
    ended = subprocess.run(
        [*words, f"--data-path={tmp_path}"], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "nsqd.dat" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
