from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.telemetry.envelope import MAGIC, unwrap, wrap

FIELDS = st.dictionaries(st.text(), st.text(), max_size=5)
BODIES = st.one_of(st.binary(max_size=50), st.binary(max_size=20).map(MAGIC.__add__))


@given(FIELDS, BODIES)
def test_wrapped_fields_and_body_are_unwrapped(fields, body):
    assert unwrap(wrap(fields, body)) == (fields, body)


@given(FIELDS, FIELDS, BODIES)
def test_envelope_can_be_wrapped_again(outer, inner, body):
    assert unwrap(wrap(outer, wrap(inner, body))) == (outer, wrap(inner, body))


def test_envelope_has_the_form_of_the_docstring():
    assert wrap({"a": "b"}, b"body") == b'\0NSQCTX1\0\0\0\x09{"a":"b"}body'


def test_without_fields_there_is_no_envelope():
    assert wrap({}, b"body") == b"body"


@given(BODIES)
def test_any_bytes_can_be_unwrapped(data):
    fields, body = unwrap(data)
    assert data.endswith(body)
    assert fields or body == data or data.startswith(MAGIC)


def framed(head: bytes) -> bytes:
    return MAGIC + len(head).to_bytes(4, "big") + head + b"body"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        MAGIC,
        MAGIC + b"\0\0\0",
        framed(b"{}")[:-5],
        MAGIC + b"\xff\xff\xff\xff{}body",
        MAGIC + b"\0\0\0\x09{}",
        framed(b""),
        framed(b"{"),
        framed(b"\xff"),
        framed(b"[]"),
        framed(b'{"a":1}'),
        framed(b"[" * 200_000),
        framed(json.dumps({"a": None}).encode()),
    ],
    ids=lambda data: repr(data[:30]),
)
def test_bytes_without_an_envelope_are_a_body(data):
    assert unwrap(data) == ({}, data)
