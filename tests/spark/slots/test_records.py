"""The records of a slot log: round trips, and bytes that are no record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.records import (
    DataSlot,
    FinOutcome,
    MessageKey,
    RowCounts,
    SealSlot,
    decode_fields,
    decode_slot,
    encode_fields,
    encode_slot,
)

KEYS = st.builds(
    MessageKey, st.sampled_from(["a:1", "b:1"]), st.sampled_from(["t", "u"]), st.binary(min_size=16, max_size=16)
)
ROW = MessageKey("a:1", "t", b"0123456789abcdef")


def slot_of(kind: bytes, outcome: object) -> bytes:
    head = json.dumps({"outcome": outcome, "counts": [0, 0, 0], "runs": []}).encode()
    return kind + b"\x01" + len(head).to_bytes(4, "big") + head


OUTCOMES = st.none() | st.builds(FinOutcome, st.frozensets(KEYS), st.booleans())


@given(st.lists(KEYS), st.binary(), OUTCOMES)
def test_a_data_slot_keeps_its_fields(keys: list[MessageKey], payload: bytes, outcome: FinOutcome | None) -> None:
    slot = DataSlot(tuple(keys), payload, outcome)
    assert decode_slot("key", b"".join(encode_slot(slot))) == slot


@given(OUTCOMES, st.builds(RowCounts, *[st.integers(0)] * 3))
def test_a_seal_keeps_its_fields(outcome: FinOutcome | None, counts: RowCounts) -> None:
    seal = SealSlot(outcome, counts)
    assert decode_slot("key", b"".join(encode_slot(seal))) == seal


def test_counts_of_slots_are_added() -> None:
    failed = FinOutcome(frozenset([ROW]), ambiguous=True)
    assert RowCounts().with_slot(5, FinOutcome()).with_slot(3, failed) == RowCounts(7, 1, 1)


def test_an_id_of_another_size_is_refused() -> None:
    with pytest.raises(ProtocolError, match="message id b'short' has 5 bytes instead of 16"):
        encode_slot(DataSlot((MessageKey("a:1", "t", b"short"),), b""))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_slot_or_an_error_with_the_key(data: bytes) -> None:
    for decode in (decode_slot, decode_fields):
        try:
            decode("0/1/000000.slot", data)
        except ProtocolError as caught:
            error = str(caught)
        else:
            continue
        assert error.startswith("0/1/000000.slot ")


@given(st.integers(min_value=0))
def test_a_slot_that_was_cut_is_an_error_or_shorter(cut: int) -> None:
    whole = b"".join(encode_slot(DataSlot((ROW, ROW), b"")))
    with pytest.raises(ProtocolError):
        decode_slot("key", whole[: cut % len(whole)])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "key has version None; this nsqkit reads version 1"),
        (b"D\x02", "key has version 2; this nsqkit reads version 1"),
        (b"X\x01abc", "key is no slot: it begins with b'X"),
        (b"D\x01\x00\x00\x00\x02{}", "key is no slot: its head is not readable"),
        (slot_of(b"S", [[], 3]), "key is no slot: its head is not readable: TypeError('ambiguous is 3 instead of"),
        (slot_of(b"D", [3, True]), "key is no slot: its head is not readable"),
    ],
    ids=["empty", "version", "kind", "head", "ambiguous", "failed"],
)
def test_wrong_slots_are_errors(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_slot("key", data)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{", "key is no JSON: "),
        (b"[1]", "key is no JSON object: it is [1]"),
        (b"{}", "key has version None"),
    ],
    ids=["cut", "list", "no-version"],
)
def test_wrong_fields_are_errors(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_fields("key", data)
    assert str(caught.value).startswith(sentence)


def test_fields_have_a_version() -> None:
    assert encode_fields({"n": 3}) == b'{"version": 1, "n": 3}'
    assert decode_fields("key", encode_fields({"n": 3})) == {"n": 3}
