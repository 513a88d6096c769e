"""A queue on disk that loses nothing which was committed, whenever the process or the machine ends.

    file    ░░░░░░▒▓▒▒▓▒████████████        ░ finished  ▒ finished behind an unfinished one
                  ▲      ▲           ▲      ▓ taken and not finished  █ not taken
               written  read       write

The rule it guards: the position that is written is that of the oldest message which was not finished when the queue was
last settled; so what has been taken is read again after a crash, in the worst case with some that were finished. It is
settled when all that has gone from here to other queues is safe there. A message that comes back from a consumer stays
where it is on disk, and is not written again.

The files are those of ``DiskQueue``; nsqd can go on from them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from nsqkit.broker.core.disk.disk_queue import DiskLimits, DiskQueue
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.positions import Position
from nsqkit.broker.core.disk.recovery import cut_off
from nsqkit.broker.core.topics.queue import MessageQueue
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import File, FileStore, Keeper


class DurableQueue(DiskQueue):
    """One queue whose messages are finished one by one; the arguments are those of ``DiskQueue``."""

    def __init__(self, directory: FileStore, name: str, limits: DiskLimits, keeper: Keeper) -> None:
        self._unfinished: dict[bytes, tuple[int, int, int]] = {}  # by id: number, file, offset; in that order
        self._taken = 0
        self._aside: dict[bytes, bool] = {}  # written and not read; whether they are finished
        super().__init__(directory, name, limits, keeper)
        self._first_file_number = self._read.file
        self._settled = self._progress()

    def __len__(self) -> int:
        return max(self._depth - len(self._aside), 0)

    def put_aside(self, frames: Sequence[bytes]) -> None:
        """Write messages that are held elsewhere until they are put back or finished; ``take`` passes them over.

        Raises:
            OSError: they could not be written, or not all of them.
        """
        ids = list(map(id_of, frames))
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
            if id_of(frame) in self._unfinished:
                # Written by a broker whose clock was set back, or twice since a stop was interrupted. Each is finished
                # by itself, so each needs an id.
                frame = self._keeper.renew(frame)
            message_id = id_of(frame)
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
        """Return how many messages were taken before the oldest that is not finished, and where that is."""
        for number, file, offset in self._unfinished.values():
            return number, Position(file, offset)
        return self._taken, attrs.evolve(self._read)

    def settle(self) -> None:
        """Take note that nobody needs what was finished here: where it went from here, it is safe."""
        self._settled = self._progress()

    def _to_be_read(self) -> tuple[int, Position]:
        number, position = self._settled
        return self._depth + self._taken - number, position

    def data_to_sync(self) -> list[File]:
        """Return the file that is written to, if one is, opened once more for whoever syncs and closes it.

        Raises:
            OSError: it cannot be.
        """
        return [] if self._write_handle is None else [self._write_handle.duplicate()]

    def _write_meta(self) -> None:
        """Write the positions; then remove the files of which all is finished."""
        super()._write_meta()
        first = self._settled[1].file
        if first > self._first_file_number:
            self._directory.sync()
            for number in self._numbers(self._first_file_number, first - 1):
                self._directory.remove(self._file_name(number))
            self._first_file_number = first

    def _begin_next_file(self) -> None:
        self.sync_data()  # if that fails the put does: no commit would come back to this file
        super()._begin_next_file()

    def _put_away(self, name: str, offset: int) -> None:
        """Set aside the rest of the file alone: what stands before it may be unfinished."""
        try:
            file = self._directory.open(name)
        except IsADirectoryError:
            self._rename_bad(name)
            return
        except OSError as error:
            self._keeper.report(f"{name} cannot be mended: {error_text(error)}")
            return
        try:
            cut_off(self._directory, file, name, offset, self._keeper.report)
        finally:
            file.close()

    # ---- end -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all messages, and remove their files."""
        self._unfinished.clear()
        self._aside.clear()
        try:
            super().empty()
        finally:
            self._first_file_number = self._read.file
            self.settle()

    @property
    def _oldest_file(self) -> int:
        return self._first_file_number

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Write ``frames`` behind all others, sync, and give the files up.

        Args:
            frames: those that are held and not finished; once they are written anew, the old ones are done with.
                What was put aside, and was not read yet, stays where it is.

        Raises:
            OSError: they could not be written, or not all of them; then the old ones are read again.
        """
        try:
            self.put([frame for frame in frames if id_of(frame) not in self._aside])
            self.sync_data()
            self._sync_names()
            self._unfinished.clear()
            self._aside.clear()
            self.settle()
        finally:
            super().close()

    def leave(self) -> None:
        """Give the files up as they are."""
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

    def leave(self) -> None:
        """Give the files up as they are: what was taken and not finished is read again at the next start."""
        self._durable.leave()
        self._memory.clear()

    def finish(self, frames: Iterable[bytes]) -> None:
        """Take note that messages need not be kept any longer."""
        self._durable.finish(list(map(id_of, frames)))
