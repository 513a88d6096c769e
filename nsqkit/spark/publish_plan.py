"""The publishes of an Arrow batch: its rows, divided into commands.

Rows with the same topic, the same nsqd and no delay share MPUBs of at most ``mpub_batch`` messages and ``mpub_bytes``
bytes. A row with a delay is a DPUB of its own, since NSQ has no MPUB with a delay. A key chooses an nsqd by its rank,
as the producer's policy ``by-key`` does; rows of different keys with the same nsqd share commands.

Every row of a batch is checked here before the first one is published. An nsqd closes the connection over a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from nsqkit.errors import OptionError
from nsqkit.producer.policy import RANKINGS_MAX, rank
from nsqkit.wire.commands import batch_size
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqkit.spark.writer_options import WriterOptions


@attrs.frozen
class Publish:
    """One command.

    Attributes:
        topic: its topic.
        key: chooses the nsqd; None for the next one.
        delay_ms: milliseconds until the message is delivered; 0 for at once.
        bodies: its messages; one if there is a delay.
    """

    topic: str
    key: bytes | None
    delay_ms: int
    bodies: Sequence[bytes]

    @property
    def size(self) -> int:
        """The bytes of the bodies, as in an MPUB."""
        return batch_size(self.bodies)


class PublishPlan:
    """Divides the batches of one partition into publishes.

    Args:
        options: the limits, and the topic and the delay of rows without their own.
        addresses: the nsqds, in the order of the producer.
    """

    def __init__(self, options: WriterOptions, addresses: tuple[str, ...]) -> None:
        self._options = options
        self._max_msg_size = options.producer_options.max_msg_size
        self._defer_ms_max = options.defer_ms_max
        self._row_count = 0
        self._first_nsqd = lru_cache(RANKINGS_MAX)(lambda key: rank(key, addresses)[0])

    def divide(self, batch: pa.RecordBatch) -> Iterator[Publish]:
        """Return the publishes of a batch, which is checked before the first of them.

        Raises:
            OptionError: a row cannot be published; the text has its number in the partition, from 0.
        """
        import pyarrow as pa

        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        body = columns["body"].cast(pa.binary())
        self._check_bodies(body)
        key = columns.get("key") if self._options.partition_by == "key" else None
        others = (columns.get("topic"), None if key is None else key.cast(pa.binary()), columns.get("deferMs"))
        bodies = body.to_pylist()
        if all(column is None or column.null_count == len(column) for column in others):
            # The common case: a loop over the rows would double the cost of a row.
            lanes = [self._open_lane(0, None, None, None, bodies)] if bodies else []
        else:
            lanes = self._lanes(bodies, *(_values(column, len(bodies)) for column in others))
        self._row_count += len(bodies)
        for lane in lanes:
            yield from self._commands(lane)

    def _check_bodies(self, body: pa.Array) -> None:
        import pyarrow.compute as pc

        sizes = pc.fill_null(pc.binary_length(body), 0)
        is_wrong = pc.or_(pc.equal(sizes, 0), pc.greater(sizes, self._max_msg_size))
        index = pc.index(is_wrong, True).as_py()
        if index >= 0:
            size = f"has {sizes[index]} bytes" if body[index].is_valid else "is null"
            raise OptionError(
                f"body of row {self._row_count + index} {size}; allowed are 1 to max_msg_size, "
                f"{self._max_msg_size} bytes"
            )

    def _lanes(
        self,
        bodies: list[bytes],
        topics: list[str | None],
        keys: list[bytes | None],
        delays_ms: list[int | None],
    ) -> list[Publish]:
        """Return the rows that may share commands, in the order of the rows."""
        lanes: dict[tuple[str | None, int | None, int | None], tuple[Publish, list[bytes]]] = {}
        for index, (body, topic, key, delay_ms) in enumerate(zip(bodies, topics, keys, delays_ms, strict=True)):
            lane_key = topic, delay_ms, None if key is None else self._first_nsqd(key)
            lane = lanes.get(lane_key)
            if lane is None:
                rows: list[bytes] = []
                lane = lanes[lane_key] = self._open_lane(index, topic, key, delay_ms, rows), rows
            lane[1].append(body)
        return [lane for lane, _ in lanes.values()]

    def _open_lane(
        self, index: int, topic: str | None, key: bytes | None, delay_ms: int | None, rows: list[bytes]
    ) -> Publish:
        where = f"of row {self._row_count + index}"
        if topic is None:
            topic = self._options.topic
        if topic is None:
            raise OptionError(f"topic {where} is null, and there is no option topic; allowed is one of both")
        try:
            encode_topic(topic)
        except OptionError as error:
            raise OptionError(f"topic {where}: {error}") from None
        if delay_ms is None:
            delay_ms = self._options.defer_ms
        if not 0 <= delay_ms <= self._defer_ms_max:
            raise OptionError(f"deferMs {where} is {delay_ms}; allowed is 0 to {self._defer_ms_max}")
        return Publish(topic, key, delay_ms, rows)

    def _commands(self, lane: Publish) -> Iterator[Publish]:
        count = 1 if lane.delay_ms else self._options.mpub_batch
        for start in range(0, len(lane.bodies), count):
            yield from self._fitting(attrs.evolve(lane, bodies=lane.bodies[start : start + count]))

    def _fitting(self, publish: Publish) -> Iterator[Publish]:
        """Halve a command until it has at most ``mpub_bytes``, or one message."""
        half = len(publish.bodies) // 2
        if not half or publish.size <= self._options.mpub_bytes:
            yield publish
            return
        yield from self._fitting(attrs.evolve(publish, bodies=publish.bodies[:half]))
        yield from self._fitting(attrs.evolve(publish, bodies=publish.bodies[half:]))


def _values(column: pa.Array | None, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()
