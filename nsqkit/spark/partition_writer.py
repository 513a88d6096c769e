"""The work of one writing task: it publishes the rows of a partition, and returns when nsqds have all of them.

The event loop runs in a thread of its own. So the client answers heartbeats while the iterator of rows waits for
Spark, and commands are on their way while the next batch is converted.

At least once: a task that fails has published some of its rows, and Spark tries the whole task again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from threading import Event
from typing import TYPE_CHECKING, Final

import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from nsqkit.producer import Producer
from nsqkit.spark.publish_plan import Publish, PublishPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqkit.spark.writer_options import WriterOptions

OUTSTANDING_BYTES_MAX: Final = 8 << 20
OUTSTANDING_COUNT_MAX: Final = 1000
"""Bytes and commands without an answer, after which a task converts no more rows."""


@attrs.frozen(kw_only=True)
class WriteStats:
    """The figures of one partition; they pickle.

    Attributes:
        partition: its number, from 0.
        message_count: messages that nsqds have acknowledged.
        byte_count: the bytes of their commands.
    """

    partition: int
    message_count: int
    byte_count: int


def write_partition(
    options: WriterOptions, addresses: tuple[str, ...], partition: int, batches: Iterable[pa.RecordBatch]
) -> WriteStats:
    """Publish all rows of a partition; return when they are acknowledged.

    Args:
        options: the options of the write.
        addresses: the nsqds. Commands without a key go to each in turn, from the one at ``partition`` on.
        partition: the number of the partition, from 0.
        batches: its rows, with the columns that ``check_columns`` allows.

    Raises:
        OptionError: a row cannot be published.
        NSQError: an nsqd has refused a command, or none was reached.
    """
    first = partition % len(addresses)
    addresses = (*addresses[first:], *addresses[:first])
    plan = PublishPlan(options, addresses)
    with start_blocking_portal() as portal:
        connections = _FirstDials(len(addresses))
        keywords = options.producer_keywords()
        keywords["on_connection"] = connections.count
        producer = Producer(*addresses, **keywords)
        with portal.wrap_async_context_manager(producer):
            connections.wait()
            outgoing = _Outgoing(portal, producer)
            for batch in batches:
                for publish in plan.divide(batch):
                    outgoing.send(publish)
            outgoing.wait_all()
    return WriteStats(partition=partition, message_count=outgoing.message_count, byte_count=outgoing.byte_count)


class _FirstDials:
    """Waits until each nsqd is connected or was found to be unreachable.

    Otherwise the nsqd that is connected first would get all rows of a short task, those with other keys included.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._addresses: set[str] = set()
        self._all = Event()

    def count(self, address: str, error: Exception | None) -> None:
        self._addresses.add(address)
        if len(self._addresses) == self._count:
            self._all.set()

    def wait(self) -> None:
        self._all.wait()


class _Outgoing:
    """The commands that are on their way."""

    def __init__(self, portal: BlockingPortal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._outstanding: deque[tuple[int, Future[None]]] = deque()
        self._outstanding_bytes = 0
        self.message_count = 0
        self.byte_count = 0

    def send(self, publish: Publish) -> None:
        """Begin to publish, when there is room for it; raise the error of an earlier publish."""
        size = publish.size
        while self._outstanding and (
            self._outstanding_bytes + size > OUTSTANDING_BYTES_MAX or len(self._outstanding) >= OUTSTANDING_COUNT_MAX
        ):
            self._wait_first()
        self._outstanding.append((size, self._portal.start_task_soon(self._publish, publish)))
        self._outstanding_bytes += size
        self.message_count += len(publish.bodies)
        self.byte_count += size

    def wait_all(self) -> None:
        """Return when everything is acknowledged; raise the first error."""
        while self._outstanding:
            self._wait_first()

    def _wait_first(self) -> None:
        size, answer = self._outstanding.popleft()
        answer.result()
        self._outstanding_bytes -= size

    async def _publish(self, publish: Publish) -> None:
        producer, topic, bodies, key = self._producer, publish.topic, publish.bodies, publish.key
        if publish.delay_ms:
            await producer.deferred_publish(topic, bodies[0], publish.delay_ms / 1000, key=key)
        elif len(bodies) == 1:
            await producer.publish(topic, bodies[0], key=key)
        else:
            await producer.multi_publish(topic, bodies, key=key)
