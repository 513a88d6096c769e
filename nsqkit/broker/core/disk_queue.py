"""A queue on disk, in the files of nsqd (go-diskqueue 1.1).

    NAME.diskqueue.meta.dat      depth, where the next record is read, where the next one is written
    NAME.diskqueue.000007.dat    records; a file is complete when writing has gone on in the next one

The rule it guards: the files are always such that nsqd, and this class, can go on from them, whenever the process ends.
A record is in its file before ``put`` returns; positions are written when the records they tell of have been synced.
What cannot be read is set aside under ``….bad`` and reported, and reading goes on with the next file.

Records are read and written in batches, one call of the system for each.

How to read it: open, put, take, sync; then what is done when something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from nsqkit.broker.core.directory import Directory, File
from nsqkit.broker.core.records import LENGTH_SIZE, from_records, record_end, to_records

READ_SIZE: Final = 256 * 1024
"""Bytes that are read at once, unless a record is longer."""

FILE_SEARCH: Final = 10_000
"""File numbers among which the first is looked for when the positions are lost."""

_META = re.compile(rb"\s*(\d+)\s+(\d+),(\d+)\s+(\d+),(\d+)\s*")


class _UnreadableError(Exception):
    """What is there is no message, or there is no file where one should be."""


@attrs.frozen(kw_only=True)
class DiskLimits:
    """What the options say of a queue on disk."""

    max_bytes_per_file: int
    max_msg_size: int
    sync_every: int


class Keeper(Protocol):
    """Who looks after the queues of a directory."""

    def report(self, sentence: str) -> None:
        """Take note of what was wrong and has been dealt with."""
        ...

    def wrote(self, error: OSError | None) -> None:
        """Take note of how the last write went."""
        ...

    def used(self, queue: DiskQueue) -> None:
        """Take note that the queue is to be synced when its time has come."""
        ...


@attrs.define(order=True)
class Position:
    """A place between two records."""

    file: int = 0
    offset: int = 0


def describe(error: Exception) -> str:
    """Return what went wrong, without the number that Python puts before it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


class DiskQueue:
    """One queue.

    Args:
        directory: where its files are.
        name: what their names begin with.
        limits: from the options.
        keeper: is told what becomes of it.
    """

    def __init__(self, directory: Directory, name: str, limits: DiskLimits, keeper: Keeper) -> None:
        self._directory = directory
        self._name = name
        self._limits = limits
        self._keeper = keeper
        self._depth = 0
        self._read = Position()
        self._write = Position()
        self._write_handle: File | None = None
        self._read_handle: File | None = None
        self._read_end = 0  # of a complete file, its size
        self._chunk = b""  # read ahead; the record at _read.offset begins at _chunk_offset in it
        self._chunk_offset = 0
        self._unsynced_count = 0
        self._open()

    def __len__(self) -> int:
        return self._depth

    # ---- names ---------------------------------------------------------------------------------------------------

    @property
    def _meta_name(self) -> str:
        return f"{self._name}.diskqueue.meta.dat"

    def _file_name(self, number: int) -> str:
        return f"{self._name}.diskqueue.{number:06d}.dat"

    # ---- open ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        meta = self._directory.read(self._meta_name)
        if meta is None:
            return
        found = _META.fullmatch(meta)
        if found is not None:
            numbers = list(map(int, found.groups()))
            self._depth, self._read, self._write = numbers[0], Position(*numbers[1:3]), Position(*numbers[3:])
        else:
            self._keeper.report(
                f"{self._meta_name} is damaged, all that is in the files is read again: {meta[:80]!r}"
            )
            self._read = Position(self._first_file())
            self._write = attrs.evolve(self._read)
        self._find_unnoted()

    def _first_file(self) -> int:
        numbers = [number for number in range(FILE_SEARCH) if self._directory.exists(self._file_name(number))]
        return min(numbers, default=0)

    def _find_unnoted(self) -> None:
        """Take in the records that were written after the positions were; go on writing in a file of its own."""
        number, offset = self._write.file, self._write.offset
        while self._directory.exists(self._file_name(number)):
            with_more = self._count_records(number, offset)
            if with_more is None:
                break
            self._depth += with_more
            number, offset = number + 1, 0
            self._write = Position(number)

    def _count_records(self, number: int, offset: int) -> int | None:
        """Return how many whole records a file has behind ``offset``, None if nothing is there."""
        handle = self._directory.open(self._file_name(number))
        try:
            size = handle.size()
            if size <= offset:
                return None
            count = 0
            while offset + LENGTH_SIZE <= size:
                data = handle.read_at(offset, LENGTH_SIZE)
                end = record_end(data, 0, self._limits.max_msg_size)
                if end is None or offset + end > size:
                    break
                offset += end
                count += 1
            if offset < size:
                self._cut_off(handle, self._file_name(number), offset, size)
            return count
        finally:
            handle.close()

    def _cut_off(self, handle: File, name: str, offset: int, size: int) -> None:
        """Set aside what a crash has left of a record."""
        self._keeper.report(
            f"the last {size - offset} bytes of {name} are no message, and are set aside as {name}.bad"
        )
        self._directory.replace(f"{name}.bad", handle.read_at(offset, size - offset))
        handle.truncate(offset)

    # ---- put -----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> int:
        """Write messages behind those that are there; return how many stay in memory, which is none.

        Raises:
            OSError: they could not be written, or not all of them; those that are not counted are not there.
        """
        try:
            self._append(to_records(frames))
        except OSError as error:
            self._keeper.wrote(error)
            raise
        self._keeper.wrote(None)
        return 0

    def _append(self, records: list[bytes]) -> None:
        while records:
            fitting = self._fitting(records)
            data = b"".join(records[:fitting])
            self._opened_for_write().write_at(self._write.offset, data)
            self._write.offset += len(data)
            self._depth += fitting
            self._count(fitting)
            del records[:fitting]

    def _fitting(self, records: list[bytes]) -> int:
        """Return how many of the records go into the file at hand; if none does, begin the next file."""
        room = self._limits.max_bytes_per_file - self._write.offset
        if sum(map(len, records)) <= room:
            return len(records)
        if self._write.offset and len(records[0]) > room:
            self._begin_next_file()
            room = self._limits.max_bytes_per_file
        size = len(records[0])  # one that is longer than a file may be has a file of its own
        count = 1
        while count < len(records) and size + len(records[count]) <= room:
            size += len(records[count])
            count += 1
        return count

    def _opened_for_write(self) -> File:
        if self._write_handle is None:
            handle = self._directory.open(self._file_name(self._write.file), create=True)
            try:
                handle.truncate(self._write.offset)
                # Without positions nsqd, and this class, take what is there for nothing.
                if not self._directory.exists(self._meta_name):
                    self._write_meta()
            except OSError:
                handle.close()
                raise
            self._write_handle = handle
        return self._write_handle

    def _begin_next_file(self) -> None:
        complete, self._write = self._write, Position(self._write.file + 1)
        if self._read.file == complete.file:
            self._read_end = complete.offset
        try:
            self.sync()
        finally:
            self._close_write_handle()

    # ---- take ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[bytes]:
        """Return up to ``count`` of the oldest messages; none only when none is left.

        Raises:
            OSError: they cannot be read now; they are not lost.
        """
        frames: list[bytes] = []
        try:
            while len(frames) < count and self._read < self._write:
                try:
                    frames += self._next_frames(count - len(frames))
                    self._leave_complete_file()
                except (_UnreadableError, FileNotFoundError) as error:
                    self._set_aside(error)
        except OSError:
            if not frames:
                raise
        self._depth = max(self._depth - len(frames), 0)
        if self._read >= self._write:
            self._settle_end()
        if frames:
            self._count(len(frames))
        return frames

    def _next_frames(self, count: int) -> list[bytes]:
        """Return the next frames, at least one unless the end of the file has been reached."""
        body_size_max = self._limits.max_msg_size
        frames, end = from_records(self._chunk, self._chunk_offset, count, body_size_max)
        if not frames:
            if self._read.offset >= self._end_of_read_file():
                return frames
            self._read_chunk()
            frames, end = from_records(self._chunk, 0, count, body_size_max)
            if not frames:
                raise _UnreadableError(f"there is no message at byte {self._read.offset}")
        self._read.offset += end - self._chunk_offset
        self._chunk_offset = end
        return frames

    def _read_chunk(self) -> None:
        """Read ahead from the position on: as much as there is, within limits, or one long record."""
        left = self._end_of_read_file() - self._read.offset
        assert self._read_handle is not None
        self._chunk_offset = 0
        self._chunk = self._read_handle.read_at(self._read.offset, min(READ_SIZE, left))
        if len(self._chunk) < LENGTH_SIZE:
            return
        end = record_end(self._chunk, 0, self._limits.max_msg_size)
        if end is not None and len(self._chunk) < end <= left:
            self._chunk = self._read_handle.read_at(self._read.offset, end)

    def _end_of_read_file(self) -> int:
        if self._read_handle is None:
            self._read_handle = self._directory.open(self._file_name(self._read.file))
            self._read_end = self._read_handle.size()
        return self._write.offset if self._read.file == self._write.file else self._read_end

    def _leave_complete_file(self) -> None:
        """Go on to the next file if all of a complete one has been handed on, and remove that."""
        while self._read.file < self._write.file and self._read.offset >= self._end_of_read_file():
            done = self._file_name(self._read.file)
            self._go_to_file(self._read.file + 1)
            self.sync()
            self._directory.remove(done)

    def _go_to_file(self, number: int) -> None:
        self._forget_chunk()
        self._read = Position(number)

    # ---- sync ----------------------------------------------------------------------------------------------------

    def _count(self, messages: int) -> None:
        if not self._unsynced_count:
            self._keeper.used(self)
        self._unsynced_count += messages
        if self._unsynced_count >= self._limits.sync_every:
            self.sync()

    def sync(self) -> None:
        """Sync the file, then write the positions. A failure is reported, and it is tried again with the next sync."""
        try:
            if self._write_handle is not None:
                self._write_handle.sync()
            self._write_meta()
        except OSError as error:
            self._keeper.report(f"failed to sync {self._name}: {describe(error)}")
            self._keeper.used(self)
        else:
            self._unsynced_count = 0

    def _write_meta(self) -> None:
        read, write = self._read, self._write
        meta = f"{self._depth}\n{read.file},{read.offset}\n{write.file},{write.offset}\n"
        self._directory.replace(self._meta_name, meta.encode())

    # ---- end -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all messages, and remove their files."""
        self._close_handles()
        for number in range(self._read.file, self._write.file + 1):
            self._directory.remove(self._file_name(number))
        self._directory.remove(self._meta_name)
        self._read = Position(self._write.file + 1)
        self._write = attrs.evolve(self._read)
        self._depth = 0
        self._unsynced_count = 0

    def delete(self) -> None:
        """Forget all messages; no file is left."""
        self.empty()

    def close(self) -> None:
        """Sync, and give the files up."""
        self.sync()
        self._close_handles()

    def _close_handles(self) -> None:
        self._close_write_handle()
        self._forget_chunk()

    def _close_write_handle(self) -> None:
        if self._write_handle is not None:
            self._write_handle.close()
            self._write_handle = None

    def _forget_chunk(self) -> None:
        self._chunk = b""
        self._chunk_offset = 0
        if self._read_handle is not None:
            self._read_handle.close()
            self._read_handle = None

    # ---- trouble -------------------------------------------------------------------------------------------------

    def _set_aside(self, why: Exception) -> None:
        """Give up the file that is being read, and go on behind it."""
        name = self._file_name(self._read.file)
        self._keeper.report(f"{name} is set aside as {name}.bad: {describe(why)}")
        if self._read.file == self._write.file:
            self._close_write_handle()
            self._write = Position(self._write.file + 1)
        self._go_to_file(self._read.file + 1)
        try:
            self._directory.rename(name, f"{name}.bad")
        except OSError as error:
            self._keeper.report(f"{name} cannot be renamed: {describe(error)}")
        self.sync()

    def _settle_end(self) -> None:
        """All has been read: set right what old positions may have made wrong."""
        if self._depth:
            self._keeper.report(
                f"{self._name} has no more messages, where {self._depth} should have been left"
            )
            self._depth = 0
            self._count(1)
        if self._read > self._write:
            self._keeper.report(f"{self._name} was to be read behind its end, and begins anew")
            self.empty()
