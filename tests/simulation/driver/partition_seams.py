"""The functions of Spark's drainer that a world replaces, or whose calls its players see.

The payload of a slot is not Arrow's format here, so that no world needs that library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from nsqkit.clock import NS_PER_S
from nsqkit.consumer import consumer
from nsqkit.spark import drainer, reception
from nsqkit.spark.chunker import Chunker, StopReason
from nsqkit.spark.dead_letters import publish_dead_letters
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.reception import Reception
from nsqkit.spark.schema import MessageRow, message_row
from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.network import HOST

if TYPE_CHECKING:
    from nsqkit.clock import Clock
    from nsqkit.consumer.confirmation import Confirmation
    from nsqkit.consumer.message import Message
    from tests.simulation.driver.world import World

REQUEUE_DELAY: Final = 0.2
LATE_MAX: Final = 0.01


@contextmanager
def seamed(world: World) -> Iterator[None]:
    """Have the drainer use the threads of a world, random generators of its seed, and the payloads of this module.

    Consumers have a short delay of messages whose dead letters failed, which would be 90 seconds.
    """
    count = 0

    def random() -> Random:
        nonlocal count
        count += 1
        return Random(f"{world.plan.seed}/{HOST.get()}/{count}")

    def keywords(self: ConsumerSpec) -> dict[str, Any]:
        return {**consumer_keywords(self), "default_requeue_delay": REQUEUE_DELAY}

    consumer_keywords = ConsumerSpec.consumer_keywords
    finish, publish, next_chunk = Reception.finish, publish_dead_letters, Reception.next_chunk
    wait_connected, take = Reception.wait_connected, Chunker.take
    connected_ns: dict[Reception, int] = {}

    async def connected(self: Reception) -> None:
        await wait_connected(self)
        connected_ns[self] = self._clock.now_ns()

    async def chunk_after(self: Reception) -> list[Message]:
        begun_ns = self._clock.now_ns()
        chunk = await next_chunk(self)
        try:
            _check_taken(self, chunk, max(begun_ns, connected_ns[self]))
        except Broken as broken:
            raise world.failed(broken) from None
        return chunk

    def taken(self: Chunker[Message], now_ns: int, *, is_starved: bool) -> list[Message]:
        pending = list(self.pending)
        is_due = not pending or is_starved or _is_due(self, pending, now_ns)
        chunk = take(self, now_ns, is_starved=is_starved)
        if chunk and not is_due:
            raise world.failed(Broken(27, f"a chunk has {len(chunk)} of {len(pending)} messages before it is due"))
        return chunk

    async def published(spec: ConsumerSpec, messages: Sequence[Message], clock: Clock) -> list[Message]:
        player: Any = world.players[HOST.get()]
        player.publishing(messages)
        done = await publish(spec, messages, clock)
        player.published(done)
        return done

    async def finished(self: Reception, messages: Sequence[Message]) -> Confirmation:
        player: Any = world.players[HOST.get()]
        player.finishing(messages)
        confirmation = await finish(self, messages)
        player.finished(self, messages, confirmation)
        return confirmation

    with ExitStack() as stack:
        for module, name, function in (
            (drainer, "run_sync", world.threads.run_sync),
            (drainer, "encode_messages", payload_of),
            (consumer, "Random", random),
            (ConsumerSpec, "consumer_keywords", keywords),
            (Reception, "finish", finished),
            (Reception, "next_chunk", chunk_after),
            (Reception, "wait_connected", connected),
            (Chunker, "take", taken),
            (reception, "publish_dead_letters", published),
        ):
            stack.enter_context(mock.patch.object(module, name, function))
        yield


def _is_due(chunker: Chunker[Message], pending: list[Message], now_ns: int) -> bool:
    """Return whether some messages are enough for a chunk, or have waited long enough, or are the last ones."""
    bounds = chunker.bounds
    count_max = min(bounds.chunk_messages, (bounds.max_messages or math.inf) - chunker.taken_count)
    size_max = min(bounds.chunk_bytes, (bounds.max_bytes or math.inf) - chunker.taken_bytes)
    has_waited = now_ns >= pending[0].received_ns + bounds.linger_ns
    is_last = bounds.deadline_ns is not None and now_ns >= chunker.start_ns + bounds.deadline_ns
    return len(pending) >= count_max or sum(len(each.body) for each in pending) >= size_max or has_waited or is_last


def _check_taken(reception: Reception, chunk: list[Message], begun_ns: int) -> None:
    """Check a chunk that was awaited since a time at which all nsqds were connected, or the end of the messages."""
    spec, now_ns = reception._spec, reception._clock.now_ns()
    if not chunk:
        is_lost = reception.stop_reason is StopReason.EMPTY and spec.fail_on_node_loss and reception._unconnected()
        conclude(28, not is_lost, f"a partition counts as empty, and an nsqd is not connected: {reception._limits}")
        return
    if not spec.max_attempts:  # no time was needed for dead letters
        late = [message.id for message in chunk if message.is_answered]
        conclude(5, not late, f"{late} are passed on, and their nsqds deliver them again")
        waited = (now_ns - max(begun_ns, chunk[0].received_ns)) / NS_PER_S
        conclude(27, waited <= spec.linger + LATE_MAX, f"a message has waited for {waited:.3f} seconds")


def payload_of(messages: Sequence[Message]) -> bytes:
    rows = [message_row(message) for message in messages]
    return json.dumps([[*row[:-1], row.body.decode("latin-1")] for row in rows]).encode()


def rows_of(payload: bytes | memoryview) -> list[MessageRow]:
    return [MessageRow._make([*values[:-1], values[-1].encode("latin-1")]) for values in json.loads(bytes(payload))]
