"""The work of one partition: receive messages, make them safe, and finish them, until the partition stops.

        drain_to_slots     store a chunk in the slot log, then FIN     each message in one batch, which can be replayed
        drain_to_handler   call a handler with a chunk, then FIN       at least once
        receive_rows       FIN, then return the rows                   at most once

Each is one attempt of a task, and blocks. It has an event loop of its own, in which the consumers receive, answer
heartbeats and touch messages; stores and handlers are called in a thread. All FINs are confirmed. At the end, messages
that were received and not finished are requeued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

import anyio
import attrs
from anyio.to_thread import run_sync

from nsqkit.clock import NS_PER_S, Clock, LoopClock
from nsqkit.consumer import Message
from nsqkit.errors import OptionError
from nsqkit.spark.batch_plan import PartitionShare
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.reception import Reception, receiving
from nsqkit.spark.schema import MessageRow, encode_messages, message_row
from nsqkit.spark.slots.records import DataSlot, MessageKey, SealSlot, Slot, make_keys
from nsqkit.spark.slots.slot_log import (
    Action,
    FinishDuplicates,
    FinishSlot,
    LookUp,
    PutSeal,
    PutSlot,
    ReadLog,
    Receive,
    Replay,
    ReplaySlot,
    SlotLog,
    Touch,
)
from nsqkit.spark.slots.slot_log import (
    Requeue as RequeueMessages,
)
from nsqkit.spark.slots.wal import PartitionWal

OPEN_DELAY: Final = 1.0
"""Seconds after which a message comes back whose row is in a slot without a known outcome of its FINs."""

POLL: Final = 0.1
"""Seconds between two looks at a log that another attempt may fill."""


@attrs.frozen
class Finish:
    """The message is done: nsqd drops it."""


@attrs.frozen
class Requeue:
    """The message is not done: nsqd delivers it again.

    Attributes:
        delay: seconds until the next delivery; None for 90 seconds times its attempts, at most 900.
    """

    delay: float | None = None


Ack: TypeAlias = Finish | Requeue
FINISH: Final = Finish()

Handler: TypeAlias = Callable[[list[MessageRow]], Sequence[Ack] | None]
"""Called with each chunk: one or more messages, in order of arrival. None finishes all of them."""


@attrs.frozen(kw_only=True)
class PartitionStats:
    """The figures of a partition, from the attempt that succeeded.

    Attributes:
        partition: its number.
        received_count: messages received.
        finished_count: messages that nsqd has finished, duplicates and dead letters not counted.
        finish_failed_count: messages whose FIN nsqd refused, mostly because they had timed out; it delivers them again.
        requeued_count: messages that were requeued, including those that arrived after the last chunk.
        touched_count: TOUCH commands.
        duplicate_count: messages that were finished because a slot has their rows.
        dead_letter_count: messages that were published to ``dead_letter_topic`` and finished.
        unreachable_count: planned connections that were never subscribed.
        chunk_count: chunks processed.
        byte_count: bytes of the bodies of all chunks and dead letters.
        seconds: from start to end.
        stop_reason: why it ended; None if it replayed the slots of an earlier attempt and received nothing.
    """

    partition: int
    received_count: int = 0
    finished_count: int = 0
    finish_failed_count: int = 0
    requeued_count: int = 0
    touched_count: int = 0
    duplicate_count: int = 0
    dead_letter_count: int = 0
    unreachable_count: int = 0
    chunk_count: int = 0
    byte_count: int = 0
    seconds: float = 0.0
    stop_reason: StopReason | None = None


def drain_to_slots(
    spec: ConsumerSpec, share: PartitionShare, partition_wal: PartitionWal
) -> tuple[tuple[ReplaySlot, ...], PartitionStats]:
    """Fill or replay the log of a partition, and return the slots whose rows are those of the partition.

    Every attempt returns the same slots. One that finds slots in the log does not connect. If another attempt may fill
    the log, as for a frame that a job uses twice, it waits until that one has put no slot for as long as it may wait
    for messages, ``msg_timeout`` at most; then it seals the log. A stream's attempt seals it at once, because the next
    batch has the other messages.

    Args:
        spec: the channel and the limits.
        share: this partition's share.
        partition_wal: its log.

    Raises:
        NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
        ProtocolError: the log is not readable.
        Exception: the exception of the store.
    """
    return anyio.run(drain_to_slots_async, spec, share, partition_wal)


def drain_to_handler(spec: ConsumerSpec, share: PartitionShare, handler: Handler) -> PartitionStats:
    """Call a handler with each chunk, and then finish its messages.

    Args:
        spec: the channel and the limits.
        share: this partition's share.
        handler: called in a thread. It returns None, or an ``Ack`` for each message. An exception ends the partition:
            the chunk and all messages that were received after it are requeued at once.

    Raises:
        NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
        OptionError: the handler returned something else.
        Exception: the exception of ``handler``.
    """
    return anyio.run(drain_to_handler_async, spec, share, handler)


def receive_rows(spec: ConsumerSpec, share: PartitionShare) -> tuple[list[MessageRow], PartitionStats]:
    """Finish messages on receipt, and return those that nsqd has finished.

    Args:
        spec: the channel and the limits.
        share: this partition's share.

    Raises:
        NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
    """
    return anyio.run(receive_rows_async, spec, share)


async def drain_to_slots_async(
    spec: ConsumerSpec, share: PartitionShare, partition_wal: PartitionWal, clock: Clock | None = None
) -> tuple[tuple[ReplaySlot, ...], PartitionStats]:
    """Do as ``drain_to_slots`` in the running event loop; the clock is for tests."""
    run = _Run(spec, share, clock)
    attempt = _SlotAttempt(partition_wal, run.clock, _gap_max(spec, share))
    end = await attempt.advance(Receive, Replay)
    if isinstance(end, Receive):
        async with receiving(spec, share, run.clock, attempt.find_stored) as attempt.reception:
            # One that then waits for another attempt has to requeue its messages before, as that one is to have them.
            await attempt.advance(ReadLog)
        end = await attempt.advance(Replay)
    assert isinstance(end, Replay)
    stats = run.stats(attempt.reception, chunk_count=attempt.chunk_count, duplicate_count=attempt.log.duplicate_count)
    return end.slots, stats


async def drain_to_handler_async(
    spec: ConsumerSpec, share: PartitionShare, handler: Handler, clock: Clock | None = None
) -> PartitionStats:
    """Do as ``drain_to_handler`` in the running event loop; the clock is for tests."""
    run = _Run(spec, share, clock)
    chunk_count = 0
    async with receiving(spec, share, run.clock) as reception:
        while chunk := await reception.next_chunk():
            acks = await run_sync(handler, [message_row(message) for message in chunk])
            done = chunk if acks is None else _apply(reception, chunk, acks)
            await reception.finish(done)
            chunk_count += 1
    return run.stats(reception, chunk_count=chunk_count)


async def receive_rows_async(
    spec: ConsumerSpec, share: PartitionShare, clock: Clock | None = None
) -> tuple[list[MessageRow], PartitionStats]:
    """Do as ``receive_rows`` in the running event loop; the clock is for tests."""
    run = _Run(spec, share, clock)
    rows: list[MessageRow] = []
    chunk_count = 0
    async with receiving(spec, share, run.clock) as reception:
        while chunk := await reception.next_chunk():
            confirmation = await reception.finish(chunk)
            # One whose connection was lost may not be finished, and would then be delivered once more.
            left = {id(message) for message in (*confirmation.failed, *confirmation.unknown)}
            rows += [message_row(message) for message in chunk if id(message) not in left]
            chunk_count += 1
    return rows, run.stats(reception, chunk_count=chunk_count)


class _Run:
    """The start of an attempt, and its figures at the end."""

    def __init__(self, spec: ConsumerSpec, share: PartitionShare, clock: Clock | None) -> None:
        self.clock = clock or LoopClock()
        self._start_ns = self.clock.now_ns()
        self._share = share

    def stats(self, reception: Reception | None, *, chunk_count: int, duplicate_count: int = 0) -> PartitionStats:
        seconds = (self.clock.now_ns() - self._start_ns) / NS_PER_S
        if reception is None:
            return PartitionStats(partition=self._share.index, seconds=seconds)
        totals = [consumer.stats() for consumer in reception.consumers.values()]
        return PartitionStats(
            partition=self._share.index,
            received_count=sum(total.received for total in totals),
            finished_count=reception.counts.finished,
            finish_failed_count=reception.counts.finish_failed,
            requeued_count=sum(total.requeued for total in totals),
            touched_count=sum(total.touched for total in totals),
            duplicate_count=duplicate_count,
            dead_letter_count=reception.counts.dead_letters,
            unreachable_count=len(self._share.connections) - reception.subscribed_count,
            chunk_count=chunk_count,
            byte_count=reception.chunker.taken_bytes,
            seconds=seconds,
            stop_reason=reception.stop_reason,
        )


def _gap_max(spec: ConsumerSpec, share: PartitionShare) -> float:
    """Return the most seconds between two slots of an attempt that is alive; 0 if none has to be waited for."""
    if spec.stop_after_linger or not share.connections:
        return 0.0
    waits = [wait for wait in (spec.empty_for, spec.deadline) if wait is not None]
    return min([spec.msg_timeout, *(2 * (wait + spec.linger) for wait in waits)])


class _SlotAttempt:
    """Performs the actions of a slot log; ``reception`` is set when the log is to be filled."""

    def __init__(self, partition_wal: PartitionWal, clock: Clock, gap_max: float) -> None:
        self.log = SlotLog()
        self.reception: Reception | None = None
        self.chunk_count = 0
        self._wal = partition_wal
        self._clock = clock
        self._gap_max_ns = round(gap_max * NS_PER_S)
        self._actions: deque[Action] = deque(self.log.start())
        self._messages: dict[MessageKey, Message] = {}

    async def advance(self, *ends: type[Action]) -> Action:
        """Perform actions up to the first one of certain types, and return that."""
        while not isinstance(action := self._actions[0], ends):
            self._actions.popleft()
            self._actions.extend(await self._perform(action))
        return action

    async def find_stored(self, messages: list[Message]) -> list[Message]:
        """Return those of the messages that are in a slot."""
        keys = _keys(messages)
        presence = await run_sync(self._wal.wal.look_up, keys)
        return [message for message, key in zip(messages, keys, strict=True) if key in presence]

    async def _perform(self, action: Action) -> list[Action]:
        log, wal = self.log, self._wal
        match action:
            case ReadLog():
                return log.log_read(await self._read_log())
            case LookUp(keys):
                return log.looked_up(await run_sync(wal.wal.look_up, keys))
            case PutSlot():
                return log.slot_put(stored=await run_sync(self._put_slot, action))
            case PutSeal(number, seal):
                return log.seal_put(stored=await run_sync(wal.put_seal, number, seal))
        assert self.reception is not None
        return await self._perform_by(self.reception, action)

    async def _read_log(self) -> list[Slot]:
        """Return the slots when the log is sealed or empty, or has not grown for the longest gap."""
        slots: list[Slot] = []
        until_ns = 0
        while True:
            found = await run_sync(self._wal.read_log, slots)
            now_ns = self._clock.now_ns()
            if len(found) > len(slots):
                slots, until_ns = found, now_ns + self._gap_max_ns
            if not slots or isinstance(slots[-1], SealSlot) or now_ns >= until_ns:
                return slots
            await self._clock.wait_until(now_ns + round(POLL * NS_PER_S))

    async def _perform_by(self, reception: Reception, action: Action) -> list[Action]:
        log = self.log
        match action:
            case Receive():
                return await self._receive(reception)
            case Touch(keys):
                touched = await reception.touch(self._of(keys))
                return log.touched(_keys([*touched.failed, *touched.unknown]))
            case RequeueMessages(keys, delayed):
                reception.requeue(self._of(keys), OPEN_DELAY if delayed else 0.0)
            case FinishDuplicates(keys):
                for message in self._of(keys):
                    if not message.is_answered:
                        message.finish()
            case FinishSlot(_, keys):
                outcome = await reception.finish(self._of(keys))
                self._messages = {}  # their bodies would stay in memory beside the next chunk
                return log.slot_finished(failed=_keys(outcome.failed), ambiguous=bool(outcome.unknown))
        return []

    async def _receive(self, reception: Reception) -> list[Action]:
        chunk = await reception.next_chunk()
        if not chunk:
            return self.log.seal()
        self.chunk_count += 1
        keys = _keys(chunk)
        # Of a message that arrived twice the later delivery counts.
        self._messages = dict(zip(keys, chunk, strict=True))
        redelivered = [key for key, message in self._messages.items() if message.attempts > 1]
        return self.log.receive_chunk(keys, redelivered, touch=reception.is_touch_due(chunk))

    def _put_slot(self, action: PutSlot) -> bool:
        payload = encode_messages(self._of(action.keys)) if action.keys else b""
        return self._wal.put_slot(action.number, DataSlot(action.keys, payload, action.outcome))

    def _of(self, keys: Iterable[MessageKey]) -> list[Message]:
        return [self._messages[key] for key in keys]


def _keys(messages: Iterable[Message]) -> list[MessageKey]:
    keys: list[MessageKey] = []
    for session, run in groupby(messages, attrgetter("session")):
        keys += make_keys(session.address, session.subscription.topic, map(attrgetter("id"), run))
    return keys


def _apply(reception: Reception, chunk: Sequence[Message], acks: object) -> list[Message]:
    """Requeue messages as the handler says, and return the others."""
    if not isinstance(acks, Sequence) or not all(isinstance(ack, Finish | Requeue) for ack in acks):
        raise OptionError(
            f"the handler returned {acks!r:.100}; allowed is None, or a list with an Ack for each message"
        )
    if len(acks) != len(chunk):
        raise OptionError(
            f"the handler returned {len(acks)} Acks for {len(chunk)} messages; allowed is None, or one for each message"
        )
    for message, ack in zip(chunk, acks, strict=True):
        if isinstance(ack, Requeue):
            reception.requeue([message], ack.delay)
    return [message for message, ack in zip(chunk, acks, strict=True) if isinstance(ack, Finish)]
