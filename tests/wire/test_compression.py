from __future__ import annotations

import os
import struct
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.wire import compression
from nsqkit.wire.compression import (
    PIECE_SIZE_MAX,
    SNAPPY_CHUNK_SIZE_MAX,
    Deflate,
    Snappy,
    snappy_available,
)
from nsqkit.wire.transform import Transform
from tests import strategies


def raw_deflate(plain: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(plain) + compressor.flush(flush)


def decode(transform: Transform, data: bytes) -> bytes:
    return b"".join(transform.decode(data))


@given(st.data(), st.integers(1, 9), st.lists(st.binary(max_size=50), max_size=6))
def test_deflated_bytes_are_inflated_to_themselves(data: st.DataObject, level: int, writes: list[bytes]) -> None:
    sender, receiver = Deflate(level), Deflate(level)
    stream = b"".join(sender.encode(write) for write in writes)
    pieces = data.draw(strategies.chunkings(stream))
    assert b"".join(decode(receiver, piece) for piece in pieces) == b"".join(writes)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_each_write_can_be_decoded_when_it_arrives(writes: list[bytes]) -> None:
    sender, receiver = Deflate(6), Deflate(6)
    assert [decode(receiver, sender.encode(write)) for write in writes] == writes


def test_deflate_has_no_header() -> None:
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(Deflate(6).encode(b"OK")) == b"OK"
    assert decode(Deflate(6), raw_deflate(b"OK")) == b"OK"


def test_level_is_the_requested_one() -> None:
    plain = b"".join(b"%d " % (number * number) for number in range(5_000))
    assert len(Deflate(9).encode(plain)) < len(Deflate(1).encode(plain)) < len(plain)


@given(
    st.data(),
    st.integers(1, 12),
    st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 40)), max_size=5),
    st.sampled_from([zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_FINISH]),
)
def test_full_piece_loses_and_delays_nothing(
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
def test_decompressor_keeps_no_output_after_all_input(
    piece_size_max: int, flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "PIECE_SIZE_MAX", piece_size_max)
    for times in range(1, 40):
        plain = b"bbba" * times
        assert decode(Deflate(6), raw_deflate(plain, flush)) == plain


@pytest.mark.parametrize("size", [PIECE_SIZE_MAX - 1, PIECE_SIZE_MAX, PIECE_SIZE_MAX + 1, 3 * PIECE_SIZE_MAX])
def test_buffer_is_decoded_in_pieces_of_limited_size(size: int) -> None:
    sizes = [len(piece) for piece in Deflate(6).decode(raw_deflate(bytes(size)))]
    assert sum(sizes) == size
    assert max(sizes) <= PIECE_SIZE_MAX
    assert min(sizes) > 0


def test_decompression_bomb_is_decoded_piece_by_piece() -> None:
    bomb = raw_deflate(bytes(100 * PIECE_SIZE_MAX))
    assert len(bomb) < PIECE_SIZE_MAX / 5
    pieces = Deflate(6).decode(bomb)
    assert len(next(pieces)) == PIECE_SIZE_MAX  # a receiver that refuses this piece does not decode the other 99


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"  V2PUB t\n", b"\x06hello"])
def test_bytes_that_are_not_deflate_are_refused(garbage: bytes) -> None:
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


def test_bytes_after_the_end_of_the_stream_are_refused() -> None:
    receiver = Deflate(6)
    assert decode(receiver, raw_deflate(b"last words", zlib.Z_FINISH)) == b"last words"
    assert decode(receiver, b"") == b""
    with pytest.raises(ProtocolError, match="4 bytes came after the end of the deflate stream"):
        decode(receiver, b"more")


def test_bytes_before_the_end_are_decoded_before_later_ones_are_refused() -> None:
    pieces = Deflate(6).decode(raw_deflate(b"last words", zlib.Z_FINISH) + b"more")
    assert next(pieces) == b"last words"
    with pytest.raises(ProtocolError, match="4 bytes came after the end"):
        next(pieces)


def test_deflate_has_an_end_and_no_output_of_its_own() -> None:
    receiver = Deflate(6)
    assert not receiver.has_output
    assert receiver.encode(b"") == b""
    decode(receiver, raw_deflate(b"more"))
    assert not receiver.at_end
    other = Deflate(6)
    decode(other, raw_deflate(b"last words", zlib.Z_FINISH))
    assert other.at_end


# ---- snappy -----------------------------------------------------------------------------------------------------

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED, UNCOMPRESSED, SKIPPABLE, PADDING = 0x00, 0x01, 0x80, 0xFE


def chunk(kind: int, data: bytes) -> bytes:
    return struct.pack("<I", len(data) << 8 | kind) + data


def chunks(stream: bytes) -> list[tuple[int, bytes]]:
    """Return the kinds and contents of the chunks of a stream."""
    found = []
    while stream:
        size = int.from_bytes(stream[1:4], "little")
        found.append((stream[0], stream[4 : 4 + size]))
        stream = stream[4 + size :]
    return found


def data_chunk(plain: bytes) -> bytes:
    """Return the one chunk of ``plain``, without the identifier."""
    return bytes(cramjam.snappy.compress(plain)).removeprefix(IDENTIFIER)


def test_snappy_available_depends_on_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snappy_available()
    monkeypatch.delitem(sys.modules, "cramjam", raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    assert not snappy_available.__wrapped__()  # not the result that was kept


@given(st.data(), st.lists(st.binary(max_size=50) | st.integers(1, 9).map(bytes), max_size=6))
def test_snappy_in_any_pieces_is_decoded_to_itself(data: st.DataObject, writes: list[bytes]) -> None:
    sender, receiver = Snappy(), Snappy()
    stream = b"".join(sender.encode(write) for write in writes)
    pieces = data.draw(strategies.chunkings(stream))
    assert b"".join(decode(receiver, piece) for piece in pieces) == b"".join(writes)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_each_write_is_in_whole_chunks(writes: list[bytes]) -> None:
    sender, receiver = Snappy(), Snappy()
    assert [decode(receiver, sender.encode(write)) for write in writes] == writes


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 200_000])
@pytest.mark.parametrize("make", [os.urandom, bytes], ids=["random", "zeros"])
def test_identifier_is_sent_once_and_chunks_have_up_to_64_kib(size, make) -> None:
    sender, receiver = Snappy(), Snappy()
    plain = make(size)
    first, second = sender.encode(plain), sender.encode(plain)
    assert first.startswith(IDENTIFIER)
    assert first.removeprefix(IDENTIFIER) == second
    for kind, data in chunks(second):
        assert kind in (COMPRESSED, UNCOMPRESSED)
        assert len(decode(Snappy(), IDENTIFIER + chunk(kind, data))) <= 65536
    assert decode(receiver, first + second) == plain * 2


def test_single_bytes_across_the_end_of_a_chunk_are_decoded() -> None:
    plain = os.urandom(70_000)
    sender, receiver = Snappy(), Snappy()
    stream = sender.encode(plain)
    border = len(IDENTIFIER) + 4 + 4 + 65536
    got = decode(receiver, stream[: border - 3])
    for position in range(border - 3, border + 8):
        got += decode(receiver, stream[position : position + 1])
    assert got + decode(receiver, stream[border + 8 :]) == plain


def test_skippable_chunks_and_repeated_identifiers_are_skipped() -> None:
    stream = b"".join(
        [
            IDENTIFIER,
            chunk(SKIPPABLE, b"anything"),
            data_chunk(b"OK" * 100),
            IDENTIFIER,
            chunk(PADDING, bytes(1000)),
            data_chunk(b"!"),
            chunk(0xFD, b""),
        ]
    )
    assert decode(Snappy(), stream) == b"OK" * 100 + b"!"
    receiver = Snappy()
    assert b"".join(decode(receiver, stream[n : n + 1]) for n in range(len(stream))) == b"OK" * 100 + b"!"


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"  V2PUB t\n", "begins with a chunk of kind 0x20"),
        (data_chunk(b"OK"), "begins with a chunk of kind 0x01"),
        (b"\xff\x06\x00\x00sNaPpX", "stream header"),
        (chunk(0xFF, b"sNaPpYY"), "length"),
        (IDENTIFIER + chunk(0x02, b"x"), "a chunk of kind 0x02 and 1 bytes"),
        (IDENTIFIER + chunk(0x7F, b"x"), "a chunk of kind 0x7f"),
        (IDENTIFIER + chunk(UNCOMPRESSED, b"abc"), "corrupt"),
        (IDENTIFIER + chunk(UNCOMPRESSED, b"abcdefgh"), "checksum"),
        (IDENTIFIER + chunk(COMPRESSED, b"abcdefgh"), "corrupt"),
        (IDENTIFIER + data_chunk(b"OK" * 50)[:-1] + b"?", "corrupt"),
        (IDENTIFIER + chunk(SKIPPABLE, bytes(SNAPPY_CHUNK_SIZE_MAX + 1))[:4], "the limit is 76494 bytes"),
        (IDENTIFIER + chunk(UNCOMPRESSED, bytes(4 + 65537)), "corrupt"),
        (
            IDENTIFIER + chunk(COMPRESSED, bytes(4) + bytes(cramjam.snappy.compress_raw(bytes(65537)))),
            "length",
        ),
    ],
)
def test_bytes_that_are_not_snappy_are_refused(stream: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=f"the stream is not snappy: .*{why}"):
        decode(Snappy(), stream)


def test_chunks_before_a_wrong_one_are_decoded() -> None:
    pieces = Snappy().decode(IDENTIFIER + data_chunk(b"first") + chunk(0x02, b""))
    assert next(pieces) == b"first"
    with pytest.raises(ProtocolError, match="kind 0x02"):
        next(pieces)


def test_snappy_bomb_is_decoded_in_pieces() -> None:
    bomb = IDENTIFIER + data_chunk(bytes(65536)) * 80
    assert len(bomb) <= PIECE_SIZE_MAX
    sizes = [len(piece) for piece in Snappy().decode(bomb)]
    assert sum(sizes) == 80 * 65536
    assert max(sizes) <= PIECE_SIZE_MAX


def test_many_small_chunks_are_one_piece() -> None:
    finish = data_chunk(b"FIN 0123456789abcdef\n")
    assert len([*Snappy().decode(IDENTIFIER + finish * 1000)]) == 1


@given(st.data(), st.binary(max_size=60))
def test_damaged_snappy_is_a_protocol_error_or_nothing(data: st.DataObject, plain: bytes) -> None:
    good = Snappy().encode(plain)
    stream = data.draw(st.one_of(strategies.damaged(good), st.binary(max_size=60)))
    receiver = Snappy()
    try:
        for piece in data.draw(strategies.chunkings(stream)):
            decode(receiver, piece)
    except ProtocolError:
        pass


def test_snappy_has_no_end_and_no_output_of_its_own() -> None:
    snappy = Snappy()
    assert not snappy.has_output
    assert not snappy.at_end
    assert snappy.encode(b"") == b""
