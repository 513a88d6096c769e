"""Needs pyarrow: run by `tox -e spark`."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from nsqkit import OptionError
from nsqkit.spark.schema import KEY_COLUMNS, MessageRow, arrow_schema
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
    names = ("nsqdAddress", "topic", "id", "timestampNs", "attempts", "body")
    assert [MessageRow(*(found[name] for name in names)) for found in table.to_pylist()] == rows


def test_the_columns_are_those_of_the_data_source():
    schema = message_table([row(999)]).schema
    assert set(KEY_COLUMNS) <= set(schema.names)
    assert list(schema) == [field for field in arrow_schema() if field.name not in ("channel", "batchSeq")]
    (found,) = message_table([row(999)]).to_pylist()
    assert found["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


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
    values = ["9E", "a/b", "", "100%", "Zürich", "9E"]
    rows = [row(number, value.encode()) for number, value in enumerate(values)]
    ParquetSink(tmp_path, to_table=body_table, partition_by="body").write(rows)
    directories = {path.parent.name for path in files(tmp_path)}
    # Spark would read an escaped ü as two characters.
    assert directories == {
        "body=9E",
        "body=a%2Fb",
        "body=100%25",
        "body=Zürich",
        "body=__HIVE_DEFAULT_PARTITION__",
    }
    table = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    found = {found["id"]: found["body"] for found in table}
    assert found == {row.id: row.body.decode() or None for row in rows}


def value_table(convert, rows):
    return pa.table({"id": [row.id for row in rows], "value": [convert(row.body) for row in rows]})


@pytest.mark.parametrize(
    ("convert", "bodies", "directories"),
    [
        (float, [b"1", b"nan", b"2", b"nan"], ["value=1.0", "value=2.0", "value=nan"]),
        (float, [b"0.0", b"-0.0"], ["value=-0.0", "value=0.0"]),
        (bytes.decode, [b"", b"x"], ["value=__HIVE_DEFAULT_PARTITION__", "value=x"]),
    ],
)
def test_each_row_goes_into_one_directory(
    tmp_path: Path, convert: Callable[[bytes], object], bodies: list[bytes], directories: list[str]
):
    rows = [row(number, body) for number, body in enumerate(bodies)]
    ParquetSink(tmp_path, to_table=partial(value_table, convert), partition_by="value").write(rows)
    assert sorted(path.parent.name for path in files(tmp_path)) == directories
    assert read_ids(tmp_path) == [row.id for row in rows]


def test_a_sink_pickles(tmp_path: Path):
    sink = ParquetSink(tmp_path, partition_by="topic")
    assert pickle.loads(pickle.dumps(sink)) == sink


def write_chunks(sink: ParquetSink, count: int) -> None:
    """Write chunks of ten messages."""
    for start in range(0, 10 * count, 10):
        sink.write([row(number) for number in range(start, start + 10)])


def read_ids(directory: Path) -> list[str]:
    return sorted(ds.dataset(directory).to_table()["id"].to_pylist())


def test_a_partition_leaves_one_file(tmp_path: Path):
    sink = ParquetSink(tmp_path)
    write_chunks(sink, 20)
    assert len(files(tmp_path)) == 20
    sink.close()
    assert len(files(tmp_path)) == 1
    assert read_ids(tmp_path) == [row(number).id for number in range(200)]


def test_files_are_merged_at_their_rows(tmp_path: Path):
    sink = ParquetSink(tmp_path, file_rows=50)
    write_chunks(sink, 12)
    assert len(files(tmp_path)) == 4
    sink.close()
    assert len(files(tmp_path)) == 3
    assert len(read_ids(tmp_path)) == 120


def test_files_are_merged_at_their_bytes(tmp_path: Path):
    ParquetSink(tmp_path / "one").write([row(number) for number in range(10)])
    size = next((tmp_path / "one").iterdir()).stat().st_size
    write_chunks(ParquetSink(tmp_path / "lake", file_bytes=4 * size - 100), 4)
    assert len(files(tmp_path / "lake")) == 1


def test_files_are_merged_after_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    times = iter([0.0, 29.0, 30.0, 31.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    sink = ParquetSink(tmp_path, file_seconds=30.0)
    write_chunks(sink, 3)
    assert len(files(tmp_path)) == 1
    sink.write([row(100)])
    assert len(files(tmp_path)) == 2


def test_each_directory_of_values_has_a_file(tmp_path: Path):
    sink = ParquetSink(tmp_path, to_table=body_table, partition_by="body")
    for number in range(0, 20, 2):
        sink.write([row(number, b"a"), row(number + 1, b"b")])
    sink.close()
    assert sorted(path.parent.name for path in files(tmp_path)) == ["body=a", "body=b"]
    assert len(read_ids(tmp_path)) == 20


def json_table(rows):
    """A table of the columns that the bodies have."""
    return pa.Table.from_pylist([{"id": row.id, **json.loads(row.body)} for row in rows])


def test_files_of_other_columns_are_not_merged(tmp_path: Path):
    sink = ParquetSink(tmp_path, to_table=json_table)
    for number, body in enumerate([b'{"a": 1}', b'{"a": null}', b'{"a": 2}', b'{"a": 3, "b": 4}']):
        sink.write([row(number, body)])
    sink.close()
    assert len(files(tmp_path)) == 3
    assert sorted(id_ for path in tmp_path.iterdir() for id_ in read_ids(path)) == [row(n).id for n in range(4)]


def test_a_chunk_that_is_written_twice_is_in_one_file(tmp_path: Path):
    sink = ParquetSink(tmp_path)
    write_chunks(sink, 2)
    write_chunks(sink, 2)
    sink.close()
    assert len(read_ids(tmp_path)) == 20


def test_attempts_of_a_task_may_write_and_merge_the_same_files(tmp_path: Path):
    first, second = ParquetSink(tmp_path), ParquetSink(tmp_path)
    write_chunks(first, 2)
    write_chunks(second, 3)
    first.close()
    second.close()
    assert set(read_ids(tmp_path)) == {row(number).id for number in range(30)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file_rows": 0}, "file_rows is 0; allowed is"),
        ({"file_bytes": "1 MiB"}, "file_bytes is '1 MiB'; allowed is"),
        ({"file_seconds": -1}, "file_seconds is -1"),
    ],
)
def test_a_limit_that_cannot_be_used_is_refused(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        ParquetSink(tmp_path, **options)


def test_one_id_in_several_topics_and_nsqds_is_several_messages(tmp_path: Path):
    rows = [row(1), row(1)._replace(topic="u"), row(1)._replace(nsqd_address="127.0.0.1:4250")]
    for each in rows:
        ParquetSink(tmp_path).write([each])
    keys = ds.dataset(tmp_path).to_table().group_by([*KEY_COLUMNS]).aggregate([])
    assert len(files(tmp_path)) == keys.num_rows == 3
