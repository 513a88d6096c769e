from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import ProtocolError
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.layers import Layers


class Shouting:
    """A layer that reverses bytes, and may have output itself."""

    def __init__(self, own: bytes = b"") -> None:
        self.own = own
        self.at_end = False

    @property
    def has_output(self) -> bool:
        return bool(self.own)

    def decode(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), 3):
            yield data[start : start + 3].swapcase()

    def encode(self, data: bytes) -> bytes:
        own, self.own = self.own, b""
        return own + data.swapcase()


def test_bytes_do_not_change_without_layers():
    layers = Layers()
    assert not layers
    assert (layers.has_output, layers.at_end) == (False, False)
    assert layers.encode(b"out") == b"out"
    assert list(layers.decode(b"in")) == [b"in"]


def test_bytes_before_a_layer_are_sent_without_it():
    layers = Layers()
    layers.add(Shouting(), above=0, unsent=b"plain ")
    assert layers.has_output
    assert layers.encode(b"loud") == b"plain LOUD"
    assert not layers.has_output


def test_bytes_before_a_layer_are_sent_without_later_ones():
    layers = Layers()
    layers.add(Shouting(), above=0, unsent=b"plain ")
    layers.add(Shouting(), above=1, unsent=b"once ")
    assert layers.encode(b"") == b"plain ONCE "
    assert layers.encode(b"twice") == b"twice"


def test_layer_may_replace_those_above_it():
    layers = Layers()
    layers.add(Shouting(), above=0, unsent=b"")
    layers.add(Shouting(), above=1, unsent=b"")
    layers.add(Shouting(b"own "), above=1, unsent=b"before ")
    assert len(layers) == 2
    assert layers.encode(b"after") == b"before OWN after"


def test_bytes_of_a_layer_are_output():
    layers = Layers()
    layers.add(Shouting(b"own"), above=0, unsent=b"")
    assert layers.has_output
    assert layers.encode(b"") == b"own"
    assert not layers.has_output


def test_layer_added_meanwhile_takes_effect_at_the_next_piece():
    layers = Layers()
    layers.add(Shouting(), above=0, unsent=b"")
    pieces = []
    for piece in layers.decode(b"abcdefgh"):
        pieces.append(piece)
        if len(layers) < 2:
            layers.add(Shouting(), above=1, unsent=b"")
    assert pieces == [b"ABC", b"def", b"gh"]
    assert list(layers.decode(b"XY", depth=1)) == [b"xy"]
    assert list(layers.decode(b"XY", depth=2)) == [b"XY"]


def test_strip_returns_the_last_bytes_of_the_outermost_layer():
    layers = Layers()
    layers.add(Shouting(b"alert "), above=0, unsent=b"before ")
    layers.add(Shouting(b"never"), above=1, unsent=b"")
    assert layers.strip() == b"before alert "
    assert not layers
    assert layers.encode(b"after") == b"after"


def test_end_in_any_layer_is_the_end():
    layers = Layers()
    inner = Shouting()
    layers.add(Shouting(), above=0, unsent=b"")
    layers.add(inner, above=1, unsent=b"")
    assert not layers.at_end
    inner.at_end = True
    assert layers.at_end


def test_bytes_before_damage_are_decoded():
    layers = Layers()
    layers.add(Snappy(), above=0, unsent=b"")
    pieces = layers.decode(Snappy().encode(b"fine") + b"\x02\x00\x00\x00")
    assert next(pieces) == b"fine"
    with pytest.raises(ProtocolError):
        next(pieces)


@given(st.data(), st.lists(st.sampled_from([Snappy, lambda: Deflate(1)]), max_size=3))
def test_stacked_layers_decode_their_output_in_any_pieces(data, makers):
    one, other = Layers(), Layers()
    for depth, make in enumerate(makers):
        one.add(make(), above=depth, unsent=b"")
        other.add(make(), above=depth, unsent=b"")
    pieces = data.draw(st.lists(st.binary(max_size=50), max_size=5))
    sent = b"".join(one.encode(piece) for piece in pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    chunks = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert b"".join(b"".join(other.decode(chunk)) for chunk in chunks) == b"".join(pieces)
