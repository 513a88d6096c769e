"""Slots in a directory: one writer wins, keys are durable, and a wrong directory is refused."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.slots.local_store import MMAP_MIN, LocalStore


def test_the_first_writer_of_a_key_wins(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "new" / "wal")
    assert store.get("w/0/1/000000.slot") is None
    assert store.put_if_absent("w/0/1/000000.slot", b"first")
    assert not store.put_if_absent("w/0/1/000000.slot", b"second")
    assert store.get("w/0/1/000000.slot") == b"first"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["000000.slot"]


def test_one_of_many_concurrent_writers_wins(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for key in map(str, range(20)):
            values = [b"%d" % number for number in range(8)]
            stored = list(pool.map(store.put_if_absent, [key] * 8, values))
            assert stored.count(True) == 1
            assert store.get(key) == values[stored.index(True)]


def test_a_large_value_is_mapped(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    data = os.urandom(MMAP_MIN + 1)
    store.put_if_absent("large", data)
    found = store.get("large")
    assert isinstance(found, memoryview)
    assert found == data


def test_keys_are_listed_in_order_and_deleted_by_prefix(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert store.list("w/") == []
    for key in ("w/1/0/b", "w/0/0/a", "v/0/0/a", "w/10/0/a"):
        store.put_if_absent(key, b"")
    (tmp_path / "w/0/0/.unfinished").touch()
    assert store.list("w/") == ["w/0/0/a", "w/1/0/b", "w/10/0/a"]
    store.delete("w/1/")
    store.delete("w/7/")
    store.delete("v/0/0/a")
    assert store.list("") == ["w/0/0/a", "w/10/0/a"]


def test_the_file_and_its_directory_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    synchronised: list[int] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synchronised.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    store.put_if_absent("w/0/a", b"data")
    paths = [tmp_path, tmp_path / "w", tmp_path / "w/0/a", tmp_path / "w/0"]
    assert synchronised == [path.stat().st_ino for path in paths]


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: object, target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OptionError, match=r"cannot hold slots: Operation not permitted\. A directory is required"):
        LocalStore(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OptionError, match=f"walLocation '{path}' cannot hold slots: Not a directory"):
        LocalStore(path)


def test_a_store_travels_to_executors(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(LocalStore(tmp_path))) == LocalStore(tmp_path)
