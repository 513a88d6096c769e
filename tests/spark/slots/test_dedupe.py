"""The index of messages: open, included and excluded."""

from __future__ import annotations

from nsqkit.spark.slots.dedupe import DedupeIndex, Presence
from nsqkit.spark.slots.records import FinRecord, MessageKey

A, B, C = (MessageKey("n:1", "t", b"%016d" % number) for number in range(3))


def test_a_message_is_open_until_its_slot_is_decided() -> None:
    index = DedupeIndex()
    index.add_slot("0/0/0", [A, B])
    assert index.look_up([A, B, C]) == {A: Presence.OPEN, B: Presence.OPEN}
    assert index.open_slots == ["0/0/0"]
    index.decide("0/0/0", FinRecord(frozenset([B])))
    assert index.look_up([A, B, C]) == {A: Presence.INCLUDED}
    assert index.open_slots == []


def test_included_in_one_slot_outweighs_open_in_another() -> None:
    index = DedupeIndex()
    index.add_slot("0/0/0", [A])
    index.add_slot("0/1/0", [A])
    index.decide("0/1/0", FinRecord(ambiguous=True))
    assert index.look_up([A]) == {A: Presence.INCLUDED}


def test_an_id_of_another_nsqd_or_topic_is_another_message() -> None:
    index = DedupeIndex()
    index.add_slot("0/0/0", [A])
    assert index.look_up([A._replace(nsqd_address="n:2"), A._replace(topic="u")]) == {}


def test_a_decided_slot_stays_decided() -> None:
    index = DedupeIndex()
    index.add_slot("0/0/0", [A])
    index.decide("0/0/0", FinRecord())
    index.add_slot("0/0/0", [A])
    assert index.look_up([A]) == {A: Presence.INCLUDED}
    assert index.has("0/0/0")


def test_removed_slots_are_forgotten() -> None:
    index = DedupeIndex()
    index.add_slot("0/0/0", [A])
    index.add_slot("1/0/0", [B])
    index.decide("0/0/0", FinRecord())
    index.remove("0/")
    assert index.slot_keys == ["1/0/0"]
    assert index.look_up([A, B]) == {B: Presence.OPEN}
