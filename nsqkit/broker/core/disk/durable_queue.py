"""A queue on disk that loses no committed message, whenever the process or the machine ends.

    file    ░░░░░░▒▓▒▒▓▒████████████        ░ finished  ▒ finished behind an unfinished one
                  ▲      ▲           ▲      ▓ taken and not finished  █ not taken
               written  read       write

The position that is written is that of the oldest unfinished message. So taken messages are read again after a crash,
in the worst case together with some finished ones. A sync writes the position after the messages of all queues that it
might have gone to are on disk. A message that a consumer requeues stays in its place on disk, and is not written again.

The files are those of ``DiskQueue``; nsqd can continue from them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.broker.core.disk.disk_queue import DiskQueue
from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.positions import Position
from nsqkit.broker.core.disk.queue import MessageQueue
from nsqkit.broker.core.disk.recovery import cut_off, rename_bad
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.file_store import FileStore
    from nsqkit.broker.core.disk.sync import SyncPlan, SyncState
    from nsqkit.broker.core.options import BrokerOptions

PASSED_MAX: Final = 10_000
"""Messages that one sync reads past, since the event loop waits for it."""


@attrs.define
class _Aside:
    """A message that was put aside.

    Attributes:
        begin: it was written here, or behind.
        end: it was written before this place.
        is_finished: whether it is finished.
    """

    begin: Position
    end: Position
    is_finished: bool = False


class DurableQueue(DiskQueue):
    """One queue whose messages are finished one by one; the arguments are those of ``DiskQueue``."""

    def __init__(self, files: FileStore, name: str, options: BrokerOptions, state: SyncState) -> None:
        self._unfinished: dict[bytes, tuple[int, int, int]] = {}  # by id: number, file, offset; in that order
        self._taken = 0
        self._aside: dict[bytes, _Aside] = {}  # by id; written and not read
        self._keeps_settled = False
        super().__init__(files, name, options, state)
        self._settled = self._settling = self._progress()  # on disk; by the sync that runs

    def __len__(self) -> int:
        return max(self._depth - len(self._aside), 0)

    def put_aside(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        """Write messages that are held elsewhere until they are put back or finished; ``take`` passes them over.

        Returns:
            The messages. Those with the id of another message have a new one.

        Raises:
            OSError: not all of them could be written.
        """
        frames = [self._with_own_id(frame) for frame in frames]
        begin = attrs.evolve(self._write)
        self.put(frames)
        end = attrs.evolve(self._write)
        self._aside.update((id_of(frame), _Aside(begin, end)) for frame in frames)
        return frames

    def _with_own_id(self, frame: bytes) -> bytes:
        """Return a message, with a new id if another one has its id: each message is finished by its id.

        One of them was written by a broker whose clock was set back, or twice because a stop was interrupted. There may
        be many of them, so a new id may be that of another one, too.
        """
        while id_of(frame) in self._unfinished or id_of(frame) in self._aside:
            frame = self._state.guids.renew(frame)
        return frame

    def finish(self, ids: Iterable[bytes]) -> None:
        """Let messages go: they need not be read again."""
        finished = 0
        for message_id in ids:
            if self._unfinished.pop(message_id, None) is None and message_id in self._aside:
                self._aside[message_id].is_finished = True
            finished += 1
        self._count(finished)

    def _next_frames(self, count: int) -> list[bytes]:
        file, offset = self._read.file, self._read.offset
        frames = []
        for frame in super()._next_frames(count):
            message_id, place = id_of(frame), (self._taken, file, offset)
            aside = self._aside.get(message_id)
            if aside is None or Position(file, offset) < aside.begin:
                if aside is not None or message_id in self._unfinished:
                    frame = self._with_own_id(frame)
                    message_id = id_of(frame)
                self._unfinished[message_id] = place
                frames.append(frame)
            else:
                del self._aside[message_id]
                if not aside.is_finished:
                    self._unfinished[message_id] = place
            self._taken += 1
            offset += len(frame) - 4  # a record has one number less than a frame
        self._forget_passed()
        return frames

    def _go_to_file(self, number: int) -> None:
        super()._go_to_file(number)
        self._forget_passed()

    def _forget_passed(self) -> None:
        """Forget the messages that were put aside and not found: their ids, or their files, are damaged."""
        passed = takewhile(lambda item: not self._read < item[1].end, self._aside.items())
        for message_id, _ in list(passed):
            del self._aside[message_id]

    @property
    def _has_finished_alone(self) -> bool:
        """Whether all messages were put aside, and some of them are finished."""
        return self._depth == len(self._aside) and self._has_finished_aside

    @property
    def _has_finished_aside(self) -> bool:
        return any(aside.is_finished for aside in self._aside.values())

    def _pass_aside(self) -> bool:
        """Read past some messages that were put aside if there are no others: nothing else takes a message then.

        Otherwise a queue of deferred messages alone would keep all of them, and its files, until the next start.

        Returns:
            Whether there may be more of them.
        """
        if not self._has_finished_alone:
            return False
        before = self._taken
        with suppress(OSError):  # the next sync tries again
            while self._taken < before + PASSED_MAX and self._read < self._write:
                self._add_next([], PASSED_MAX)
        self._correct_depth()
        return self._taken > before

    def messages(self) -> list[bytes]:
        frames: list[bytes] = []
        aside = set(self._aside)
        for frame in reversed(super().messages()):  # an earlier one may have the id of one that was put aside
            if (message_id := id_of(frame)) in aside:
                aside.remove(message_id)
            else:
                frames.append(frame)
        return frames[::-1]

    def _count(self, messages: int) -> None:
        self._unsynced_count += messages
        self._state.unsynced[self] = None
        self._state.uncommitted[self] = None

    def _request_sync(self) -> None:
        self._count(1)  # commits sync the messages, and a sync of the positions follows in its time

    def begin_sync(self, *, with_positions: bool = True) -> SyncPlan:
        if with_positions:
            self._pass_aside()
        self._state.uncommitted.pop(self, None)
        plan = super().begin_sync(with_positions=with_positions)
        if with_positions and self._has_finished_alone:  # there are many, or the disk has failed
            self._unsynced_count += 1
            self._state.unsynced[self] = None
        return plan

    def end_sync(self, plan: SyncPlan) -> None:
        if self.is_current(plan):
            if plan.error is not None:
                self._state.uncommitted[self] = None
            elif plan.meta_name:
                self._settled = self._settling
        super().end_sync(plan)

    def _remove_files_before(self, plan: SyncPlan) -> None:
        if plan.has_no_room:
            self._make_room(plan)
        if plan.error is not None or plan.first_file == self._first_file:
            return
        if not plan.names_are_synced:
            plan.sync_names(self._files)
        if plan.names_are_synced:
            super()._remove_files_before(plan)

    def _make_room(self, plan: SyncPlan) -> None:
        """Empty a file whose messages are finished, so that the next sync can write positions on a full disk.

        Its name stays, since a later start would not read the files behind a gap.
        """
        for number in self._numbers(self._first_file, plan.first_file - 1):
            with suppress(OSError):
                file = self._files.open(self._file_name(number))
                try:
                    if file.size():
                        file.truncate(0)
                        return
                finally:
                    file.close()

    def _progress(self) -> tuple[int, Position]:
        """Return how many messages were taken before the oldest unfinished one, and where that is."""
        for number, file, offset in self._unfinished.values():
            return number, Position(file, offset)
        return self._taken, attrs.evolve(self._read)

    def _positions(self) -> tuple[int, Position]:
        number, position = self._settled
        return self._depth + self._taken - number, position

    def _positions_to_sync(self) -> tuple[int, Position]:
        if not self._keeps_settled:
            self._settling = self._progress()
        number, position = self._settling
        return self._depth + self._taken - number, position

    def _give_up(self, name: str, offset: int) -> None:
        """Set aside the rest of the file alone: messages before it may be unfinished."""
        try:
            file = self._files.open(name)
        except IsADirectoryError:
            rename_bad(self._files, name, self._state)
            return
        except OSError as error:
            self._state.report(f"{name} cannot be repaired: {error_text(error)}")
            return
        try:
            cut_off(self._files, file, name, offset, self._state)
        finally:
            file.close()

    def empty(self) -> None:
        self._unfinished.clear()
        self._aside.clear()
        try:
            super().empty()
        finally:
            self._settled = self._progress()

    def close(self, frames: Sequence[bytes] = ()) -> None:
        """Write ``frames`` at the end, sync, and close the files.

        Args:
            frames: the unfinished messages that are held; they are written again, and then the old ones are dropped.
                Messages that were put aside, and not read yet, stay where they are.

        Raises:
            OSError: not all could be written; then the old ones are read again.
        """
        while self._pass_aside():
            pass
        self._keeps_settled = True
        self._settling = self._settled
        try:
            before_finished = self._take_before_finished()
            held = [frame for frame in frames if id_of(frame) not in self._aside]
            self.put([*before_finished, *held])
            self.sync_data()
            self._files.sync()
            self._unfinished.clear()
            self._aside.clear()
            self._settling = self._progress()
        finally:
            super().close()

    def _take_before_finished(self) -> list[bytes]:
        """Take the messages in front of those that were put aside and are finished, to be written behind them.

        Otherwise the finished ones, which no position counts, would be delivered once more after the next start. A stop
        does not do that for more than ``PASSED_MAX`` messages.
        """
        frames: list[bytes] = []
        if self._depth <= PASSED_MAX:
            while self._has_finished_aside and self._read < self._write:
                self._add_next(frames, PASSED_MAX)
        return frames

    def leave(self) -> None:
        self._keeps_settled = True
        self._settling = self._settled
        super().close()


class KeptQueue(MessageQueue):
    """The queue of a topic or a channel whose messages are all on disk until they are finished."""

    finishes = True

    def __init__(self, durable: DurableQueue) -> None:
        super().__init__(0, durable)
        self._durable = durable

    def put_back(self, frames: Sequence[bytes]) -> None:
        """Add messages at the end that were taken from this queue; they are still on disk, so memory may hold them."""
        self._memory.extend(frames)

    def put_aside(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        return self._durable.put_aside(frames)

    def leave(self) -> None:
        self._durable.leave()
        self._memory.clear()

    def finish(self, frames: Iterable[bytes]) -> None:
        self._durable.finish(list(map(id_of, frames)))
