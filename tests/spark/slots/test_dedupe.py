"""The index of messages: open, included and excluded."""

from __future__ import annotations

import tracemalloc

from nsqkit.spark.slots.dedupe import DedupeIndex, Presence
from nsqkit.spark.slots.records import FinOutcome, MessageKey

A, B, C = (MessageKey("n:1", "t", b"%016d" % number) for number in range(3))


class Slots:
    """An index, and the slots that it reads again."""

    def __init__(self) -> None:
        self.index = DedupeIndex()
        self.keys: dict[str, list[MessageKey]] = {}
        self.read: list[str] = []

    def add(self, slot_key: str, *keys: MessageKey) -> None:
        self.keys[slot_key] = list(keys)
        self.index.add_slot(slot_key, keys)

    def look_up(self, *keys: MessageKey) -> dict[MessageKey, Presence]:
        self.read.clear()
        return self.index.look_up(keys, self._read)

    def _read(self, slot_key: str) -> list[MessageKey]:
        self.read.append(slot_key)
        return self.keys[slot_key]


def test_a_message_is_open_until_its_slot_is_decided() -> None:
    slots = Slots()
    slots.add("0/0/0", A, B)
    assert slots.look_up(A, B, C) == {A: Presence.OPEN, B: Presence.OPEN}
    slots.index.decide("0/0/0", FinOutcome(frozenset([B])))
    assert slots.look_up(A, B, C) == {A: Presence.INCLUDED}


def test_included_in_one_slot_outweighs_open_in_another() -> None:
    slots = Slots()
    slots.add("0/0/0", A)
    slots.add("0/1/0", A)
    slots.index.decide("0/1/0", FinOutcome(ambiguous=True))
    assert slots.look_up(A) == {A: Presence.INCLUDED}


def test_an_id_of_another_nsqd_or_topic_is_another_message() -> None:
    slots = Slots()
    slots.add("0/0/0", A)
    assert slots.look_up(A._replace(nsqd_address="n:2"), A._replace(topic="u")) == {}


def test_a_decided_slot_stays_decided() -> None:
    slots = Slots()
    slots.add("0/0/0", A)
    slots.index.decide("0/0/0", FinOutcome())
    slots.add("0/0/0", A)
    assert slots.look_up(A) == {A: Presence.INCLUDED}
    assert slots.index.has("0/0/0")


def test_an_outcome_counts_although_its_slot_is_found_later() -> None:
    slots = Slots()
    slots.index.decide("0/0/0", FinOutcome(frozenset([B])))
    slots.add("0/0/0", A, B)
    assert slots.look_up(A, B) == {A: Presence.INCLUDED}


def test_removed_slots_are_forgotten() -> None:
    slots = Slots()
    slots.add("0/0/0", A)
    slots.add("1/0/0", B)
    slots.index.decide("0/0/0", FinOutcome())
    slots.index.remove("0/")
    assert slots.index.slot_keys == ["1/0/0"]
    assert slots.look_up(A, B) == {B: Presence.OPEN}


def test_slots_of_other_ids_are_not_read() -> None:
    slots = Slots()
    slots.add("0/0/0", A)
    slots.add("0/0/1", B, C)
    slots.add("0/0/2", A, C)
    assert slots.look_up(B) == {B: Presence.OPEN}
    assert slots.read == ["0/0/1", "0/0/2"]


def test_the_memory_of_an_index_does_not_grow_with_the_messages_of_a_slot() -> None:
    keys = [MessageKey("n:1", "t", b"%016d" % number) for number in range(10_000)]
    index = DedupeIndex()
    tracemalloc.start()
    try:
        index.add_slot("0/0/0", keys)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
