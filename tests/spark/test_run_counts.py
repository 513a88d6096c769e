"""The rows of batches, from the seals of their logs."""

from __future__ import annotations

from nsqkit.spark.run_counts import RunCounts, count_batch
from nsqkit.spark.slots.records import RowCounts, SealSlot
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore


def fill(wal: Wal, batch: int, *partitions: RowCounts) -> None:
    for k, counts in enumerate(partitions):
        wal.partition(batch, k).put_seal(0, SealSlot(counts=counts))


def test_a_batch_has_the_rows_of_all_partitions() -> None:
    wal = Wal(MemoryStore(), "w")
    fill(wal, 0, RowCounts(5), RowCounts(4, 1, 1), RowCounts(3, 0, 2))
    assert count_batch(wal, 0) == RowCounts(12, 1, 3)


def test_a_batch_without_logs_has_no_rows() -> None:
    assert count_batch(Wal(MemoryStore(), "w"), 7) == RowCounts()


def test_a_run_counts_the_batches_that_began_in_it() -> None:
    wal = Wal(MemoryStore(), "w")
    for batch in range(3):
        fill(wal, batch, RowCounts(batch + 1))
    counts = RunCounts()
    counts.advance(wal, 1)
    assert (counts.run_count, counts.last) == (0, RowCounts(1))
    counts.advance(wal, 1)
    counts.advance(wal, 3)
    assert (counts.run_count, counts.last) == (5, RowCounts(3))


def test_a_run_does_not_count_the_batches_that_another_run_has_planned() -> None:
    wal = Wal(MemoryStore(), "w")
    for batch in range(4):
        fill(wal, batch, RowCounts(batch + 1))
        if batch < 3:
            wal.store.put_if_absent(wal.plan_key(batch), b"")
    counts = RunCounts()
    counts.advance(wal, 1)
    counts.advance(wal, 3)
    assert (counts.run_count, counts.last, counts.first_new) == (0, RowCounts(3), 3)
    counts.advance(wal, 4)
    assert (counts.run_count, counts.last) == (4, RowCounts(4))


def test_a_new_query_has_no_last_batch() -> None:
    counts = RunCounts()
    counts.advance(Wal(MemoryStore(), "w"), 0)
    assert (counts.run_count, counts.last, counts.next_batch) == (0, None, 0)
