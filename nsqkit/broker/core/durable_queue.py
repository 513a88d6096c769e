"""A queue on disk that loses nothing which was committed, whenever the process or the machine ends.

    file    ░░░░░░▒▓▒▒▓▒████████████        ░ finished  ▒ finished behind an unfinished one
                  ▲      ▲           ▲      ▓ taken and not finished  █ not taken
               written  read       write

The rule it guards: the position that is written is that of the oldest message which is not finished; so what has been
taken is read again after a crash, in the worst case with some that were finished behind it. A message that comes back
from a consumer stays where it is on disk, and is not written again.

The files are those of ``DiskQueue``; nsqd can go on from them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nsqkit.broker.core.disk_queue import DiskLimits, DiskQueue, Keeper, Position
from nsqkit.broker.core.queue import MessageQueue
from nsqkit.wire.messages import ID

if TYPE_CHECKING:
    from nsqkit.broker.core.directory import Directory, File


class DurableQueue(DiskQueue):
    """One queue whose messages are finished one by one; the arguments are those of ``DiskQueue``."""

    def __init__(self, directory: Directory, name: str, limits: DiskLimits, keeper: Keeper) -> None:
        self._unfinished: dict[bytes, tuple[int, int, int]] = {}  # by id: number, file, offset; in that order
        self._taken = 0
        self._aside: dict[bytes, bool] = {}  # written and not read; whether they are finished
        super().__init__(directory, name, limits, keeper)
        self._first_file_number = self._read.file

    def __len__(self) -> int:
        return max(self._depth - len(self._aside), 0)

    def put_aside(self, frames: Sequence[bytes]) -> None:
        """Write messages that are held elsewhere until they are put back or finished; ``take`` passes them over.

        Raises:
            OSError: they could not be written, or not all of them.
        """
        ids = [frame[ID] for frame in frames]
        self._aside.update(dict.fromkeys(ids, False))
        try:
            self.put(frames)
        except OSError:
            for message_id in ids:
                del self._aside[message_id]
            raise

    def finish(self, ids: Iterable[bytes]) -> None:
        """Take note that messages need not be kept any longer."""
        finished = 0
        for message_id in ids:
            if self._unfinished.pop(message_id, None) is None and message_id in self._aside:
                self._aside[message_id] = True
            finished += 1
        self._count(finished)

    def _next_frames(self, count: int) -> list[bytes]:
        file, offset = self._read.file, self._read.offset
        frames = []
        for frame in super()._next_frames(count):
            message_id = frame[ID]
            is_finished = self._aside.pop(message_id, None)
            if not is_finished:
                self._unfinished[message_id] = (self._taken, file, offset)
            if is_finished is None:
                frames.append(frame)
            self._taken += 1
            offset += len(frame) - 4  # a record has one number less than a frame
        return frames

    def _leave_complete_file(self) -> None:
        while self._read.file < self._write.file and self._read.offset >= self._end_of_read_file():
            self._go_to_file(self._read.file + 1)

    # ---- sync ----------------------------------------------------------------------------------------------------

    def _count(self, messages: int) -> None:
        self._unsynced_count += messages
        self._keeper.used(self)

    def _progress(self) -> tuple[int, Position]:
        for number, file, offset in self._unfinished.values():
            return self._depth + self._taken - number, Position(file, offset)
        return super()._progress()

    def data_to_sync(self) -> File | None:
        """Return the file that is written to, opened once more for whoever syncs and closes it; None if none is."""
        return None if self._write_handle is None else self._write_handle.duplicate()

    def _write_meta(self) -> None:
        """Write the positions; then remove the files of which all is finished."""
        self._directory.sync()
        super()._write_meta()
        first = self._progress()[1].file
        if first > self._first_file_number:
            self._directory.sync()
            for number in range(self._first_file_number, first):
                self._directory.remove(self._file_name(number))
            self._first_file_number = first

    # ---- end -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all messages, and remove their files."""
        for number in range(self._first_file_number, self._read.file):
            self._directory.remove(self._file_name(number))
        super().empty()
        self._first_file_number = self._read.file
        self._unfinished.clear()
        self._aside.clear()

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Write ``frames`` behind all others, sync, and give the files up.

        Args:
            frames: those that were taken and are not finished; once they are written anew, the old ones are done with.

        Raises:
            OSError: they could not be written, or not all of them; then the old ones are read again.
        """
        try:
            self.put(frames)
            self._unfinished.clear()
            self._aside.clear()
        finally:
            super().close()


class KeptQueue(MessageQueue):
    """The queue of a topic or a channel whose messages are all on disk until they are finished.

    Args:
        durable: the queue on disk.
    """

    finishes = True

    def __init__(self, durable: DurableQueue) -> None:
        super().__init__(0, durable)
        self._durable = durable

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Add messages at the end that were taken from this queue; they are still on disk, so memory may hold them."""
        self._memory.extend(frames)

    def put_aside(self, frames: Sequence[bytes]) -> None:
        """Write messages that are held elsewhere.

        Raises:
            OSError: they could not be written, or not all of them.
        """
        self._durable.put_aside(frames)

    def finish(self, frames: Iterable[bytes]) -> None:
        """Take note that messages need not be kept any longer."""
        self._durable.finish([frame[ID] for frame in frames])
