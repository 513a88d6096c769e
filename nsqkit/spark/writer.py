"""The write side of ``format("nsq")``: a DataFrame or a stream is published, at least once.

The driver checks options and columns, and finds the nsqds. Each task publishes the rows of its partition and is done
when all of them are acknowledged, so there is nothing to do at the commit of a job. An attempt that fails leaves the
messages that it has published, as any message queue does; its repetition publishes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsqkit.errors import NotConnected, OptionError
from nsqkit.lookup import lookup_nsqds
from nsqkit.spark.partition_writer import WriteStats, write_partition
from nsqkit.spark.writer_options import WriterOptions, check_columns, read_writer_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@attrs.frozen
class Written(WriterCommitMessage):
    """The report of one task to the driver."""

    stats: WriteStats


class _Writer:
    """It is pickled and sent to the executors."""

    def __init__(self, options: WriterOptions, addresses: tuple[str, ...]) -> None:
        self._options = options
        self._addresses = addresses

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one partition; return when they are acknowledged."""
        context = TaskContext.get()
        assert context is not None
        return Written(write_partition(self._options, self._addresses, context.partitionId(), iterator))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a DataFrame."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes the batches of a stream."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a DataFrame.

    Args:
        options: the options of the write, as Spark has them.
        schema: the columns of the DataFrame.
        overwrite: whether the mode is ``overwrite``.

    Raises:
        OptionError: an option, a column or the mode cannot be used.
        RequestFailed: no nsqlookupd has answered.
        NotConnected: the nsqlookupds list no nsqd.
    """
    return BatchWriter(*_plan(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a stream; otherwise as ``batch_writer``. The mode ``complete`` overwrites, too."""
    return StreamWriter(*_plan(options, schema, overwrite))


def _plan(options: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[WriterOptions, tuple[str, ...]]:
    """Return the options and the addresses of the nsqds."""
    if overwrite:
        raise OptionError("the mode overwrites; allowed is append, since published messages cannot be replaced")
    known = read_writer_options(options)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, known)
    if known.nsqd_tcp_addresses:
        return known, known.nsqd_tcp_addresses
    addresses = anyio.run(partial(lookup_nsqds, known.lookupd_http_addresses, None, options=known.lookup_options()))
    if not addresses:
        raise NotConnected("lookupd.addresses list no nsqd; publishing needs at least one that is registered")
    return known, tuple(addresses)
