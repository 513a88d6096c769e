from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import BrokerError, InvalidCommand, ProtocolError
from nsqkit.wire.frames import (
    CLOSE_WAIT_FRAME,
    FRAME_SIZE_MAX,
    HEARTBEAT_FRAME,
    OK_FRAME,
    OK_RESPONSE,
    FrameDecoder,
    MessageFrame,
    Response,
    encode_error,
    encode_response,
)
from nsqkit.wire.messages import encode_message
from tests import strategies
from tests.strategies import Sample

MESSAGE = encode_message(5, 1, b"0123456789abcdef", b"hello")


def new_decoder(frame_size_max: int = FRAME_SIZE_MAX) -> FrameDecoder:
    return FrameDecoder(frame_size_max=frame_size_max)


def decode(pieces: Iterable[bytes]) -> list[object]:
    """Decode all pieces; an error becomes its class and description."""
    decoder = new_decoder()
    return [
        (type(frame), frame.description) if isinstance(frame, BrokerError) else frame
        for piece in pieces
        for frame in decoder.feed(piece)
    ]


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (OK_FRAME, b"\0\0\0\x06\0\0\0\0OK"),
        (HEARTBEAT_FRAME, b"\0\0\0\x0f\0\0\0\0_heartbeat_"),
        (CLOSE_WAIT_FRAME, b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT"),
        (encode_response(b""), b"\0\0\0\x04\0\0\0\0"),
        (encode_error(InvalidCommand("no")), b"\0\0\0\x10\0\0\0\x01E_INVALID no"),
    ],
)
def test_frames_are_encoded_byte_by_byte(frame: bytes, data: bytes) -> None:
    assert frame == data


@given(strategies.frames())
def test_encoded_frame_is_decoded_to_itself(sample: Sample) -> None:
    assert decode([sample.data]) == [sample.value]


@given(st.data(), strategies.deliveries())
def test_frames_do_not_depend_on_the_pieces(data: st.DataObject, samples: list[Sample]) -> None:
    stream = b"".join(sample.data for sample in samples)
    assert decode(data.draw(strategies.chunkings(stream))) == [sample.value for sample in samples]


@pytest.mark.parametrize("size", range(1, 2 * len(MESSAGE) + 2))
def test_reads_of_one_size_give_the_same_frames(size: int) -> None:
    stream = OK_FRAME + MESSAGE * 7 + HEARTBEAT_FRAME
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert decode(pieces) == decode([stream])
    assert len(decode([stream])) == 9


def test_message_is_the_result_of_make_messages() -> None:
    parts = (5, 1, b"0123456789abcdef", b"hello")
    assert FrameDecoder().feed(OK_FRAME + MESSAGE + OK_FRAME, list) == [OK_RESPONSE, parts, OK_RESPONSE]


@pytest.mark.parametrize(
    "after",
    [
        b"",
        OK_FRAME,
        encode_response(bytes(len(MESSAGE) - 8)),  # as long as the messages before it
        encode_message(5, 1, b"0123456789abcdef", b"longer than hello"),
        encode_message(5, 1, b"0123456789abcdef", b""),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_run_of_messages_of_one_size(count: int, after: bytes) -> None:
    row = [encode_message(n, n, b"%016x" % n, b"%05d" % n) for n in range(count)]
    expected = [MessageFrame(n, n, b"%016x" % n, b"%05d" % n) for n in range(count)] + decode([after])
    assert decode([b"".join(row) + after]) == expected
    assert decode(strategies.single_bytes(b"".join(row) + after)) == expected
    for cut in (1, 7, 8, 9, len(MESSAGE) - 1, len(MESSAGE) + 1):
        stream = b"".join(row) + after
        assert decode([stream[:-cut], stream[-cut:]]) == expected


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0, 1, 5]), st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 128, 192, 193])),
        max_size=5,
    ),
)
def test_runs_of_several_sizes(rows: list[tuple[int, int]]) -> None:
    sizes = [size for size, count in rows for _ in range(count)]
    messages = [MessageFrame(n, 1, b"%016d" % n, b"x" * size) for n, size in enumerate(sizes)]
    data = b"".join(encode_message(m.timestamp_ns, m.attempts, m.id, m.body) for m in messages)
    assert FrameDecoder().feed(data + OK_FRAME) == [*messages, OK_RESPONSE]


def test_wrong_size_after_a_run_is_refused() -> None:
    with pytest.raises(ProtocolError, match="frame type 7"):
        new_decoder().feed(MESSAGE * 3 + MESSAGE.replace(b"\0\0\0\x02", b"\0\0\0\x07", 1))
    with pytest.raises(ProtocolError, match="frame size 0"):
        new_decoder().feed(MESSAGE * 3 + bytes(len(MESSAGE)))


@given(st.data(), strategies.deliveries())
def test_damaged_stream_does_not_depend_on_the_pieces(data: st.DataObject, samples: list[Sample]) -> None:
    stream = data.draw(strategies.damaged(b"".join(sample.data for sample in samples)))
    try:
        whole: object = decode([stream])
    except ProtocolError as error:
        whole = str(error)
    try:
        cut: object = decode(data.draw(strategies.chunkings(stream)))
    except ProtocolError as error:
        cut = str(error)
    assert cut == whole


@given(st.data(), st.binary(max_size=60))
def test_garbage_is_a_protocol_error_or_nothing(data: st.DataObject, stream: bytes) -> None:
    try:
        decode(data.draw(strategies.chunkings(stream)))
    except ProtocolError:
        pass


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 3, 101, (1 << 31) - 1])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_size_is_refused_as_soon_as_it_has_come(size: int, cut: int) -> None:
    decoder = new_decoder(frame_size_max=100)
    announced = pack(">i", size)
    assert decoder.feed(OK_FRAME + announced[: min(cut, 3)])
    with pytest.raises(ProtocolError, match=rf"^frame size {size} is out of range 4-100$"):
        decoder.feed(announced[min(cut, 3) :])


@pytest.mark.parametrize("size", [3, 101])
def test_size_is_refused_although_enough_bytes_follow(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"frame size {size} is out of range 4-100"):
        new_decoder(frame_size_max=100).feed(pack(">ii", size, 0) + bytes(size))


@pytest.mark.parametrize("size", [4, 100])
def test_lowest_and_highest_size_are_accepted(size: int) -> None:
    decoder = new_decoder(frame_size_max=100)
    frame = encode_response(b"x" * (size - 4))
    assert [decoder.feed(piece) for piece in (frame[:4], frame[4:])] == [[], [Response(b"x" * (size - 4))]]
    assert decoder.feed(frame) == [Response(b"x" * (size - 4))]


@pytest.mark.parametrize("size", [4, 29])
def test_message_shorter_than_its_header_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"message of size {size} is shorter than 30"):
        new_decoder().feed(pack(">ii", size, 2) + bytes(size - 4))


def test_message_without_body_is_decoded() -> None:
    assert decode([pack(">ii", 30, 2) + bytes(26)]) == [MessageFrame(0, 0, bytes(16), b"")]


@pytest.mark.parametrize("frame_type", [-1, 3, 1 << 30])
def test_unknown_type_is_refused(frame_type: int) -> None:
    with pytest.raises(ProtocolError, match=f"frame type {frame_type} is none of 0"):
        new_decoder().feed(pack(">ii", 6, frame_type) + b"OK")


def test_frame_in_small_pieces_takes_little_more_memory() -> None:
    frame = encode_response(b"xy" * 50_000)
    decoder = new_decoder()
    tracemalloc.start()
    try:
        for i in range(0, len(frame) - 2, 2):
            assert decoder.feed(frame[i : i + 2]) == []
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * len(frame)
    assert peak < 4 * len(frame)
    assert decoder.feed(frame[-2:]) == [Response(b"xy" * 50_000)]


@given(st.data(), st.lists(strategies.frames(), max_size=4), st.binary(max_size=20))
def test_feed_one_returns_the_bytes_after_a_frame(data, samples, rest) -> None:
    decoder = new_decoder()
    sent = b"".join(sample.data for sample in samples)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    frames: list[object] = []
    tail = b""
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        tail = sent[start:end] + (rest if end == len(sent) else b"")
        while len(frames) < len(samples) and tail:
            frame, tail = decoder.feed_one(tail)
            if frame is not None:
                frames.append(frame)
    values = [(type(f), f.description) if isinstance(f, BrokerError) else f for f in frames]
    assert values == [sample.value for sample in samples]
    assert tail == rest


def test_feed_continues_after_feed_one() -> None:
    decoder = new_decoder()
    assert decoder.feed_one(OK_FRAME + HEARTBEAT_FRAME) == (Response(b"OK"), HEARTBEAT_FRAME)
    assert decoder.feed_one(HEARTBEAT_FRAME[:6]) == (None, b"")
    assert decoder.feed(HEARTBEAT_FRAME[6:] + OK_FRAME) == [Response(b"_heartbeat_"), Response(b"OK")]
    assert decoder.feed_one(b"") == (None, b"")


@pytest.mark.parametrize("size", [3, -1, 101])
def test_feed_one_refuses_a_wrong_size(size: int) -> None:
    with pytest.raises(ProtocolError, match="out of range 4-100"):
        new_decoder(frame_size_max=100).feed_one(pack(">i", size))
