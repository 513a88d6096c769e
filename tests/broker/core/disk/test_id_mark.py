"""The mark of ids: no run of a broker gives an id of an earlier run."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.guid import BLOCK_TICKS, TICK_LAST, GuidFactory
from nsqkit.broker.core.disk.id_mark import FILE_NAME, MODIFIED_MARGIN_NS, read_used_tick, write_mark
from tests.broker.core.disk.disks import Ended, MemoryFileStore

NOW_NS = 1_704_067_200 * 10**9
TICK_NS = 1 << 20
TICK = NOW_NS >> 20
A_QUEUE = {"t.diskqueue.000000.dat": b""}


def used(directory: MemoryFileStore, reports: list[str] | None = None) -> int:
    """Return the last tick of earlier runs, as ticks since now."""
    found: list[str] = []
    tick = read_used_tick(directory, found if reports is None else reports)
    assert found == []
    return tick - TICK


def test_new_data_path_has_no_mark():
    directory = MemoryFileStore()
    assert used(directory) < 0
    assert directory.files == {}


def test_mark_is_read_as_written():
    directory = MemoryFileStore()
    write_mark(directory, TICK + 3)
    assert list(directory.files) == [FILE_NAME]
    assert used(directory.kill()) == 3
    for seed in range(9):
        assert used(directory.power_cut(Random(seed))) == 3


def test_newest_file_counts_as_a_mark():
    directory = MemoryFileStore(A_QUEUE)
    directory.modified_ns = NOW_NS + 3600 * 10**9
    assert used(directory) == ((directory.modified_ns + MODIFIED_MARGIN_NS) >> 20) - TICK


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
def test_damaged_mark_is_reported_and_the_newest_file_counts(data: bytes):
    directory = MemoryFileStore({**A_QUEUE, FILE_NAME: data})
    reports: list[str] = []
    directory.modified_ns = NOW_NS
    assert used(directory, reports) > 0
    (sentence,) = reports
    assert sentence.startswith(f"{FILE_NAME} is damaged")
    assert len(sentence) < 500


def test_mark_that_cannot_be_read_is_reported_and_the_newest_file_counts():
    directory = MemoryFileStore(A_QUEUE)
    reports: list[str] = []
    directory.modified_ns = NOW_NS
    directory.fail(errno.EIO, times=1)
    assert used(directory, reports) > 0
    assert [sentence.partition(",")[0] for sentence in reports] == [f"{FILE_NAME} cannot be read"]


def test_files_whose_times_cannot_be_read_are_reported():
    directory = MemoryFileStore(A_QUEUE)
    reports: list[str] = []
    directory.fail(errno.EIO, after=1, times=1)
    assert used(directory, reports) == -1 - TICK
    assert len(reports) == 1


def test_times_that_no_id_can_have_do_not_count():
    directory = MemoryFileStore(A_QUEUE)
    directory.modified_ns = (TICK_LAST + 1) << 20
    assert used(directory) == -1 - TICK
    reports: list[str] = []
    write_mark(directory, TICK_LAST + 1)
    assert used(directory, reports) == -1 - TICK
    assert len(reports) == 1


RUNS = st.lists(
    st.tuples(
        st.integers(-5 * 10**9, 5 * 10**9),  # the clock's offset when a run begins
        st.sampled_from(["stop", "kill", "power cut", "in the midst"]),
        st.lists(st.tuples(st.integers(0, 9000), st.integers(-(10**9), 10**11)), max_size=5),
    ),
    min_size=2,
    max_size=6,
)


@given(RUNS, st.integers(0, 2**32))
def test_no_run_gives_an_id_of_an_earlier_run(all_runs, seed):
    directory, random, given_ids = MemoryFileStore(), Random(seed), []
    for offset_ns, end, steps in all_runs:
        factory, now_ns, marked = GuidFactory(9), NOW_NS + offset_ns, -1
        factory.used_tick = read_used_tick(directory, [])
        if end == "in the midst":
            directory.end_after(random.randrange(12))
        with suppress(Ended):
            for count, ns in steps:
                now_ns += ns
                runs = factory.take(count, now_ns)
                if factory.reserved_tick != marked:
                    marked = factory.reserved_tick
                    write_mark(directory, marked)
                given_ids += [prefix + suffix for prefix, suffixes in runs for suffix in suffixes]
            if end == "stop" and factory.tick >= 0:
                write_mark(directory, factory.tick)
        directory = directory.power_cut(random) if end == "power cut" else directory.kill()
    assert all(first < second for first, second in pairwise(given_ids))


def test_reservation_is_ahead_of_the_ids():
    factory = GuidFactory(0)
    for ticks in range(0, 5 * BLOCK_TICKS, 97):
        written = factory.reserved_tick
        factory.take(1, NOW_NS + (ticks << 20))
        assert ticks == 0 or factory.tick <= written
