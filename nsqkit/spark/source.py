"""``format("nsq")``: the Python data source, as Spark calls it.

Spark creates the source on the driver at ``load()``, which checks all options. It creates a reader for each plan, and
one more in a process of its own for each run of a streaming query; only that one makes offsets. A pickled copy reads on
the executors, so a reader has nothing but options until its first call on the driver.

``pyspark`` is imported here and by the writer only. Spark finds ``pyspark_nsq``, the module that names ``NsqSource``,
without a call; ``nsqkit.spark.register`` is for sessions that cannot import it.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from nsqkit.errors import OptionError
from nsqkit.spark.batch_reader import BatchRead
from nsqkit.spark.discovery import Discovery
from nsqkit.spark.held_reader import HeldStream
from nsqkit.spark.option_text import with_documented_names
from nsqkit.spark.read_task import ReadTask
from nsqkit.spark.schema import DDL, arrow_schema
from nsqkit.spark.source_options import OPTIONS, SourceOptions, batch_options, check_options, stream_options
from nsqkit.spark.stream_offset import Offset
from nsqkit.spark.stream_reader import ReceiveStream, WalStream
from nsqkit.spark.writer import BatchWriter, StreamWriter, batch_writer, stream_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


class Stream(Protocol):
    """The driver's side of a stream, in one of the modes."""

    def initial_offset(self) -> Offset: ...
    def begin_available_now(self) -> None: ...
    def latest_offset(self, start: Offset, *, read_all: bool) -> Offset: ...
    def tasks(self, start: Offset, end: Offset) -> list[ReadTask]: ...
    def report(self) -> Offset | None: ...
    def stop(self) -> None: ...


STREAMS: Mapping[str, Callable[[SourceOptions, Discovery], Stream]] = {
    "wal": WalStream,
    "receive": ReceiveStream,
    "commit": HeldStream,
}


class NsqSource(DataSource):
    """Topics of NSQ as rows. ``docs/spark.md`` lists the options.

    Raises:
        OptionError: at ``load()``, an option is unknown, wrong, missing or contradicts another one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # It is pickled into every reader of this load(), so all of them read the same rows.
        self._wal_id = uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        check_options(self.options)
        return DDL

    def reader(self, schema: StructType) -> NsqReader:
        _check_schema(schema)
        return NsqReader(batch_options(self.options), self._wal_id)

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        _check_schema(schema)
        return NsqStreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return stream_writer(self.options, schema, overwrite)


class NsqReader(DataSourceReader):
    """A batch read. A pickled copy reads on the executors."""

    def __init__(self, options: SourceOptions, wal_id: str) -> None:
        self._options = options
        self._wal_id = wal_id

    def partitions(self) -> Sequence[InputPartition]:
        read = BatchRead(self._options, self._wal_id, Discovery(self._options.spec))
        try:
            return _input_partitions(read.tasks())
        except OptionError as error:
            raise with_documented_names(error, OPTIONS) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. On the driver it makes offsets and tasks, and a pickled copy reads on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stream: Stream | None = None

    def initialOffset(self) -> Offset:
        return self._driver.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        spec = self._options.spec
        if spec.max_messages is not None:
            return ReadMaxRows(spec.max_messages)
        return ReadAllAvailable() if spec.max_bytes is None else ReadMaxBytes(spec.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._driver.begin_available_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        # The other limits are those of the options.
        return self._driver.latest_offset(start, read_all=isinstance(limit, ReadAllAvailable))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return _input_partitions(self._driver.tasks(start, end)) if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    def reportLatestOffset(self) -> Offset | None:
        return self._driver.report()

    def stop(self) -> None:
        if self._stream is not None:
            if self._options.ack_mode == "commit":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._stream.stop()

    @property
    def _driver(self) -> Stream:
        """The driver's side, which the first call in the process of a query's run creates."""
        if self._stream is None:
            if self._options.ack_mode == "commit":
                # Spark ends the process by SIGTERM. As an exception it reaches Spark's call of stop(), unless it is
                # raised just before that call; so atexit calls stop(), too.
                signal.signal(signal.SIGTERM, _exit)
                atexit.register(self.stop)
            self._stream = STREAMS[self._options.ack_mode](self._options, Discovery(self._options.spec))
        return self._stream


def _exit(number: int, frame: object) -> NoReturn:
    """Raise SystemExit at the first SIGTERM only: Spark sends two, and the second one would interrupt ``stop``."""
    del frame
    signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


def _check_schema(schema: StructType) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    if to_arrow_schema(schema, timezone="UTC") != arrow_schema():
        raise OptionError(f"the schema is {schema.simpleString()}; a read of NSQ has the columns {DDL}")


def _input_partitions(tasks: Sequence[ReadTask]) -> list[InputPartition]:
    return [InputPartition(task) for task in tasks]


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    task: ReadTask | None = partition.value
    # Spark reads one partition without a value if there are none.
    return iter(()) if task is None else iter(task.read(options.spec))
