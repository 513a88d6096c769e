"""The log of one partition of one batch: which rows belong to it, agreed by all attempts of its task.

        chunk ─▶ Touch ─▶ LookUp ─▶ PutSlot i ─▶ FinishSlot ─▶ PutFin i ─▶ next chunk ─▶ … ─▶ PutSeal ─▶ Replay
                                      └ lost: Requeue, then seal and replay

A slot is stored before its FINs are sent, so rows are durable before nsqd drops their messages. All kinds of slots
share one sequence of keys that never change, so a seal is a fence: an owner that was stopped, or a second attempt,
loses its next put and requeues its messages. Every attempt ends with the same rows. A slot whose FINs have no recorded
outcome becomes *ambiguous*: its rows count, and messages that are delivered again are recognised by their keys. While
an outcome is open, such a message is requeued.

``SlotLog`` returns actions. The driver performs them in order, and passes the result of the last one to the method that
its class names. Results decide: puts are the only source of truth, and a read may be late.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import attrs

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.records import DataSlot, FinRecord, MessageKey, SealSlot, Slot


@attrs.frozen
class ReadLog:
    """Read the slots, from number 0 on, and their FIN records; then call ``log_read``."""


@attrs.frozen
class Receive:
    """Collect messages until a chunk is due or the partition stops; then call ``receive_chunk`` or ``seal``."""


@attrs.frozen
class Touch:
    """Send a TOUCH for each message and wait for the barrier; then call ``touched``."""

    keys: tuple[MessageKey, ...]


@attrs.frozen
class LookUp:
    """Look these messages up in the slots of the WAL; then call ``looked_up``."""

    keys: tuple[MessageKey, ...]


@attrs.frozen
class Requeue:
    """Send a REQ for each message, with a delay if ``delayed``. There is no result."""

    keys: tuple[MessageKey, ...]
    delayed: bool


@attrs.frozen
class FinishDuplicates:
    """Send a FIN for each message, whose rows are in a slot already. There is no result."""

    keys: tuple[MessageKey, ...]


@attrs.frozen
class PutSlot:
    """Put a DATA slot with the rows of these messages, in this order; then call ``slot_put``."""

    number: int
    keys: tuple[MessageKey, ...]


@attrs.frozen
class FinishSlot:
    """Send a FIN for each message and wait for the barrier of each connection; then call ``slot_finished``."""

    number: int
    keys: tuple[MessageKey, ...]


@attrs.frozen
class PutFin:
    """Put the FIN record of a slot; then call ``fin_put``."""

    number: int
    record: FinRecord


@attrs.frozen
class PutSeal:
    """Put a SEAL slot; then call ``seal_put``."""

    number: int


@attrs.frozen
class ReplaySlot:
    """A slot to read: its rows except those of ``excluded``."""

    number: int
    excluded: frozenset[MessageKey]


@attrs.frozen
class Replay:
    """The end: pass on the rows of these slots. Every attempt gets the same ones."""

    slots: tuple[ReplaySlot, ...]


Action: TypeAlias = (
    ReadLog | Receive | Touch | LookUp | Requeue | FinishDuplicates | PutSlot | FinishSlot | PutFin | PutSeal | Replay
)


@attrs.frozen
class LogEntry:
    """A slot as read, and its FIN record if there is one."""

    slot: Slot
    fin: FinRecord | None = None


class Phase(enum.Enum):
    """The result that a log waits for."""

    START = "start"
    LOG = "log_read"
    CHUNK = "receive_chunk or seal"
    TOUCH = "touched"
    LOOK_UP = "looked_up"
    SLOT = "slot_put"
    FINISH = "slot_finished"
    FIN = "fin_put"
    SEAL = "seal_put"
    ENDED = "nothing"


class SlotLog:
    """One attempt's view of the log of its partition.

    Attributes:
        phase: the result that it waits for.
        included_count: rows in the slots that this attempt put, without those whose FIN failed.
        failed_count: rows whose FIN failed.
        duplicate_count: messages that were finished because a slot has them.
        requeued_count: messages that were requeued.
    """

    def __init__(self) -> None:
        self.phase = Phase.START
        self.included_count = self.failed_count = self.duplicate_count = self.requeued_count = 0
        self._may_receive = True
        self._next_number = 0
        self._chunk: tuple[MessageKey, ...] = ()
        self._redelivered: frozenset[MessageKey] = frozenset()
        self._undecided: list[PutFin] = []

    def start(self) -> list[Action]:
        """Begin: the log of an earlier attempt is replayed, an empty one is filled."""
        self._enter(Phase.START, Phase.LOG)
        return [ReadLog()]

    def log_read(self, entries: Sequence[LogEntry]) -> list[Action]:
        """Continue after ``ReadLog``.

        Args:
            entries: slots 0, 1, …, up to the first number that is absent.

        Raises:
            ProtocolError: a slot follows the seal.
        """
        self._enter(Phase.LOG)
        data = [(entry.slot, entry.fin) for entry in entries if isinstance(entry.slot, DataSlot)]
        if len(data) < len(entries):
            if len(data) != len(entries) - 1 or not isinstance(entries[-1].slot, SealSlot):
                raise ProtocolError(f"the log has {len(entries)} slots, and the seal is not its only last one")
            return self._replay(data)
        if not entries and self._may_receive:
            return self._receive()
        self.phase = Phase.SEAL
        return [PutSeal(len(entries))]

    def receive_chunk(
        self, keys: Sequence[MessageKey], redelivered: Collection[MessageKey], *, touch: bool = False
    ) -> list[Action]:
        """Begin with a chunk, after ``Receive``.

        Args:
            keys: the messages, in order of arrival.
            redelivered: those with more than one attempt. Others cannot be in a slot.
            touch: whether half of the message timeout has passed since the oldest one arrived.
        """
        self._enter(Phase.CHUNK)
        # A message that timed out and arrived once more is in the chunk twice.
        self._chunk = tuple(dict.fromkeys(keys)) if redelivered else tuple(keys)
        self._redelivered = frozenset(redelivered)
        if not touch:
            return self._look_up()
        self.phase = Phase.TOUCH
        return [Touch(self._chunk)]

    def touched(self, lost: Collection[MessageKey]) -> list[Action]:
        """Continue after ``Touch``; ``lost`` are the messages whose TOUCH failed, or whose connection ended."""
        self._enter(Phase.TOUCH)
        self._chunk = tuple(key for key in self._chunk if key not in lost)
        return self._look_up()

    def looked_up(self, presence: Mapping[MessageKey, Presence]) -> list[Action]:
        """Continue after ``LookUp``; a message without an entry is in no slot."""
        self._enter(Phase.LOOK_UP)
        of_kind: dict[Presence, tuple[MessageKey, ...]] = {
            kind: tuple(key for key in self._chunk if presence.get(key) is kind) for kind in Presence
        }
        self._chunk = tuple(key for key in self._chunk if presence.get(key) is None)
        actions: list[Action] = []
        if included := of_kind[Presence.INCLUDED]:
            self.duplicate_count += len(included)
            actions.append(FinishDuplicates(included))
        if undecided := of_kind[Presence.OPEN]:
            actions += self._requeue(undecided, delayed=True)
        return actions + self._put_chunk()

    def slot_put(self, *, stored: bool) -> list[Action]:
        """Continue after ``PutSlot``; ``stored`` is False if the slot exists: another attempt has ended this one."""
        self._enter(Phase.SLOT)
        if stored:
            self.phase = Phase.FINISH
            return [FinishSlot(self._next_number, self._chunk)]
        chunk, self._chunk = self._chunk, ()
        return [*self._requeue(chunk, delayed=False), *self._read_for_replay()]

    def slot_finished(self, *, failed: Collection[MessageKey], ambiguous: bool) -> list[Action]:
        """Continue after ``FinishSlot``.

        Args:
            failed: messages whose FIN was answered with E_FIN_FAILED before the barrier.
            ambiguous: whether a connection ended before its barrier.
        """
        self._enter(Phase.FINISH, Phase.FIN)
        own_failed = frozenset(self._chunk).intersection(failed)
        record = FinRecord(own_failed, ambiguous, len(self._chunk) - len(own_failed))
        self.failed_count += len(own_failed)
        self.included_count += record.row_count
        return [PutFin(self._next_number, record)]

    def fin_put(self, *, stored: bool) -> list[Action]:
        """Continue after ``PutFin``; ``stored`` is False if the slot has a FIN record, which counts."""
        self._enter(Phase.FIN)
        if self._undecided:
            del self._undecided[0]
            return self._decide()
        if not stored:
            # Another attempt has sealed the log and replays it.
            return self._read_for_replay()
        self._next_number += 1
        return self._receive()

    def seal(self) -> list[Action]:
        """End the log because the partition stops, after ``Receive``."""
        self._enter(Phase.CHUNK, Phase.SEAL)
        self._may_receive = False
        return [PutSeal(self._next_number)]

    def seal_put(self, *, stored: bool) -> list[Action]:
        """Continue after ``PutSeal``, whether ``stored`` or not: the log is read to its end."""
        self._enter(Phase.SEAL)
        del stored
        return self._read_for_replay()

    def _enter(self, expected: Phase, new: Phase | None = None) -> None:
        assert self.phase is expected, f"the log waits for {self.phase.value}, not for {expected.value}"
        self.phase = new or self.phase

    def _receive(self) -> list[Action]:
        self._chunk = ()
        self.phase = Phase.CHUNK
        return [Receive()]

    def _look_up(self) -> list[Action]:
        if keys := tuple(key for key in self._chunk if key in self._redelivered):
            self.phase = Phase.LOOK_UP
            return [LookUp(keys)]
        return self._put_chunk()

    def _put_chunk(self) -> list[Action]:
        if not self._chunk:
            return self._receive()
        self.phase = Phase.SLOT
        return [PutSlot(self._next_number, self._chunk)]

    def _requeue(self, keys: tuple[MessageKey, ...], *, delayed: bool) -> list[Action]:
        self.requeued_count += len(keys)
        return [Requeue(keys, delayed)]

    def _read_for_replay(self) -> list[Action]:
        self._may_receive = False
        self.phase = Phase.LOG
        return [ReadLog()]

    def _replay(self, data: Sequence[tuple[DataSlot, FinRecord | None]]) -> list[Action]:
        """Return the rows if each slot has a FIN record; otherwise make the other slots ambiguous."""
        self._may_receive = False
        decided = [ReplaySlot(number, fin.failed) for number, (_, fin) in enumerate(data) if fin]
        if len(decided) == len(data):
            self.phase = Phase.ENDED
            return [Replay(tuple(decided))]
        self._undecided = [
            PutFin(number, FinRecord(ambiguous=True, row_count=len(slot.keys)))
            for number, (slot, fin) in enumerate(data)
            if fin is None
        ]
        return self._decide()

    def _decide(self) -> list[Action]:
        if not self._undecided:
            return self._read_for_replay()
        self.phase = Phase.FIN
        return [self._undecided[0]]
