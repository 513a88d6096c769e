"""Needs pyarrow: run by `tox -e spark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nsqkit.spark import parquet_file
from nsqkit.spark.parquet_file import compact, file_name, merge_files, write_file


def table(*numbers: int, **columns: list[object]) -> pa.Table:
    return pa.table({"number": list(numbers), **columns})


def write(directory: Path, name: str, *numbers: int, **columns: list[object]) -> Path:
    path = directory / f"{name}.parquet"
    write_file(table(*numbers, **columns), path)
    return path


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def numbers(directory: Path) -> list[int]:
    return sorted(ds.dataset(directory, format="parquet").to_table()["number"].to_pylist())


def test_the_name_of_a_file_does_not_depend_on_the_order_of_its_parts():
    assert file_name(["a", "b"]) == file_name(iter("ba"))


def test_the_name_of_a_file_depends_on_the_ends_of_its_parts():
    assert len({file_name(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["a", "b", "c"], [])}) == 5


def test_write_file_returns_the_size(tmp_path: Path):
    path = tmp_path / "new" / "lake" / "a.parquet"
    assert write_file(table(1, 2), path) == path.stat().st_size
    assert numbers(tmp_path) == [1, 2]


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write_table(table: pa.Table, file: Any) -> None:
        file.write(b"PAR1 and no more")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", write_table)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path, "a", 1)
    assert files(tmp_path) == []


def test_an_unfinished_file_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = []
    write_table = pq.write_table

    def spy(table: pa.Table, file: Any) -> None:
        names.append(Path(file.name).name)
        write_table(table, file)

    monkeypatch.setattr(pq, "write_table", spy)
    write(tmp_path, "a", 1)
    assert names[0].startswith(".")


def test_a_file_may_be_written_twice_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write_both(*arguments: Any) -> None:
        monkeypatch.undo()
        write(tmp_path, "a", 1)
        pq.write_table(*arguments)

    monkeypatch.setattr(pq, "write_table", write_both)
    write(tmp_path, "a", 1)
    assert files(tmp_path) == ["a.parquet"]
    assert numbers(tmp_path) == [1]


def test_merged_files_become_one(tmp_path: Path):
    paths = [write(tmp_path, "a", 1, 2), write(tmp_path, "b", 3), write(tmp_path, "c", 4)]
    merge_files(paths[:2])
    assert len(files(tmp_path)) == 2
    assert numbers(tmp_path) == [1, 2, 3, 4]


def test_the_merged_file_is_in_place_before_others_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError("killed here")

    paths = [write(tmp_path, "a", 1, 2), write(tmp_path, "b", 3)]
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(OSError, match="killed here"):
        merge_files(paths)
    assert numbers(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_a_merge_that_was_interrupted_is_completed_under_the_same_name(tmp_path: Path):
    paths = [write(tmp_path, "a", 1, 2), write(tmp_path, "b", 3)]
    merge_files(paths)
    (merged,) = files(tmp_path)
    merge_files([write(tmp_path, "b", 3), write(tmp_path, "a", 1, 2)])
    assert files(tmp_path) == [merged]
    assert numbers(tmp_path) == [1, 2, 3]


def test_a_failed_merge_changes_nothing(tmp_path: Path):
    paths = [write(tmp_path, "a", 1), write(tmp_path, "b", 2)]
    paths[1].write_bytes(b"no Parquet")
    with pytest.raises(pa.ArrowInvalid):
        merge_files(paths)
    assert files(tmp_path) == ["a.parquet", "b.parquet"]


def test_files_that_are_gone_are_left_out_of_a_merge(tmp_path: Path):
    gone = [write(tmp_path, "a", 1), write(tmp_path, "c", 3)]
    paths = [gone[0], write(tmp_path, "b", 2), gone[1]]
    for path in gone:
        path.unlink()
    merge_files(paths)
    assert numbers(tmp_path) == [2]
    for path in tmp_path.iterdir():
        path.unlink()
    merge_files(paths)
    assert files(tmp_path) == []


def test_merges_of_the_same_files_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second merge begins when the first one has removed one of two files."""

    def unlink(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.undo()
        path.unlink(missing_ok=missing_ok)
        merge_files(paths)

    paths = [write(tmp_path, "a", 1, 2), write(tmp_path, "b", 3)]
    monkeypatch.setattr(Path, "unlink", unlink)
    merge_files(paths)
    assert set(numbers(tmp_path)) == {1, 2, 3}


@pytest.mark.parametrize("limit", ["ROW_GROUP_ROWS", "ROW_GROUP_BYTES"])
def test_a_merge_has_one_row_group_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str):
    monkeypatch.setattr(parquet_file, limit, {"ROW_GROUP_ROWS": 3, "ROW_GROUP_BYTES": 24}[limit])
    merge_files([write(tmp_path, name, 1, 2) for name in "abcde"])
    (name,) = files(tmp_path)
    metadata = pq.read_metadata(tmp_path / name)
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 2]


def test_compaction_merges_the_files_of_each_directory(tmp_path: Path):
    for directory in (tmp_path / "day=1", tmp_path / "day=2" / "hour=1"):
        for number in range(3):
            write(directory, str(number), number)
    assert compact(tmp_path) == 6
    assert len(files(tmp_path / "day=1")) == len(files(tmp_path / "day=2" / "hour=1")) == 1
    assert numbers(tmp_path) == [0, 0, 1, 1, 2, 2]
    assert compact(tmp_path) == 0


def test_compaction_adds_no_columns_for_the_names_of_directories(tmp_path: Path):
    write(tmp_path / "day=1", "a", 1)
    write(tmp_path / "day=1", "b", 2)
    compact(tmp_path)
    (name,) = files(tmp_path)
    assert pq.read_schema(tmp_path / name).names == ["number"]


def test_compaction_begins_with_small_files_and_keeps_to_the_rows(tmp_path: Path):
    large = write(tmp_path, "large", *range(100))
    for number in range(5):
        write(tmp_path, str(number), number, number)
    assert compact(tmp_path, file_rows=4) == 4
    assert large.exists()
    assert sorted(pq.read_metadata(path).num_rows for path in tmp_path.iterdir()) == [2, 4, 4, 100]


def test_compaction_keeps_to_the_bytes(tmp_path: Path):
    size = write(tmp_path, "a", 1).stat().st_size
    write(tmp_path, "b", 1)
    assert compact(tmp_path, file_bytes=2 * size - 1) == 0
    assert compact(tmp_path, file_bytes=2 * size) == 2


def test_compaction_leaves_files_with_other_columns_apart(tmp_path: Path):
    write(tmp_path, "a", 1)
    write(tmp_path, "b", 2, text=["b"])
    write(tmp_path, "c", 3, text=["c"])
    assert compact(tmp_path) == 2
    assert len(files(tmp_path)) == 2


def test_compaction_leaves_hidden_files_and_directories_alone(tmp_path: Path):
    for directory in (tmp_path, tmp_path / "_spark_metadata", tmp_path / ".wal"):
        for name in (".a", "_b", "c"):
            write(directory, name, 1)
    before = files(tmp_path)
    assert compact(tmp_path) == 0
    assert files(tmp_path) == before
