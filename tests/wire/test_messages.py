from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.wire.messages import (
    ATTEMPTS_MAX,
    FRAME_HEADER_LENGTH,
    ID,
    attempts_of,
    encode_message,
    encode_messages,
    for_redelivery,
    timestamp_of,
)
from tests import strategies

ANY_ID = st.binary(min_size=16, max_size=16)


def test_message_frame_is_encoded_byte_by_byte() -> None:
    assert encode_message(0x0102030405060708, 9, b"0123456789abcdef", b"hello") == (
        b"\x00\x00\x00\x23\x00\x00\x00\x02\x01\x02\x03\x04\x05\x06\x07\x08\x00\x090123456789abcdefhello"
    )


@given(strategies.INT64, st.integers(0, ATTEMPTS_MAX), ANY_ID, st.binary(max_size=40))
def test_parts_of_a_frame_are_at_the_constants(
    timestamp_ns: int, attempts: int, message_id: bytes, body: bytes
) -> None:
    frame = encode_message(timestamp_ns, attempts, message_id, body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert timestamp_of(frame) == timestamp_ns
    assert attempts_of(frame) == attempts
    assert frame[ID] == message_id
    assert frame[FRAME_HEADER_LENGTH:] == body


@given(strategies.INT64, st.lists(st.tuples(ANY_ID, st.binary(max_size=5)), max_size=20))
def test_frames_of_a_batch_are_those_of_single_messages(timestamp_ns: int, messages: list[tuple[bytes, bytes]]) -> None:
    together = encode_messages(timestamp_ns, [message_id for message_id, _ in messages], [body for _, body in messages])
    assert together == [encode_message(timestamp_ns, 1, *message) for message in messages]


def test_different_numbers_of_ids_and_bodies_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        encode_messages(1, [bytes(16)], [b"one", b"two"])


@given(strategies.INT64, st.integers(0, ATTEMPTS_MAX), ANY_ID, st.binary(max_size=40))
def test_redelivery_differs_in_attempts_only(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> None:
    frame = encode_message(timestamp_ns, attempts, message_id, body)
    assert for_redelivery(frame) == encode_message(timestamp_ns, (attempts + 1) % (ATTEMPTS_MAX + 1), message_id, body)


def test_attempts_wrap_as_a_uint16() -> None:
    assert attempts_of(for_redelivery(encode_message(1, 65535, bytes(16), b"x"))) == 0
