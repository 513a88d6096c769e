"""Tests of the parts; test_commands.py compares the readers with a model of nsqd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BadBody, BrokerError
from nsqkit.wire.bodies import (
    READERS,
    Need,
    Read,
    Reader,
    batch_count_max,
    parse_int32,
    read_batch,
    split_batch,
)
from tests import strategies
from tests.strategies import int32


class Limits:
    max_msg_size = 10
    max_body_size = 100


def test_reader_yields_needed_bytes_and_the_error_for_their_absence() -> None:
    reader = READERS[b"PUB"]("PUB", Limits())
    need = next(reader)
    assert (need.size, str(need.cut_off)) == (4, "E_BAD_MESSAGE PUB failed to read message body size")
    need = reader.send(int32(3))
    assert (need.size, str(need.cut_off)) == (3, "E_BAD_MESSAGE PUB failed to read message body")
    with pytest.raises(StopIteration) as stop:
        reader.send(b"abc")
    assert stop.value.value == Read((b"abc",))


def batch_of(count: int, size: int = 20) -> Reader:
    """Return a reader of a batch after it has read the count."""
    reader = read_batch("MPUB", Limits())
    next(reader)
    reader.send(int32(size))
    reader.send(int32(count))
    return reader


def test_messages_share_the_limit_of_the_body() -> None:
    reader = batch_of(9)
    reader.send((int32(10) + b"x" * 10) * 6)
    with pytest.raises(BadBody, match="MPUB body too big 102 > 100"):
        reader.send(int32(10))


def test_reader_of_a_batch_takes_all_bytes_and_yields_the_missing_number() -> None:
    reader = batch_of(4)
    need = reader.send(int32(1) + b"a" + int32(2) + b"bb" + b"\0")
    assert need == Need(3, need.cut_off, or_more=True)
    assert str(need.cut_off) == "E_BAD_MESSAGE MPUB failed to read message(2) body size"
    need = reader.send(b"\0\0\3cc")
    assert need == Need(1, need.cut_off, or_more=True)
    assert str(need.cut_off) == "E_BAD_MESSAGE MPUB failed to read message body"
    with pytest.raises(StopIteration) as stop:
        reader.send(b"c" + int32(1) + b"d" + b"NOP\n")
    assert stop.value.value == Read([b"a", b"bb", b"ccc", b"d"], b"NOP\n")


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ([3] * 9, None),
        ([2] * 3 + [5] + [2] * 3, None),
        ([3] * 6 + [0], "E_BAD_MESSAGE MPUB invalid message(6) body size 0"),
        ([3] * 4 + [-4] + [3], "E_BAD_MESSAGE MPUB invalid message(4) body size -4"),
        ([3] * 4 + [11] + [3], "E_BAD_MESSAGE MPUB message too big 11 > 10"),
        ([10] * 7, "E_BAD_BODY MPUB body too big 102 > 100"),
        ([9] * 7 + [2], "E_BAD_BODY MPUB body too big 101 > 100"),
    ],
)
def test_batch_in_any_pieces_has_the_same_messages_and_errors(sizes: list[int], error: str | None) -> None:
    packed = b"".join(int32(size) + b"x" * size for size in sizes)
    for cut in range(len(packed)):
        assert read_in_parts(len(sizes), [packed[:cut], packed[cut:]]) == (error or sizes)


def read_in_parts(count: int, parts: list[bytes]) -> list[int] | str:
    """Return the sizes of the messages of a batch in these parts, or the error."""
    reader = batch_of(count)
    try:
        for part in filter(None, parts):
            reader.send(part)
    except StopIteration as stop:
        return [len(body) for body in stop.value.bodies]
    except BrokerError as error:
        return str(error)
    return "it is not all there"


@given(strategies.INT32)
def test_an_int32_is_signed_and_big_endian(number: int) -> None:
    assert parse_int32(int32(number)) == number


def test_highest_count_of_a_batch_is_accepted() -> None:
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
def test_batch_is_split_as_by_a_simple_loop(
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
def test_batch_of_equal_and_unequal_sizes_is_split(sizes: list[int]) -> None:
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
