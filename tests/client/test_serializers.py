from __future__ import annotations

import sys

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.serializers import JSON, MSGPACK, RAW, TEXT, Serializer, typed_json, typed_msgpack
from nsqkit.errors import OptionError

# Some JSON decoders read larger integers as floats, and MessagePack has none.
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


@attrs.frozen
class Order:
    number: int
    item: str


@given(st.binary())
def test_raw_keeps_bytes(body):
    for value in (body, bytearray(body), memoryview(body)):
        assert RAW.encode(value) == body
        assert type(RAW.encode(value)) is bytes
    assert RAW.decode(body) == body


@given(texts)
def test_text_round_trip(text):
    assert TEXT.decode(TEXT.encode(text)) == text


@given(values)
def test_json_round_trip(value):
    assert JSON.decode(JSON.encode(value)) == value


@given(values)
def test_msgpack_round_trip(value):
    pytest.importorskip("msgspec")
    assert MSGPACK.decode(MSGPACK.encode(value)) == value


def test_json_is_compact_and_not_escaped():
    assert JSON.encode({"item": "Käse", "n": [1, None]}) == '{"item":"Käse","n":[1,null]}'.encode()


@pytest.mark.parametrize("make", [typed_json, typed_msgpack])
def test_decoding_checks_type(make):
    pytest.importorskip("msgspec")
    serializer = make(Order)
    assert serializer.decode(serializer.encode(Order(1, "tea"))) == Order(1, "tea")
    with pytest.raises(ValueError, match="number"):
        serializer.decode(serializer.encode({"number": "one", "item": "tea"}))
    assert repr(serializer) == f"{make.__name__}(Order)"


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("serializer", "value", "allowed"),
    [
        (RAW, "text", "bytes, bytearray or memoryview"),
        (RAW, None, "bytes, bytearray or memoryview"),
        (TEXT, b"bytes", "str"),
        (TEXT, "\ud800", "text without surrogates"),
        (JSON, b"bytes", "a value that JSON can represent"),
        (JSON, float("nan"), "a value that JSON can represent"),
        (JSON, "\ud800", "a value that JSON can represent"),
        (JSON, CYCLE, "a value that JSON can represent"),
    ],
    ids=repr,
)
def test_unsupported_value_is_refused(serializer: Serializer, value, allowed):
    with pytest.raises(OptionError) as caught:
        serializer.encode(value)
    assert str(caught.value) == f"body is {value!r:.100}; allowed is {allowed}"


def test_value_unsupported_by_msgpack_is_refused():
    pytest.importorskip("msgspec")
    with pytest.raises(OptionError, match="allowed is a value that MSGPACK can represent"):
        MSGPACK.encode(object())


@pytest.mark.parametrize(("serializer", "body"), [(TEXT, b"\xff"), (JSON, b"{"), (JSON, b"\xff")], ids=repr)
def test_invalid_body_is_value_error(serializer, body):
    with pytest.raises(ValueError, match=r"."):
        serializer.decode(body)


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(OptionError, match=r"typed_json\(Order\) needs msgspec: pip install 'nsqkit\[msgspec\]'"):
        typed_json(Order).encode(Order(1, "tea"))


def test_repr_is_name():
    assert [repr(each) for each in (RAW, TEXT, JSON, MSGPACK)] == ["RAW", "TEXT", "JSON", "MSGPACK"]
