"""A message as a row of a table: as a plain value, as an Arrow batch, and as the payload of a slot.

``KEY_COLUMNS`` identify a message. An id is unique within one topic of one nsqd (nsqd has an id factory for each
topic), and each delivery of a message has the same id, so all three columns are needed to recognize a row that came
twice.

A payload is an Arrow stream with one batch: the columns of the schema except ``batchSeq``, which follows from the place
of a row in its batch. So a replay maps the file of a slot and adds one column; no other byte is copied.
"""

from __future__ import annotations

from array import array
from functools import cache
from itertools import accumulate, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa

    from nsqkit.consumer import Message
    from nsqkit.spark.slots.records import MessageKey

KEY_COLUMNS = ("nsqdAddress", "topic", "id")
"""The columns to deduplicate on: ``frame.dropDuplicates([*KEY_COLUMNS])``."""

DDL: Final = (
    "body BINARY, id STRING, timestamp TIMESTAMP_LTZ, timestampNs BIGINT, attempts INT, topic STRING, channel STRING, "
    "nsqdAddress STRING, batchSeq BIGINT"
)
"""The schema of reads, as Spark's DDL text."""

BATCH_SHIFT: Final = 38
PARTITION_SHIFT: Final = 28
"""``batchSeq`` is batch << 38 | partition << 28 | number of the row in its partition."""

BLOCK_ROWS: Final = 1 << 16
"""Rows that are numbered at a time at most."""

END_SIZE: Final = 8
"""Bytes of the mark at the end of an Arrow stream."""


class MessageRow(NamedTuple):
    """One delivery of a message, as a plain value that pickles.

    Attributes:
        nsqd_address: the nsqd that delivered it, as the spec names it.
        topic: its topic.
        id: 16 hexadecimal digits.
        timestamp_ns: when it was published, ns since the Unix epoch, by the nsqd's clock.
        attempts: deliveries so far, this one included.
        body: the published bytes.
    """

    nsqd_address: str
    topic: str
    id: str
    timestamp_ns: int
    attempts: int
    body: bytes

    @property
    def key(self) -> tuple[str, str, str]:
        """The values of ``KEY_COLUMNS``."""
        return self[:3]


def message_row(message: Message) -> MessageRow:
    """Return a consumer's message as a row."""
    return MessageRow(
        message.nsqd_address,
        message.topic,
        message.id.decode("ascii", "backslashreplace"),
        message.timestamp_ns,
        message.attempts,
        message.body,
    )


def message_rows(batch: pa.RecordBatch) -> Iterator[MessageRow]:
    """Return the rows of a batch of ``arrow_schema`` as plain values."""
    columns = [batch.column(name).to_pylist() for name in (*KEY_COLUMNS, "timestampNs", "attempts", "body")]
    return map(MessageRow._make, zip(*columns, strict=True))


@cache
def arrow_schema() -> pa.Schema:
    """Return the schema of reads, as Spark translates ``DDL``."""
    import pyarrow as pa

    return _payload_schema().append(pa.field("batchSeq", pa.int64()))


def encode_payload(rows: Sequence[MessageRow], channel: str) -> bytes:
    """Return rows as the payload of a slot, in bytes that pickle.

    Args:
        rows: one or more.
        channel: the channel that they were delivered from.
    """
    _, _, ids, timestamps, attempts, bodies = zip(*rows, strict=True)
    sources = [(*source, len(list(run))) for source, run in groupby(rows, key=itemgetter(0, 1))]
    return bytes(_encode(bodies, [id_.encode() for id_ in ids], timestamps, attempts, sources, channel))


def encode_messages(messages: Sequence[Message]) -> memoryview:
    """Return messages of one channel as the payload of a slot; it is that of their rows."""
    sources = [
        (session.address, session.subscription.topic, len(list(run)))
        for session, run in groupby(map(attrgetter("session"), messages))
    ]
    ids = [message.id for message in messages]
    if not b"".join(ids).isascii():
        ids = [id_.decode("ascii", "backslashreplace").encode() for id_ in ids]
    return _encode(
        [message.body for message in messages],
        ids,
        [message.timestamp_ns for message in messages],
        [message.attempts for message in messages],
        sources,
        messages[0].channel,
    )


@attrs.define
class RowNumbers:
    """The values of ``batchSeq`` for the rows of one partition.

    Attributes:
        batch: the number of the batch, from 0.
        partition: the number of the partition, from 0.
        next_row: the number of the next row of the partition; excluded ones have none.
    """

    batch: int
    partition: int
    next_row: int = 0
    _block: pa.Array | None = attrs.field(default=None, init=False)
    _block_start: int = attrs.field(default=0, init=False)

    def take(self, count: int) -> pa.Array:
        """Return the values for the next ``count`` rows."""
        start = self.next_row - self._block_start
        if self._block is None or start + count > len(self._block):
            # A block for many slots costs little more than one for a slot.
            self._block = self._make_block(max(count, min(self.next_row, BLOCK_ROWS)))
            self._block_start, start = self.next_row, 0
        self.next_row += count
        return self._block.slice(start, count)

    def _make_block(self, count: int) -> pa.Array:
        import pyarrow.compute as pc

        steps = array("q", [1]) * count
        steps[0] = (self.batch << BATCH_SHIFT) | (self.partition << PARTITION_SHIFT) | self.next_row
        return pc.cumulative_sum(_numbers(steps))


def record_batches(
    payload: bytes | memoryview, keys: Iterable[MessageKey], excluded: Collection[MessageKey], numbers: RowNumbers
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a slot as a batch of ``arrow_schema``, or as none if all of them are excluded.

    Args:
        payload: of the slot; the batch refers to its memory.
        keys: the message of each row, in order.
        excluded: the messages whose rows are left out.
        numbers: of the partition's rows.
    """
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(payload)) as stream:
        rows = stream.read_next_batch()
    if excluded:
        rows = rows.take(_numbers(array("i", [row for row, key in enumerate(keys) if key not in excluded])))
    if rows.num_rows:
        yield rows.append_column(arrow_schema().field("batchSeq"), numbers.take(rows.num_rows))


@cache
def _payload_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        {
            "body": pa.binary(),
            "id": pa.string(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestampNs": pa.int64(),
            "attempts": pa.int32(),
            "topic": pa.string(),
            "channel": pa.string(),
            "nsqdAddress": pa.string(),
        }
    )


def _encode(
    bodies: Sequence[bytes],
    ids: Sequence[bytes],
    timestamps: Sequence[int],
    attempts: Sequence[int],
    sources: Sequence[tuple[str, str, int]],
    channel: str,
) -> memoryview:
    """Return columns as a payload; ``sources`` are the nsqd, the topic and the number of rows of each run."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = _payload_schema()
    nanoseconds = _numbers(array("q", timestamps))
    columns = [
        _texts(bodies),
        _texts(ids),
        pc.divide(nanoseconds, _numbers(array("q", [1000]))[0]),
        nanoseconds,
        _numbers(array("i", attempts)),
        pa.concat_arrays([_repeated(topic, count) for _, topic, count in sources]),
        _repeated(channel, len(bodies)),
        pa.concat_arrays([_repeated(address, count) for address, _, count in sources]),
    ]
    typed = [column.view(type_) for column, type_ in zip(columns, schema.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(typed, schema=schema)
    # A stream without a fixed size would double its buffer while it grows.
    payload = pa.allocate_buffer(schema.serialize().size + pa.ipc.get_record_batch_size(batch) + END_SIZE)
    with pa.FixedSizeBufferWriter(payload) as sink, pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    return memoryview(payload).cast("B")


# pyarrow imports pandas, if it is installed, for each value that it converts itself: 60 MB in each worker. So columns
# are made of buffers.


def _numbers(numbers: array[int]) -> pa.Array:
    import pyarrow as pa

    type_ = pa.int64() if numbers.itemsize == 8 else pa.int32()
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def _texts(texts: Sequence[bytes]) -> pa.Array:
    import pyarrow as pa

    offsets = array("i", list(accumulate(map(len, texts), initial=0)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def _repeated(text: str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(_texts([text.encode()])[0], count)
