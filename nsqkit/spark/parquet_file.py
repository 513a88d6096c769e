"""Parquet files that exist as a whole or not at all, and small ones merged into large ones.

A file is written under a hidden name, synced and moved into place, and then its directory is synced. A merged file is
in place before the files that it replaces are removed, so each row is in a visible file at every moment. Between these
two steps, after a crash there, and after two merges of the same files at the same time, it may be in two: readers
deduplicate. A reader that listed the directory before a merge and opens a file after it fails because the file is
missing, and has to list the directory again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from uuid import uuid4

from nsqkit.spark.slots.local_store import make_directory, sync_directory

if TYPE_CHECKING:
    import pyarrow

FILE_ROWS: Final = 1_000_000
FILE_BYTES: Final = 128 << 20
"""Spark reads 128 MiB in one task (``spark.sql.files.maxPartitionBytes``)."""

ROW_GROUP_ROWS: Final = 128 << 10
ROW_GROUP_BYTES: Final = 32 << 20
"""A merge has one row group in memory, not whole files."""


def file_name(parts: Iterable[str]) -> str:
    """Return the name of the file with these parts, which does not depend on their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in sorted(parts):
        data = part.encode()
        digest.update(b"%d:%b" % (len(data), data))
    return f"part-{digest.hexdigest()}.parquet"


def write_file(table: pyarrow.Table, path: Path) -> int:
    """Write a table, and return the size of the file, which is then in place and survives a crash."""
    import pyarrow.parquet as pq

    with _new_file(path.parent, lambda: path.name) as file:
        pq.write_table(table, file)
        return file.tell()


def merge_files(paths: Sequence[Path]) -> None:
    """Replace files of one directory and one schema by one file.

    A file that is gone is left out: another merge has its rows. Merges may overlap: the name of the new file depends on
    the files that were read, so no file replaces another one with more rows.
    """
    import pyarrow.parquet as pq

    directory = paths[0].parent
    read: list[Path] = []
    groups = _row_groups(paths, read)
    first = next(groups, None)
    if first is None:
        return
    new_file = _new_file(directory, lambda: file_name(path.name for path in read))
    with new_file as file, pq.ParquetWriter(file, first.schema) as writer:
        writer.write_table(first)
        for group in groups:
            writer.write_table(group)
    for path in read:
        path.unlink(missing_ok=True)
    sync_directory(directory)


def compact(directory: str | os.PathLike[str], *, file_rows: int = FILE_ROWS, file_bytes: int = FILE_BYTES) -> int:
    """Merge the small Parquet files in each directory below ``directory``, and return how many were replaced.

    Files of different columns are not merged. Jobs may write to the directory meanwhile.

    Args:
        directory: where a ``ParquetSink`` wrote.
        file_rows: the most rows of a merged file.
        file_bytes: the most bytes of the files that become one.
    """
    merged = [
        group
        for folder in sorted(_folders(Path(directory)))
        for group in _groups(folder, file_rows, file_bytes)
        if len(group) > 1
    ]
    for group in merged:
        merge_files(group)
    return sum(map(len, merged))


def _folders(directory: Path) -> Iterator[Path]:
    """Return the directories that readers look into."""
    for folder, names, _ in os.walk(directory):
        names[:] = [name for name in names if not name.startswith((".", "_"))]
        yield Path(folder)


def _groups(folder: Path, file_rows: int, file_bytes: int) -> list[list[Path]]:
    """Divide the files of a directory, small ones first, into groups that may become one file each."""
    import pyarrow.parquet as pq

    by_schema: dict[pyarrow.Schema, list[tuple[int, int, Path]]] = {}
    for path in folder.glob("[!._]*.parquet"):
        with suppress(FileNotFoundError):
            metadata = pq.read_metadata(path)
            schema = metadata.schema.to_arrow_schema().remove_metadata()
            by_schema.setdefault(schema, []).append((path.stat().st_size, metadata.num_rows, path))
    groups: list[list[Path]] = []
    for files in by_schema.values():
        rows_left = bytes_left = -1
        for size, row_count, path in sorted(files):
            if rows_left < row_count or bytes_left < size:
                groups.append([])
                rows_left, bytes_left = file_rows, file_bytes
            groups[-1].append(path)
            rows_left, bytes_left = rows_left - row_count, bytes_left - size
    return groups


def _row_groups(paths: Iterable[Path], read: list[Path]) -> Iterator[pyarrow.Table]:
    """Yield the rows of files, in tables of the size of a row group; add each file that exists to ``read``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: list[pyarrow.Table] = []
    row_count = size = 0
    for path in paths:
        try:
            file = pq.ParquetFile(path)
        except FileNotFoundError:
            continue
        read.append(path)
        with file:
            for number in range(file.num_row_groups):
                tables.append(file.read_row_group(number))
                row_count, size = row_count + tables[-1].num_rows, size + tables[-1].nbytes
                if row_count >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                    yield pa.concat_tables(tables)
                    tables, row_count, size = [], 0, 0
    if tables:
        yield pa.concat_tables(tables)


@contextmanager
def _new_file(directory: Path, name: Callable[[], str]) -> Iterator[IO[bytes]]:
    """Open a hidden file that is synced and gets its name at the end, or is removed after an exception."""
    make_directory(directory)
    # Spark and pyarrow ignore names that begin with a dot. Several threads and processes may write the same file.
    unfinished = directory / f".{uuid4().hex}.tmp"
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(directory / name())
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(directory)
