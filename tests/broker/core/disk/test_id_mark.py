"""The mark of ids: whatever clocks and crashes do, no life of a data path gives an id that an earlier one gave."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.guid import TICK_LAST, GuidFactory
from nsqkit.broker.core.disk.id_mark import BLOCK_TICKS, FILE_NAME, MODIFIED_MARGIN_NS, RETRY_TICKS, IdMark
from tests.broker.core.disk.disks import Ended, MemoryFileStore

NOW_NS = 1_704_067_200 * 10**9
TICK_NS = 1 << 20
TICK = NOW_NS >> 20
A_QUEUE = {"t.diskqueue.000000.dat": b""}


def mark_of(directory: MemoryFileStore, reports: list[str] | None = None) -> IdMark:
    """Return the mark as a broker has it that was started now."""
    mark = IdMark(directory, pytest.fail if reports is None else reports.append)
    mark.read()
    return mark


def first_of(directory: MemoryFileStore, reports: list[str] | None = None, tick: int = TICK) -> int:
    """Return the first tick of a life, as ticks since now."""
    return mark_of(directory, reports).reserve(tick)[0] - TICK


def test_a_new_data_path_begins_at_the_time_of_the_clock():
    directory = MemoryFileStore()
    mark = mark_of(directory)
    assert directory.files == {}
    assert mark.reserve(TICK) == (TICK, TICK + BLOCK_TICKS)
    assert list(directory.files) == [FILE_NAME]
    assert mark.reserve(TICK + BLOCK_TICKS + 7)[0] == TICK + BLOCK_TICKS + 7


def test_a_life_begins_behind_what_was_reserved_before():
    directory = MemoryFileStore()
    mark_of(directory).reserve(TICK)
    assert first_of(directory.kill(), tick=TICK - 10**6) == BLOCK_TICKS + 1
    assert first_of(directory.kill(), tick=TICK + 10**6) == 10**6


def test_a_stop_gives_back_what_was_not_used():
    directory = MemoryFileStore()
    mark = mark_of(directory)
    mark.close(-1)
    assert directory.files == {}
    mark.reserve(TICK)
    mark.close(TICK + 3)
    assert first_of(directory) == 4


def test_messages_that_others_wrote_are_older_than_their_files():
    directory = MemoryFileStore(A_QUEUE)
    directory.modified_ns = NOW_NS + 3600 * 10**9
    assert first_of(directory) == ((directory.modified_ns + MODIFIED_MARGIN_NS) >> 20) + 1 - TICK


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 23,
        b"1625125122070",
        b"1625125122070 00000000\n",
        b"9" * 5000,
        b"-1 12345678\n",
        b"\xff\n",
    ],
)
def test_a_damaged_mark_is_named_and_the_newest_file_counts(data: bytes):
    directory = MemoryFileStore({**A_QUEUE, FILE_NAME: data})
    reports: list[str] = []
    directory.modified_ns = NOW_NS
    assert first_of(directory, reports) > 0
    (sentence,) = reports
    assert sentence.startswith(f"{FILE_NAME} is damaged")
    assert len(sentence) < 500
    assert first_of(directory) > 0, "it was written anew"


def test_a_mark_that_cannot_be_read_is_named_and_the_newest_file_counts():
    directory = MemoryFileStore(A_QUEUE)
    reports: list[str] = []
    directory.modified_ns = NOW_NS
    directory.fail(errno.EIO, times=1)
    assert first_of(directory, reports) > 0
    assert [sentence.partition(",")[0] for sentence in reports] == [f"{FILE_NAME} cannot be read"]


def test_files_whose_times_cannot_be_read_do_not_end_the_start():
    directory = MemoryFileStore(A_QUEUE)
    reports: list[str] = []
    directory.fail(errno.EIO, after=1, times=1)
    assert first_of(directory, reports) == 0
    assert len(reports) == 1


def test_times_that_no_id_can_tell_do_not_count():
    directory = MemoryFileStore(A_QUEUE)
    directory.modified_ns = (TICK_LAST + 1) << 20
    assert first_of(directory) == 0
    directory = MemoryFileStore()
    reports: list[str] = []
    mark_of(directory).close(TICK_LAST + 1)
    assert first_of(directory, reports) == 0
    assert len(reports) == 1


def test_ids_are_given_on_a_full_disk_and_the_mark_is_written_when_there_is_room():
    directory = MemoryFileStore()
    reports: list[str] = []
    mark = mark_of(directory, reports)
    directory.fail(errno.ENOSPC)
    assert mark.reserve(TICK) == (TICK, TICK + RETRY_TICKS)
    assert mark.reserve(TICK + RETRY_TICKS + 1) == (TICK + RETRY_TICKS + 1, TICK + 2 * RETRY_TICKS + 1)
    mark.close(TICK)
    assert reports == [f"{FILE_NAME} cannot be written: No space left on device"] * 2  # once for all reserves
    directory.recover()
    assert mark.reserve(TICK + 3 * RETRY_TICKS)[1] == TICK + 3 * RETRY_TICKS + BLOCK_TICKS
    assert first_of(directory) == 3 * RETRY_TICKS + BLOCK_TICKS + 1


LIVES = st.lists(
    st.tuples(
        st.integers(-5 * 10**9, 5 * 10**9),  # where the clock stands when a life begins
        st.sampled_from(["stop", "kill", "power cut", "in the midst"]),
        st.lists(st.tuples(st.integers(0, 9000), st.integers(-(10**9), 10**11)), max_size=5),
    ),
    min_size=2,
    max_size=6,
)


@given(LIVES, st.integers(0, 2**32))
def test_no_life_gives_an_id_of_another(lives, seed):
    directory, random, given_ids = MemoryFileStore(), Random(seed), []
    for offset_ns, end, steps in lives:
        mark = mark_of(directory)
        factory, now_ns = GuidFactory(9, mark.reserve), NOW_NS + offset_ns
        if end == "in the midst":
            directory.end_after(random.randrange(12))
        with suppress(Ended):
            for count, ns in steps:
                now_ns += ns
                given_ids += [
                    prefix + suffix for prefix, suffixes in factory.take(count, now_ns) for suffix in suffixes
                ]
            if end == "stop":
                mark.close(factory.tick)
        directory = directory.power_cut(random) if end == "power cut" else directory.kill()
    assert all(first < second for first, second in pairwise(given_ids))
