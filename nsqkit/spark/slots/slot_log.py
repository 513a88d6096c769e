"""The log of one partition of one batch: which rows belong to it, agreed by all attempts of its task.

        chunk ─▶ Touch ─▶ LookUp ─▶ PutSlot i ─▶ FinishSlot ─▶ next chunk ─▶ … ─▶ PutSeal ─▶ Replay
                                      └ lost: Requeue, then seal and replay

A slot is stored before its FINs are sent, so rows are durable before nsqd drops their messages. The outcome of its FINs
is a part of the next slot. All slots share one sequence of keys that never change, so one put decides both that a log
goes on and how its last slot ended, and a seal is a fence: an owner that was stopped, or a second attempt, loses its
next put and requeues its messages. Every attempt ends with the same rows. An attempt that seals the log of another one
makes the last slot *ambiguous*: its rows count, and messages that are delivered again are recognised by their keys.
While an outcome is not stored, such a message is requeued by other partitions. So an outcome with a FIN that failed or
is not known is stored at once, in a slot without rows; any other one waits for the next chunk, which saves a put.

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
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot, Slot


@attrs.frozen
class ReadLog:
    """Read the slots, from number 0 on, or wait until another attempt has put its last one; then call ``log_read``."""


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
    """Put a DATA slot with the rows of these messages, in this order, and an outcome; then call ``slot_put``."""

    number: int
    keys: tuple[MessageKey, ...]
    outcome: FinOutcome | None


@attrs.frozen
class FinishSlot:
    """Send a FIN for each message and wait for the barrier of each connection; then call ``slot_finished``."""

    number: int
    keys: tuple[MessageKey, ...]


@attrs.frozen
class PutSeal:
    """Put a SEAL slot; then call ``seal_put``."""

    number: int
    seal: SealSlot


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
    ReadLog | Receive | Touch | LookUp | Requeue | FinishDuplicates | PutSlot | FinishSlot | PutSeal | Replay
)


class Phase(enum.Enum):
    """The result that a log waits for."""

    START = "start"
    LOG = "log_read"
    CHUNK = "receive_chunk or seal"
    TOUCH = "touched"
    LOOK_UP = "looked_up"
    SLOT = "slot_put"
    FINISH = "slot_finished"
    SEAL = "seal_put"
    ENDED = "nothing"


class SlotLog:
    """One attempt's view of the log of its partition.

    Attributes:
        phase: the result that it waits for.
        counts: of the slots that this attempt put.
        duplicate_count: messages that were finished because a slot has them.
        requeued_count: messages that were requeued.
    """

    def __init__(self) -> None:
        self.phase = Phase.START
        self.counts = RowCounts()
        self.duplicate_count = self.requeued_count = 0
        self._may_receive = True
        self._next_number = 0
        self._chunk: tuple[MessageKey, ...] = ()
        self._redelivered: frozenset[MessageKey] = frozenset()
        # Of the slot before the next one, until the outcome is stored.
        self._outcome: FinOutcome | None = None
        self._finished: tuple[MessageKey, ...] = ()

    def start(self) -> list[Action]:
        """Begin: the log of an earlier attempt is replayed, an empty one is filled."""
        self._enter(Phase.START, Phase.LOG)
        return [ReadLog()]

    def log_read(self, slots: Sequence[Slot]) -> list[Action]:
        """Continue after ``ReadLog``.

        Args:
            slots: slots 0, 1, …, up to the first number that is absent.

        Raises:
            ProtocolError: a slot follows the seal, or has no outcome of the slot before it.
        """
        self._enter(Phase.LOG)
        data = [slot for slot in slots if isinstance(slot, DataSlot)]
        if any(slot.outcome is None for slot in slots[1:]):
            raise ProtocolError(f"the log has {len(slots)} slots, and one lacks the outcome of the slot before it")
        if len(data) < len(slots):
            if len(data) != len(slots) - 1 or not isinstance(slots[-1], SealSlot):
                raise ProtocolError(f"the log has {len(slots)} slots, and the seal is not its only last one")
            return self._replay(data, slots)
        if not slots and self._may_receive:
            return self._receive()
        self.phase = Phase.SEAL
        return [PutSeal(len(data), _seal_of_another(data))]

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
        presence = {**presence, **dict.fromkeys(self._finished, Presence.INCLUDED)}
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
            # Another attempt may have begun this log, and have the messages: to put an empty slot shows that. Otherwise
            # nsqd would deliver them without end, and this attempt would not end.
            return actions + self._put_slot()
        return actions + self._put_chunk()

    def slot_put(self, *, stored: bool) -> list[Action]:
        """Continue after ``PutSlot``; ``stored`` is False if the slot exists: another attempt has ended this one."""
        self._enter(Phase.SLOT)
        if not stored:
            chunk, self._chunk = self._chunk, ()
            return [*self._requeue(chunk, delayed=False), *self._read_for_replay()]
        if self._chunk:
            self.phase = Phase.FINISH
            return [FinishSlot(self._next_number, self._chunk)]
        self._next_number += 1
        self._outcome = FinOutcome()
        return self._receive()

    def slot_finished(self, *, failed: Collection[MessageKey], ambiguous: bool) -> list[Action]:
        """Continue after ``FinishSlot``.

        Args:
            failed: messages whose FIN was answered with E_FIN_FAILED before the barrier.
            ambiguous: whether a connection ended before its barrier.
        """
        self._enter(Phase.FINISH)
        outcome = FinOutcome(frozenset(self._chunk).intersection(failed) if failed else frozenset(), ambiguous)
        self.counts = self.counts.with_slot(len(self._chunk), outcome)
        self._outcome = outcome
        self._next_number += 1
        if outcome == FinOutcome():
            self._finished = self._chunk
            return self._receive()
        self._finished = self._chunk = ()
        return self._put_slot()

    def seal(self) -> list[Action]:
        """End the log because the partition stops, after ``Receive``."""
        self._enter(Phase.CHUNK, Phase.SEAL)
        self._may_receive = False
        return [PutSeal(self._next_number, SealSlot(self._outcome, self.counts))]

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
        return self._put_slot() if self._chunk else self._receive()

    def _put_slot(self) -> list[Action]:
        self.phase = Phase.SLOT
        return [PutSlot(self._next_number, self._chunk, self._outcome)]

    def _requeue(self, keys: tuple[MessageKey, ...], *, delayed: bool) -> list[Action]:
        self.requeued_count += len(keys)
        return [Requeue(keys, delayed)] if keys else []

    def _read_for_replay(self) -> list[Action]:
        self._may_receive = False
        self.phase = Phase.LOG
        return [ReadLog()]

    def _replay(self, data: Sequence[DataSlot], slots: Sequence[Slot]) -> list[Action]:
        self._may_receive = False
        self.phase = Phase.ENDED
        outcomes = [slot.outcome for slot in slots[1:] if slot.outcome is not None]
        rows = [
            ReplaySlot(number, outcome.failed)
            for number, (slot, outcome) in enumerate(zip(data, outcomes, strict=True))
            if slot.keys
        ]
        return [Replay(tuple(rows))]


def _seal_of_another(data: Sequence[DataSlot]) -> SealSlot:
    """Return the seal of a log whose owner has not stored how its last slot ended."""
    if not data:
        return SealSlot()
    outcomes = [slot.outcome for slot in data[1:] if slot.outcome is not None]
    last = FinOutcome(ambiguous=bool(data[-1].keys))
    counts = RowCounts()
    for slot, outcome in zip(data, [*outcomes, last], strict=True):
        counts = counts.with_slot(len(slot.keys), outcome)
    return SealSlot(last, counts)
