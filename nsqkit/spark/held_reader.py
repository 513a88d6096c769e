"""A stream with ``ackMode=commit``: one consumer in the driver's process holds the messages of a batch.

        consumers ─▶ waiting ─▶ latestOffset: batch n, held and touched ─▶ tasks with the rows ─▶ latestOffset(n): FIN

Spark passes the end of a batch to ``latestOffset`` when the batch is in its checkpoint, so this finishes its messages;
``commit`` would be later, and is not called for the last batch. The rows travel in the tasks, so no directory is
shared. A batch has at most ``max_in_flight`` rows. After a restart the messages of an unfinished batch are delivered
again, in later batches: at least once.

Held messages are touched, up to nsqd's ``--max-msg-timeout`` of 15 minutes, so a batch has to end within that time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import attrs
from anyio.from_thread import start_blocking_portal

from nsqkit.clock import NS_PER_S, Clock, LoopClock, move_on_after
from nsqkit.consumer import Consumer, Message
from nsqkit.errors import NSQError
from nsqkit.spark.admission import Backlog, Cluster
from nsqkit.spark.batch_plan import batch_limits
from nsqkit.spark.dead_letters import publish_dead_letters
from nsqkit.spark.read_task import ReadTask, row_keys
from nsqkit.spark.schema import RowNumbers, encode_payload, message_row, record_batches
from nsqkit.spark.slots.records import MessageKey
from nsqkit.spark.stream_offset import Offset, mode_offset, read_mode_offset
from nsqkit.spark.stream_reader import Pacer

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqkit.spark.options import ConsumerSpec
    from nsqkit.spark.source_options import SourceOptions

MODE: Final = "commit"

TOUCHES_PER_TIMEOUT: Final = 3

PARTITIONS: Final = 2
"""Tasks of a batch by default: one connection set feeds all of them, so the number of nsqds does not matter."""


@attrs.frozen
class HeldTask:
    """Rows of a batch that the driver holds.

    Attributes:
        batch: the batch.
        partition: its number among the batch's tasks.
        keys: the message of each row.
        payload: the rows.
    """

    batch: int
    partition: int
    keys: tuple[MessageKey, ...]
    payload: bytes = attrs.field(repr=False)

    def read(self, spec: ConsumerSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        del spec
        return record_batches(self.payload, self.keys, frozenset(), RowNumbers(self.batch, self.partition))


class HeldMessages:
    """The messages that were received and not finished, in an event loop.

    Attributes:
        waiting: messages that are in no batch, oldest first.
        batches: the messages of each batch that is not finished, by the offset that ends it.
        consumers: the consumer of each topic.
    """

    def __init__(self, spec: ConsumerSpec, clock: Clock) -> None:
        self.waiting: deque[Message] = deque()
        self.batches: dict[int, list[Message]] = {}
        self.consumers: dict[str, Consumer] = {}
        self._spec = spec
        self._clock = clock
        self._waiting_bytes = 0
        self._arrived = anyio.Event()
        self._error: NSQError | None = None

    async def gather(self, consumer: Consumer) -> None:
        """Collect the messages of a consumer. Its error is raised by ``hold``."""
        try:
            async for batch in consumer.batches():
                self.waiting.extend(batch)
                self._waiting_bytes += sum(len(message.body) for message in batch)
                self._arrived.set()
        except NSQError as error:
            self._error = error
            self._arrived.set()

    async def wait_connected(self) -> None:
        """Return when each nsqd has answered the subscription, or after ``connect_timeout``."""
        with move_on_after(self._clock, self._spec.connect_timeout):
            for consumer in self.consumers.values():
                await consumer.wait_connected()

    async def touch(self) -> None:
        """Touch all messages, again and again."""
        interval_ns = round(self._spec.msg_timeout * NS_PER_S / TOUCHES_PER_TIMEOUT)
        while True:
            await self._clock.wait_until(self._clock.now_ns() + interval_ns)
            for messages in (self.waiting, *self.batches.values()):
                for message in messages:
                    if not message.is_answered:
                        message.touch()

    async def finish(self, end: int) -> None:
        """Finish the messages of the batches up to ``end``, and return when the nsqds have processed that."""
        ended = [self.batches.pop(number) for number in list(self.batches) if number <= end]
        await self._finish([message for batch in ended for message in batch])

    async def _finish(self, messages: Sequence[Message]) -> None:
        for topic, consumer in self.consumers.items() if messages else ():
            # nsqd delivers a message again that was lost or timed out meanwhile.
            await consumer.finish_confirmed(
                [message for message in messages if message.topic == topic and not message.is_answered]
            )

    async def hold(self, end: int, records_max: int | None, bytes_max: int | None) -> int:
        """Make a batch of the messages that arrive until it is full, or until ``linger`` has passed; return its rows.

        Args:
            end: the offset that ends the batch.
            records_max: rows at most; None for no limit besides ``max_in_flight``.
            bytes_max: bytes of bodies after which the batch is full; None for no limit.

        Raises:
            NSQError: a consumer cannot continue.
        """
        most = min(self._spec.max_in_flight, records_max or self._spec.max_in_flight)
        most_bytes = bytes_max or math.inf
        with move_on_after(self._clock, self._spec.linger):
            while len(self.waiting) < most and self._waiting_bytes < most_bytes and self._error is None:
                self._arrived = anyio.Event()
                await self._arrived.wait()
        if self._error is not None:
            raise self._error
        batch: list[Message] = []
        size = 0
        while self.waiting and len(batch) < most and size < most_bytes:
            message = self.waiting.popleft()
            self._waiting_bytes -= len(message.body)
            if not message.is_answered:
                batch.append(message)
                size += len(message.body)
        if self._spec.max_attempts:
            await self._finish(await publish_dead_letters(self._spec, batch, self._clock))
            batch = [message for message in batch if message.attempts <= self._spec.max_attempts]
        if batch:
            self.batches[end] = batch
        return len(batch)


@asynccontextmanager
async def hold_messages(spec: ConsumerSpec, clock: Clock | None = None) -> AsyncIterator[HeldMessages]:
    """Consume for a stream. At the end, the messages that are not finished are requeued.

    Args:
        spec: the topics and the channel.
        clock: the time; by default the real one.
    """
    clock = clock or LoopClock()
    held = HeldMessages(spec, clock)
    shares = _shares(spec.max_in_flight, len(spec.topics))
    async with AsyncExitStack() as stack:
        for topic, share in zip(spec.topics, shares, strict=True):
            keywords = spec.consumer_keywords(with_lookup=True)
            keywords["max_in_flight"] = share
            consumer = Consumer(
                topic,
                spec.channel,
                nsqd_tcp_addresses=spec.nsqd_tcp_addresses,
                lookupd_http_addresses=spec.lookupd_http_addresses,
                clock=clock,
                **keywords,
            )
            held.consumers[topic] = await stack.enter_async_context(consumer)
        async with anyio.create_task_group() as tasks:
            for consumer in held.consumers.values():
                tasks.start_soon(held.gather, consumer)
            tasks.start_soon(held.touch)
            yield held
            tasks.cancel_scope.cancel()


class HeldStream:
    """A stream with ``ackMode=commit``, in the process of one run of a query. Its consumers run in a thread.

    Args:
        options: of the stream.
        cluster: its nsqds.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster) -> None:
        self._spec = options.spec
        with ExitStack() as running:
            self._portal = running.enter_context(start_blocking_portal())
            self._held = running.enter_context(self._portal.wrap_async_context_manager(hold_messages(options.spec)))
            self._running = running.pop_all()
        self._cluster = cluster
        self._pacer = Pacer(options, self._backlog)
        self._is_available_now = False
        self._next_batch: int | None = None
        self._run_count = 0
        self._last_count: int | None = None

    def initial_offset(self) -> Offset:
        """Return the offset of a query without a checkpoint."""
        return mode_offset(MODE, 0)

    def begin_available_now(self) -> None:
        """Begin a run that ends when it has read the messages that are there now."""
        self._portal.call(self._held.wait_connected)
        self._pacer.begin_available_now()
        self._is_available_now = True

    def latest_offset(self, start: Offset, *, read_all: bool) -> Offset:
        """Finish the messages before ``start``, and return the end of the next batch; ``start`` if there is none.

        Args:
            start: the end of the last batch, which a checkpoint has.
            read_all: whether the trigger asks for one batch without limits.

        Raises:
            OptionError: the checkpoint is of another mode.
            NSQError: a consumer cannot continue.
        """
        batch = self._next_batch = read_mode_offset(MODE, start)
        self._portal.call(self._held.finish, batch)
        while batch + 1 not in self._held.batches:
            limits = batch_limits(self._spec)
            if self._is_available_now:
                found = self._pacer.next_limits(self._run_count, self._last_count, read_all=read_all)
                if found is None:
                    return start
                limits = found
            records_max, bytes_max = (None, None) if read_all else (limits.records_max, limits.bytes_max)
            self._last_count = self._portal.call(self._held.hold, batch + 1, records_max, bytes_max)
            self._run_count += self._last_count
            if not self._is_available_now and not self._last_count:
                return start
        return mode_offset(MODE, batch + 1)

    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]:
        """Return the rows of the batches between two offsets; none of those that another run of the query held."""
        first, stop = read_mode_offset(MODE, start), read_mode_offset(MODE, end)
        return [task for batch in range(first, stop) for task in self._batch_tasks(batch)]

    def report(self) -> Offset | None:
        """Return the figures for a query's progress; None before the first batch is decided."""
        if self._next_batch is None:
            return None
        held = sum(map(len, self._held.batches.values()))
        return {**mode_offset(MODE, self._next_batch), "held": held, "waiting": len(self._held.waiting)}

    def stop(self) -> None:
        """Requeue the messages that are not finished, and disconnect."""
        self._running.close()

    def _backlog(self) -> Backlog | None:
        found = self._cluster.backlog()
        if found is None:
            return None
        waiting = len(self._held.waiting)
        held = waiting + sum(map(len, self._held.batches.values()))
        return HeldBacklog(found.depth + waiting, max(found.in_flight - held, 0), found.deferred, found.finished_count)

    def _batch_tasks(self, batch: int) -> list[HeldTask]:
        rows = [message_row(message) for message in self._held.batches.get(batch + 1, ())]
        count = min(self._spec.partitions or PARTITIONS, len(rows))
        parts = [rows[index * len(rows) // count : (index + 1) * len(rows) // count] for index in range(count)]
        return [
            HeldTask(batch, index, row_keys(part), encode_payload(part, self._spec.channel))
            for index, part in enumerate(parts)
        ]


@attrs.frozen
class HeldBacklog:
    """The messages of a channel, with those that wait in this process as not in flight."""

    depth: int
    in_flight: int
    deferred: int
    finished_count: int


def _shares(total: int, count: int) -> list[int]:
    return [max(1, total // count + (index < total % count)) for index in range(count)]
