"""Slots in an object store, through fsspec, and the choice of a store by its location.

fsspec's default for an exclusive write looks whether the object exists and then writes it, which is no fence. Only the
file systems of ``CONDITIONAL_PROTOCOLS`` send the condition with the write, so that the server decides; all others are
refused. A server that ignores the condition, as some with S3's protocol do, is found by writing a probe twice.
"""

from __future__ import annotations

import errno
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import attrs

from nsqkit.errors import OptionError
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.store import SlotStore

CONDITIONAL_PROTOCOLS: Final = ("s3", "s3a", "az", "abfs", "abfss")
"""s3fs and adlfs send ``If-None-Match: *``. gcsfs has such a write, which its documentation calls an experiment."""


@attrs.frozen
class FsspecStore:
    """A SlotStore below a path of an object store.

    Attributes:
        filesystem: a file system of fsspec, without a cache of its lists.
        root: the path of all keys, with the bucket.

    Raises:
        OptionError: the server cannot be written to, or ignores the condition of a write.
    """

    filesystem: Any = attrs.field(repr=False)
    root: str

    def __attrs_post_init__(self) -> None:
        key = f".probe-{uuid4().hex}"
        try:
            stored = [self.put_if_absent(key, b"probe"), self.put_if_absent(key, b"probe")]
            self.delete(key)
        except Exception as error:  # each file system of fsspec has exceptions of its own
            raise OptionError(f"walLocation {self.root!r} cannot hold slots: {error}") from error
        if stored != [True, False]:
            raise OptionError(
                f"walLocation {self.root!r} cannot hold slots: its server replaced an object in spite of the condition "
                "that there is none. A store with conditional writes, or a shared directory, is required"
            )

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        try:
            self.filesystem.pipe_file(self._path(key), b"".join(parts), mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            # s3fs turns S3's PreconditionFailed into this error number, among others.
            if error.errno != errno.EINVAL or self.get(key) is None:
                raise
            return False
        return True

    def get(self, key: str) -> bytes | None:
        try:
            data: bytes = self.filesystem.cat_file(self._path(key))
        except FileNotFoundError:
            return None
        return data

    def list(self, prefix: str) -> list[str]:
        try:
            paths = self.filesystem.find(self._path(prefix))
        except FileNotFoundError:
            return []
        keys = (path.removeprefix(self._path("")) for path in paths)
        return sorted(key for key in keys if not key.rpartition("/")[2].startswith("."))

    def delete(self, prefix: str) -> None:
        try:
            self.filesystem.rm(self._path(prefix), recursive=prefix.endswith("/"))
        except FileNotFoundError:
            return

    def _path(self, key: str) -> str:
        return f"{self.root.rstrip('/')}/{key}"


def show_location(location: str) -> str:
    """Return a location without the user, the password and the query that a URL may have."""
    if "://" not in location:
        return repr(location)
    parts = urlsplit(location)
    return repr(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


def open_slot_store(location: str) -> SlotStore:
    """Return the store at ``walLocation``.

    Args:
        location: a path, a ``file:`` URL, or a URL of one of ``CONDITIONAL_PROTOCOLS``.

    Raises:
        OptionError: there is no put-if-absent for this kind of location, or the location cannot be written.
    """
    protocol, separator, path = location.partition(":")
    if not separator or "/" in protocol:
        return LocalStore(location)
    if protocol == "file":
        return LocalStore("/" + path.lstrip("/"))
    if protocol not in CONDITIONAL_PROTOCOLS:
        raise OptionError(
            f"walLocation {show_location(location)} cannot hold slots: {protocol} has no documented put-if-absent, "
            f"without which two attempts of a task could both write a slot. Allowed are a path, file: and "
            f"{', '.join(f'{name}:' for name in CONDITIONAL_PROTOCOLS)}"
        )
    try:
        import fsspec

        filesystem, root = fsspec.url_to_fs(location, use_listings_cache=False)
    except ImportError as error:
        raise OptionError(
            f"walLocation {show_location(location)} requires a package that is not installed: {error}"
        ) from error
    return FsspecStore(filesystem, root)
