"""The life of WALs: orphans, checkpoints that do not belong to them, and removal."""

from __future__ import annotations

import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.maintenance import (
    WalInfo,
    adopted_partitions,
    create_wal,
    open_wal,
    planned_batches,
    remove_batches,
)
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot, encode_fields
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore

INFO = WalInfo(topics="orders", channel="etl")
ROW = MessageKey("n:1", "t", b"%016d" % 0)
SLOT = DataSlot((ROW,), b"")


def fill(wal: Wal, count: int, ambiguous: tuple[int, ...] = ()) -> None:
    for batch in range(count):
        wal.store.put_if_absent(wal.plan_key(batch), encode_fields({"created_ns": batch}))
        log = wal.partition(batch, 0)
        log.put_slot(0, SLOT)
        outcome = FinOutcome(ambiguous=batch in ambiguous)
        log.put_seal(1, SealSlot(outcome, RowCounts().with_slot(1, outcome)))


def test_a_new_location_has_no_orphans() -> None:
    store = MemoryStore()
    assert create_wal(store, "w", INFO, "fail").wal_id == "w"
    assert open_wal(store, "w", 0, INFO).adopted == ()


def test_rows_without_a_checkpoint_are_an_error() -> None:
    store = MemoryStore()
    fill(create_wal(store, "old", INFO, "fail"), 1)
    with pytest.raises(OptionError, match="has rows of topic 'orders' and channel 'etl' in WAL old, but the query has"):
        create_wal(store, "new", INFO, "fail")


def test_rows_without_a_checkpoint_are_adopted() -> None:
    store = MemoryStore()
    fill(create_wal(store, "old", INFO, "fail"), 2)
    wal = create_wal(store, "new", INFO, "adopt")
    assert adopted_partitions(wal) == [("old", 0, 0), ("old", 1, 0)]
    assert wal.look_up([ROW]) == {ROW: Presence.INCLUDED}
    assert open_wal(store, "new", 0, INFO).adopted == ("old",)


def test_rows_without_a_checkpoint_are_ignored_if_asked() -> None:
    store = MemoryStore()
    fill(create_wal(store, "old", INFO, "fail"), 1)
    assert adopted_partitions(create_wal(store, "new", INFO, "ignore")) == []


def test_a_wal_that_the_query_created_is_no_orphan() -> None:
    store = MemoryStore()
    fill(create_wal(store, "w", INFO, "fail"), 1)
    assert planned_batches(create_wal(store, "w", INFO, "fail")) == [0]


def test_another_subscription_is_no_orphan() -> None:
    store = MemoryStore()
    fill(create_wal(store, "old", WalInfo(topics="orders", channel="other"), "fail"), 1)
    assert create_wal(store, "new", INFO, "fail").adopted == ()


def test_a_checkpoint_of_another_location_is_an_error() -> None:
    with pytest.raises(OptionError, match="the checkpoint names WAL w, which walLocation does not have"):
        open_wal(MemoryStore(), "w", 3, INFO)


def test_a_checkpoint_of_another_subscription_is_an_error() -> None:
    store = MemoryStore()
    create_wal(store, "w", INFO, "fail")
    with pytest.raises(OptionError, match="has topic 'orders' and channel 'etl', but the query has topic 'payments'"):
        open_wal(store, "w", 0, WalInfo(topics="payments", channel="etl"))


def test_a_checkpoint_older_than_the_wal_is_an_error() -> None:
    store = MemoryStore()
    wal = create_wal(store, "w", INFO, "fail")
    fill(wal, 5)
    assert remove_batches(wal, 5, 2, 0, 100) == [0, 1, 2]
    assert open_wal(store, "w", 3, INFO).wal_id == "w"
    with pytest.raises(OptionError, match="ends before batch 2, which was removed; the WAL has batches 3 to 4"):
        open_wal(store, "w", 2, INFO)


def test_ambiguous_batches_stay_until_the_horizon() -> None:
    wal = create_wal(MemoryStore(), "w", INFO, "fail")
    fill(wal, 9, ambiguous=(1,))
    assert remove_batches(wal, 9, 2, 50, 50) == [0, 2, 3, 4, 5, 6]
    assert planned_batches(wal) == [1, 7, 8]
    # Batch 2 was planned at 2, when batch 1 had ended, and had ended at 3 itself, which its mark has.
    assert remove_batches(wal, 9, 2, 50, 52) == []
    assert remove_batches(wal, 9, 2, 50, 53) == [1]


def test_the_horizon_begins_at_the_end_of_a_batch_that_ran_long_after_its_plan() -> None:
    wal = create_wal(MemoryStore(), "w", INFO, "fail")
    fill(wal, 1, ambiguous=(0,))
    wal.store.put_if_absent(wal.plan_key(1), encode_fields({"created_ns": 1000}))
    assert remove_batches(wal, 2, 1, 50, 1049) == []
    assert remove_batches(wal, 2, 1, 50, 1050) == [0]
    remove_batches(wal, 2, 1, 50, 1099)
    assert not wal.partition(0, 0).put_slot(0, SLOT)


def test_a_batch_has_just_ended_if_the_next_one_has_no_plan() -> None:
    wal = create_wal(MemoryStore(), "w", INFO, "fail")
    fill(wal, 1, ambiguous=(0,))
    assert remove_batches(wal, 1, 0, 50, 1000) == []


def test_an_owner_of_a_removed_batch_is_still_fenced() -> None:
    wal = create_wal(MemoryStore(), "w", INFO, "fail")
    fill(wal, 1)
    remove_batches(wal, 5, 1, 50, 0)
    assert not wal.partition(0, 0).put_slot(0, SLOT)
    assert wal.store.list("w/0/") == []


def test_marks_of_removed_batches_go_at_last() -> None:
    wal = create_wal(MemoryStore(), "w", INFO, "fail")
    fill(wal, 1)
    remove_batches(wal, 5, 1, 50, 0)
    remove_batches(wal, 5, 1, 50, 99)
    assert wal.store.list("w/removed/") == ["w/removed/0"]
    wal.partition(0, 0).put_seal(0, SealSlot())
    remove_batches(wal, 5, 1, 50, 100)
    assert wal.store.list("w/") == ["w/wal.json"]
