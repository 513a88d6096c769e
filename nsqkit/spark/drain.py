"""The work of one partition: receive, process and finish messages until the partition stops.

        Consumer.batches ─▶ Chunker ─▶ chunk ─▶ process, in a thread ─▶ FIN for the whole chunk ─▶ … ─▶ CLS, CLOSE_WAIT

A message is finished only after ``process`` has returned for its chunk. After an exception, a killed worker or a lost
connection before that, nsqd delivers the message again: each message is processed at least once. The end of the
consumer waits for CLOSE_WAIT from each nsqd, which follows all earlier commands, so every FIN has arrived when a task
is done.

Three tasks run at a time: one collects arriving messages, one touches unfinished ones, and ``_work`` takes chunks.
Processing runs in a thread, so that heartbeats are answered meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio
import anyio.to_thread
import attrs

from nsqkit.clock import NS_PER_S, Clock, LoopClock, move_on_after
from nsqkit.consumer import Consumer, Message
from nsqkit.errors import NotConnected, OptionError
from nsqkit.spark.batch_plan import PartitionShare
from nsqkit.spark.chunker import Bounds, Chunker, StopReason
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.schema import MessageRow, message_row

Process: TypeAlias = Callable[[Sequence[MessageRow]], object]
"""Called with each chunk: one or more messages, in order of arrival. When it returns, they are finished."""


@attrs.frozen(kw_only=True)
class PartitionStats:
    """The figures of a partition, from the attempt that succeeded.

    Attributes:
        partition: its number.
        finished_count: messages processed and finished.
        chunk_count: their chunks.
        byte_count: bytes of their bodies.
        seconds: from start to end.
        stop_reason: why it ended.
    """

    partition: int
    finished_count: int
    chunk_count: int
    byte_count: int
    seconds: float
    stop_reason: StopReason


def drain_partition(spec: ConsumerSpec, share: PartitionShare, process: Process) -> PartitionStats:
    """Consume a partition's share, in its own event loop.

    Args:
        spec: the channel and the limits.
        share: the connections and limits of this partition.
        process: called with each chunk, in a thread. An exception ends the partition: the chunk and all messages that
            were received after it are requeued at once.

    Raises:
        NotConnected: an nsqd could not be reached for ``connect_timeout`` seconds.
        Exception: the exception of ``process``.
    """
    return anyio.run(drain, spec, share, process)


async def drain(
    spec: ConsumerSpec, share: PartitionShare, process: Process, clock: Clock | None = None
) -> PartitionStats:
    """Consume a partition's share, as ``drain_partition``, in the running event loop; the clock is for tests."""
    return await Drain(spec, share, process, clock or LoopClock()).run()


class Drain:
    """The run of one partition."""

    def __init__(self, spec: ConsumerSpec, share: PartitionShare, process: Process, clock: Clock) -> None:
        self._spec = spec
        self._share = share
        self._process = process
        self._clock = clock
        keywords = spec.consumer_keywords()
        keywords["max_in_flight"] = _max_in_flight(share)
        self._consumer = Consumer(
            _topic(share),
            spec.channel,
            nsqd_tcp_addresses=[connection.nsqd_address for connection in share.connections],
            clock=clock,
            **keywords,
        )
        self._chunker: Chunker[Message] = Chunker(_bounds(spec, share), clock.now_ns())
        self._arrived = anyio.Event()
        self._chunk: list[Message] = []
        self._finished_count = self._chunk_count = self._byte_count = 0

    async def run(self) -> PartitionStats:
        """Consume until the partition stops."""
        error = stop_reason = None
        async with self._consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(self._gather)
            tasks.start_soon(self._touch)
            try:
                stop_reason = await self._work()
            except Exception as caught:
                # It is raised after the task group has ended, so that it is not wrapped in an exception group.
                error = caught
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
        assert stop_reason is not None
        return PartitionStats(
            partition=self._share.index,
            finished_count=self._finished_count,
            chunk_count=self._chunk_count,
            byte_count=self._byte_count,
            seconds=(self._clock.now_ns() - self._chunker.start_ns) / NS_PER_S,
            stop_reason=stop_reason,
        )

    async def _work(self) -> StopReason:
        await self._wait_connected()
        while True:
            now_ns = self._clock.now_ns()
            if chunk := self._chunker.take(now_ns):
                await self._process_chunk(chunk)
            elif (reason := self._chunker.stop_reason(now_ns)) is None:
                await self._wait_for_messages(self._chunker.next_deadline())
            elif reason is StopReason.EMPTY and self._consumer.unconnected:
                # A queue is not empty if its nsqd cannot be reached; the consumer connects again.
                await self._wait_connected()
            else:
                return reason

    async def _process_chunk(self, chunk: list[Message]) -> None:
        self._chunk = chunk
        rows = [message_row(message) for message in chunk]
        await anyio.to_thread.run_sync(self._process, rows)
        self._chunk = []
        for message in chunk:
            # nsqd delivers a message again that was lost or timed out meanwhile.
            if not message.is_answered:
                message.finish()
                self._finished_count += 1
                self._byte_count += len(message.body)
        self._chunk_count += 1
        self._chunker.restart_quiet(self._clock.now_ns())

    async def _gather(self) -> None:
        async for batch in self._consumer.batches():
            self._chunker.receive(batch, self._clock.now_ns())
            self._arrived.set()

    async def _touch(self) -> None:
        """Touch all unfinished messages; nsqd extends their timeout up to its ``--max-msg-timeout``, 15 minutes."""
        interval_ns = round(self._spec.msg_timeout * NS_PER_S / 3)
        while True:
            await self._clock.wait_until(self._clock.now_ns() + interval_ns)
            for message in [*self._chunk, *self._chunker.pending]:
                if not message.is_answered:
                    message.touch()

    async def _wait_for_messages(self, deadline_ns: int | None) -> None:
        """Return when messages have arrived, or at the deadline."""
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        with anyio.CancelScope() as scope:
            self._clock.cancel_at(scope, deadline_ns)
            await self._arrived.wait()
        self._clock.cancel_at(scope, None)

    async def _wait_connected(self) -> None:
        """Return when every nsqd has answered the subscription."""
        with move_on_after(self._clock, self._spec.connect_timeout):
            await self._consumer.wait_connected()
            self._chunker.restart_quiet(self._clock.now_ns())
            return
        unconnected = self._consumer.unconnected.items()
        reasons = "; ".join(f"{address}: {error or 'no answer'}" for address, error in unconnected)
        raise NotConnected(f"no subscription within {self._spec.connect_timeout:g} seconds: {reasons}")


def _topic(share: PartitionShare) -> str:
    topics = sorted({connection.topic for connection in share.connections})
    if len(topics) > 1:
        raise OptionError(f"the topics of partition {share.index} are {topics}; allowed is one topic")
    return topics[0]


def _max_in_flight(share: PartitionShare) -> int:
    return sum(connection.max_in_flight for connection in share.connections)


def _bounds(spec: ConsumerSpec, share: PartitionShare) -> Bounds:
    return Bounds(
        # nsqd delivers the second half while the first one is processed.
        chunk_messages=max(1, _max_in_flight(share) // 2),
        chunk_bytes=spec.chunk_bytes,
        linger_ns=round(spec.linger * NS_PER_S),
        max_messages=share.records_max,
        empty_for_ns=None if spec.empty_for is None else round(spec.empty_for * NS_PER_S),
        deadline_ns=None if spec.deadline is None else round(spec.deadline * NS_PER_S),
    )
