"""The keys of a WAL, and the actions on a store."""

from __future__ import annotations

import pytest

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.records import DataSlot, FinOutcome, MessageKey, RowCounts, SealSlot
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore

A, B = (MessageKey("n:1", "t", b"%016d" % number) for number in range(2))


SEAL = SealSlot(FinOutcome(frozenset([B])), RowCounts(1, 1))


def test_a_log_is_read_up_to_its_seal() -> None:
    wal = Wal(MemoryStore(), "w")
    log = wal.partition(3, 1)
    assert log.read_log() == []
    assert log.put_slot(0, DataSlot((A, B), b"rows"))
    assert log.put_seal(1, SEAL)
    assert log.read_log() == [DataSlot((A, B), b""), SEAL]
    assert log.read_log([DataSlot((B,), b"")]) == [DataSlot((B,), b""), SEAL]
    assert wal.store.list("") == ["w/3/1/000000.slot", "w/3/1/000001.slot"]


def test_slots_do_not_change() -> None:
    log = Wal(MemoryStore(), "w").partition(0, 0)
    assert log.put_seal(0, SealSlot())
    assert not log.put_slot(0, DataSlot((A,), b"rows"))


def test_messages_are_looked_up_in_all_partitions_as_they_are_now() -> None:
    wal = Wal(MemoryStore(), "w")
    assert wal.look_up([A]) == {}
    wal.partition(0, 1).put_slot(0, DataSlot((A, B), b""))
    assert wal.look_up([A]) == {A: Presence.OPEN}
    wal.partition(0, 1).put_seal(1, SEAL)
    assert wal.look_up([A, B]) == {A: Presence.INCLUDED}
    Wal(wal.store, "other").partition(0, 0).put_slot(0, DataSlot((B,), b""))
    assert wal.look_up([B]) == {}


def test_each_batch_has_the_seals_of_its_partitions() -> None:
    wal = Wal(MemoryStore(), "w")
    wal.partition(2, 0).put_slot(0, DataSlot((A, B), b""))
    wal.partition(2, 0).put_seal(1, SEAL)
    wal.partition(2, 1).put_seal(0, SealSlot())
    wal.partition(2, 2).put_slot(0, DataSlot((A,), b""))
    wal.partition(3, 0).put_seal(0, SealSlot())
    assert list(wal.seals(2)) == [SEAL, SealSlot()]


def test_rows_are_read_for_the_replay() -> None:
    log = Wal(MemoryStore(), "w").partition(0, 0)
    log.put_slot(0, DataSlot((A,), b"rows"))
    log.put_seal(1, SEAL)
    assert bytes(log.read_slot(0).payload) == b"rows"
    with pytest.raises(ProtocolError, match=r"w/0/0/000001\.slot has no rows"):
        log.read_slot(1)
