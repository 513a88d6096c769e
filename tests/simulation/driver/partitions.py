"""The players that consume as a partition of Spark does: one attempt of a task after the other, or several at once.

``nsqkit.spark.drainer`` runs in the event loop of the world. Its stores and handlers run in a thread. A player has one
of three ways, as the drainer:

        handler   a handler gets each chunk; some of its messages are requeued, and sometimes it fails
        rows      messages are finished, and returned as rows
        slots     batches, each of one task with one or more attempts; all of them return the same slots
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio

from nsqkit.errors import NotConnected
from nsqkit.spark import drainer
from nsqkit.spark.batch_plan import PartitionShare, PlannedConnection
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.reception import FIRST_DELIVERY, Reception
from nsqkit.spark.schema import MessageRow, message_row
from nsqkit.spark.slots.records import DataSlot, MessageKey
from nsqkit.spark.slots.wal import Wal
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.closing import Closing
from tests.simulation.driver.dead_letters import read_dead_letter
from tests.simulation.driver.giving_up import Failure
from tests.simulation.driver.history import OK, UNKNOWN, Publish, name_of
from tests.simulation.driver.network import HOST
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.partition_seams import REQUEUE_DELAY, rows_of
from tests.spark.slots.memory_store import MemoryStore

if TYPE_CHECKING:
    from nsqkit.consumer.confirmation import Confirmation
    from nsqkit.consumer.message import Message
    from nsqkit.spark.drainer import Ack, PartitionStats
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

PAUSE: Final = 0.2
"""Seconds between two attempts, or two batches."""
ROUNDING: Final = 1e-6
STORE_FAILURES: Final = ("before", "after")


def _key(message: Message) -> MessageKey:
    return MessageKey(message.nsqd_address, message.topic, message.id)


class _Store(MemoryStore):
    """A store that fails now and then until all faults have ended, before or after it has stored something."""

    def __init__(self, world: World, name: str, share: float) -> None:
        super().__init__()
        self._world = world
        self._share = share
        self._random = Random(f"{world.plan.seed}/{name}/store")

    def put_if_absent(self, key: str, *parts: bytes | memoryview) -> bool:
        how = ""
        if not self._world.healed.is_set() and self._random.random() < self._share:
            how = self._random.choice(STORE_FAILURES)
            self._world.note("the store fails %s it puts %s", how, key)
        if how == "before":
            raise Failure(key)
        is_stored = super().put_if_absent(key, *parts)
        if how:
            raise Failure(key)
        return is_stored


class PartitionPlayer:
    """One partition.

    Attributes:
        is_running: until the end of the world, and of its last attempt.
        is_connected: always, since an attempt ends without the nsqds that it does not reach.
    """

    is_connected = True

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.is_running = False
        self._world = world
        self._topic: str = options["topic"]
        self._channel: str = options["channel"]
        self._way: str = options.get("way", "handler")
        self._fates: list[str] = options.get("fates", ["finish"])
        nodes = list(options.get("nodes", ()))
        self._spec = ConsumerSpec(
            topics=self._topic,
            channel=self._channel,
            nsqd_tcp_addresses=[f"{node}:4150" for node in nodes],
            connection=options.get("connection", {}),
            **options.get("spec", {}),
        )
        rdy = options.get("rdy", 1)
        connections = tuple(PlannedConnection(address, self._topic, rdy) for address in self._spec.nsqd_tcp_addresses)
        limits = {name: options.get(name) for name in ("records_max", "bytes_max")}
        self._share = PartitionShare(index=0, connections=connections, **limits)
        self._wal = Wal(_Store(world, name, options.get("store_fails", 0.0)), "wal")
        if (dead := self._spec.dead_letter_topic) is not None:
            world.history.readers[dead] = partial(read_dead_letter, dead, has_envelope=True)
        if "thread_us" in options:
            world.threads.lasting[name] = (0.0, options["thread_us"] / 1e6)
        self._scopes: list[anyio.CancelScope] = []  # of the attempts
        self._attempts: anyio.abc.TaskGroup | None = None  # of the batch
        self._batch = 0
        self._slots: tuple[Any, ...] | None = None  # of the batch
        self._finished: set[MessageKey] = set()
        self._row_counts: dict[MessageKey, int] = {}
        self._chunks: list[list[MessageRow]] = []  # of the attempt
        self._dead_sizes: list[int] = []  # of the attempt
        self._finished_count = 0  # of the attempt
        self._requeued: dict[tuple[str, str], float] = {}  # when, by address and id
        self._busy_at = 0.0
        self._finishing: list[MessageRow] = []  # of the attempt: those whose FINs are not confirmed yet
        self._kept: list[MessageRow] = []  # of the attempt: those whose FINs are

    # ---- steps ---------------------------------------------------------------------------------------------------

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        if step.verb == "attempt" and self._attempts is not None and not self._world.healed.is_set():
            self._attempts.start_soon(self._attempt)
        elif step.verb == "kill" and self._scopes:
            self._scopes[step.values.get("which", 0) % len(self._scopes)].cancel()

    def heal(self) -> None:
        """Process chunks at once."""
        self._world.threads.lasting.pop(self.name, None)

    def unreturned(self) -> list[str]:
        """Return a line for each message that was finished, and for slots, that are not among the rows yet."""
        if self._way == "rows":
            return [f"{self.name} has {row} to return" for row in (*self._finishing, *self._kept)]
        if self._slots is not None and self._attempts is not None:  # another attempt of the batch has not ended
            return [f"{self.name} has {self._slots} to return"]
        return [f"{self.name} has finished {key} without a row" for key in self._finished - self._row_counts.keys()]

    # ---- attempts ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Play; return when the world has ended."""
        HOST.set(self.name)
        self.is_running = True
        while not self._world.is_over:
            if self._way == "slots":
                await self._run_batch()
            else:
                await self._attempt()
            await pass_time(PAUSE)
        self.is_running = False

    async def _run_batch(self) -> None:
        """Run attempts until one has slots, and all have ended."""
        self._slots = None
        while self._slots is None:
            async with anyio.create_task_group() as self._attempts:
                self._attempts.start_soon(self._attempt)
        self._attempts = None
        wal = self._wal.partition(self._batch, 0)
        for slot in self._slots:
            for row in rows_of(wal.read_slot(slot.number).payload):
                key = MessageKey(row.nsqd_address, row.topic, row.id.encode())
                if key not in slot.excluded:
                    self._row_counts[key] = self._row_counts.get(key, 0) + 1
                    is_exact = self._row_counts[key] == 1 or self._has_crashed(row)
                    conclude(32, is_exact, f"{key} has several rows")
                    self._world.history.done(self._topic, self._channel, self._deliver(row))
        self._batch += 1

    def _has_crashed(self, row: MessageRow) -> bool:
        """Return whether a broker may have forgotten that it has delivered a message."""
        node, history = row.nsqd_address.partition(":")[0], self._world.history
        return any(node in times for times in (history.losses, history.crashes, history.kills))

    async def _attempt(self) -> None:
        HOST.set(self.name)  # the step of a plan may have begun it
        world = self._world
        closing = Closing(world, self.name, 5.0)
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                stats = await self._drain()
            except NotConnected:
                if not (self._spec.fail_on_node_loss and world.history.trouble_count):
                    raise
                world.reached.add("partition without an nsqd")
            except Failure:
                world.reached.add("attempt fails")
            else:
                world.note("%s: %s", self.name, stats)
                self._check(stats)
        self._scopes.remove(scope)
        if not self._scopes:
            await closing.check_drained(self._topic, self._channel, self._scopes)

    async def _drain(self) -> PartitionStats:
        spec, share, clock = self._spec, self._share, make_clock()
        match self._way:
            case "handler":
                self._begin_attempt()
                return await drainer.drain_to_handler_async(spec, share, self._handle, clock)
            case "rows":
                return await self._receive_rows()
        partition_wal = self._wal.partition(self._batch, 0)
        slots, stats = await drainer.drain_to_slots_async(spec, share, partition_wal, clock)
        if self._slots is not None and slots != self._slots:
            raise Broken(33, f"an attempt of {self.name} returned {slots}, and another one {self._slots}")
        self._slots = slots
        return stats

    def _begin_attempt(self) -> None:
        self._chunks, self._dead_sizes, self._finishing, self._kept = [], [], [], []
        self._finished_count = 0

    async def _receive_rows(self) -> PartitionStats:
        self._begin_attempt()
        history, is_returned = self._world.history, False
        try:
            rows, stats = await drainer.receive_rows_async(self._spec, self._share, make_clock())
            is_returned = True
        finally:
            if not is_returned:  # they are lost: at most once
                for row in (row for rows in self._chunks for row in rows):
                    history.done(self._topic, self._channel, history.name(self._topic, row.body))
                self._finishing, self._kept = [], []
        kept, self._kept = self._kept, []
        conclude(32, rows == kept, f"{self.name} returned {rows}, and finished {kept}")
        for row in rows:
            name = self._deliver(row)
            history.done(self._topic, self._channel, name)
            key = (row.nsqd_address.partition(":")[0], row.id.encode())
            history.finish(self._topic, self._channel, name, key, self._world.loop.time())
        return stats

    def _deliver(self, row: MessageRow) -> str:
        node, history = row.nsqd_address.partition(":")[0], self._world.history
        name = history.deliver(self._topic, self._channel, node, row.id.encode(), row.body, row.attempts)
        waited = self._world.loop.time() - self._requeued.pop((row.nsqd_address, row.id), -math.inf)
        if waited < REQUEUE_DELAY - ROUNDING and self._is_calm:
            raise self._world.failed(Broken(16, f"{name} was requeued {waited:.3f} seconds ago"))
        return name

    @property
    def _is_calm(self) -> bool:
        return not self._world.history.trouble_count and not self._world.has_link_faults

    # ---- chunks --------------------------------------------------------------------------------------------------

    def _handle(self, rows: list[MessageRow]) -> Sequence[Ack] | None:
        self._check_chunk(rows)
        acks: list[Ack] = []
        names = [self._deliver(row) for row in rows]
        for name, row in zip(names, rows, strict=True):
            fate = "finish"
            if not self._world.healed.is_set():
                fate = Random(f"{self._world.plan.seed}/{self.name}/{name}/{row.attempts}").choice(self._fates)
            self._world.note("%s: %s attempt %d: %s", self.name, name, row.attempts, fate)
            if fate == "raise":
                raise Failure(name)
            acks.append(drainer.Requeue(REQUEUE_DELAY) if fate == "requeue" else drainer.FINISH)
        for name, row, ack in zip(names, rows, acks, strict=True):
            if ack is drainer.FINISH:
                self._world.history.done(self._topic, self._channel, name)
            else:
                self._requeued[row.nsqd_address, row.id] = self._world.loop.time()
        return None if all(ack is drainer.FINISH for ack in acks) else acks

    def finishing(self, messages: Sequence[Message]) -> None:
        """Check messages whose FINs are about to be sent."""
        if self._way == "rows":
            self._finishing = [message_row(message) for message in messages]
            self._check_chunk(self._finishing)
        elif self._way == "slots":
            keys = set(map(_key, messages))
            stored: set[MessageKey] = set()
            for number in range(self._batch + 1):
                slots = self._wal.partition(number, 0).read_log()
                stored.update(*(slot.keys for slot in slots if isinstance(slot, DataSlot)))
            if lost := keys - stored:
                raise self._world.failed(Broken(31, f"{lost} are in no slot"))
            self._finished |= keys

    def finished(self, reception: Reception, messages: Sequence[Message], confirmation: Confirmation) -> None:
        """Record the outcome of FINs."""
        self._finished_count += len(messages) - len(confirmation.failed) - len(confirmation.unknown)
        if (records_max := self._share.records_max) is not None:
            wanted = records_max - reception.chunker.taken_count
            limits = [each.stats().max_in_flight for each in reception.consumers.values()]
            conclude(6, max(limits) <= wanted, f"{self.name} wants {wanted} messages, and nsqds may deliver {limits}")
        if self._way == "rows":
            self._finishing = []
            left = {*confirmation.failed, *confirmation.unknown}
            self._kept += [message_row(message) for message in messages if message not in left]
            history = self._world.history
            for message in confirmation.unknown:  # it may be finished, and is not returned
                history.done(self._topic, self._channel, history.name(self._topic, message.body))
        self._finished.difference_update(map(_key, confirmation.failed))

    def publishing(self, messages: Sequence[Message]) -> None:
        """Record that dead letters are published of those of the messages that were delivered too often."""
        world, topic = self._world, self._spec.dead_letter_topic
        assert topic is not None
        for message in messages:
            name = f"{topic}/{name_of(message.body)}"
            if message.attempts <= self._spec.max_attempts:
                continue
            self._dead_sizes.append(len(message.body))
            if name not in world.history.publishes:
                begun, nodes = world.loop.time(), tuple(world.nodes)
                world.history.begin(Publish((name,), topic, nodes, begun, may_repeat=True)).outcome = UNKNOWN

    def published(self, messages: Sequence[Message]) -> None:
        """Record that nsqds have accepted the dead letters of messages."""
        history = self._world.history
        for message in messages:
            name = name_of(message.body)
            history.publishes[f"{self._spec.dead_letter_topic}/{name}"].outcome = OK
            history.done(self._topic, self._channel, name)
            self._finished.discard(_key(message))
            self._world.reached.add("dead letter of a partition")

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check_chunk(self, rows: list[MessageRow]) -> None:
        """Check the size of a chunk, and of all so far."""
        share = self._share
        chunk_max = max(1, sum(connection.max_in_flight for connection in share.connections) // 2)
        sizes = [len(row.body) for row in rows]
        self._chunks.append(rows)
        self._busy_at = self._world.loop.time()
        if not 0 < len(rows) <= chunk_max or sum(sizes[:-1]) >= self._spec.chunk_bytes:
            raise self._world.failed(Broken(6, f"{self.name} got a chunk of {sizes}"))
        total = sum(map(len, self._chunks))
        if share.records_max is not None and total > share.records_max:
            raise self._world.failed(Broken(6, f"{self.name} took {total} of {share.records_max} messages"))
        before = sum(self._byte_sizes()) - sizes[-1]
        if share.bytes_max is not None and before >= share.bytes_max:
            raise self._world.failed(Broken(6, f"{self.name} took more than {share.bytes_max} bytes: {before}"))

    def _empty_times(self) -> Iterator[float]:
        """Yield the times without messages each of which ends an attempt."""
        if self._spec.empty_for is not None:
            yield self._spec.empty_for
        if self._spec.stop_after_linger:
            yield max(self._spec.linger, FIRST_DELIVERY)

    def _byte_sizes(self) -> Iterator[int]:
        return (len(row.body) for rows in self._chunks for row in rows)

    def _check(self, stats: PartitionStats) -> None:
        """Check the figures of an attempt, and why it has ended."""
        share, spec = self._share, self._spec
        sizes = [*self._byte_sizes(), *self._dead_sizes]
        seconds_min = 0.0
        if stats.stop_reason is StopReason.DEADLINE:
            seconds_min = spec.deadline or 0.0
        elif stats.stop_reason is StopReason.EMPTY:
            seconds_min = min(self._empty_times())
        is_right = stats.seconds >= seconds_min - ROUNDING
        if stats.stop_reason is not None and (spec.fail_on_node_loss or self._is_calm):
            is_right &= stats.unreachable_count == 0
        if self._is_calm:
            answered = stats.finished_count + stats.duplicate_count + stats.dead_letter_count + stats.requeued_count
            is_right &= stats.received_count == answered
        if self._way != "slots":
            taken, size = len(sizes), sum(sizes)
            is_right &= (stats.chunk_count, stats.byte_count) == (len(self._chunks), size)
            is_right &= stats.finished_count == self._finished_count
            is_right &= stats.finished_count + stats.finish_failed_count <= taken <= stats.received_count
            if stats.stop_reason is StopReason.EMPTY and self._chunks:
                is_right &= self._world.loop.time() - self._busy_at >= seconds_min - ROUNDING
            is_right &= (stats.stop_reason is StopReason.COUNT) == (taken == share.records_max)
            if stats.stop_reason is StopReason.BYTES:
                is_right &= size >= (share.bytes_max or 0)
        conclude(13, is_right, f"{self.name} took {sizes}: {stats}")
