"""Needs pyarrow: run by `tox -e spark`."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nsqkit.spark.schema import MessageRow
from nsqkit.spark.sink import ParquetSink, message_table


def row(number: int, body: bytes = b"body") -> MessageRow:
    return MessageRow("127.0.0.1:4150", "t", f"{number:016x}", 1_700_000_000_000_000_000 + number, 1, body)


def body_table(rows):
    """A table of the bodies as text, an empty one being none."""
    return pa.table({"id": [row.id for row in rows], "body": [row.body.decode() or None for row in rows]})


def files(directory: Path) -> list[Path]:
    return [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]


def test_written_rows_are_read_back(tmp_path: Path):
    rows = [row(1), row(2, b"\xff\x00")]
    ParquetSink(tmp_path / "new" / "lake").write(rows)
    table = ds.dataset(tmp_path / "new" / "lake").to_table()
    assert [MessageRow(**found) for found in table.to_pylist()] == rows


def test_no_rows_make_an_empty_table_of_the_same_columns():
    assert message_table([]).schema == message_table([row(1)]).schema


def test_the_same_messages_replace_their_file(tmp_path: Path):
    sink = ParquetSink(tmp_path)
    sink.write([row(1), row(2)])
    sink.write([row(2), row(1)])
    assert len(files(tmp_path)) == 1


def test_other_messages_make_another_file(tmp_path: Path):
    sink = ParquetSink(tmp_path)
    sink.write([row(1), row(2)])
    sink.write([row(1)])
    # The digest must not depend on how the texts of keys are joined.
    sink.write([row(1)._replace(topic="t\0", id="")])
    assert len(files(tmp_path)) == 3


def test_rows_go_into_the_directories_of_their_values(tmp_path: Path):
    values = ["9E", "a/b", "", "100%", "9E"]
    rows = [row(number, value.encode()) for number, value in enumerate(values)]
    ParquetSink(tmp_path, to_table=body_table, partition_by="body").write(rows)
    directories = {path.parent.name for path in files(tmp_path)}
    assert directories == {"body=9E", "body=a%2Fb", "body=100%25", "body=__HIVE_DEFAULT_PARTITION__"}
    table = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    found = {found["id"]: found["body"] for found in table}
    assert found == {row.id: row.body.decode() or None for row in rows}


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write_table(table, file):
        file.write(b"PAR1 and no more")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", write_table)
    with pytest.raises(OSError, match="no space left"):
        ParquetSink(tmp_path).write([row(1)])
    assert files(tmp_path) == []


def test_an_unfinished_file_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = []
    write_table = pq.write_table

    def spy(table, file):
        names.append(Path(file.name).name)
        write_table(table, file)

    monkeypatch.setattr(pq, "write_table", spy)
    ParquetSink(tmp_path).write([row(1)])
    assert names[0].startswith(".")


def test_a_sink_pickles(tmp_path: Path):
    sink = ParquetSink(tmp_path, partition_by="topic")
    assert pickle.loads(pickle.dumps(sink)) == sink
