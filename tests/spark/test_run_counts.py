"""The rows of batches, from FIN records."""

from __future__ import annotations

from nsqkit.spark.batch_plan import BatchPlan, PartitionShare, store_plan
from nsqkit.spark.run_counts import BatchCounts, RunCounts, count_batch
from nsqkit.spark.slots.records import FinRecord, MessageKey
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore


def fill(wal: Wal, batch: int, *partitions: list[FinRecord]) -> None:
    shares = (PartitionShare(index=k, connections=(), records_max=None, bytes_max=None) for k in range(len(partitions)))
    store_plan(wal, BatchPlan(batch, 0, tuple(shares)))
    for k, records in enumerate(partitions):
        for number, record in enumerate(records):
            wal.partition(batch, k).put_fin(number, record)


def test_a_batch_has_the_rows_of_all_slots() -> None:
    wal = Wal(MemoryStore(), "w")
    failed = frozenset([MessageKey("n", "t", b"0" * 16)])
    fill(wal, 0, [FinRecord(row_count=5), FinRecord(failed, row_count=4)], [], [FinRecord(ambiguous=True, row_count=3)])
    assert count_batch(wal, 0) == BatchCounts(row_count=12, failed_count=1, ambiguous_count=1)


def test_a_batch_without_a_plan_has_no_rows() -> None:
    assert count_batch(Wal(MemoryStore(), "w"), 7) == BatchCounts()


def test_a_run_counts_the_batches_that_began_in_it() -> None:
    wal = Wal(MemoryStore(), "w")
    for batch in range(3):
        fill(wal, batch, [FinRecord(row_count=batch + 1)])
    counts = RunCounts()
    counts.advance(wal, 1)
    assert (counts.run_count, counts.last) == (0, BatchCounts(row_count=1))
    counts.advance(wal, 1)
    counts.advance(wal, 3)
    assert (counts.run_count, counts.last) == (5, BatchCounts(row_count=3))


def test_a_new_query_has_no_last_batch() -> None:
    counts = RunCounts()
    counts.advance(Wal(MemoryStore(), "w"), 0)
    assert (counts.run_count, counts.last, counts.next_batch) == (0, None, 0)
