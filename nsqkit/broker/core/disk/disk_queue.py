"""A queue on disk, in the files of nsqd (go-diskqueue 1.1), which ``nsqkit.broker.core.disk.positions`` describes.

The rule it guards: the files are always such that nsqd, and this class, can go on from them, whenever the process ends.
A record is in its file before ``put`` returns; positions are written when the records they tell of have been synced.
What cannot be read is set aside under ``….bad`` and reported, and reading goes on with the next file.

Records are read and written in batches, one call of the system for each.

How to read it: open, put, take, sync; then what is done when something is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from nsqkit.broker.core.disk import positions
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import File, FileStore, Keeper
from nsqkit.broker.core.disk.positions import Position
from nsqkit.broker.core.disk.read_ahead import ReadAhead
from nsqkit.broker.core.disk.records import record_size, to_records
from nsqkit.broker.core.disk.recovery import count_unnoted, size_of


class _UnreadableError(Exception):
    """What is there is no message, or there is no file where one should be."""


@attrs.frozen(kw_only=True)
class DiskLimits:
    """What the options say of a queue on disk."""

    max_bytes_per_file: int
    max_msg_size: int
    sync_every: int


class DiskQueue:
    """One queue.

    Args:
        directory: where its files are.
        name: what their names begin with.
        limits: from the options.
        keeper: is told what becomes of it.
    """

    def __init__(self, directory: FileStore, name: str, limits: DiskLimits, keeper: Keeper) -> None:
        self._directory = directory
        self._name = name
        self._limits = limits
        self._keeper = keeper
        self._depth = 0
        self._read = Position()
        self._write = Position()
        self._write_handle: File | None = None
        self._ahead = ReadAhead(directory, limits.max_msg_size)
        self._unsynced_count = 0  # messages put and taken since the last sync
        self._names_are_synced = True
        self._is_closing = False  # then positions are written once, at the end
        self._meta = positions.to_meta(0, self._read, self._write)  # as on disk; no file says the same
        self._open()

    def __len__(self) -> int:
        return self._depth

    @property
    def needs_sync(self) -> bool:
        """Whether anything was put or taken since the last sync."""
        return self._unsynced_count > 0

    # ---- names ---------------------------------------------------------------------------------------------------

    @property
    def _meta_name(self) -> str:
        return positions.meta_name(self._name)

    def _file_name(self, number: int) -> str:
        return positions.file_name(self._name, number)

    def _numbers(self, first: int, last: int) -> Sequence[int]:
        return positions.file_numbers(self._directory, self._name, first, last)

    # ---- open ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            meta = self._directory.read(self._meta_name)
        except OSError as error:
            if error.errno in positions.OUT_OF_RESOURCES:
                raise
            self._read_anew(None, error_text(error))
        else:
            if meta is None:
                return
            found = positions.from_meta(meta)
            if found is None:
                self._read_anew(meta, repr(meta[:80]))
            else:
                self._meta = meta
                self._depth, self._read, self._write = found
                self._find_unnoted()
        if self._write < self._read:
            self._begin_anew()
        self._look_at_next()
        self._settle_depth()

    def _read_anew(self, meta: bytes | None, why: str) -> None:
        """Read all files from their beginnings, since the position that was reached is unknown."""
        self._keeper.report(f"{self._meta_name} is damaged, all that is in the files is read again: {why}")
        self._meta = b""
        numbers = self._numbers(0, positions.NUMBER_MAX) or [0]
        self._read = Position(numbers[0])
        for number in numbers:
            if number >= self._write.file:
                self._write = Position(number)
                self._find_unnoted()
        try:  # without positions a queue is empty, and its files are written over
            new = positions.to_meta(self._depth, self._read, self._write)
            positions.replace_damaged(self._directory, self._name, meta, new)
        except OSError as error:
            self._keeper.report(f"{self._meta_name} cannot be written: {error_text(error)}")

    def _find_unnoted(self) -> None:
        """Take in the records that were written after the positions were; go on writing in a file of its own."""
        number, offset = self._write.file, self._write.offset
        while self._has_unnoted(number, offset) or self._directory.exists(self._file_name(number + 1)):
            number, offset = number + 1, 0
            self._write = Position(number)
            self._count(1)

    def _has_unnoted(self, number: int, offset: int) -> bool:
        try:
            if self._size_of(number) <= offset:
                return False
            self._depth += self._count_unnoted(number, offset)
        except OSError as error:  # how much it has is seen when it is read
            self._report_unread(number, error)
            return self._directory.exists(self._file_name(number))
        return True

    def _count_unnoted(self, number: int, offset: int) -> int:
        start = self._read.offset if number == self._read.file else 0
        limit, report = self._limits.max_msg_size, self._keeper.report
        return count_unnoted(self._directory, self._file_name(number), start, offset, limit, report)

    def _size_of(self, number: int) -> int:
        name = self._file_name(number)
        try:
            return size_of(self._directory, name)
        except IsADirectoryError:
            self._keeper.report(f"{name} is a directory")
            self._rename_bad(name)
            return 0

    def _begin_anew(self) -> None:
        """Leave files whose positions contradict each other."""
        read, write = self._read, self._write
        self._keeper.report(
            f"{self._name} was to be read at {read.file},{read.offset}, behind its end at {write.file},{write.offset}: "
            "it begins anew"
        )
        for number in {write.file, read.file}:
            if self._directory.exists(self._file_name(number)):
                self._put_away(self._file_name(number), 0)
        self._read = Position(max(read.file, write.file) + 1)
        self._write = attrs.evolve(self._read)
        self._count(1)

    def _look_at_next(self) -> None:
        """Set aside at once what cannot be read next, as nsqd does, which reads ahead."""
        while self._read < self._write:
            try:
                offset, end = self._read.offset, self._end_of_read_file()
                if offset != end and not self._ahead.finds_record(offset, end):
                    raise self._unreadable()
            except (_UnreadableError, FileNotFoundError, IsADirectoryError) as error:
                self._set_aside(error)
            except OSError as error:
                self._report_unread(self._read.file, error)
                break
            else:
                break
        self._ahead.forget()  # most queues are not read soon, and there are many

    # ---- put -----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> int:
        """Write messages behind those that are there; return how many stay in memory, which is none.

        Raises:
            OSError: they could not be written, or not all of them; those that are not counted are not there.
        """
        if not frames:
            return 0
        try:
            self._append(list(frames))
        except OSError as error:
            self._keeper.wrote(error)
            raise
        self._keeper.wrote(None)
        return 0

    def _append(self, frames: list[bytes]) -> None:
        while frames:
            fitting = self._fitting(frames)
            self._append_here(frames[:fitting])
            del frames[:fitting]

    def _append_here(self, frames: list[bytes]) -> None:
        """Write messages to the file at hand; if there is no room for all, those that there is room for."""
        data = to_records(frames)
        handle = self._opened_for_write()
        try:
            handle.write_at(self._write.offset, data)
        except OSError:
            self._take_back_write(handle)
            if len(frames) == 1:
                raise
            half = len(frames) // 2
            self._append_here(frames[:half])
            self._append_here(frames[half:])
        else:
            self._write.offset += len(data)
            self._depth += len(frames)
            self._count(len(frames))

    def _take_back_write(self, handle: File) -> None:
        """Cut off what a write has left that failed, now or when the file is opened again."""
        try:
            handle.truncate(self._write.offset)
        except OSError:
            self._close_write_handle()

    def _fitting(self, frames: list[bytes]) -> int:
        """Return how many of the messages go into the file at hand; if none does, begin the next file."""
        room = self._limits.max_bytes_per_file - self._write.offset
        if sum(map(len, frames)) <= room:  # a record is a little shorter
            return len(frames)
        if self._write.offset and record_size(frames[0]) > room:
            self._begin_next_file()
            room = self._limits.max_bytes_per_file
        size = record_size(frames[0])  # one that is longer than a file may be has a file of its own
        count = 1
        while count < len(frames) and size + record_size(frames[count]) <= room:
            size += record_size(frames[count])
            count += 1
        return count

    def _opened_for_write(self) -> File:
        if self._write_handle is None:
            if self._size_of(self._write.file) < self._write.offset:
                self._begin_next_file()  # what is missing would be a gap, and all behind it lost
            handle = self._directory.open(self._file_name(self._write.file), create=True)
            self._names_are_synced = False  # the file's, and perhaps that of the positions
            try:
                if handle.size() > self._write.offset:
                    handle.truncate(self._write.offset)
                # What is in a file that the positions do not tell of is nothing to nsqd, and it writes over it.
                if not self._is_closing and not (
                    self._write.offset and self._directory.exists(self._meta_name)
                ):
                    self._meta = b""
                    self._write_meta()
            except OSError:
                handle.close()
                raise
            self._write_handle = handle
        return self._write_handle

    def _begin_next_file(self) -> None:
        complete, self._write = self._write, Position(self._write.file + 1)
        if self._read.file == complete.file:
            self._ahead.size = complete.offset
        try:
            self.sync()
        finally:
            self._close_write_handle()
        if self._read == complete:  # nsqd would take it for damaged, if it went on from here
            with suppress(OSError):  # then the next ``take`` does it
                self._leave_complete_file()

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
                except (_UnreadableError, FileNotFoundError, IsADirectoryError) as error:
                    self._set_aside(error)
        except OSError:
            if not frames:
                raise
        self._settle_depth()
        if frames:
            self._count(len(frames))
        return frames

    def _next_frames(self, count: int) -> list[bytes]:
        """Return the next frames, at least one unless the end of the file has been reached."""
        offset, end = self._read.offset, self._end_of_read_file()
        frames, self._read.offset = self._ahead.take(offset, end, count)
        if not frames and offset != end:
            raise self._unreadable()
        self._depth = max(self._depth - len(frames), 0)
        return frames

    def _unreadable(self) -> _UnreadableError:
        return _UnreadableError(f"there is no message at byte {self._read.offset}")

    def _end_of_read_file(self) -> int:
        if not self._ahead.is_open:
            self._ahead.open(self._file_name(self._read.file))
        return self._write.offset if self._read.file == self._write.file else self._ahead.size

    def _leave_complete_file(self) -> None:
        """Go on to the next file if all of a complete one has been handed on, and remove that."""
        while self._read.file < self._write.file and self._read.offset == self._end_of_read_file():
            done = self._file_name(self._read.file)
            self._go_to_file(self._read.file + 1)
            self.sync()
            try:
                self._directory.remove(done)
            except OSError as error:
                self._keeper.report(f"{done} has been read, and cannot be removed: {error_text(error)}")

    def _go_to_file(self, number: int) -> None:
        self._ahead.forget()
        self._read = Position(number)

    # ---- sync ----------------------------------------------------------------------------------------------------

    def _count(self, messages: int) -> None:
        if not self._unsynced_count:
            self._keeper.used(self)
        self._unsynced_count += messages
        if self._unsynced_count >= self._limits.sync_every:
            self.sync()

    def sync(self) -> None:
        """Sync the file, then write the positions. A failure is reported, and it is tried again with the next sync.

        Of a file that is new the name is synced, too, which nsqd leaves to the file system: bytes without one are lost.
        """
        try:
            self.sync_data()
            self._write_meta()
            self._sync_names()
        except OSError as error:
            self._keeper.report(f"failed to sync {self._name}: {error_text(error)}")
            self._unsynced_count = 1
            self._keeper.used(self)
        else:
            self._unsynced_count = 0

    def _sync_names(self) -> None:
        if not self._names_are_synced and not self._is_closing:
            self._directory.sync()
            self._names_are_synced = True

    def sync_data(self) -> None:
        """Sync the file that is written to.

        Raises:
            OSError: it could not be synced.
        """
        if self._write_handle is not None:
            self._write_handle.sync()

    def _to_be_read(self) -> tuple[int, Position]:
        """Return how many messages are to be read after a restart, and from where on."""
        return self._depth, self._read

    def _write_meta(self) -> None:
        meta = positions.to_meta(*self._to_be_read(), self._write)
        if meta != self._meta:
            self._directory.replace(self._meta_name, meta)
            self._meta = meta

    # ---- end -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all messages, and remove their files.

        Raises:
            OSError: a file could not be removed; the messages are forgotten all the same.
        """
        self._close_handles()
        numbers = self._numbers(self._oldest_file, self._write.file)
        self._read = Position(self._write.file + 1)
        self._write = attrs.evolve(self._read)
        self._depth = 0
        self._unsynced_count = 0
        self._meta = b""
        failed: OSError | None = None
        for name in (*map(self._file_name, numbers), self._meta_name):
            try:
                self._directory.remove(name)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    @property
    def _oldest_file(self) -> int:
        return self._read.file

    def delete(self) -> None:
        """Forget all messages; no file is left, unless one cannot be removed."""
        try:
            self.empty()
        except OSError as error:
            self._keeper.report(f"{self._name} is deleted, but not all of its files: {error_text(error)}")

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Write ``frames`` behind all others, sync, and give the files up.

        The names of new files are not synced: that is done once for all queues, when each is closed.

        Raises:
            OSError: they could not be written, or not all of them; the files are given up all the same.
        """
        self._is_closing = True
        try:
            self.put(frames)
        finally:
            self.sync()
            self._close_handles()

    def _close_handles(self) -> None:
        self._close_write_handle()
        self._ahead.forget()

    def _close_write_handle(self) -> None:
        if self._write_handle is not None:
            self._write_handle.close()
            self._write_handle = None

    # ---- trouble -------------------------------------------------------------------------------------------------

    def _set_aside(self, why: _UnreadableError | FileNotFoundError | IsADirectoryError) -> None:
        """Give up the file that is being read, and go on behind it.

        Raises:
            OSError: there is no file because the whole directory is not there now.
        """
        is_missing = isinstance(why, FileNotFoundError)
        if is_missing and not self._directory.exists(self._meta_name):
            raise why
        number, offset = self._read.file, self._read.offset
        if number == self._write.file:
            self._close_write_handle()
            self._write = Position(number + 1)
        following = self._numbers(number + 1, self._write.file) if is_missing else ()
        self._go_to_file(next(iter(following), self._write.file if is_missing else number + 1))
        name, last = self._file_name(number), self._file_name(self._read.file - 1)
        if is_missing:
            what = f"{name} is" if name == last else f"{name} to {last} are"
            self._keeper.report(f"{what} missing, and so are the messages there")
        else:
            self._keeper.report(f"{name} is damaged: {error_text(why)}")
            self._put_away(name, offset)
        self._count(1)

    def _put_away(self, name: str, offset: int) -> None:
        """Set a file aside that cannot be read from ``offset`` on; all before that has been handed on."""
        self._rename_bad(name)

    def _report_unread(self, number: int, error: OSError) -> None:
        self._keeper.report(f"{self._file_name(number)} cannot be read now: {error_text(error)}")

    def _rename_bad(self, name: str) -> None:
        try:
            self._directory.rename(name, f"{name}.bad")
        except OSError as error:
            self._keeper.report(f"{name} cannot be renamed: {error_text(error)}")

    def _settle_depth(self) -> None:
        """Set right what old positions have made wrong: the depth is 0 when all has been read, and not before."""
        if self._read < self._write:
            self._depth = max(self._depth, 1)
        elif self._depth:
            if self._depth > 0:
                self._keeper.report(
                    f"{self._name} has no more messages, where {self._depth} should have been left"
                )
            self._depth = 0
            self._count(1)
