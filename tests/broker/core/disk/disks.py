"""A file store in memory that can fail, fill up, lose its power, or be left by a killed process.

Everything that was not synced may be lost, in all the ways in which a disk can lose it:

                            after ``kill``   after ``power_cut``
    bytes of a file         all              those of its last sync, and a part of the later writes, in order, cut at
                                             any byte; behind the cut nothing (``zeros=True``: perhaps zeros, up to the
                                             end that was written, and in place of bytes that a failed sync has lost:
                                             some file systems record a length before the bytes are on disk, and
                                             records have no checksum);
                                             ``sectors=True``: a size that it had since the sync, or one between two,
                                             and each of its sectors as at the sync or as it was last
    names in the directory  all              those of the last sync; each name that was created, changed or removed
                                             since may have any of the states that it had, independent of the others
                                             (``in_order=True``: all changes up to one of them, and none behind it, as
                                             on journaling file systems)

A rename never loses a file that was synced: it has the old name, or the new one, or both. ``replace`` syncs the bytes
of the file that takes the name, but not the name. Bytes of a file whose name is lost are lost.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from random import Random

import attrs

from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.disk.sync import SyncState

SECTOR_SIZES = (16, 64, 512)
"""Bytes that a disk writes whole; the small ones make up for messages that are small as well."""


def new_state() -> SyncState:
    """Return the data that a queue shares with its storage."""
    return SyncState(GuidFactory(1023))


class Ended(BaseException):
    """The process was ended by ``end_after``; nothing of it runs any more, so no code may catch this as a fault."""


@attrs.define(eq=False)
class Content:
    """The bytes of one file, which may have several names."""

    data: bytearray = attrs.field(factory=bytearray)
    synced: bytes = b""
    writes: list[tuple[int, bytes] | int] = attrs.field(factory=list)  # since the sync; a number cuts off there
    lost_from: int | None = None  # bytes from here on were lost by a sync that failed

    def write(self, position: int, data: bytes) -> None:
        _write(self.data, position, data)
        self.writes.append((position, data))

    def truncate(self, size: int) -> None:
        _truncate(self.data, size)
        self.writes.append(size)

    def sync(self) -> None:
        if self.lost_from is None:
            self.synced = bytes(self.data)
        else:
            synced = bytearray(self.synced)
            for write in self.writes:
                if isinstance(write, int):
                    _truncate(synced, write)
                else:
                    _write(synced, *write)
            self.synced = bytes(synced)
        self.writes.clear()

    def lose_writes(self) -> None:
        """Take all writes for synced, as Linux does after a sync that failed; they are not on the disk."""
        for write in self.writes:
            position = write if isinstance(write, int) else write[0]
            self.lost_from = position if self.lost_from is None else min(position, self.lost_from)
        self.writes.clear()

    def rewrite(self) -> None:
        """Write the lost bytes once more."""
        if self.lost_from is not None:
            self.writes += [(self.lost_from, bytes(self.data[self.lost_from :])), len(self.data)]
            self.lost_from = None

    def after_power_cut(self, random: Random, *, zeros: bool, sectors: bool) -> Content:
        """Return the content after the power cut."""
        found = self._some_sectors(random) if sectors else self._first_writes(random, zeros=zeros)
        return Content(found, bytes(found))

    def _some_sectors(self, random: Random) -> bytearray:
        size = len(self.synced)
        sizes = [size]
        for write in self.writes:
            size = write if isinstance(write, int) else max(size, write[0] + len(write[1]))
            sizes.append(size)
        length = random.choice(SECTOR_SIZES)
        found = bytearray(random.choice((random.choice(sizes), random.randint(min(sizes), max(sizes)))))
        for begin in range(0, len(found), length):
            kept = random.choice((self.synced, self.data))[begin : begin + length]
            _write(found, begin, bytes(kept[: len(found) - begin]))
        return found

    def _first_writes(self, random: Random, *, zeros: bool) -> bytearray:
        kept = random.randint(0, sum(_length(write) for write in self.writes))
        found = bytearray(self.synced)
        for write in self.writes:
            if isinstance(write, int):
                if kept > 0:
                    _truncate(found, write)
            elif zeros or write[0] <= len(found):  # the bytes before it may have been lost by a sync that failed
                _write(found, write[0], write[1][:kept])
            kept -= _length(write)
            if kept <= 0:
                break
        if zeros and len(found) < len(self.data):
            _truncate(found, random.randint(len(found), len(self.data)))
        return found


def _length(write: tuple[int, bytes] | int) -> int:
    return 1 if isinstance(write, int) else len(write[1])


def _write(data: bytearray, position: int, new: bytes) -> None:
    if new:
        data.extend(bytes(max(position - len(data), 0)))
        data[position : position + len(new)] = new


def _truncate(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


class MemoryFile:
    """An open file; see ``nsqkit.broker.core.disk.file_store``."""

    def __init__(self, directory: MemoryFileStore, content: Content) -> None:
        self._directory = directory
        self._content = content
        self._is_open = True
        directory.open_count += 1

    def _operate(self, data: bytes = b"") -> None:
        assert self._is_open, "the file was closed"
        self._directory.operate(self._content, data)

    def read_at(self, position: int, size: int) -> bytes:
        self._operate()
        return bytes(self._content.data[position : position + size])

    def write_at(self, position: int, data: bytes) -> None:
        assert self._is_open, "the file was closed"
        self._directory.write(self._content, position, data)

    def truncate(self, size: int) -> None:
        try:
            self._operate()
        except OSError:
            self._directory.has_uncut_rest = True
            raise
        self._content.truncate(size)

    def size(self) -> int:
        self._operate()
        return len(self._content.data)

    def sync(self) -> None:
        assert self._is_open, "the file was closed"
        self._directory.sync_file(self._content)

    def rewrite(self) -> None:
        assert self._is_open, "the file was closed"
        self._content.rewrite()

    def share(self) -> MemoryFile:
        return MemoryFile(self._directory, self._content)

    def close(self) -> None:
        assert self._is_open, "the file was closed"
        self._is_open = False
        self._directory.open_count -= 1


class MemoryFileStore:
    """See ``nsqkit.broker.core.disk.file_store``.

    Attributes:
        capacity: bytes of all files together; a write beyond it writes the part that fits, and raises ENOSPC. None for
            no limit.
        operation_count: operations so far but for lists, which change nothing; sync_count: syncs of files among them;
            name_sync_count: those of names.
        open_count: files that are open.
        modified_ns: when any file was modified last.
        has_uncut_rest: the rest of a write that failed could not be cut off.
    """

    has_removed = False
    """The space of removed files is free at once, unlike that of ``DirectoryFileStore``."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.capacity: int | None = None
        self.operation_count = 0
        self.sync_count = self.name_sync_count = 0
        self.open_count = 0
        self.modified_ns = 0
        self.has_uncut_rest = False
        self._names = {name: Content(bytearray(data), data) for name, data in (files or {}).items()}
        self._synced_names = dict(self._names)
        self._changes: list[dict[str, Content | None]] = []
        self._number = 0
        self._failures: tuple[range, int] | None = None
        self._end: int | None = None

    # ---- failures ----------------------------------------------------------------------------------------------

    def fail(self, number: int, *, after: int = 0, times: int = 1 << 60) -> None:
        """Have operations raise OSError with this number: ``times`` of them, after ``after`` successful ones.

        A write that fails has written half.
        """
        first = self.operation_count + after + 1
        self._failures = (range(first, first + times), number)

    @property
    def is_failing(self) -> bool:
        """Whether operations fail now or later, or the space is limited."""
        return self._failures is not None or self.capacity is not None

    def recover(self) -> None:
        """End all failures."""
        self._failures = None
        self.capacity = None

    def end_after(self, count: int) -> None:
        """End the process in the operation after the next ``count``; a write is done in half."""
        self._end = self.operation_count + count

    def kill(self) -> MemoryFileStore:
        """Return the files after this process was killed."""
        return MemoryFileStore(self.files)

    def power_cut(
        self, random: Random, *, in_order: bool = False, zeros: bool = False, sectors: bool = False
    ) -> MemoryFileStore:
        """Return the files after a power cut."""
        names = self._names_in_order(random) if in_order else self._names_in_any_order(random)
        contents = self._contents(names.values())
        found = {content: content.after_power_cut(random, zeros=zeros, sectors=sectors) for content in contents}
        return MemoryFileStore({name: bytes(found[content].data) for name, content in names.items()})

    @staticmethod
    def _contents(contents: Iterable[Content]) -> list[Content]:
        return list(dict.fromkeys(contents))

    def _names_in_order(self, random: Random) -> dict[str, Content]:
        names: dict[str, Content | None] = dict(self._synced_names)
        for change in self._changes[: random.randint(0, len(self._changes))]:
            names |= change
        return {name: content for name, content in names.items() if content is not None}

    def _names_in_any_order(self, random: Random) -> dict[str, Content]:
        states: dict[str, list[Content | None]] = {}
        for change in ({name: self._synced_names.get(name) for name in self._changed()}, *self._changes):
            for name, content in change.items():
                states.setdefault(name, []).append(content)
        chosen = {**self._synced_names, **{name: random.choice(found) for name, found in states.items()}}
        names = {name: content for name, content in chosen.items() if content is not None}
        for name, content in self._names.items():  # a synced file that was renamed has one of its names
            if content in self._synced_names.values() and content not in names.values():
                names[name] = content
        return names

    def _changed(self) -> list[str]:
        return [name for change in self._changes for name in change]

    def operate(self, content: Content | None = None, data: bytes = b"", position: int = 0) -> None:
        """Begin an operation, or fail; of a write that fails half is written to ``content``."""
        if self._end is not None and self.operation_count >= self._end:
            if content is not None and data:
                content.write(position, data[: len(data) // 2])
            self._end = -1  # and all that follow
            raise Ended
        self.operation_count += 1
        if self._failures is not None and self.operation_count in self._failures[0]:
            if content is not None and data:
                content.write(position, data[: len(data) // 2])
            raise OSError(self._failures[1], os.strerror(self._failures[1]))

    def write(self, content: Content, position: int, data: bytes) -> None:
        """Write as much as fits."""
        self.operate(content, data, position)
        if self.capacity is not None:
            more = max(position + len(data) - len(content.data), 0)
            room = max(self.capacity - sum(len(each.data) for each in self._contents(self._names.values())), 0)
            if more > room:
                content.write(position, data[: len(data) - (more - room)])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        content.write(position, data)

    def sync_file(self, content: Content) -> None:
        """Sync the bytes of a file."""
        try:
            self.operate()
        except OSError:
            content.lose_writes()
            raise
        self.sync_count += 1
        content.sync()

    # ---- a directory -------------------------------------------------------------------------------------------

    @property
    def files(self) -> dict[str, bytes]:
        """All files, by name."""
        return {name: bytes(content.data) for name, content in sorted(self._names.items())}

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        self.operate()
        if name not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            self._change({name: Content()})
        return MemoryFile(self, self._names[name])

    def exists(self, name: str) -> bool:
        return name in self._names

    def names(self, part: str) -> list[str]:
        self.operate()
        self.operation_count -= 1
        return [name for name in self._names if part in name]

    def newest_ns(self, part: str) -> int:
        self.operate()
        return self.modified_ns if any(part in name for name in self._names) else 0

    def read(self, name: str) -> bytes | None:
        self.operate()
        content = self._names.get(name)
        return None if content is None else bytes(content.data)

    def write_temporary(self, name: str, data: bytes) -> str:
        self._number += 1
        temporary = f"{name}.{self._number}.tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)  # of an earlier run that was ended
            file.write_at(0, data)
            file.sync()
        except OSError:
            self._change({temporary: None})
            raise
        finally:
            file.close()
        return temporary

    def replace(self, name: str, data: bytes) -> None:
        temporary = self.write_temporary(name, data)
        try:
            self.rename(temporary, name)
        except OSError:
            self._change({temporary: None})
            raise

    def rename(self, name: str, new_name: str) -> None:
        self.operate()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._change({new_name: self._names[name], name: None})

    def remove(self, name: str) -> None:
        self.operate()
        if name in self._names:
            self._change({name: None})

    def sync(self) -> None:
        self.operate()
        self.name_sync_count += 1
        self._synced_names = dict(self._names)
        self._changes.clear()

    def _change(self, change: dict[str, Content | None]) -> None:
        self._changes.append(change)
        for name, content in change.items():
            if content is None:
                del self._names[name]
            else:
                self._names[name] = content
