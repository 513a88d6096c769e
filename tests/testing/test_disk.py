from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.testing.disk import OPERATIONS, Disk, FaultyFileStore, Operation
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME

NO_ROOM = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(str(tmp_path))


@pytest.fixture
def files(disk: Disk) -> FaultyFileStore:
    return FaultyFileStore(disk)


# ---- full ------------------------------------------------------------------------------------------------------------


def test_write_to_a_full_disk_writes_the_part_that_fits(disk: Disk, files: FaultyFileStore) -> None:
    file = files.open("f", create=True)
    file.write_at(0, b"0123456789")
    fault = disk.full(after=5)
    file.write_at(10, b"abc")
    with pytest.raises(OSError, match=NO_ROOM) as failure:
        file.write_at(11, b"BCDEFGH")
    assert failure.value.errno == errno.ENOSPC
    assert file.read_at(0, 100) == b"0123456789aBCDE"
    assert fault.count == 1
    file.write_at(0, b"ten bytes.")  # it needs no room
    file.close()


def test_file_that_is_removed_or_cut_off_makes_room(disk: Disk, files: FaultyFileStore) -> None:
    files.replace("old", b"12345")
    file = files.open("f", create=True)
    file.write_at(0, b"123")
    disk.full()
    with pytest.raises(OSError, match=NO_ROOM):
        file.write_at(3, b"x")
    files.remove("old")
    file.write_at(3, b"12345")
    with pytest.raises(OSError, match=NO_ROOM):
        file.write_at(8, b"x")
    file.truncate(0)
    file.write_at(0, b"12345678")
    file.close()


def test_replaced_file_is_unchanged_on_a_full_disk(disk: Disk, files: FaultyFileStore, tmp_path: Path) -> None:
    files.replace("f", b"old")
    with disk.full(after=2), pytest.raises(OSError, match=NO_ROOM):
        files.replace("f", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"old"}
    files.replace("f", b"new")
    assert files.read("f") == b"new"


@given(writes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=20), after=st.integers(0, 60))
def test_disk_never_has_more_than_it_has_room_for(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], after: int
) -> None:
    path = tmp_path_factory.mktemp("disk")
    disk = Disk(str(path))
    file = FaultyFileStore(disk).open("f", create=True)
    disk.full(after=after)
    for position, size in writes:
        end = max(file.size(), position + size)
        if end <= after:
            file.write_at(position, bytes(size))
            assert file.size() == end
        elif position <= file.size():
            with pytest.raises(OSError, match=NO_ROOM):
                file.write_at(position, bytes(size))
            assert file.size() == after
    file.close()


# ---- errors ----------------------------------------------------------------------------------------------------------


def do(files: FaultyFileStore, operation: Operation) -> None:
    """Do one operation of each kind that is named."""
    if operation == "rename":
        files.rename("a", "b")
        os.rename(files._at("b"), files._at("a"))
        return
    if operation == "remove":
        files.remove("nothing")
        return
    if operation == "read":
        files.read("a")
        return
    file = files.open("a")
    try:
        if operation == "write":
            file.write_at(0, b"AB")
        elif operation == "sync":
            file.sync()
    finally:
        file.close()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_fails_as_often_as_wanted(disk: Disk, files: FaultyFileStore, operation: Operation) -> None:
    Path(disk.path, "a").write_bytes(b"ab")
    fault = disk.error(operation, errno.EACCES, times=2, after=1)
    do(files, operation)
    for _ in range(2):
        with pytest.raises(OSError, match="Permission denied") as failure:
            do(files, operation)
        assert failure.value.errno == errno.EACCES
    for other in OPERATIONS:
        do(files, other)
    assert fault.count == 2
    assert repr(fault) == f"<DiskFault {operation} EACCES count=2>"


def test_write_that_fails_has_written_half(disk: Disk, files: FaultyFileStore, tmp_path: Path) -> None:
    file = files.open("f", create=True)
    with disk.error("write"), pytest.raises(OSError, match="Input/output error"):
        file.write_at(0, b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"01234"
    file.write_at(0, b"0123456789")
    file.close()


def test_directory_and_shared_files_fail_as_well(disk: Disk, files: FaultyFileStore) -> None:
    file = files.open("f", create=True)
    shared = file.share()
    fault = disk.error("sync")
    for sync in (file.sync, shared.sync, files.sync):
        with pytest.raises(OSError, match="Input/output error"):
            sync()
    disk.heal()
    shared.sync()
    files.sync()
    with disk.error("read"):
        for read in (lambda: shared.read_at(0, 1), lambda: files.read("f")):
            with pytest.raises(OSError, match="Input/output error"):
                read()
    fault.remove()
    assert fault.count == 3
    file.close()
    shared.close()


def test_faults_apply_together(disk: Disk, files: FaultyFileStore) -> None:
    full, broken = disk.full(), disk.error("write", times=1)
    file = files.open("f", create=True)
    for number in (errno.ENOSPC, errno.ENOSPC):
        with pytest.raises(OSError, match=os.strerror(number)):
            file.write_at(0, b"x")
    full.remove()
    with pytest.raises(OSError, match="Input/output error"):
        file.write_at(0, b"x")
    file.write_at(0, b"x")
    assert (full.count, broken.count) == (2, 1)
    file.close()


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("full", {"after": -1}, "after is -1; allowed is 0 or more"),
        ("full", {"after": 1.5}, r"after is 1\.5"),
        (
            "error",
            {"operation": "close"},
            "operation is 'close'; allowed is one of open, read, write, sync, rename, rem",
        ),
        ("error", {"operation": "write", "number": 9999}, "number is 9999; allowed is a number of an error, such as"),
        ("error", {"operation": "write", "times": 0}, "times is 0; allowed is 1 or more"),
        ("error", {"operation": "write", "after": -1}, "after is -1"),
    ],
)
def test_wrong_values_are_refused(disk: Disk, method: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        getattr(disk, method)(**arguments)


# ---- a broker --------------------------------------------------------------------------------------------------------


def publish(nsqd: NsqdServer, body: bytes) -> bytes:
    """Publish a message as a client does; return the frame that answers."""
    with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", body))
        return client.recv(1000)


def ping(nsqd: NsqdServer) -> tuple[int, bytes]:
    try:
        with urlopen(f"{nsqd.http_url}/ping", timeout=60) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize("durability", ["nsqd", "fsync"])
def test_full_disk_refuses_publishes_and_loses_no_message(tmp_path: Path, durability: str) -> None:
    options: dict[str, Any] = {"data_path": str(tmp_path), "mem_queue_size": 0, "durability": durability}
    with NsqdServer(**options) as nsqd:
        assert publish(nsqd, b"first") == OK_FRAME
        kept = [b"first"]
        with nsqd.disk.full(after=1000) as fault:
            while (answer := publish(nsqd, body := b"message %d" % len(kept))) == OK_FRAME:
                kept.append(body)
            assert answer.endswith(b"E_PUB_FAILED PUB failed No space left on device")
            assert fault.count > 0
            assert ping(nsqd) == (500, b"NOK - No space left on device")
            assert nsqd.state.health == "NOK - No space left on device"
            with pytest.raises(OSError, match=NO_ROOM):
                nsqd.publish("t", bytes(1000))  # longer than any room that is left
            assert [message.body for message in nsqd.messages("t")] == kept
        assert publish(nsqd, b"last") == OK_FRAME
        assert ping(nsqd) == (200, b"OK")
    with NsqdServer(**options) as nsqd:
        assert [message.body for message in nsqd.messages("t")] == [*kept, b"last"]


def test_commit_that_fails_is_not_acknowledged(tmp_path: Path) -> None:
    with NsqdServer(data_path=str(tmp_path), durability="fsync") as nsqd:
        assert publish(nsqd, b"x") == OK_FRAME
        with nsqd.disk.error("sync"):
            assert publish(nsqd, b"x") == b""
        assert publish(nsqd, b"x") == OK_FRAME


def test_faults_are_those_of_one_server_and_end_with_reset(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with (
        NsqdServer(data_path=str(tmp_path / "one"), mem_queue_size=0) as one,
        NsqdServer(data_path=str(tmp_path / "other"), mem_queue_size=0) as other,
    ):
        one.disk.full()
        other.publish("t", b"x")
        with pytest.raises(OSError, match=NO_ROOM):
            one.publish("t", b"x")
        one.reset()
        one.publish("t", b"x")


def test_server_without_a_data_path_has_no_disk() -> None:
    with NsqdServer() as nsqd, pytest.raises(OptionError, match="a broker without data_path has no disk"):
        nsqd.disk.full()


def test_stats_show_the_health(tmp_path: Path) -> None:
    with NsqdServer(data_path=str(tmp_path), mem_queue_size=0) as nsqd:
        nsqd.disk.full()
        publish(nsqd, b"x")
        with urlopen(f"{nsqd.http_url}/stats?format=json", timeout=60) as answer:
            assert json.load(answer)["health"] == nsqd.state.health
