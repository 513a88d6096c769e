"""The operations on files that the engine uses, as protocols.

The engine decides on writes, syncs and their order, and touches no file itself. So it runs on the
data path (``nsqkit.broker.file_store.DirectoryFileStore``), and in tests on files in memory that fail, fill up, or lose
unsynced bytes.

A change is durable when ``sync`` of the file, and for names ``sync`` of the store, has returned. Every method may raise
``OSError``.
"""

from __future__ import annotations

from typing import Protocol


class File(Protocol):
    """An open file."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of ``data``."""

    def truncate(self, size: int) -> None:
        """Cut off the bytes behind ``size``."""

    def size(self) -> int:
        """Return the size in bytes."""

    def sync(self) -> None:
        """Return when the disk has everything that was written; the only method that other threads may call."""

    def rewrite(self) -> None:
        """Write all unsynced bytes once more: without this, the next ``sync`` after one that failed leaves them out."""

    def share(self) -> File:
        """Return the same file for another user, who closes it as well."""

    def close(self) -> None:
        """Close the file, when all of its users have."""


class FileStore(Protocol):
    """A directory of files. ``write_temporary``, ``replace`` and ``sync`` may be called in any thread."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file; raise FileNotFoundError if it does not exist and ``create`` is false."""

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""

    def names(self, part: str) -> list[str]:
        """Return the names of the files with ``part`` in them."""

    def newest_ns(self, part: str) -> int:
        """Return the newest modification time of the files with ``part`` in their names, in ns; 0 without any."""

    def read(self, name: str) -> bytes | None:
        """Return all bytes of a file, None if it does not exist."""

    def write_temporary(self, name: str, data: bytes) -> str:
        """Write ``data`` to a new file, synced; return its name, which ``rename`` changes to ``name``."""

    def replace(self, name: str, data: bytes) -> None:
        """Make ``data`` the content of a file, in one step: a synced temporary file takes its name."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file; a file that has the new name is replaced."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists; its space may be freed later."""

    def sync(self) -> None:
        """Return when the disk has all names that were created, changed and removed."""
