"""The readers are held against a model of nsqd in test_commands.py; here are the parts that stand alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadBody
from nsqkit.wire.bodies import READERS, batch_count_max, parse_int32, read_batch, split_batch
from tests import strategies
from tests.strategies import int32


class Limits:
    max_msg_size = 10
    max_body_size = 100


def test_a_reader_says_how_much_it_needs_and_what_to_answer_if_that_does_not_come() -> None:
    reader = READERS[b"PUB"]("PUB", Limits())
    needed, cut_off = next(reader)
    assert (needed, str(cut_off)) == (4, "E_BAD_MESSAGE PUB failed to read message body size")
    needed, cut_off = reader.send(int32(3))
    assert (needed, str(cut_off)) == (3, "E_BAD_MESSAGE PUB failed to read message body")
    with pytest.raises(StopIteration) as stop:
        reader.send(b"abc")
    assert stop.value.value == (b"abc",)


def test_messages_share_the_limit_of_the_body_whatever_was_announced() -> None:
    reader = read_batch("MPUB", Limits())
    next(reader)
    reader.send(int32(20))
    reader.send(int32(9))
    for _ in range(6):
        reader.send(int32(10))
        reader.send(b"x" * 10)
    with pytest.raises(BadBody, match="MPUB body too big 102 > 100"):
        reader.send(int32(10))


@given(strategies.INT32)
def test_an_int32_is_signed_and_big_endian(number: int) -> None:
    assert parse_int32(int32(number)) == number


def test_as_many_messages_as_a_body_can_hold_may_be_announced() -> None:
    assert batch_count_max(5 << 20) == 1048575
    assert batch_count_max(150) == 29


def naive_split(data: bytes, position: int, end: int, count: int, size_max: int) -> list[bytes] | None:
    stream = data[position:end]
    bodies = []
    for _ in range(count):
        size = int.from_bytes(stream[:4], "big", signed=True)
        if len(stream) < 4 + size or not 0 < size <= size_max:
            return None
        bodies.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return None if stream else bodies


@given(
    st.data(),
    strategies.batches(),
    st.binary(max_size=5),
    st.binary(max_size=5),
    st.integers(-1, 1),
    st.integers(1, 30),
)
def test_a_batch_is_split_as_one_would_by_hand(
    data: st.DataObject, batch: list[bytes], before: bytes, after: bytes, more: int, size_max: int
) -> None:
    packed = b"".join(int32(len(body)) + body for body in batch)
    packed = data.draw(st.one_of(st.just(packed), strategies.damaged(packed)))
    arguments = (
        before + packed + after,
        len(before),
        len(before + packed),
        max(1, len(batch) + more),
        size_max,
    )
    bodies = split_batch(*arguments)
    assert (bodies and list(bodies)) == naive_split(*arguments)


@pytest.mark.parametrize(
    "sizes",
    [[1], [3] * 1024, [3] * 1025, [2, 1, 3], [2, 3, 1, 2], [1, 2], [5, 5, 4]],
    ids=lambda sizes: f"{len(sizes)} of {sizes[:4]}",
)
def test_batches_of_equal_and_of_other_sizes(sizes: list[int]) -> None:
    batch = [b"x" * size for size in sizes]
    packed = b"".join(int32(len(body)) + body for body in batch)
    bodies = split_batch(packed, 0, len(packed), len(batch), 5)
    assert bodies is not None
    assert list(bodies) == batch
    assert split_batch(packed, 0, len(packed), len(batch), max(sizes) - 1) is None
    assert split_batch(packed, 0, len(packed), len(batch) + 1, 5) is None
    assert split_batch(packed, 0, len(packed) - 1, len(batch), 5) is None
    assert split_batch(packed, 0, 3, 1, 5) is None
    assert split_batch(packed, 0, len(packed), 0, 5) is None
    assert split_batch(packed, 0, len(packed), -1, 5) is None
