"""Records: nsqd's bytes, both ways."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.records import (
    LENGTH_SIZE,
    from_records,
    record_end,
    record_ends,
    record_size,
    to_records,
)
from nsqkit.wire.messages import attempts_of, encode_message

ID = b"0123456789abcdef"
LIMIT = 100

FRAMES = st.lists(
    st.builds(
        encode_message,
        st.integers(-1, 1) | st.integers(-(1 << 63), (1 << 63) - 1),  # often several in a row that begin alike
        st.integers(0, 2) | st.integers(0, 0xFFFF),
        st.binary(min_size=16, max_size=16),
        st.sampled_from([b"", b"same", b"long"]) | st.binary(max_size=LIMIT),
    ),
    max_size=8,
)


def frame(body: bytes = b"hello", attempts: int = 1) -> bytes:
    return encode_message(1_700_000_000_000_000_001, attempts, ID, body)


def test_record_has_the_format_of_nsqd():
    record = to_records([frame()])
    assert record.hex(" ", -4) == (
        "0000001f 17979cfe 362a0001 00003031 32333435 36373839 61626364 656668 656c6c6f".replace(
            "656668 656c6c6f", "65666865 6c6c6f"
        )
    )


@pytest.mark.parametrize(("frame_attempts", "stored"), [(1, 0), (2, 1), (0xFFFF, 0xFFFE), (0, 0xFFFF)])
def test_frame_has_one_attempt_more_than_its_record(frame_attempts, stored):
    record = to_records([frame(attempts=frame_attempts)])
    assert int.from_bytes(record[12:14], "big") == stored
    (found,), _ = from_records(record, 0, 1, LIMIT)
    assert attempts_of(found) == frame_attempts


@given(FRAMES)
def test_frames_are_read_as_written(frames):
    data = to_records(frames)
    assert from_records(data, 0, len(frames), LIMIT) == (frames, len(data))


@given(FRAMES, st.integers(0, 9), st.integers(0, 2000))
def test_at_most_count_whole_records_are_read(frames, count, size):
    ends = [len(to_records(frames[:number])) for number in range(1, len(frames) + 1)]
    assert ends == list(accumulate(map(record_size, frames)))
    data = to_records(frames)[:size]
    whole = [end for end in ends if end <= size][:count]
    assert from_records(data, 0, count, LIMIT) == (frames[: len(whole)], whole[-1] if whole else 0)
    assert record_ends(data, LIMIT) == [end for end in ends if end <= size]


def test_reading_continues_at_the_returned_position():
    frames = [frame(b"%d" % number) for number in range(5)]
    data = to_records(frames)
    first, position = from_records(data, 0, 2, LIMIT)
    rest, end = from_records(data, position, 9, LIMIT)
    assert (first + rest, end) == (frames, len(data))


@pytest.mark.parametrize("length", [0, 25, 26 + LIMIT + 1, 1 << 31, (1 << 32) - 1])
def test_invalid_length_ends_the_records(length):
    good = to_records([frame()])
    data = good + length.to_bytes(LENGTH_SIZE, "big") + bytes(200)
    assert record_end(data, len(good), LIMIT) is None
    assert from_records(data, 0, 9, LIMIT) == ([frame()], len(good))
    assert record_ends(data, LIMIT) == [len(good)]


@pytest.mark.parametrize("length", [26, 26 + LIMIT])
def test_shortest_and_longest_message_are_valid(length):
    data = length.to_bytes(LENGTH_SIZE, "big") + bytes(length)
    assert record_end(data, 0, LIMIT) == LENGTH_SIZE + length
    assert from_records(data, 0, 9, LIMIT)[1] == LENGTH_SIZE + length


def test_record_end_may_be_beyond_the_data():
    record = to_records([frame()])
    assert record_end(record[:LENGTH_SIZE], 0, LIMIT) == len(record)
