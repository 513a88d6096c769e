"""A queue on disk, in the files of nsqd (go-diskqueue 1.1), which ``nsqkit.broker.core.disk.positions`` describes.

A record is in its file before ``put`` returns; positions are written when the messages that they count are synced. So
this class can continue from the files whenever the process ends. nsqd can as well, but if the process was killed it
does not find files that were begun since the last sync. A file that cannot be read is renamed to ``….bad`` and
reported, and reading continues with the next file.

This runs on the event loop and does not wait for the disk: it writes records into the page cache, one call for many of
them, and leaves syncs to ``nsqkit.broker.core.disk.sync``. Some operations stay here although a disk could delay them,
and this is why:

- reads, 256 KiB at a time and in order, which the kernel reads ahead;
- creating, renaming and removing files, in an order that matters; these change names in memory, and the disk follows
  (the space of removed files is freed in a thread);
- everything in the constructor, and in ``empty`` and ``delete``: it runs at the start, or at an operator's request;
- the syncs of ``close``, which runs in a thread; and one in ``put`` for every ``UNSYNCED_FILES_MAX`` files, so that a
  disk that is slower than the publishers does not use up the file descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import attrs

from nsqkit.broker.core.disk import positions
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import File, FileStore
from nsqkit.broker.core.disk.positions import Position
from nsqkit.broker.core.disk.read_ahead import ReadAhead, UnreadableError, read_between
from nsqkit.broker.core.disk.records import fitting_count, record_size, to_records
from nsqkit.broker.core.disk.recovery import Recovery, cut_off_rest, first_left_file, rename_bad, size_of
from nsqkit.broker.core.disk.sync import SyncPlan, SyncState
from nsqkit.broker.core.options import BrokerOptions

UNSYNCED_FILES_MAX: Final = 16
"""Files of one queue that are full, not synced, and still open."""


class DiskQueue:
    """One queue, in files whose names begin with ``name``; errors and wanted syncs are recorded in ``state``."""

    def __init__(self, files: FileStore, name: str, options: BrokerOptions, state: SyncState) -> None:
        self._files = files
        self._name = name
        self._meta_name = positions.meta_name(name)
        self._options = options
        self._state = state
        self._depth = 0
        self._read, self._write = Position(), Position()
        self._found_end = Position()  # of what another process wrote, whose positions may count it wrong
        self._put_count = 0  # messages to read behind that
        self._first_file = 0  # older files have been removed
        self._write_handle: File | None = None
        self._unsynced_files: list[File] = []  # besides that
        self._has_rest = False  # of a write that failed, behind the end
        self._ahead = ReadAhead(files, options.max_msg_size)
        self._unsynced_count = 0  # messages put and taken since the last sync
        self._plan: SyncPlan | None = None  # of the sync that runs
        self._is_closing = False
        self._has_old_meta = False  # positions that could not be removed, and some of their files neither
        self._meta = positions.to_meta(0, self._read, self._write)  # as on disk; a missing file means the same
        self._open()
        self._first_file = first_left_file(files, name, self._read.file)
        if self._first_file < self._read.file:
            self._request_sync()  # which removes them

    def __len__(self) -> int:
        return self._depth

    @property
    def needs_sync(self) -> bool:
        return self._unsynced_count > 0

    def _file_name(self, number: int) -> str:
        return positions.file_name(self._name, number)

    def _numbers(self, first: int, last: int) -> Sequence[int]:
        return positions.file_numbers(self._files, self._name, first, last)

    # ---- open ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        found = Recovery(self._files, self._name, self._options.max_msg_size, self._state)
        if not found.run():
            return
        self._depth, self._read, self._write, self._meta = found.depth, found.read, found.write, found.meta
        self._first_file = self._read.file
        self._found_end = attrs.evolve(self._write)
        if self._write < self._read:
            self._begin_anew()
        elif found.is_changed:  # without the old positions, some of the files might not be found again
            self.sync(names=False)
        self._check_next_record()
        self._correct_depth()

    def _begin_anew(self) -> None:
        """Give up files whose positions contradict each other."""
        read, write = self._read, self._write
        self._state.report(
            f"{self._name} was to be read at {read.file},{read.offset}, behind its end at {write.file},{write.offset}: "
            "it begins anew"
        )
        for number in {write.file, read.file}:
            if self._files.exists(self._file_name(number)):
                self._give_up(self._file_name(number), 0)
        self._read = Position(max(read.file, write.file) + 1)
        self._write = attrs.evolve(self._read)
        self._first_file = self._read.file
        self.sync(names=False)  # a process that found the old positions again would write over the new file

    def _check_next_record(self) -> None:
        """Give up at once a file that cannot be read next, as nsqd does, which reads ahead."""
        while self._read < self._write:
            try:
                offset, end = self._read.offset, self._end_of_read_file()
                if offset != end and not self._ahead.finds_record(offset, end):
                    raise UnreadableError(f"there is no message at byte {offset}")
            except (UnreadableError, FileNotFoundError, IsADirectoryError) as error:
                self._skip_file(error)
            except OSError as error:
                self._state.report(f"{self._file_name(self._read.file)} cannot be read now: {error_text(error)}")
                break
            else:
                break
        self._ahead.close()  # most queues are not read soon, and there are many

    # ---- put -----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> int:
        """Write messages at the end; return how many stay in memory, which is none.

        If not all could be written, an OSError is raised, and ``len`` counts those that were.
        """
        if not frames:
            return 0
        try:
            self._append(list(frames))
        except OSError as error:
            self._state.record_write(error)
            raise
        self._state.record_write(None)
        return 0

    def _append(self, frames: list[bytes]) -> None:
        while frames:
            fitting = self._fitting(frames)
            self._append_here(frames[:fitting])
            del frames[:fitting]

    def _append_here(self, frames: list[bytes]) -> None:
        """Write messages to the current file; if not all fit on the disk, those that do."""
        data = to_records(frames)
        handle = self._opened_for_write()
        try:
            handle.write_at(self._write.offset, data)
        except OSError:
            self._undo_write(handle)
            if len(frames) == 1:
                raise
            half = len(frames) // 2
            self._append_here(frames[:half])
            self._append_here(frames[half:])
        else:
            self._write.offset += len(data)
            self._depth += len(frames)
            self._put_count += len(frames)
            self._count(len(frames))

    def undo_put(self, frames: Sequence[bytes]) -> int:
        """Cut off the last messages that were put, and return how many; those in a complete file stay."""
        count = fitting_count(reversed(frames), self._write.offset)
        self._write.offset -= sum(map(record_size, frames[len(frames) - count :]))
        self._depth -= count
        self._put_count -= count
        if count and self._write_handle is not None:
            self._undo_write(self._write_handle)
        return count

    def _undo_write(self, handle: File) -> None:
        """Cut off the rest of a write that failed, now or when the file is opened again."""
        try:
            handle.truncate(self._write.offset)
        except OSError:
            self._release_write_handle()
            self._has_rest = True

    def _fitting(self, frames: list[bytes]) -> int:
        """Return how many of the messages fit into the current file; if none does, begin the next file."""
        room = self._options.max_bytes_per_file - self._write.offset
        if sum(map(len, frames)) <= room:  # a record is a little shorter
            return len(frames)
        if self._write.offset and record_size(frames[0]) > room:
            self._begin_next_file()
            room = self._options.max_bytes_per_file
        return fitting_count(frames, room) or 1  # one that is longer than the limit gets a separate file

    def _opened_for_write(self) -> File:
        if self._write_handle is None:
            if size_of(self._files, self._file_name(self._write.file), self._state) < self._write.offset:
                self._begin_next_file()  # the missing bytes would be a gap, and all records behind it lost
            if self._has_old_meta:  # the next process would read the old files, and none behind the missing ones
                meta = positions.to_meta(*self._positions(), self._write)
                self._files.replace(self._meta_name, meta)
                self._meta, self._has_old_meta = meta, False
            # At the end, the first file needs no positions: the next process would begin to write there.
            if (self._write.file or not self._is_closing) and not self._files.exists(self._meta_name):
                self._create_meta()
            handle = self._files.open(self._file_name(self._write.file), create=True)
            try:
                if handle.size() > self._write.offset:
                    handle.truncate(self._write.offset)
            except OSError:
                handle.close()
                raise
            self._write_handle, self._has_rest = handle, False
        return self._write_handle

    def _create_meta(self) -> None:
        """Write the first positions, unsynced: without any, a process that comes after a kill ignores the records."""
        file = self._files.open(self._meta_name, create=True)
        self._unsynced_files.append(file)
        meta = positions.to_meta(*self._positions(), self._write)
        try:
            file.write_at(0, meta)
        except OSError:
            with suppress(OSError):
                self._files.remove(self._meta_name)
            raise
        self._meta = meta
        if self._is_closing:  # others replace them before anything could be synced
            self._unsynced_files.pop().close()

    def _begin_next_file(self) -> None:
        if self._has_rest:  # in a complete file it would be read
            cut_off_rest(self._files, self._file_name(self._write.file), self._write.offset)
            self._has_rest = False
        complete, self._write = self._write, Position(self._write.file + 1)
        if self._read == complete:  # nsqd would take it for damaged, if it continued from here
            self._go_to_file(self._write.file)
        elif self._read.file == complete.file:
            self._ahead.size = complete.offset
        self._release_write_handle()
        if len(self._unsynced_files) >= UNSYNCED_FILES_MAX:
            self.sync_data()
        self._request_sync()

    def _release_write_handle(self) -> None:
        if self._write_handle is not None:
            self._unsynced_files.append(self._write_handle)
            self._write_handle = None

    # ---- take ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[bytes]:
        """Return up to ``count`` of the oldest messages; none only when none is left.

        If they cannot be read now, an OSError is raised; they are not lost.
        """
        frames: list[bytes] = []
        try:
            while len(frames) < count and self._read < self._write:
                self._add_next(frames, count - len(frames))
        except OSError:
            if not frames:
                raise
        self._correct_depth()
        if frames:
            self._count(len(frames))
        return frames

    def _add_next(self, frames: list[bytes], count: int) -> None:
        """Add up to ``count`` frames of one file, or skip the file if it cannot be read."""
        try:
            frames += self._next_frames(count)
        except (UnreadableError, FileNotFoundError, IsADirectoryError) as error:
            self._skip_file(error)
        self._leave_complete_files()

    def _next_frames(self, count: int) -> list[bytes]:
        """Return the next frames, at least one unless the end of the file has been reached."""
        offset, end = self._read.offset, self._end_of_read_file()
        if (is_found := self._read < self._found_end) and self._read.file == self._found_end.file:
            end = min(end, self._found_end.offset)
        frames, self._read.offset = self._ahead.take(offset, end, count)
        if not frames and offset != end:
            raise UnreadableError(f"there is no message at byte {offset}")
        self._put_count -= 0 if is_found else len(frames)
        self._depth = max(self._depth - len(frames), 0)
        return frames

    def _end_of_read_file(self) -> int:
        if not self._ahead.is_open:
            self._ahead.open(self._file_name(self._read.file))
        return self._write.offset if self._read.file == self._write.file else self._ahead.size

    def _leave_complete_files(self) -> None:
        """Go to the next file that has more to read; the next sync removes those before it."""
        while self._read.file < self._write.file:
            try:
                if self._read.offset < self._end_of_read_file():
                    break
            except (FileNotFoundError, IsADirectoryError) as error:
                self._skip_file(error)
            else:
                self._go_to_file(self._read.file + 1)
                self._request_sync()

    def _go_to_file(self, number: int) -> None:
        self._ahead.close()
        self._read = Position(number)

    def messages(self) -> list[bytes]:
        """Return all messages, oldest first; they stay. Raise OSError if they cannot be read now."""
        return read_between(self._files, self._name, self._read, self._write, self._options.max_msg_size)

    # ---- sync ----------------------------------------------------------------------------------------------------

    def _count(self, messages: int) -> None:
        if not self._unsynced_count:
            self._state.unsynced[self] = None
        self._unsynced_count += messages
        if self._unsynced_count >= self._options.sync_every:
            self._state.request_sync(self)

    def _request_sync(self) -> None:
        self._unsynced_count += 1
        self._state.unsynced[self] = None
        self._state.request_sync(self)

    def begin_sync(self, *, with_positions: bool = True) -> SyncPlan:
        self._state.due.pop(self, None)
        files = [file.share() for file in filter(None, [*self._unsynced_files, self._write_handle])]
        self._plan = plan = SyncPlan(self, files, tuple(self._unsynced_files))
        if with_positions:
            self._state.unsynced.pop(self, None)
            self._unsynced_count = 0
            depth, oldest = self._positions_to_sync()
            meta = positions.to_meta(depth, oldest, self._write)
            plan.meta_name = self._meta_name
            plan.meta = None if meta == self._meta else meta
            plan.first_file = oldest.file
        return plan

    def is_current(self, plan: SyncPlan) -> bool:
        return plan is self._plan

    def end_sync(self, plan: SyncPlan) -> None:
        """Act on the end of a sync. One that failed is reported, and repeated after ``--sync-timeout``."""
        if plan is not self._plan:
            return
        self._plan = None
        if plan.error is not None:
            if plan.meta_name:  # the error of a commit is reported once for all queues
                self._state.report(f"failed to sync {self._name}: {error_text(plan.error)}")
            self._unsynced_count += 1
            self._state.unsynced[self] = None
        elif plan.meta is not None:
            self._meta, self._has_old_meta = plan.meta, False
        if plan.is_synced:  # also without the positions: a file that is removed and open keeps its space
            for file in plan.complete:
                if file in self._unsynced_files:
                    self._unsynced_files.remove(file)
                    file.close()
        if plan.meta_name:
            self._remove_files_before(plan)

    def _remove_files_before(self, plan: SyncPlan) -> None:
        """Remove the files that have been read, even after an error: a full disk has to be able to empty."""
        try:
            for number in self._numbers(self._first_file, plan.first_file - 1):
                self._files.remove(self._file_name(number))
        except OSError as error:
            self._state.report(f"{self._file_name(self._first_file)} cannot be removed: {error_text(error)}")
        self._first_file = plan.first_file

    def sync(self, *, names: bool = True) -> None:
        """Sync at once, and wait for the disk; without ``names``, those of new files are left to the storage."""
        plan = self.begin_sync()
        plan.sync_data()
        plan.rewrite()
        plan.write_positions(self._files)
        plan.rename_positions(self._files)
        if names:
            plan.sync_names(self._files)
        plan.close()
        self.end_sync(plan)

    def sync_data(self) -> None:
        """Sync the messages at once; raise OSError if that fails."""
        plan = SyncPlan(self, list(filter(None, [*self._unsynced_files, self._write_handle])), ())
        plan.sync_data()
        plan.rewrite()
        if plan.error is not None:
            raise plan.error
        self._close_unsynced()

    def _positions(self) -> tuple[int, Position]:
        """Return how many messages have to be read after a restart, and from where."""
        return self._depth, self._read

    _positions_to_sync = _positions
    """The same, once the sync that begins now has ended."""

    # ---- end -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all messages, and remove their files; raise OSError at the end if a file could not be removed."""
        self._close_handles()
        numbers = self._numbers(self._first_file, self._write.file)
        self._read = Position(self._write.file + 1)
        self._write = attrs.evolve(self._read)
        self._first_file = self._read.file
        self._found_end = attrs.evolve(self._read)
        self._depth = self._put_count = self._unsynced_count = 0
        self._plan, self._meta, self._has_old_meta = None, b"", False
        self._state.forget(self)
        failed: OSError | None = None
        # The newest first: if the process ends meanwhile, none is left behind a gap, where a later start would find it.
        for name in (*map(self._file_name, reversed(numbers)), self._meta_name):
            try:
                self._files.remove(name)
            except OSError as error:
                failed, self._has_old_meta = error, failed is not None and name == self._meta_name
        if failed is not None:
            raise failed

    def delete(self) -> None:
        """Drop all messages; report a file that cannot be removed."""
        try:
            self.empty()
        except OSError as error:
            self._state.report(f"{self._name} is deleted, but not all of its files: {error_text(error)}")

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Write ``frames`` at the end, sync, and close the files. The names of new files are left to the storage.

        Raises:
            OSError: not all could be written; the files are closed all the same.
        """
        self._is_closing = True
        try:
            self.put(frames)
        finally:
            self.sync(names=False)
            self._close_handles()

    def _close_handles(self) -> None:
        self._release_write_handle()
        self._close_unsynced()
        self._ahead.close()

    def _close_unsynced(self) -> None:
        for file in self._unsynced_files:
            file.close()
        self._unsynced_files.clear()

    # ---- errors --------------------------------------------------------------------------------------------------

    def _skip_file(self, why: UnreadableError | FileNotFoundError | IsADirectoryError) -> None:
        """Continue with the next file; raise FileNotFoundError if the whole directory is missing now."""
        is_missing = isinstance(why, FileNotFoundError)
        if is_missing and not self._files.names(""):
            raise why
        number, offset = self._read.file, self._read.offset
        if number == self._write.file:
            self._release_write_handle()
            self._write = Position(number + 1)
        following = self._numbers(number + 1, self._write.file) if is_missing else ()
        self._go_to_file(next(iter(following), self._write.file if is_missing else number + 1))
        if self._read.file > self._found_end.file:  # some of those that were put may be gone
            self._found_end, self._put_count = attrs.evolve(self._write), 0
        name, last = self._file_name(number), self._file_name(self._read.file - 1)
        if is_missing:
            subject = f"{name} is" if name == last else f"{name} to {last} are"
            self._state.report(f"{subject} missing, and so are the messages there")
        else:
            self._state.report(f"{name} is damaged: {error_text(why)}")
            self._give_up(name, offset)
        self._count(1)

    def _give_up(self, name: str, offset: int) -> None:
        """Rename a file that cannot be read from ``offset`` on; everything before has been read."""
        rename_bad(self._files, name, self._state)

    def _correct_depth(self) -> None:
        """Correct the depth: until the end of the files that were found has been read, at least one message is left."""
        self._put_count = self._put_count if self._read < self._write else 0  # files may have become shorter
        found = self._depth - self._put_count
        if self._read < self._found_end:
            self._depth += max(1 - found, 0)
        elif found:
            if found > 0:
                self._state.report(f"{self._name} has no more old messages, where {found} should have been left")
            self._depth = self._put_count
            self._count(1)
