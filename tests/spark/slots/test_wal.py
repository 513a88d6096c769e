"""The keys of a WAL, and the actions on a store."""

from __future__ import annotations

import pytest

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.dedupe import Presence
from nsqkit.spark.slots.records import DataSlot, FinRecord, MessageKey, SealSlot
from nsqkit.spark.slots.slot_log import LogEntry
from nsqkit.spark.slots.wal import Wal
from tests.spark.slots.memory_store import MemoryStore

A, B = (MessageKey("n:1", "t", b"%016d" % number) for number in range(2))


def test_a_log_is_read_up_to_its_seal() -> None:
    wal = Wal(MemoryStore(), "w")
    log = wal.partition(3, 1)
    assert log.read_log() == []
    assert log.put_slot(0, [A, B], b"rows")
    assert log.put_fin(0, FinRecord(frozenset([B])))
    assert log.put_seal(1)
    assert log.read_log() == [LogEntry(DataSlot((A, B), b""), FinRecord(frozenset([B]))), LogEntry(SealSlot())]
    assert wal.store.list("") == ["w/3/1/000000.fin", "w/3/1/000000.slot", "w/3/1/000001.slot"]


def test_what_is_stored_does_not_change() -> None:
    log = Wal(MemoryStore(), "w").partition(0, 0)
    assert log.put_seal(0)
    assert not log.put_slot(0, [A], b"rows")
    assert log.put_fin(1, FinRecord())
    assert not log.put_fin(1, FinRecord(ambiguous=True))


def test_messages_are_looked_up_in_all_partitions_as_they_are_now() -> None:
    wal = Wal(MemoryStore(), "w")
    assert wal.look_up([A]) == {}
    wal.partition(0, 1).put_slot(0, [A], b"")
    wal.partition(0, 1).put_seal(1)
    assert wal.look_up([A]) == {A: Presence.OPEN}
    wal.partition(0, 1).put_fin(0, FinRecord())
    assert wal.look_up([A, B]) == {A: Presence.INCLUDED}
    Wal(wal.store, "other").partition(0, 0).put_slot(0, [B], b"")
    assert wal.look_up([B]) == {}


def test_rows_are_read_for_the_replay() -> None:
    log = Wal(MemoryStore(), "w").partition(0, 0)
    log.put_slot(0, [A], b"rows")
    log.put_seal(1)
    assert bytes(log.read_slot(0).payload) == b"rows"
    with pytest.raises(ProtocolError, match=r"w/0/0/000001\.slot has no rows"):
        log.read_slot(1)
