from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.records import to_records
from nsqkit.broker.core.disk.recovery import READ_SIZE, count_unrecorded, cut_off, set_aside_unknown, size_of
from nsqkit.broker.file_store import DirectoryFileStore
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore, new_state


def records(count: int, size: int = 50) -> bytes:
    return to_records([encode_message(1, 1, b"%016d" % number, bytes(size - 30)) for number in range(count)])


def counted(directory: MemoryFileStore, start: int, noted_end: int, limit: int = 1000) -> tuple[int, list[str]]:
    state = new_state()
    return count_unrecorded(directory, "f", start, noted_end, limit, state), state.reports


def test_size_of_a_file(tmp_path):
    tmp_path.joinpath("t").write_bytes(b"12345")
    tmp_path.joinpath("d").mkdir()
    state = new_state()
    assert [size_of(DirectoryFileStore(str(tmp_path)), name, state) for name in "tud"] == [5, 0, 0]
    assert state.reports == ["d is a directory"]
    assert tmp_path.joinpath("d.bad").is_dir()


def test_files_of_a_queue_without_positions_are_set_aside():
    known = {"a.diskqueue.meta.dat": b"", "a.diskqueue.000003.dat": b"1", "b.diskqueue.000001.dat.bad": b"2"}
    directory, state = MemoryFileStore(known | {"a:b.diskqueue.000003.dat": b"3"}), new_state()
    set_aside_unknown(directory, state)
    assert directory.files == known | {"a:b.diskqueue.000003.dat.bad": b"3"}
    set_aside_unknown(directory, state)
    name = "a:b.diskqueue.000003.dat"
    assert state.reports == [f"{name} is set aside as {name}.bad: its queue has no positions"]
    directory.fail(errno.EMFILE)
    set_aside_unknown(directory, state)
    assert state.reports[1:] == ["the data path cannot be listed: Too many open files"]


@pytest.mark.parametrize(
    ("text", "numbers", "bad"),
    [
        ("0\n2,0\n2,0\n", [2, 3, 4], []),
        ("0\n2,0\n2,0\n", [2, 4, 5, 7], [4, 5, 7]),
        ("0\n2,0\n3,0\n", [1, 2, 4, 5, 7], [7]),
        ("0\n2,0\n5,0\n", [2, 5, 6], []),
        ("0\n2,0\n2,0\n", [4, 6], []),
        ("no positions", [2, 4], []),
    ],
    ids=["no gap", "gap", "gap behind new files", "missing file", "first file missing", "damaged positions"],
)
def test_files_behind_a_gap_are_set_aside(text, numbers, bad):
    """All are read if the first one is missing, or the positions are."""
    names = {number: f"q.diskqueue.{number:06d}.dat" for number in numbers}
    files = {"q.diskqueue.meta.dat": text.encode()} | {names[number]: b"%d" % number for number in numbers}
    directory, state = MemoryFileStore(files), new_state()
    set_aside_unknown(directory, state)
    renamed = {names[number]: f"{names[number]}.bad" for number in bad}
    assert directory.files == {renamed.get(name, name): data for name, data in files.items()}
    assert state.reports == [
        f"{name} is set aside as {new}: a file before it is missing" for name, new in renamed.items()
    ]


def test_gap_of_a_queue_whose_positions_cannot_be_read_stays():
    files = {"q.diskqueue.meta.dat": b"", "q.diskqueue.000002.dat": b"", "q.diskqueue.000004.dat": b""}
    directory, state = MemoryFileStore(files), new_state()
    directory.fail(errno.EIO, after=1)
    set_aside_unknown(directory, state)
    assert (directory.files, state.reports) == (files, [])


def test_cutting_off_at_a_position_behind_the_end_changes_nothing():
    """A damaged position made the file a terabyte long."""
    directory, state = MemoryFileStore({"f": records(2)}), new_state()
    file = directory.open("f")
    cut_off(directory, file, "f", 10**12, state)
    file.close()
    assert (directory.files, state.reports) == ({"f": records(2)}, [])


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 49))
def test_whole_records_behind_the_recorded_end_are_counted(start, more, torn):
    data = records(start + more) + records(1)[:torn]
    directory = MemoryFileStore({"f": data})
    count, reports = counted(directory, 0, start * 50)
    assert count == more
    whole, rest = data[: (start + more) * 50], records(1)[:torn]
    assert directory.files == {"f": whole, **({"f.bad": rest} if rest else {})}
    assert len(reports) == bool(rest)
    assert directory.open_count == 0


def test_damage_before_the_recorded_end_cuts_nothing_off():
    data = records(1) + bytes(50) + records(3)
    directory = MemoryFileStore({"f": data})
    assert counted(directory, 0, 150) == (0, [])
    assert directory.files == {"f": data}


@pytest.mark.parametrize("size", [50, 200_000, READ_SIZE + 99])
def test_file_longer_than_the_read_size_is_counted(size):
    directory = MemoryFileStore({"f": records(2 + READ_SIZE // size, size) + b"torn"})
    assert counted(directory, 0, size, 1 << 20)[0] == 1 + READ_SIZE // size


def test_rest_that_cannot_be_cut_off_is_left_to_the_reader():
    directory = MemoryFileStore({"f": records(2) + b"torn"})
    directory.capacity = 0
    count, reports = counted(directory, 0, 50)
    assert (count, len(reports)) == (1, 2)
    assert directory.files == {"f": records(2) + b"torn"}
    directory.fail(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        counted(directory, 0, 50)


def test_cut_off_rest_does_not_return_after_a_power_cut():
    """Writing goes on in the next file, and then this one counts as whole."""
    directory = MemoryFileStore({"f": records(2) + b"torn"})
    counted(directory, 0, 50)
    for seed in range(20):
        assert directory.power_cut(Random(seed)).files["f"] == records(2)
