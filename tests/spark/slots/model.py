"""A world of one topic, several attempts per partition and one store, in which a list of bytes chooses each step.

Each step is one action of one attempt, or an event: a kill, a retry, a speculative attempt, a stall, time that passes.
The model has nsqd's rules: a message in flight times out, is delivered again with one more attempt, and is finished by
its owner only. Nothing is requeued when an owner dies. ``run`` performs the steps, then lets every task end without
further faults, batch after batch, until no message is left, and counts the rows of the final replays.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from nsqkit.spark.slots.dedupe import DedupeIndex, Presence
from nsqkit.spark.slots.records import DataSlot, MessageKey, Slot
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
    Requeue,
    SlotLog,
    Touch,
)

CHUNK_MAX: Final = 3
PARTITIONS: Final = 3
STEPS_MAX: Final = 20_000


@attrs.frozen
class Faults:
    """The events that a world has, besides steps of attempts.

    Attributes:
        kills: attempts are killed at any action; the task is tried again.
        speculation: a second attempt runs beside a live one.
        stalls: messages of a live owner time out.
        broken_connections: a barrier gets no answer, though its FINs may have arrived.
    """

    kills: bool = False
    speculation: bool = False
    stalls: bool = False
    broken_connections: bool = False


@attrs.frozen
class Outcome:
    """What Spark got.

    Attributes:
        lost_count: messages without a row.
        duplicate_count: rows beyond the first of a message.
        unequal_count: replays that differ from another one of their partition.
        events: how often each kind of event occurred.
    """

    lost_count: int
    duplicate_count: int
    unequal_count: int
    events: Counter[str]


@attrs.define(eq=False)
class Message:
    key: MessageKey
    attempts: int = 0
    owner: Attempt | None = None
    finished: bool = False


@attrs.define(eq=False)
class Nsqd:
    """The queue of one channel."""

    messages: dict[MessageKey, Message]
    queue: deque[Message] = attrs.field(factory=deque)

    def deliver(self, owner: Attempt, count: int) -> list[Message]:
        chunk = [self.queue.popleft() for _ in range(min(count, len(self.queue)))]
        for message in chunk:
            message.attempts += 1
            message.owner = owner
        return chunk

    def finish(self, owner: Attempt, key: MessageKey) -> bool:
        message = self.messages[key]
        if message.owner is not owner:
            return False
        message.owner, message.finished = None, True
        return True

    def requeue(self, owner: Attempt, key: MessageKey) -> None:
        if self.messages[key].owner is owner:
            self._queue_again(self.messages[key])

    def time_out(self, owner: Attempt) -> int:
        timed_out = [message for message in self.messages.values() if message.owner is owner]
        for message in timed_out:
            self._queue_again(message)
        return len(timed_out)

    def _queue_again(self, message: Message) -> None:
        message.owner = None
        self.queue.append(message)


@attrs.define(eq=False)
class Log:
    """The stored slots of a partition of a batch."""

    slots: list[Slot] = attrs.field(factory=list)

    def put(self, number: int, slot: Slot) -> bool:
        assert number <= len(self.slots), "a slot was put beyond a gap"
        if number < len(self.slots):
            return False
        self.slots.append(slot)
        return True


@attrs.define(eq=False)
class Attempt:
    """One attempt of a task: it performs the actions of its SlotLog, one a step."""

    task: Task
    log: SlotLog = attrs.field(factory=SlotLog)
    actions: deque[Action] = attrs.field(factory=deque)
    chunks_left: int = 3
    held_since: int = 0
    dead: bool = False

    def __attrs_post_init__(self) -> None:
        self.actions.extend(self.log.start())


@attrs.define(eq=False)
class Task:
    """A partition of a batch; it ends when one of its attempts has replayed."""

    name: str
    log: Log = attrs.field(factory=Log)
    attempts: list[Attempt] = attrs.field(factory=list)
    rows: list[MessageKey] | None = None

    @property
    def live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if not attempt.dead]


class World:
    """``PARTITIONS`` tasks for each batch, and the messages of one topic."""

    def __init__(self, message_count: int, faults: Faults, choices: Sequence[int], *, look_up: bool = True) -> None:
        keys = [MessageKey("n:1", "t", b"%016d" % number) for number in range(message_count)]
        self.nsqd = Nsqd({key: Message(key) for key in keys})
        self.nsqd.queue.extend(self.nsqd.messages.values())
        self.faults = faults
        self.choices: Iterator[int] = iter(choices)
        self.look_up = look_up
        self.tasks: list[Task] = []
        self.batch: list[Task] = []
        self.events: Counter[str] = Counter()
        self.unequal_count = 0
        self.settling = False

    def run(self) -> Outcome:
        """Take a step for each choice, then steps without faults until every message is finished."""
        for choice in self.choices:
            self.step(choice)
        self.settling = True
        for _ in range(STEPS_MAX):
            if all(message.finished for message in self.nsqd.messages.values()) and all(
                task.rows is not None and not task.live for task in self.batch
            ):
                return self._outcome()
            self._settle()
        raise AssertionError("the world does not come to an end")

    def step(self, choice: int) -> None:
        """Perform the event or the attempt's action that a choice from 0 to 255 names."""
        self._begin_batch()
        kind, operand = min(choice // 5, 7), choice % 16
        task = self.batch[operand % len(self.batch)]
        live = task.live
        attempt = live[operand // 2 % len(live)] if live else None
        if kind == 0 and self.faults.kills and attempt:
            self._kill(attempt)
        elif kind == 1 and task.rows is None and (self.faults.speculation or not live):
            self.events["speculation" if live else "retry"] += 1
            task.attempts.append(Attempt(task))
        elif kind == 2 and self.faults.stalls and attempt:
            self.events["stall"] += self.nsqd.time_out(attempt) > 0
        elif kind in (3, 4) and task.attempts:
            dead = [attempt for attempt in task.attempts if attempt.dead]
            self.events["timeout of a dead owner"] += sum(self.nsqd.time_out(attempt) for attempt in dead) > 0
        elif attempt:
            self._advance(attempt, operand)

    def _settle(self) -> None:
        self._begin_batch()
        for task in self.batch:
            if task.rows is None and not task.live:
                task.attempts.append(Attempt(task))
            for attempt in task.live:
                self._advance(attempt, 15)
        for task in self.tasks:
            for attempt in task.attempts:
                if attempt.dead:
                    self.nsqd.time_out(attempt)

    def _begin_batch(self) -> None:
        """Plan the next batch once the tasks of this one have ended; attempts of an ended task may run on."""
        if all(task.rows is not None for task in self.batch):
            zombies = [task for task in self.batch if task.live]
            if self.settling and zombies:
                return
            self.batch = [*zombies, *(Task(f"{len(self.tasks)}-{k}") for k in range(PARTITIONS))]
            self.tasks += self.batch[len(zombies) :]
            for task in self.batch[len(zombies) :]:
                task.attempts.append(Attempt(task))

    def _kill(self, attempt: Attempt) -> None:
        self.events["kill"] += 1
        attempt.dead = True

    def _advance(self, attempt: Attempt, operand: int) -> None:
        action = attempt.actions.popleft()
        log, stored = attempt.log, attempt.task.log
        more: list[Action] = []
        match action:
            case ReadLog():
                more = log.log_read(list(stored.slots))
            case Receive():
                more = self._receive(attempt, operand)
            case Touch(keys):
                more = log.touched([key for key in keys if self.nsqd.messages[key].owner is not attempt])
            case LookUp(keys):
                more = log.looked_up(self._presence(keys))
            case Requeue(keys):
                for key in keys:
                    self.nsqd.requeue(attempt, key)
            case FinishDuplicates(keys):
                self.events["duplicate dropped"] += 1
                for key in keys:
                    self.nsqd.finish(attempt, key)
            case PutSlot(number, keys, outcome):
                self.events["slot" if keys else "outcome alone"] += 1
                more = log.slot_put(stored=stored.put(number, DataSlot(keys, b"", outcome)))
            case FinishSlot():
                more = self._finish(attempt, action, operand)
            case PutSeal(number, seal):
                more = log.seal_put(stored=stored.put(number, seal))
            case Replay():
                self._end(attempt, action)
        attempt.actions.extend(more)

    def _receive(self, attempt: Attempt, operand: int) -> list[Action]:
        chunk = self.nsqd.deliver(attempt, 1 + operand % CHUNK_MAX) if attempt.chunks_left else []
        attempt.chunks_left -= 1
        if not chunk:
            return attempt.log.seal()
        redelivered = [message.key for message in chunk if message.attempts > 1]
        keys = [message.key for message in chunk]
        return attempt.log.receive_chunk(keys, redelivered if self.look_up else [], touch=operand > 7)

    def _finish(self, attempt: Attempt, action: FinishSlot, operand: int) -> list[Action]:
        """Send the FINs: all, or some and then the owner dies or its connection breaks."""
        breaks = operand < 3 and not self.settling
        sent = action.keys[: operand % (len(action.keys) + 1)] if breaks else action.keys
        killed = breaks and self.faults.kills
        broken = breaks and not killed and self.faults.broken_connections
        if not (killed or broken):
            sent = action.keys
        failed = [key for key in sent if not self.nsqd.finish(attempt, key)]
        if killed:
            self.events["kill among FINs"] += 1
            self._kill(attempt)
            return []
        if broken:
            self.events["broken connection"] += 1
            # The connection's messages stay in flight until they time out; the attempt's next ones have a new one.
            self._leave_in_flight(attempt, action.keys)
        return attempt.log.slot_finished(failed=failed, ambiguous=broken)

    def _leave_in_flight(self, attempt: Attempt, keys: Sequence[MessageKey]) -> None:
        connection = Attempt(attempt.task, dead=True)
        attempt.task.attempts.append(connection)
        for key in keys:
            if self.nsqd.messages[key].owner is attempt:
                self.nsqd.messages[key].owner = connection

    def _presence(self, keys: Sequence[MessageKey]) -> dict[MessageKey, Presence]:
        index = DedupeIndex()
        slots = {}
        for task in self.tasks:
            for number, slot in enumerate(task.log.slots):
                name = f"{task.name}/{number}"
                slots[name] = slot.keys if isinstance(slot, DataSlot) else ()
                index.add_slot(name, slots[name])
                if slot.outcome is not None:
                    index.decide(f"{task.name}/{number - 1}", slot.outcome)
        return index.look_up(keys, slots.__getitem__)

    def _end(self, attempt: Attempt, replay: Replay) -> None:
        task = attempt.task
        rows: list[MessageKey] = []
        for entry in replay.slots:
            slot = task.log.slots[entry.number]
            assert isinstance(slot, DataSlot)
            rows += [key for key in slot.keys if key not in entry.excluded]
        self.unequal_count += task.rows is not None and task.rows != rows
        task.rows = rows
        attempt.dead = True

    def _outcome(self) -> Outcome:
        counts = Counter(key for task in self.tasks for key in task.rows or [])
        return Outcome(
            lost_count=sum(key not in counts for key in self.nsqd.messages),
            duplicate_count=sum(count - 1 for count in counts.values()),
            unequal_count=self.unequal_count,
            events=self.events,
        )
