"""The removal of batch reads: those that are old, unless a later one has adopted them."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from nsqkit.clock import NS_PER_S
from nsqkit.spark import remove_reads
from nsqkit.spark.batch_plan import BatchPlan, store_plan
from nsqkit.spark.batch_reader import FOLDER
from nsqkit.spark.slots.local_store import LocalStore
from nsqkit.spark.slots.maintenance import OrphanPolicy, WalInfo, create_wal
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot

HOUR = timedelta(hours=1)
INFO = WalInfo(topics="orders", channel="etl")


def begin(folder: Path, name: str, hours: int, on_orphaned: OrphanPolicy = "ignore") -> None:
    """Store the rows of a read that began some hours ago."""
    wal = create_wal(LocalStore(folder / FOLDER), name, INFO, on_orphaned)
    store_plan(wal, BatchPlan(0, time.time_ns() - hours * 3600 * NS_PER_S, ()))
    log = wal.partition(0, 0)
    log.put_slot(0, DataSlot((MessageKey("a:4150", "orders", b"0" * 16),), b""))
    log.put_seal(1, SealSlot(FinOutcome(), RowCounts(1)))


def names(folder: Path) -> set[str]:
    return {key.split("/")[0] for key in LocalStore(folder / FOLDER).list("")}


def test_old_reads_are_removed(tmp_path: Path) -> None:
    begin(tmp_path, "old", hours=5)
    begin(tmp_path, "new", hours=1)
    assert remove_reads(tmp_path, 3 * HOUR) == ["old"]
    assert names(tmp_path) == {"new"}
    assert remove_reads(str(tmp_path), 3 * HOUR) == []


def test_a_read_that_was_adopted_stays_as_long_as_the_other_one(tmp_path: Path) -> None:
    begin(tmp_path, "adopted", hours=5)
    begin(tmp_path, "new", hours=1, on_orphaned="adopt")
    assert remove_reads(tmp_path, 3 * HOUR) == []
    assert remove_reads(tmp_path, HOUR / 2) == ["adopted", "new"]
    assert names(tmp_path) == set()


def test_a_read_that_begins_just_now_stays(tmp_path: Path) -> None:
    create_wal(LocalStore(tmp_path / FOLDER), "new", INFO, "ignore")
    assert remove_reads(tmp_path, timedelta(0)) == []
