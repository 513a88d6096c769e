from __future__ import annotations

import errno
import os

import pytest

from nsqkit.broker.file_store import REMOVED_MAX, DirectoryFileStore


def test_directory_is_locked_for_one_broker(tmp_path):
    first, second = DirectoryFileStore(str(tmp_path)), DirectoryFileStore(str(tmp_path))
    first.lock()
    with pytest.raises(OSError, match=r"failed to lock data-path .*is another broker running on it"):
        second.lock()
    first.close()
    second.lock()
    second.sync()
    second.close()


def test_missing_directory_is_not_created(tmp_path):
    with pytest.raises(OSError, match="failed to open data-path"):
        DirectoryFileStore(str(tmp_path / "no")).lock()


def test_file_is_written_and_read_at_any_position(tmp_path):
    path = DirectoryFileStore(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        path.open("f")
    file = path.open("f", create=True)
    file.write_at(3, b"abc")
    file.write_at(0, b"012")
    assert file.read_at(1, 4) == b"12ab"
    assert file.read_at(4, 100) == b"bc"
    file.truncate(4)
    again = file.share()
    file.close()
    again.sync()
    assert again.size() == 4
    again.close()
    assert tmp_path.joinpath("f").stat().st_mode & 0o777 == 0o600


def test_bytes_that_were_not_synced_are_written_again(tmp_path, monkeypatch):
    file = DirectoryFileStore(str(tmp_path)).open("f", create=True)
    written: list[tuple[int, bytes]] = []
    write = os.pwrite

    def record(descriptor: int, data: bytes, position: int) -> int:
        written.append((position, data))
        return write(descriptor, data, position)

    def share_and_rewrite() -> list[tuple[int, bytes]]:
        written.clear()
        file.share().close()
        file.rewrite()
        return list(written)

    file.write_at(0, b"one")
    monkeypatch.setattr(os, "pwrite", record)
    assert share_and_rewrite() == [(0, b"one")]
    file.sync()
    assert share_and_rewrite() == []
    file.write_at(3, b"two")
    assert share_and_rewrite() == [(3, b"two")]
    file.sync()
    file.truncate(2)
    file.write_at(2, b"three")
    assert share_and_rewrite() == [(2, b"three")]
    file.close()


def test_replace_leaves_no_temporary_file(tmp_path):
    path = DirectoryFileStore(str(tmp_path))
    assert path.read("f") is None
    path.replace("f", b"long content")
    path.replace("f", b"short")
    assert path.read("f") == b"short"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    path.rename("f", "g")
    assert path.exists("g")
    path.remove("g")
    path.remove("g")
    assert not path.exists("g")


def test_partial_reads_and_writes_are_completed(tmp_path, monkeypatch):
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: write(file, data[:3], position))
    monkeypatch.setattr(os, "pread", lambda file, size, position: read(file, min(size, 2), position))
    file = DirectoryFileStore(str(tmp_path)).open("f", create=True)
    file.write_at(1, b"0123456789")
    assert file.read_at(0, 100) == b"\x000123456789"
    assert file.read_at(2, 4) == b"1234"
    file.close()


def test_temporary_file_of_a_killed_process_is_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "replace", lambda name, new_name: None)
    DirectoryFileStore(str(tmp_path)).replace("f", b"a long content that was never renamed")
    monkeypatch.undo()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = DirectoryFileStore(str(tmp_path))
    path.replace("f", b"short")
    assert path.read("f") == b"short"


@pytest.mark.parametrize("call", ["fsync", "replace", "pwrite"])
def test_failed_replace_leaves_the_file_unchanged(tmp_path, monkeypatch, call):
    path = DirectoryFileStore(str(tmp_path))
    path.replace("f", b"old")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            path.replace("f", b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("f", b"old")]


def test_newest_modification_time_by_part_of_the_name(tmp_path):
    path = DirectoryFileStore(str(tmp_path))
    assert path.newest_ns(".queue.") == 0
    for name, modified_ns in (("a.queue.1", 5 * 10**9), ("b.queue.1", 7 * 10**9), ("other", 9 * 10**9)):
        tmp_path.joinpath(name).touch()
        os.utime(tmp_path / name, ns=(modified_ns, modified_ns))
    assert path.newest_ns(".queue.") == 7 * 10**9
    with pytest.raises(FileNotFoundError):
        DirectoryFileStore(str(tmp_path / "nowhere")).newest_ns(".queue.")


def test_space_of_removed_files_is_freed_later(tmp_path, monkeypatch):
    closed: list[int] = []
    close = os.close

    def record(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    names = [str(number) for number in range(REMOVED_MAX + 3)]
    for name in names:
        tmp_path.joinpath(name).touch()
    store = DirectoryFileStore(str(tmp_path))
    monkeypatch.setattr(os, "close", record)
    for name in names:
        store.remove(name)
    store.remove("missing")
    assert list(tmp_path.iterdir()) == []
    assert (closed, store.has_removed) == ([], True)
    store.free_removed()
    assert (len(closed), store.has_removed) == (REMOVED_MAX, False)
