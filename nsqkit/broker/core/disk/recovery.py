"""Recovery: what the files of a queue hold when it is opened, also after a crash.

The positions on disk may be older than the records. Records behind the end that the positions name are found, and
counted; the rest of a record that was not written to its end is moved to a separate file (``….bad``). Without valid
positions all files are read from their beginnings. This runs when a queue is opened, and reads and syncs at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import attrs

from nsqkit.broker.core.disk import positions
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.file_store import File, FileStore
from nsqkit.broker.core.disk.positions import Position
from nsqkit.broker.core.disk.records import record_ends
from nsqkit.broker.core.disk.sync import SyncState

READ_SIZE: Final = 256 * 1024
"""Bytes that are read at once, unless a record is longer."""


@attrs.define
class Recovery:
    """The content of the files of one queue.

    Attributes:
        files: where they are.
        name: the queue's.
        body_size_max: the limit for a message's body.
        state: gets the reports.
        depth: the number of messages to read; read: where the next one is; write: where to continue to write.
        meta: the positions as they are on disk; a missing file counts as positions at the beginning.
        is_changed: the positions on disk are out of date.
    """

    files: FileStore
    name: str
    body_size_max: int
    state: SyncState
    depth: int = 0
    read: Position = attrs.field(factory=Position)
    write: Position = attrs.field(factory=Position)
    meta: bytes = positions.to_meta(0, Position(), Position())
    is_changed: bool = False

    def run(self) -> bool:
        """Return whether there is a file with positions; raise OSError if this process cannot open more files now."""
        try:
            meta = self.files.read(positions.meta_name(self.name))
        except OSError as error:
            if error.errno in positions.OUT_OF_RESOURCES:
                raise
            self._read_anew(None, error_text(error))
            return True
        if meta is None:
            return False
        found = positions.from_meta(meta)
        if found is None:
            self._read_anew(meta, repr(meta[:80]))
        else:
            self.meta = meta
            self.depth, self.read, self.write = found
            self._find_unrecorded()
            if not self.files.exists(positions.file_name(self.name, self.read.file)):
                self._find_behind_gap()
        return True

    def _read_anew(self, damaged: bytes | None, why: str) -> None:
        name = positions.meta_name(self.name)
        self.state.report(f"{name} is damaged, all that is in the files is read again: {why}")
        self.meta = b""
        numbers = positions.file_numbers(self.files, self.name, 0, positions.NUMBER_MAX) or [0]
        self.read = Position(numbers[0])
        for number in numbers:
            if number >= self.write.file:
                self.write = Position(number)
                self._find_unrecorded()
        try:  # without positions a queue counts as empty, and its files are written over
            meta = positions.to_meta(self.depth, self.read, self.write)
            positions.replace_damaged(self.files, self.name, damaged, meta)
        except OSError as error:
            self.state.report(f"{name} cannot be written: {error_text(error)}")

    def _find_unrecorded(self) -> None:
        """Include the records behind the positions; writing continues in a new file."""
        number, offset = self.write.file, self.write.offset
        while self._has_unrecorded(number, offset) or self.files.exists(positions.file_name(self.name, number + 1)):
            number, offset = number + 1, 0
            self.write = Position(number)
            self.is_changed = True

    def _find_behind_gap(self) -> None:
        """Include files behind missing ones: a process may have removed files, and failed to write the positions."""
        for number in positions.file_numbers(self.files, self.name, self.write.file + 1, positions.NUMBER_MAX):
            if number > self.write.file:
                self.write = Position(number)
                self.is_changed = True
                self._find_unrecorded()

    def _has_unrecorded(self, number: int, offset: int) -> bool:
        name = positions.file_name(self.name, number)
        try:
            if size_of(self.files, name, self.state) <= offset:
                return False
            start = self.read.offset if number == self.read.file else 0
            self.depth += count_unrecorded(self.files, name, start, offset, self.body_size_max, self.state)
        except OSError as error:  # the messages are counted when they are read
            self.state.report(f"{name} cannot be read now: {error_text(error)}")
            return self.files.exists(name)
        return True


def set_aside_unknown(files: FileStore, state: SyncState) -> None:
    """Rename files that no queue would read now to ``….bad``, and report them: a power cut can leave them.

    A queue without positions counts as empty, and begins again with its first file; one with positions reads up to the
    first gap. When they have come to the numbers of the old files, a later process would take these for the ones that
    follow.
    """
    try:
        names = sorted(files.names(positions.INFIX))
    except OSError as error:
        state.report(f"the data path cannot be listed: {error_text(error)}")
        return
    records: dict[str, dict[int, str]] = {}  # the names of each queue's files, by their numbers
    known: set[str] = set()
    for name in names:
        queue, _, rest = name.rpartition(positions.INFIX)
        if rest == positions.META_SUFFIX:
            known.add(queue)
        elif found := positions.RECORDS_SUFFIX.fullmatch(rest):
            records.setdefault(queue, {})[int(found[1])] = name
    for queue, there in records.items():
        why = "a file before it is missing" if queue in known else "its queue has no positions"
        for number in _behind_gap(files, queue, sorted(there)) if queue in known else there:
            name = there[number]
            state.report(f"{name} is set aside as {name}.bad: {why}")
            rename_bad(files, name, state)


def _behind_gap(files: FileStore, queue: str, numbers: list[int]) -> list[int]:
    """Return the numbers of files that recovery would not find."""
    if numbers[-1] - numbers[0] < len(numbers):
        return []
    try:
        found = positions.from_meta(files.read(positions.meta_name(queue)) or b"")
    except OSError:  # the queue reports it
        return []
    if found is None or found[1].file not in numbers:  # then all files are read
        return []
    end = found[2].file
    while end + 1 in numbers:
        end += 1
    return [number for number in numbers if number > end]


def size_of(files: FileStore, name: str, state: SyncState) -> int:
    """Return the size of a file, 0 if there is none, or raise OSError; a directory of that name is renamed."""
    try:
        file = files.open(name)
    except FileNotFoundError:
        return 0
    except IsADirectoryError:
        state.report(f"{name} is a directory")
        rename_bad(files, name, state)
        return 0
    try:
        return file.size()
    finally:
        file.close()


def count_unrecorded(
    files: FileStore, name: str, start: int, recorded_end: int, body_size_max: int, state: SyncState
) -> int:
    """Return how many whole records a file has behind ``recorded_end``, and cut off the rest.

    A record begins at ``start``. The records before ``recorded_end``, which may be wrong, are counted already.

    Raises:
        OSError: the file cannot be read.
    """
    file = files.open(name)
    try:
        size = file.size()
        position = start
        count = 0
        while position < size:
            data = file.read_at(position, max(READ_SIZE, body_size_max + 64))
            ends = record_ends(data, body_size_max)
            if not ends:
                break
            count += sum(position + end > recorded_end for end in ends)
            position += ends[-1]
        if recorded_end <= position < size:
            cut_off(files, file, name, position, state)
        return count
    finally:
        file.close()


def cut_off(files: FileStore, file: File, name: str, position: int, state: SyncState) -> None:
    """Move the bytes behind ``position`` to a separate file, and leave those before it as they are."""
    try:
        count = file.size() - position
        if count <= 0:  # a damaged position; to truncate there would make the file longer
            return
        state.report(f"the last {count} bytes of {name} are no message, and are set aside as {name}.bad")
        files.replace(f"{name}.bad", file.read_at(position, count))
        file.truncate(position)
        file.sync()  # otherwise they might return after a power cut, when the next file has messages
    except OSError as error:  # then they are dealt with when they are read
        state.report(f"{name} cannot be repaired: {error_text(error)}")


def cut_off_rest(files: FileStore, name: str, size: int) -> None:
    """Cut off what a write that failed has left behind ``size``; raise OSError if that fails now."""
    with suppress(FileNotFoundError):
        file = files.open(name)
        try:
            file.truncate(min(size, file.size()))
        finally:
            file.close()


def first_left_file(files: FileStore, queue: str, number: int) -> int:
    """Return the first file that was read and is still there: a process may end before it has removed it."""
    while number and files.exists(positions.file_name(queue, number - 1)):
        number -= 1
    return number


def rename_bad(files: FileStore, name: str, state: SyncState) -> None:
    """Rename a file to ``….bad``; report an error."""
    try:
        files.rename(name, f"{name}.bad")
    except OSError as error:
        state.report(f"{name} cannot be renamed: {error_text(error)}")
