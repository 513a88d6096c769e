"""Slots in an object store: a fake file system of fsspec, whose server decides, conflicts as S3, or replaces."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.slots.fsspec_store import CONDITIONAL_PROTOCOLS, FsspecStore, open_slot_store
from nsqkit.spark.slots.local_store import LocalStore


@attrs.define(eq=False)
class ObjectServer:
    """The methods of fsspec's file systems that the store calls."""

    conflict: Exception | None = attrs.field(factory=FileExistsError)
    objects: dict[str, bytes] = attrs.field(factory=dict)

    def pipe_file(self, path: str, value: bytes, mode: str) -> None:
        assert mode == "create"
        if path in self.objects and self.conflict:
            raise self.conflict
        self.objects[path] = value

    def cat_file(self, path: str) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def find(self, path: str) -> list[str]:
        return [name for name in self.objects if name.startswith(path.rstrip("/") + "/")]

    def rm(self, path: str, *, recursive: bool) -> None:
        names = self.find(path) if recursive else [path] * (path in self.objects)
        if not names:
            raise FileNotFoundError(path)
        for name in names:
            del self.objects[name]


@pytest.mark.parametrize(
    "conflict", [FileExistsError(), OSError(errno.EINVAL, "PreconditionFailed")], ids=["exists", "precondition"]
)
def test_the_first_writer_of_an_object_wins(conflict: Exception) -> None:
    store = FsspecStore(ObjectServer(conflict), "bucket/wal")
    assert store.get("w/0/a") is None
    assert store.put_if_absent("w/0/a", b"first")
    assert not store.put_if_absent("w/0/a", b"second")
    assert store.get("w/0/a") == b"first"
    assert store.list("w/") == ["w/0/a"]
    store.delete("w/")
    store.delete("w/")
    assert store.list("") == []


def test_another_error_is_raised() -> None:
    server = ObjectServer()
    store = FsspecStore(server, "bucket")
    store.put_if_absent("a", b"")
    server.conflict = OSError(errno.EACCES, "Access Denied")
    with pytest.raises(OSError, match="Access Denied"):
        store.put_if_absent("a", b"")


def test_a_server_that_replaces_objects_is_refused() -> None:
    with pytest.raises(OptionError, match="'bucket/wal' cannot hold slots: its server replaced an object in spite"):
        FsspecStore(ObjectServer(None), "bucket/wal")


def test_a_server_that_refuses_to_write_is_named() -> None:
    with pytest.raises(OptionError, match="'bucket/wal' cannot hold slots: Access Denied"):
        FsspecStore(ObjectServer(RuntimeError("Access Denied")), "bucket/wal")


def test_paths_are_local(tmp_path: Path) -> None:
    assert open_slot_store(str(tmp_path)) == LocalStore(tmp_path)
    assert open_slot_store(f"file://{tmp_path}") == LocalStore(tmp_path)
    assert open_slot_store(str(tmp_path / "a:b")) == LocalStore(tmp_path / "a:b")


@pytest.mark.parametrize("location", ["gs://bucket/wal", "hdfs://host/wal", "memory://wal"])
def test_a_store_without_put_if_absent_is_refused(location: str) -> None:
    protocol = location.partition(":")[0]
    with pytest.raises(OptionError, match=f"'{location}' cannot hold slots: {protocol} has no documented put-if-"):
        open_slot_store(location)


def test_a_password_of_a_url_is_in_no_error() -> None:
    with pytest.raises(OptionError, match="walLocation 'ftp://host/wal' cannot hold slots"):
        open_slot_store("ftp://user:secret@host/wal?token=secret")


@pytest.mark.parametrize("protocol", CONDITIONAL_PROTOCOLS)
def test_an_object_store_is_opened_without_a_cache(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ObjectServer()

    def url_to_fs(url: str, *, use_listings_cache: bool) -> tuple[ObjectServer, str]:
        assert not use_listings_cache
        return server, url.partition("://")[2]

    monkeypatch.setitem(sys.modules, "fsspec", SimpleNamespace(url_to_fs=url_to_fs))
    assert open_slot_store(f"{protocol}://bucket/wal") == FsspecStore(server, "bucket/wal")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(OptionError, match=r"'s3://bucket' requires a package that is not installed: .*fsspec"):
        open_slot_store("s3://bucket")
