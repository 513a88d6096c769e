"""Positions of a queue: their text, damaged ones, and the files between two of them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.positions import (
    FILE_NUMBER_MAX,
    FILES_TRIED,
    NUMBER_MAX,
    Position,
    file_name,
    file_numbers,
    from_meta,
    meta_name,
    replace_damaged,
    to_meta,
)
from nsqkit.broker.file_store import DirectoryFileStore
from tests.broker.core.disk.disks import MemoryFileStore

NUMBERS = st.integers(0, NUMBER_MAX)
PLACES = st.builds(Position, st.integers(0, FILE_NUMBER_MAX), NUMBERS)


def test_positions_have_the_format_of_nsqd():
    assert to_meta(2, Position(0, 0), Position(1, 73)) == b"2\n0,0\n1,73\n"
    assert meta_name("t:c") == "t:c.diskqueue.meta.dat"
    assert file_name("t", 7) == "t.diskqueue.000007.dat"


@given(NUMBERS, PLACES, PLACES)
def test_positions_are_read_as_written(depth, read, write):
    assert from_meta(to_meta(depth, read, write)) == (depth, read, write)


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"1\n0,0\n",
        b"1\n0,0\n0,-1\n",
        b"1\n0,0\n0,%d\n" % (NUMBER_MAX + 1),
        b"%d\n0,0\n0,1\n" % (NUMBER_MAX + 1),
        b"-%d\n0,0\n0,1\n" % (NUMBER_MAX + 1),
        b"1\n0,0\n%d,0\n" % (FILE_NUMBER_MAX + 1),
        b"1\n%d,0\n0,1\n" % (FILE_NUMBER_MAX + 1),
        b"20\n0,%d\n0,%d\n" % (1 << 70, (1 << 70) + 5),
        b"1\n0,0\n0,%s\n" % (b"1" * 5000),
    ],
    ids=lambda meta: meta[:20],
)
def test_impossible_numbers_are_damaged_positions(meta: bytes):
    assert from_meta(meta) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_an_error(meta: bytes):
    found = from_meta(meta)
    assert found is None or abs(found[0]) <= NUMBER_MAX


def test_long_range_of_file_numbers_is_listed():
    there = (3, 5, 10**12)
    others = (meta_name("t"), f"{file_name('t', 4)}.bad", file_name("t:c", 4), file_name("u", 4))
    directory = MemoryFileStore(dict.fromkeys((*others, *(file_name("t", number) for number in there)), b""))
    assert list(file_numbers(directory, "t", 3, 6)) == [3, 4, 5, 6]
    assert list(file_numbers(directory, "t", 6, 5)) == []
    assert file_numbers(directory, "t", 3, 10**13) == [3, 5, 10**12]
    assert file_numbers(directory, "t", 4, 4 + FILES_TRIED) == [5]


def test_damaged_positions_are_kept_as_bad():
    directory = MemoryFileStore({meta_name("t"): b"garbage"})
    replace_damaged(directory, "t", b"garbage", b"new")
    assert directory.files == {meta_name("t"): b"new", f"{meta_name('t')}.bad": b"garbage"}


def test_positions_that_cannot_be_read_are_replaced_in_one_step():
    directory = MemoryFileStore({meta_name("t"): b"old"})
    directory.fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        replace_damaged(directory, "t", None, b"new")
    directory.recover()
    assert directory.files == {meta_name("t"): b"old"}
    replace_damaged(directory, "t", None, b"new")
    assert directory.files == {meta_name("t"): b"new"}


def test_directory_in_place_of_positions_is_renamed(tmp_path):
    name = meta_name("t")
    (tmp_path / name).mkdir()
    replace_damaged(DirectoryFileStore(str(tmp_path)), "t", None, b"new")
    assert (tmp_path / name).read_bytes() == b"new"
    assert (tmp_path / f"{name}.bad").is_dir()
