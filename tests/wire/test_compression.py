from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.wire import compression
from nsqkit.wire.compression import PIECE_SIZE_MAX, Deflate
from tests import strategies


def raw_deflate(plain: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(plain) + compressor.flush(flush)


def decode(transform: Deflate, data: bytes) -> bytes:
    return b"".join(transform.decode(data))


@given(st.data(), st.integers(1, 9), st.lists(st.binary(max_size=50), max_size=6))
def test_bytes_survive_both_directions(data: st.DataObject, level: int, writes: list[bytes]) -> None:
    sender, receiver = Deflate(level), Deflate(level)
    stream = b"".join(sender.encode(write) for write in writes)
    pieces = data.draw(strategies.chunkings(stream))
    assert b"".join(decode(receiver, piece) for piece in pieces) == b"".join(writes)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_each_write_can_be_read_when_it_arrives(writes: list[bytes]) -> None:
    sender, receiver = Deflate(6), Deflate(6)
    assert [decode(receiver, sender.encode(write)) for write in writes] == writes


def test_it_is_deflate_without_a_header() -> None:
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(Deflate(6).encode(b"OK")) == b"OK"
    assert decode(Deflate(6), raw_deflate(b"OK")) == b"OK"


def test_the_level_is_the_one_asked_for() -> None:
    plain = b"".join(b"%d " % (number * number) for number in range(5_000))
    assert len(Deflate(9).encode(plain)) < len(Deflate(1).encode(plain)) < len(plain)


@given(
    st.data(),
    st.integers(1, 12),
    st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 40)), max_size=5),
    st.sampled_from([zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_FINISH]),
)
def test_nothing_is_lost_or_late_where_a_piece_is_full(
    data: st.DataObject, piece_size_max: int, repeats: list[tuple[bytes, int]], flush: int
) -> None:
    plain = b"".join(pattern * times for pattern, times in repeats)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "PIECE_SIZE_MAX", piece_size_max)
        receiver = Deflate(6)
        stream = raw_deflate(plain, flush)
        pieces = [part for cut in data.draw(strategies.chunkings(stream)) for part in receiver.decode(cut)]
    assert b"".join(pieces) == plain
    assert all(1 <= len(piece) <= piece_size_max for piece in pieces)


@pytest.mark.parametrize("flush", [zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_FINISH])
@pytest.mark.parametrize("piece_size_max", [1, 2, 3, 4])
def test_nothing_stays_inside_when_all_input_is_used_up(
    piece_size_max: int, flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "PIECE_SIZE_MAX", piece_size_max)
    for times in range(1, 40):
        plain = b"bbba" * times
        assert decode(Deflate(6), raw_deflate(plain, flush)) == plain


@pytest.mark.parametrize("size", [PIECE_SIZE_MAX - 1, PIECE_SIZE_MAX, PIECE_SIZE_MAX + 1, 3 * PIECE_SIZE_MAX])
def test_a_buffer_becomes_pieces_of_a_limited_size(size: int) -> None:
    sizes = [len(piece) for piece in Deflate(6).decode(raw_deflate(bytes(size)))]
    assert sum(sizes) == size
    assert max(sizes) <= PIECE_SIZE_MAX
    assert min(sizes) > 0


def test_a_bomb_goes_off_one_piece_at_a_time() -> None:
    bomb = raw_deflate(bytes(100 * PIECE_SIZE_MAX))
    assert len(bomb) < PIECE_SIZE_MAX / 5
    pieces = Deflate(6).decode(bomb)
    assert len(next(pieces)) == PIECE_SIZE_MAX  # whoever refuses this one never sees the other 99


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"  V2PUB t\n", b"\x06hello"])
def test_what_is_not_deflate_is_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError, match="the stream is not deflate: Error -3"):
        decode(Deflate(6), garbage)


@given(st.data(), st.binary(max_size=60))
def test_garbage_is_a_protocol_error_or_nothing(data: st.DataObject, plain: bytes) -> None:
    stream = data.draw(st.one_of(strategies.damaged(raw_deflate(plain)), st.binary(max_size=60)))
    receiver = Deflate(6)
    try:
        for piece in data.draw(strategies.chunkings(stream)):
            decode(receiver, piece)
    except ProtocolError:
        pass


def test_the_end_of_the_stream_is_fine_but_nothing_may_follow_it() -> None:
    receiver = Deflate(6)
    assert decode(receiver, raw_deflate(b"last words", zlib.Z_FINISH)) == b"last words"
    assert decode(receiver, b"") == b""
    with pytest.raises(ProtocolError, match="4 bytes came after the end of the deflate stream"):
        decode(receiver, b"more")


def test_what_came_before_the_end_is_read_before_what_follows_is_refused() -> None:
    pieces = Deflate(6).decode(raw_deflate(b"last words", zlib.Z_FINISH) + b"more")
    assert next(pieces) == b"last words"
    with pytest.raises(ProtocolError, match="4 bytes came after the end"):
        next(pieces)
