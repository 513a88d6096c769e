"""What a broker asks of the place where its files are.

The rule it guards: the engine decides what is written, when it is synced and in which order; it never touches a file
itself. So the same engine runs on the data path and on a disk that a test makes fail, forget or tear.

Nothing of these has been made durable until ``sync`` of the file, and of the directory for the names in it, has
returned. Every method may raise OSError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.disk_queue import DiskQueue


class File(Protocol):
    """An open file."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of ``data``."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off what is behind ``size`` bytes."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def sync(self) -> None:
        """Return when the disk has all that was written."""
        ...

    def duplicate(self) -> File:
        """Return the same file once more, to be synced and closed by itself, in whatever thread."""
        ...

    def close(self) -> None:
        """Give the file up."""
        ...


class FileStore(Protocol):
    """A directory of files."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file.

        Raises:
            FileNotFoundError: there is none, and ``create`` is false.
        """
        ...

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        ...

    def names(self, part: str) -> list[str]:
        """Return the names of the files with ``part`` in them."""
        ...

    def newest_ns(self, part: str) -> int:
        """Return the newest modification time of the files with ``part`` in their names, 0 if there is none."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return all bytes of a file, None if there is none."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Make ``data`` the content of a file, by way of another file that is synced and takes its name."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """Give a file another name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        ...

    def sync(self) -> None:
        """Return when the disk has all names that were made, changed and removed."""
        ...


class Keeper(Protocol):
    """Who looks after the queues of a directory."""

    def report(self, sentence: str) -> None:
        """Record an error that has been handled."""
        ...

    def wrote(self, error: OSError | None) -> None:
        """Record the result of the last write."""
        ...

    def used(self, queue: DiskQueue) -> None:
        """Record that the queue is to be synced at its time."""
        ...

    def renew(self, frame: bytes) -> bytes:
        """Return a message's frame with a new id in it."""
        ...
