"""One partition at work: receive, process, finish, until a rule says that it is enough.

        Consumer.batches ─▶ Intake ─▶ chunk ─▶ process, in a thread ─▶ FIN for the whole chunk ─▶ … ─▶ CLS, CLOSE_WAIT

The rule it guards: a message is finished only after ``process`` has returned for the chunk it was in. Whatever
happens before that, an exception, a killed worker, a lost connection, nsqd delivers it again: at least once, never
less. Leaving the consumer waits for each nsqd's CLOSE_WAIT, which it says after all that was sent before, so no FIN
is still on its way when a task counts as done.

How to read it: three things go on at a time. One gathers what arrives, one touches what is in hand, and ``_work``
takes chunks. Processing runs in a thread, so heartbeats are answered while it takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio
import anyio.to_thread
import attrs

from nsqkit.consumer import Consumer, Message
from nsqkit.errors import NotConnected
from nsqkit.spark.intake import Bounds, Intake, StopReason
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.plan import PartitionPlan
from nsqkit.spark.schema import MessageRow, message_row

Process: TypeAlias = Callable[[Sequence[MessageRow]], object]
"""Called with each chunk: at least one message, in order of arrival. When it returns, they are done with."""

NS_PER_S = 1_000_000_000


@attrs.frozen(kw_only=True)
class PartitionStats:
    """What a partition did, in the attempt that succeeded.

    Attributes:
        partition: its number.
        finished_count: messages processed and finished.
        chunk_count: chunks they came in.
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


def drain_partition(spec: ConsumerSpec, plan: PartitionPlan, process: Process) -> PartitionStats:
    """Consume a partition's share, in an event loop of its own.

    Args:
        spec: what is consumed, and until when.
        plan: this partition's share of it.
        process: called with each chunk, in a thread. What it raises ends the partition: the chunk, and all that was
            received after it, goes back to nsqd at once.

    Raises:
        NotConnected: an nsqd was not there for ``connect_timeout`` seconds.
        Exception: whatever ``process`` raised.
    """
    return anyio.run(drain, spec, plan, process)


async def drain(spec: ConsumerSpec, plan: PartitionPlan, process: Process) -> PartitionStats:
    """Consume a partition's share, as ``drain_partition``, in the running event loop."""
    return await Drain(spec, plan, process).run()


class Drain:
    """A partition while it runs; made for one ``run``."""

    def __init__(self, spec: ConsumerSpec, plan: PartitionPlan, process: Process) -> None:
        self._spec = spec
        self._plan = plan
        self._process = process
        self._consumer = Consumer(
            spec.topic,
            spec.channel,
            nsqd_tcp_addresses=plan.nsqd_tcp_addresses,
            max_in_flight=plan.max_in_flight,
            msg_timeout=spec.msg_timeout,
        )
        self._intake: Intake[Message] = Intake(_bounds(spec, plan), _now_ns())
        self._arrived = anyio.Event()
        self._chunk: list[Message] = []
        self._finished_count = self._chunk_count = self._byte_count = 0

    async def run(self) -> PartitionStats:
        """Consume until a rule says that it is enough."""
        error = stop_reason = None
        async with self._consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(self._gather)
            tasks.start_soon(self._touch)
            try:
                stop_reason = await self._work()
            except Exception as caught:
                # Raised when all contexts are left, so that it reaches the user as it is and not in a group.
                error = caught
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
        assert stop_reason is not None
        return PartitionStats(
            partition=self._plan.index,
            finished_count=self._finished_count,
            chunk_count=self._chunk_count,
            byte_count=self._byte_count,
            seconds=(_now_ns() - self._intake.start_ns) / NS_PER_S,
            stop_reason=stop_reason,
        )

    async def _work(self) -> StopReason:
        await self._wait_connected()
        while True:
            now_ns = _now_ns()
            if chunk := self._intake.take(now_ns):
                await self._process_chunk(chunk)
            elif (reason := self._intake.stop_reason(now_ns)) is None:
                await self._wait_for_messages(self._intake.next_deadline())
            elif reason is StopReason.EMPTY and self._consumer.unconnected:
                # Not empty but silent: an nsqd is away, and the connection to it is being made again.
                await self._wait_connected()
            else:
                return reason

    async def _process_chunk(self, chunk: list[Message]) -> None:
        self._chunk = chunk
        rows = [message_row(message, self._spec.topic) for message in chunk]
        await anyio.to_thread.run_sync(self._process, rows)
        self._chunk = []
        for message in chunk:
            # One that was lost meanwhile comes again; it was processed, and is not done with.
            if not message.is_answered:
                message.finish()
                self._finished_count += 1
                self._byte_count += len(message.body)
        self._chunk_count += 1
        self._intake.listen(_now_ns())

    # ---- beside it -----------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        async for batch in self._consumer.batches():
            self._intake.receive(batch, _now_ns())
            self._arrived.set()

    async def _touch(self) -> None:
        """Keep what is in hand from timing out; an nsqd allows that up to its ``--max-msg-timeout``, 15 minutes."""
        while True:
            await anyio.sleep(self._spec.msg_timeout / 3)
            for message in [*self._chunk, *self._intake.pending]:
                if not message.is_answered:
                    message.touch()

    async def _wait_for_messages(self, deadline_ns: int | None) -> None:
        """Return when more has arrived, or the time has come."""
        if self._arrived.is_set():
            self._arrived = anyio.Event()
        deadline = float("inf") if deadline_ns is None else deadline_ns / NS_PER_S
        with anyio.CancelScope(deadline=deadline):
            await self._arrived.wait()

    async def _wait_connected(self) -> None:
        """Return when every nsqd has answered the subscription."""
        with anyio.move_on_after(self._spec.connect_timeout):
            await self._consumer.wait_connected()
            self._intake.listen(_now_ns())
            return
        unconnected = self._consumer.unconnected.items()
        reasons = "; ".join(f"{address}: {error or 'no answer'}" for address, error in unconnected)
        raise NotConnected(f"no subscription within {self._spec.connect_timeout:g} seconds: {reasons}")


def _bounds(spec: ConsumerSpec, plan: PartitionPlan) -> Bounds:
    return Bounds(
        # Half of what may be in flight: while one half is processed, nsqd delivers the other.
        chunk_messages=max(1, plan.max_in_flight // 2),
        chunk_bytes=spec.chunk_bytes,
        linger_ns=round(spec.linger * NS_PER_S),
        max_messages=plan.max_messages,
        empty_for_ns=None if spec.empty_for is None else round(spec.empty_for * NS_PER_S),
        deadline_ns=None if spec.deadline is None else round(spec.deadline * NS_PER_S),
    )


def _now_ns() -> int:
    """Return the event loop's time."""
    return round(anyio.current_time() * NS_PER_S)
