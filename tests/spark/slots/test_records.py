"""The records of a slot log: round trips, and bytes that are no record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.spark.slots.records import (
    DataSlot,
    FinRecord,
    MessageKey,
    SealSlot,
    decode_fields,
    decode_fin,
    decode_slot,
    encode_data,
    encode_fields,
    encode_fin,
    encode_seal,
)

KEYS = st.builds(
    MessageKey, st.sampled_from(["a:1", "b:1"]), st.sampled_from(["t", "u"]), st.binary(min_size=16, max_size=16)
)
ROW = MessageKey("a:1", "t", b"0123456789abcdef")


@given(st.lists(KEYS), st.binary())
def test_a_data_slot_keeps_keys_and_payload(keys: list[MessageKey], payload: bytes) -> None:
    slot = decode_slot("key", encode_data(keys, payload))
    assert slot == DataSlot(tuple(keys), payload)


def test_the_seal_is_no_data() -> None:
    assert decode_slot("key", encode_seal()) == SealSlot()


@given(st.builds(FinRecord, st.frozensets(KEYS), st.booleans(), st.integers(0)))
def test_a_fin_record_keeps_its_fields(record: FinRecord) -> None:
    assert decode_fin("key", encode_fin(record)) == record


def test_an_id_of_another_size_is_refused() -> None:
    with pytest.raises(ProtocolError, match="message id b'short' has 5 bytes instead of 16"):
        encode_data([MessageKey("a:1", "t", b"short")], b"")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_slot_or_an_error_with_the_key(data: bytes) -> None:
    for decode in (decode_slot, decode_fin, decode_fields):
        try:
            decode("0/1/000000.slot", data)
        except ProtocolError as caught:
            error = str(caught)
        else:
            continue
        assert error.startswith("0/1/000000.slot ")


@given(st.integers(min_value=0))
def test_a_slot_that_was_cut_is_an_error_or_shorter(cut: int) -> None:
    whole = encode_data([ROW, ROW], b"")
    with pytest.raises(ProtocolError):
        decode_slot("key", whole[: cut % len(whole)])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "key has version None; this nsqkit reads version 1"),
        (b"D\x02", "key has version 2; this nsqkit reads version 1"),
        (b"X\x01abc", "key is no slot: it begins with b'X"),
        (b"D\x01\x00\x00\x00\x02{}", "key is no slot: its head is not readable"),
    ],
    ids=["empty", "version", "kind", "head"],
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
        (b'{"version": 1}', "key is no FIN record: KeyError('failed')"),
        (
            b'{"version": 1, "failed": 3, "ambiguous": true, "row_count": 1}',
            "key is no FIN record: TypeError('3 is no list')",
        ),
        (
            b'{"version": 1, "failed": [], "ambiguous": 3, "row_count": 1}',
            "key is no FIN record: ambiguous is 3 instead of true",
        ),
        (
            b'{"version": 1, "failed": [], "ambiguous": true, "row_count": "1"}',
            "key is no FIN record: row_count is '1' instead of an integer",
        ),
    ],
    ids=["cut", "list", "no-version", "no-failed", "failed", "ambiguous", "row_count"],
)
def test_wrong_fin_records_are_errors(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_fin("key", data)
    assert str(caught.value).startswith(sentence)


def test_fields_have_a_version() -> None:
    assert encode_fields({"n": 3}) == b'{"version": 1, "n": 3}'
    assert decode_fields("key", encode_fields({"n": 3})) == {"n": 3}
