"""The interface of a destination for chunks, and one that writes Parquet.

When ``write`` returns, the rows survive a crash, and readers have seen either none or all of a file. Only then are the
messages finished.

RDY limits a chunk, so ``ParquetSink`` first writes each chunk as a small file, and merges its files when they have
enough rows or bytes, after some time, and at the end of the partition. A large file needs no more messages in flight
than a small one.

The name of a file is a digest of the keys of its messages. If the worker is killed before a written chunk is finished,
and the same chunk is delivered again, it replaces its own file. If that file has been merged, or its messages are
delivered in other chunks, the new files repeat some of the rows; readers can deduplicate on ``KEY_COLUMNS``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import attrs

from nsqkit.options.fields import seconds, whole
from nsqkit.spark.parquet_file import FILE_BYTES, FILE_ROWS, file_name, merge_files, write_file
from nsqkit.spark.schema import MessageRow, arrow_schema

if TYPE_CHECKING:
    import pyarrow

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows without a value or with an empty text, as Hive and Spark name it."""


class Sink(Protocol):
    """A destination for chunks; it must pickle, since each partition gets a copy of its own."""

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write a chunk; when this returns, it is durable."""

    def close(self) -> None:
        """End the partition, after its last chunk; not called if the partition fails."""


def _text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)


def message_table(rows: Sequence[MessageRow]) -> pyarrow.Table:
    """Return a table with the columns of ``format("nsq")``, except ``channel`` and ``batchSeq``."""
    import pyarrow as pa

    fields = zip(*rows, strict=True) if rows else [()] * len(MessageRow._fields)
    addresses, topics, ids, timestamps, attempts, bodies = fields
    columns = {
        "body": bodies,
        "id": ids,
        "timestamp": [timestamp // 1000 for timestamp in timestamps],
        "timestampNs": timestamps,
        "attempts": attempts,
        "topic": topics,
        "nsqdAddress": addresses,
    }
    schema = arrow_schema()
    return pa.table({name: pa.array(values, schema.field(name).type) for name, values in columns.items()})


@attrs.define(eq=False)
class _SmallFiles:
    """The files of one directory and one schema that were written since the last merge."""

    since: float
    paths: set[Path] = attrs.field(factory=set)
    row_count: int = 0
    byte_count: int = 0


@attrs.frozen(kw_only=True)
class _Options:
    partition_by: str | None = None
    file_rows: int = whole(FILE_ROWS, 1, 1 << 62)
    file_bytes: int = whole(FILE_BYTES, 1, 1 << 62)
    file_seconds: float = seconds(300.0, 0.0, 86_400.0)


@attrs.frozen
class ParquetSink(_Options):
    """Writes Parquet files into a directory that all executors can write to.

    A partition merges its files when the first of the limits is reached, and when it ends. A partition that fails
    leaves its small files, and each run has files of its own; ``compact`` merges those, too.

    Args:
        directory: the directory; created if it is missing.
        to_table: returns the table of a chunk; by default ``message_table``. Deduplication needs the columns of
            ``KEY_COLUMNS``.
        partition_by: a column by whose values the rows are divided into directories ``column=value``, as by Spark's
            ``partitionBy``; None for no such directories. The limits are those of each directory and schema.
        file_rows: rows at which files are merged; 1,000,000.
        file_bytes: bytes on disk at which files are merged; 128 MiB.
        file_seconds: age of the first of them at which files are merged, with the next chunk; 300 seconds.

    Raises:
        OptionError: a limit that cannot be used.
    """

    directory: str = attrs.field(converter=_text)
    to_table: Callable[[Sequence[MessageRow]], pyarrow.Table] = message_table
    _small_files: dict[tuple[Path, pyarrow.Schema], _SmallFiles] = attrs.field(
        factory=dict, init=False, eq=False, repr=False
    )

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write a chunk; when this returns, its files are in place and synced."""
        name = file_name("\0".join(row.key) for row in rows)
        for directory, table in self._parts(self.to_table(rows)):
            path = directory / name
            self._add(path, table, write_file(table, path))

    def close(self) -> None:
        """Merge the files that are not merged yet."""
        for key in list(self._small_files):
            self._merge(key)

    def _add(self, path: Path, table: pyarrow.Table, byte_count: int) -> None:
        now = time.monotonic()
        # A function of the user may infer other columns or types from another chunk.
        key = path.parent, table.schema.remove_metadata()
        small = self._small_files.setdefault(key, _SmallFiles(now))
        small.paths.add(path)
        small.row_count += table.num_rows
        small.byte_count += byte_count
        if (
            small.row_count >= self.file_rows
            or small.byte_count >= self.file_bytes
            or now >= small.since + self.file_seconds
        ):
            self._merge(key)

    def _merge(self, key: tuple[Path, pyarrow.Schema]) -> None:
        small = self._small_files.pop(key)
        if len(small.paths) > 1:
            merge_files(sorted(small.paths))

    def _parts(self, table: pyarrow.Table) -> Iterator[tuple[Path, pyarrow.Table]]:
        """Divide a table by the values of ``partition_by``; the column is then in the directory's name."""
        directory, column = Path(self.directory), self.partition_by
        if column is None:
            yield directory, table
            return
        # By text, since NaN does not equal itself, and 0.0 equals -0.0.
        indices: dict[str, list[int]] = {}
        for index, value in enumerate(table[column].to_pylist()):
            indices.setdefault(_directory_value(value), []).append(index)
        for text, rows in indices.items():
            yield directory / f"{column}={text}", table.take(rows).drop_columns([column])


def _directory_value(value: object) -> str:
    if value is None or value == "":
        return NULL_PARTITION
    # Spark takes each escape for a character, not for a byte of UTF-8.
    return "".join(quote(char, safe=" ") if char.isascii() else char for char in str(value))
