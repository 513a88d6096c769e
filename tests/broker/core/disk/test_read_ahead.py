"""Reading ahead: whole records only, in as few calls as may be."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.read_ahead import ReadAhead
from nsqkit.broker.core.disk.records import to_records
from nsqkit.broker.core.disk.recovery import READ_SIZE
from nsqkit.wire.messages import encode_message
from tests.broker.core.disk.disks import MemoryFileStore

LIMIT = 1 << 20


def frames(*sizes: int) -> list[bytes]:
    """Make messages whose records have these sizes."""
    return [encode_message(1, 1, b"%016d" % number, bytes(size - 30)) for number, size in enumerate(sizes, 1)]


def opened(data: bytes) -> tuple[ReadAhead, MemoryFileStore]:
    directory = MemoryFileStore({"f": data})
    ahead = ReadAhead(directory, LIMIT)
    ahead.open("f")
    return ahead, directory


@given(
    st.lists(st.sampled_from([30, 50, 1000, READ_SIZE - 30, READ_SIZE, READ_SIZE + 1, 600_000]), max_size=8),
    st.integers(0, 29),
    st.lists(st.integers(1, 4), min_size=8, max_size=8),
)
def test_whole_records_are_read_in_order(sizes, torn, counts):
    messages = frames(*sizes)
    whole = to_records(messages)
    ahead, _ = opened(whole + bytes(torn))
    found, offset = [], 0
    for count in counts:
        part, offset = ahead.take(offset, len(whole) + torn, count)
        assert len(part) <= count
        found += part
    assert found == messages[: len(found)]
    assert len(found) >= min(len(sizes), len(counts))
    assert offset == sum(sizes[: len(found)])


def test_many_records_take_one_read():
    ahead, directory = opened(to_records(frames(*[100] * 1000)))
    before, offset = directory.operation_count, 0
    for _ in range(100):
        part, offset = ahead.take(offset, 100_000, 10)
        assert len(part) == 10
    assert directory.operation_count == before + 1


def test_no_bytes_behind_the_end_are_read():
    ahead, _ = opened(to_records(frames(50, 50, 50)))
    assert ahead.size == 150
    assert ahead.take(0, 100, 9) == (frames(50, 50), 100)
    assert ahead.take(100, 100, 9) == ([], 100)
    assert ahead.take(100, 150, 9)[1] == 150


def test_finds_record_checks_length_and_end():
    ahead, _ = opened(to_records(frames(50, 50)) + bytes(9))
    assert ahead.finds_record(0, 109)
    assert ahead.finds_record(50, 100)
    assert not ahead.finds_record(50, 99)
    assert not ahead.finds_record(100, 109)
    assert not ahead.finds_record(106, 109)


def test_next_file_is_opened_after_close():
    ahead, directory = opened(to_records(frames(50, 50)))
    ahead.take(0, 100, 1)
    assert ahead.is_open
    ahead.close()
    ahead.close()
    assert not ahead.is_open
    assert directory.open_count == 0
    with pytest.raises(FileNotFoundError):
        ahead.open("g")
    ahead.open("f")
    assert ahead.take(0, 100, 1) == (frames(50), 50)


def test_failed_read_can_be_repeated():
    ahead, directory = opened(to_records(frames(50, 50)))
    directory.fail(errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        ahead.take(0, 100, 1)
    assert ahead.take(0, 100, 2)[1] == 100
    ahead.close()
    directory.fail(errno.EIO, after=1, times=1)
    with pytest.raises(OSError, match="Input/output"):
        ahead.open("f")
    assert directory.open_count == 0
