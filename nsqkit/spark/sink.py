"""The interface of a destination for chunks, and one that writes Parquet.

When ``write`` returns, the rows survive a crash, and readers have seen either none or all of a file. So a file is
written under a hidden name, synced and moved into place, and then its directory is synced.

The name of a file is a digest of the keys of its messages. If the worker is killed before a written chunk is finished,
and the same chunk is delivered again, it replaces its own file. If its messages are delivered in other chunks, the new
files repeat some of the rows; readers can deduplicate on ``KEY_COLUMNS``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import attrs

from nsqkit.spark.schema import MessageRow

if TYPE_CHECKING:
    import pyarrow

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows without a value, as Hive and Spark name it."""


class Sink(Protocol):
    """A destination for chunks; it must pickle, since it is sent to the executors."""

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write a chunk; when this returns, it is durable."""


def _text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)


def message_table(rows: Sequence[MessageRow]) -> pyarrow.Table:
    """Return a table with a column for each field of ``MessageRow``."""
    import pyarrow as pa

    types = [pa.string(), pa.string(), pa.string(), pa.int64(), pa.int32(), pa.binary()]
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(MessageRow._fields))


@attrs.frozen
class ParquetSink:
    """Writes each chunk as Parquet files into a directory that all executors can write to.

    Args:
        directory: the directory; created if it is missing.
        to_table: returns the table of a chunk; by default ``message_table``. Deduplication needs the columns of
            ``KEY_COLUMNS``.
        partition_by: a column by whose values the rows are divided into directories ``column=value``, as by Spark's
            ``partitionBy``; None for no such directories.
    """

    directory: str = attrs.field(converter=_text)
    to_table: Callable[[Sequence[MessageRow]], pyarrow.Table] = message_table
    partition_by: str | None = attrs.field(default=None, kw_only=True)

    def write(self, rows: Sequence[MessageRow]) -> None:
        """Write a chunk; when this returns, its files are in place and synced."""
        name = f"part-{_digest(rows)}.parquet"
        for directory, table in self._parts(self.to_table(rows)):
            _write_file(table, directory / name)

    def _parts(self, table: pyarrow.Table) -> Iterator[tuple[Path, pyarrow.Table]]:
        """Divide a table by the values of ``partition_by``; the column is then in the directory's name."""
        directory, column = Path(self.directory), self.partition_by
        if column is None:
            yield directory, table
            return
        import pyarrow.compute as pc

        values = table[column]
        rest = table.drop_columns([column])
        for value in values.unique():
            rows = pc.equal(values, value) if value.is_valid else pc.is_null(values)
            yield directory / f"{column}={_directory_value(value.as_py())}", rest.filter(rows)


def _directory_value(value: object) -> str:
    return NULL_PARTITION if value is None else quote(str(value), safe=" ")


def _digest(rows: Sequence[MessageRow]) -> str:
    """Return a digest of the messages that does not depend on their order."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(row.key for row in rows):
        digest.update("\0".join((*key, "")).encode())
    return digest.hexdigest()


def _write_file(table: pyarrow.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    _make_directory(path.parent)
    # Spark and pyarrow ignore names that begin with a dot. The name is unique to this process and chunk.
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            pq.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Make the names in a directory survive a crash, as fsync of a file does for its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
