"""The consumers of one partition: they connect, receive and touch messages, and pass them on in chunks.

        Consumer of each node ─▶ Chunker ─▶ next_chunk ─▶ (processed) ─▶ finish, with a barrier ─▶ … ─▶ CLS, CLOSE_WAIT

The event loop answers heartbeats and touches messages while a chunk is processed in a thread. A message that nsqd has
delivered too often becomes a dead letter and is in no chunk.

RDY is so low that the messages in flight have the bytes of two chunks at most: one is processed while the other one
arrives. RDY is lowered to the messages that are still wanted before FIN is sent for a chunk, so that nsqd delivers
little that has to be requeued at the end. Leaving requeues everything that is not finished.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

import anyio
import attrs

from nsqkit.clock import NS_PER_S, Clock
from nsqkit.consumer import Confirmation, Consumer, Message
from nsqkit.errors import NotConnected, NSQError
from nsqkit.spark.batch_plan import PartitionShare, PlannedConnection
from nsqkit.spark.chunker import Bounds, Chunker, StopReason
from nsqkit.spark.dead_letters import publish_dead_letters
from nsqkit.spark.in_flight_bytes import InFlightBytes
from nsqkit.spark.options import ConsumerSpec

Confirm: TypeAlias = Callable[[Consumer, list[Message]], Awaitable[Confirmation]]

FindStored: TypeAlias = Callable[[list[Message]], Awaitable[list[Message]]]
"""Returns those of the messages whose rows are stored: they are no dead letters."""

logger = logging.getLogger("nsqkit.spark")

CHUNK_BYTES_MAX: Final = 1 << 30
"""Arrow's arrays have 2 GiB at most."""

TOUCHES: Final = 4
"""How often messages are looked at within a message timeout; those with less than half of it left are touched."""

FIRST_DELIVERY: Final = 0.2
"""Seconds that an nsqd may take to deliver the next messages of a batch, however short the time to linger is."""

STRAGGLER_NS: Final = 2 * NS_PER_S
"""How long a partition that may lose nsqds waits for others after the first subscription."""


@attrs.define(eq=False)
class Counts:
    """The figures of a partition that its consumers do not count."""

    finished: int = 0
    finish_failed: int = 0
    dead_letters: int = 0


class Reception:
    """The messages of one partition; made by ``receiving``.

    Attributes:
        chunker: the messages that wait, and the limits.
        stop_reason: why the partition takes no more messages; None while it may.
        counts: its figures.
    """

    def __init__(
        self, spec: ConsumerSpec, share: PartitionShare, clock: Clock, find_stored: FindStored | None = None
    ) -> None:
        self.chunker: Chunker[Message] = Chunker(_bounds(spec, share), clock.now_ns())
        self.stop_reason: StopReason | None = None
        self.counts = Counts()
        self._spec = spec
        self._clock = clock
        self._find_stored = find_stored
        self._changed = anyio.Event()
        self._unfinished: Sequence[Message] = ()
        self._subscribed: set[tuple[str, str]] = set()
        # One consumer of several nsqds would give the share of one that is not connected to the others, and what they
        # deliver then would exceed max_in_flight together with its own.
        self._limits = {_node(connection): connection.max_in_flight for connection in share.connections}
        self._bytes = {_node(connection): self._in_flight_bytes(connection) for connection in share.connections}
        self.consumers = {_node(connection): self._consumer(connection) for connection in share.connections}

    def _in_flight_bytes(self, connection: PlannedConnection) -> InFlightBytes:
        bytes_max = 2 * self.chunker.bounds.chunk_bytes * connection.max_in_flight // sum(self._limits.values())
        return InFlightBytes(bytes_max, connection.max_in_flight)

    def _consumer(self, connection: PlannedConnection) -> Consumer:
        def on_connection(address: str, error: Exception | None) -> None:
            if error is None:
                self._subscribed.add(_node(connection))
                self.chunker.restart_quiet(self._clock.now_ns())
            self._changed.set()

        keywords = self._spec.consumer_keywords()
        keywords["max_in_flight"] = self._bytes[_node(connection)].limit
        keywords["on_connection"] = on_connection
        addresses = [connection.nsqd_address]
        return Consumer(
            connection.topic, self._spec.channel, nsqd_tcp_addresses=addresses, clock=self._clock, **keywords
        )

    @property
    def subscribed_count(self) -> int:
        """The number of planned connections that were subscribed, now or before."""
        return len(self._subscribed)

    # ---- receiving -----------------------------------------------------------------------------------------------

    async def next_chunk(self) -> list[Message]:
        """Return the next chunk; an empty list after ``stop_reason`` is set.

        Raises:
            NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
        """
        self._unfinished = ()
        chunker = self.chunker
        while True:
            now_ns = self._clock.now_ns()
            if chunk := chunker.take(now_ns, is_starved=any(c.is_starved for c in self.consumers.values())):
                self._unfinished = chunk
                if chunker.is_last_taken:
                    for consumer in self.consumers.values():
                        consumer.pause()
                if chunk := await self._without_dead_letters(chunk):
                    return chunk
            elif (reason := chunker.stop_reason(now_ns)) is None:
                await self._wait_for_change(chunker.next_deadline())
            elif reason is StopReason.EMPTY and self._spec.fail_on_node_loss and self._unconnected():
                # A queue is not empty if its nsqd cannot be reached; the consumer connects again.
                await self.wait_connected()
            else:
                self.stop_reason = reason
                return []

    async def wait_connected(self) -> None:
        """Return when every nsqd has accepted the subscription, or has been given up.

        Raises:
            NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
        """
        deadline_ns = self._clock.now_ns() + round(self._spec.connect_timeout * NS_PER_S)
        may_fail = not self._spec.fail_on_node_loss
        while unconnected := self._unconnected():
            now_ns = self._clock.now_ns()
            if may_fail and self._subscribed:
                deadline_ns = min(deadline_ns, now_ns + STRAGGLER_NS)
            if now_ns >= deadline_ns or (may_fail and None not in unconnected.values()):
                break
            await self._wait_for_change(deadline_ns)
        if unconnected and not may_fail:
            reasons = "; ".join(f"{address}: {error or 'no answer'}" for address, error in unconnected.items())
            raise NotConnected(f"no subscription within {self._spec.connect_timeout:g} seconds: {reasons}")
        self.chunker.restart_quiet(self._clock.now_ns())

    async def gather(self, node: tuple[str, str]) -> None:
        """Receive from a node until cancelled."""
        chunker, consumer, in_flight_bytes = self.chunker, self.consumers[node], self._bytes[node]
        async for batch in consumer.batches():
            was_empty = not chunker.pending
            size = chunker.receive(batch, self._clock.now_ns())
            limit = in_flight_bytes.limit
            in_flight_bytes.receive(len(batch), size)
            if in_flight_bytes.limit != limit:
                self._change_in_flight(node)
            if was_empty or chunker.is_full or consumer.is_starved:
                self._changed.set()

    async def keep_alive(self) -> None:
        """Touch messages with less than half of their time left; nsqd extends it up to its ``--max-msg-timeout``."""
        timeout_ns = round(self._spec.msg_timeout * NS_PER_S)
        while True:
            await self._clock.wait_until(self._clock.now_ns() + timeout_ns // TOUCHES)
            due_ns = self._clock.now_ns() + timeout_ns // 2
            for message in [*self._unfinished, *self.chunker.pending]:
                if message.deadline_ns < due_ns and not message.is_answered:
                    message.touch()

    def is_touch_due(self, messages: Iterable[Message]) -> bool:
        """Return whether one of the messages has less than half of its time left."""
        due_ns = self._clock.now_ns() + round(self._spec.msg_timeout * NS_PER_S / 2)
        return any(message.deadline_ns < due_ns for message in messages)

    def _unconnected(self) -> dict[str, Exception | None]:
        """Return the addresses without a subscription, each with its last error."""
        return {a: error for consumer in self.consumers.values() for a, error in consumer.unconnected.items()}

    async def _wait_for_change(self, deadline_ns: int | None) -> None:
        """Return when messages have arrived or a connection has changed, or at the deadline."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        with anyio.CancelScope() as scope:
            self._clock.cancel_at(scope, deadline_ns)
            await self._changed.wait()
        self._clock.cancel_at(scope, None)

    # ---- answers -------------------------------------------------------------------------------------------------

    async def finish(self, messages: Sequence[Message]) -> Confirmation:
        """Finish messages, and return the outcome; all messages that were taken before are finished or requeued."""
        self._limit_in_flight()
        confirmation = await self._confirm(messages, Consumer.finish_confirmed)
        not_finished_count = len(confirmation.failed) + len(confirmation.unknown)
        self.counts.finished += len(messages) - not_finished_count
        self.counts.finish_failed += len(confirmation.failed)
        self._unfinished = ()
        self.chunker.restart_quiet(self._clock.now_ns())
        return confirmation

    async def touch(self, messages: Sequence[Message]) -> Confirmation:
        """Touch messages, and return the outcome."""
        return await self._confirm(messages, Consumer.touch_confirmed)

    def requeue(self, messages: Iterable[Message], delay: float | None) -> None:
        """Requeue messages that are not answered; without a delay, after the consumer's default, times attempts."""
        for message in messages:
            if not message.is_answered:
                message.requeue(delay, backoff=False)

    async def _without_dead_letters(self, chunk: list[Message]) -> list[Message]:
        """Return the messages that were not delivered too often; publish the others elsewhere and finish them."""
        limit = self._spec.max_attempts
        dead = [message for message in chunk if message.attempts > limit] if limit else []
        if dead and self._find_stored is not None:
            stored = set(map(id, await self._find_stored(dead)))
            dead = [message for message in dead if id(message) not in stored]
        if not dead:
            return chunk
        published = await publish_dead_letters(self._spec, dead, self._clock)
        await self._confirm(published, Consumer.finish_confirmed)
        self.counts.dead_letters += len(published)
        left_out = set(map(id, dead))
        return [message for message in chunk if id(message) not in left_out]

    async def _confirm(self, messages: Sequence[Message], call: Confirm) -> Confirmation:
        of_node: dict[tuple[str, str], list[Message]] = {}
        for session, run in groupby(messages, attrgetter("session")):
            of_node.setdefault((session.subscription.topic, session.address), []).extend(run)
        confirmations: list[Confirmation] = []

        async def confirm(consumer: Consumer, part: list[Message]) -> None:
            confirmations.append(await call(consumer, part))

        async with anyio.create_task_group() as tasks:
            for node, part in of_node.items():
                tasks.start_soon(confirm, self.consumers[node], part)
        return Confirmation(
            failed=tuple(message for each in confirmations for message in each.failed),
            unknown=tuple(message for each in confirmations for message in each.unknown),
        )

    def _limit_in_flight(self) -> None:
        """Lower RDY to the number of messages that are still wanted: any connection may have all of them."""
        bounds = self.chunker.bounds
        if bounds.max_messages is None:
            return
        wanted = bounds.max_messages - self.chunker.taken_count
        for node, limit in self._limits.items():
            if wanted < limit:
                self._limits[node] = wanted
                self._change_in_flight(node)

    def _change_in_flight(self, node: tuple[str, str]) -> None:
        self.consumers[node].change_max_in_flight(min(self._limits[node], self._bytes[node].limit))


@asynccontextmanager
async def receiving(
    spec: ConsumerSpec, share: PartitionShare, clock: Clock, find_stored: FindStored | None = None
) -> AsyncIterator[Reception]:
    """Connect, and receive until the end of the block; then requeue all other messages, and close.

    Raises:
        NotConnected: with ``fail_on_node_loss``, an nsqd could not be reached for ``connect_timeout`` seconds.
        NSQError: with ``end_on_permanent_error``, an nsqd has refused the connection.
    """
    reception = Reception(spec, share, clock, find_stored)
    consumers = reception.consumers.values()
    error: Exception | None = None
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        async with anyio.create_task_group() as tasks:

            async def gather(node: tuple[str, str]) -> None:
                nonlocal error
                try:
                    await reception.gather(node)
                except NSQError as caught:
                    error = caught
                    tasks.cancel_scope.cancel()

            for node in reception.consumers:
                tasks.start_soon(gather, node)
            tasks.start_soon(reception.keep_alive)
            try:
                await reception.wait_connected()
                yield reception
            except Exception as caught:
                # It is raised after the task group has ended, so that it is not wrapped in an exception group.
                error = caught
            tasks.cancel_scope.cancel()
        for consumer in consumers:
            consumer.stop()  # all at once, since each is then waited for
    if error is not None:
        raise error


def _node(connection: PlannedConnection) -> tuple[str, str]:
    return connection.topic, connection.nsqd_address


def _bounds(spec: ConsumerSpec, share: PartitionShare) -> Bounds:
    empty_for = spec.empty_for
    if spec.stop_after_linger:
        linger = max(spec.linger, FIRST_DELIVERY)
        empty_for = linger if empty_for is None else min(linger, empty_for)
    if empty_for is not None:
        empty_for = max(empty_for, 2 * spec.output_buffer_timeout)
    return Bounds(
        # nsqd delivers the second half while the first one is processed.
        chunk_messages=max(1, sum(connection.max_in_flight for connection in share.connections) // 2),
        chunk_bytes=min(spec.chunk_bytes, CHUNK_BYTES_MAX),
        linger_ns=round(spec.linger * NS_PER_S),
        max_messages=share.records_max,
        max_bytes=share.bytes_max,
        empty_for_ns=None if empty_for is None else round(empty_for * NS_PER_S),
        deadline_ns=None if spec.deadline is None else round(spec.deadline * NS_PER_S),
        stops_after_linger=spec.stop_after_linger,
    )
