"""The data path: the directory in which a broker keeps its files, locked against any other broker.

``DirectoryFileStore`` implements, with the operating system, the protocol ``FileStore`` of
``nsqkit.broker.core.disk.file_store``, and ``DiskFile`` its ``File``. Two brokers never write to one directory: the
directory itself is locked with ``flock``, as by nsqd, so a killed process leaves no lock. A file that is replaced is
whole, whenever the process ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import File

FILE_MODE: Final = 0o600

REWRITE_SIZE: Final = 1 << 20
"""Bytes that are read and written at once after a sync that failed."""

REMOVED_MAX: Final = 100
"""Files that have been removed and still take up space."""


class DiskFile:
    """A file that is open for reading and writing; the last ``close`` closes its descriptor."""

    __slots__ = ("__weakref__", "_descriptor", "_shared_size", "_synced_size", "_users")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._shared_size = 0  # at the last ``share``
        self._synced_size = 0  # all bytes before this are on the disk
        self._users = 1

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size and (more := os.pread(self._descriptor, size - len(data), position + len(data))):
            data += more
        return data

    def write_at(self, position: int, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data, position)
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], position + written)

    def truncate(self, size: int) -> None:
        os.truncate(self._descriptor, size)
        self._shared_size = min(self._shared_size, size)
        self._synced_size = min(self._synced_size, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_size = self._shared_size

    def rewrite(self) -> None:
        # Linux reports the error of a page once, and takes the page for written then. It is still in memory.
        position = self._synced_size
        while data := self.read_at(position, REWRITE_SIZE):
            self.write_at(position, data)
            position += len(data)

    def share(self) -> DiskFile:
        self._shared_size = self.size()
        self._users += 1
        return self

    def close(self) -> None:
        self._users -= 1
        if not self._users:
            os.close(self._descriptor)

    def abandon(self) -> None:
        if self._users > 0:
            self._users = 0
            os.close(self._descriptor)


class DirectoryFileStore:
    """A directory, which has to exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = count(os.getpid() << 20)
        self._descriptor = -1
        self._opened: WeakSet[DiskFile] = WeakSet()
        self._removed: list[int] = []  # descriptors

    def lock(self) -> None:
        """Lock the directory; raise OSError if it does not exist, or another broker uses it."""
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _failure("open", self._path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise _failure("lock", self._path, error, " (is another broker running on it?)") from error

    def close(self) -> None:
        """Free removed files, and give up the lock."""
        self.free_removed()
        os.close(self._descriptor)

    def abandon(self) -> None:
        """Close every file as it is, and give up the lock; nothing uses the files any more."""
        for file in list(self._opened):
            file.abandon()
        self.close()

    def _at(self, name: str) -> str:
        # By path, not relative to the descriptor: if the directory is moved, nsqd does not find its files either.
        return os.path.join(self._path, name)

    def open(self, name: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = DiskFile(os.open(self._at(name), flags, FILE_MODE))
        self._opened.add(file)
        return file

    def exists(self, name: str) -> bool:
        return os.path.exists(self._at(name))

    def names(self, part: str) -> list[str]:
        return [name for name in os.listdir(self._path) if part in name]

    def newest_ns(self, part: str) -> int:
        with os.scandir(self._path) as entries:
            return max((entry.stat().st_mtime_ns for entry in entries if part in entry.name), default=0)

    def read(self, name: str) -> bytes | None:
        try:
            with open(self._at(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write_temporary(self, name: str, data: bytes) -> str:
        temporary = f"{name}.{next(self._numbers)}.tmp"
        try:
            file = self.open(temporary, create=True)
            try:
                file.truncate(0)  # the file of a killed process that had the same id
                file.write_at(0, data)
                file.sync()
            finally:
                file.close()
        except OSError:
            with suppress(OSError):
                self.remove(temporary)
            raise
        return temporary

    def replace(self, name: str, data: bytes) -> None:
        temporary = self.write_temporary(name, data)
        try:
            self.rename(temporary, name)
        except OSError:
            with suppress(OSError):
                self.remove(temporary)
            raise

    def rename(self, name: str, new_name: str) -> None:
        os.replace(self._at(name), self._at(new_name))

    def remove(self, name: str) -> None:
        path = self._at(name)
        if len(self._removed) < REMOVED_MAX:
            with suppress(OSError):  # keeps the bytes: to free a file of 100 MiB takes some 25 ms
                self._removed.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    @property
    def has_removed(self) -> bool:
        """Whether removed files take up space, until ``free_removed`` is called."""
        return bool(self._removed)

    def free_removed(self) -> None:
        """Free the space of removed files; may be called in any thread."""
        while self._removed:
            os.close(self._removed.pop())

    def sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _failure(verb: str, path: str, error: OSError, why: str = "") -> OSError:
    return OSError(error.errno, f"failed to {verb} data-path {path!r} - {error.strerror}{why}")
