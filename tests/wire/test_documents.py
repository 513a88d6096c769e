from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.wire.documents import INT32, INT64, FieldType, read_object

KINDS: dict[str, FieldType] = {"text": str, "flag": bool, "small": INT32, "large": INT64}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"{}", {}),
        (b"null", {}),
        (b' \t\r\n{"text":"x"}\n', {"text": "x"}),
        (b'{"TEXT":"x","Flag":true}', {"text": "x", "flag": True}),
        ('{"Li\u017ft":1,"\u017fMALL":1}'.encode(), {"small": 1}),
        (b'{"other":' + b"9" * 5000 + b',"small":1}', {"small": 1}),
        (b'{"text":null,"other":[1.5,{"text":7}]}', {}),
        (b'{"text":"a","text":"b"}', {"text": "b"}),
        (b'{"text":"a","text":null}', {"text": "a"}),
        (b'{"text":"a\xff\xfeb\\ud800"}', {"text": "a\ufffd\ufffdb\ufffd"}),
        (b'{"text":"\\ud83d\\ude00"}', {"text": "\U0001f600"}),
        (b'{"small":-0,"large":-9223372036854775808}', {"small": 0, "large": -(1 << 63)}),
        (
            b'{"small":2147483647,"large":9223372036854775807}',
            {"small": (1 << 31) - 1, "large": (1 << 63) - 1},
        ),
    ],
)
def test_accepted_documents(body: bytes, fields: dict[str, object]) -> None:
    assert read_object(body, KINDS) == fields


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nope",
        b"[]",
        b"1",
        b'"text"',
        b'{"text":"x"',
        b'{"text":"x"} x',
        b'{"text":"\n"}',
        b'{"text":1}',
        b'{"text":false}',
        b'{"flag":1}',
        b'{"flag":"true"}',
        b'{"small":"1"}',
        b'{"small":true}',
        b'{"small":1.0}',
        b'{"small":1e3}',
        b'{"small":2147483648}',
        b'{"small":-2147483649}',
        b'{"large":9223372036854775808}',
        b'{"large":' + b"9" * 5000 + b"}",
        b'{"other":NaN}',
        b'{"other":-Infinity}',
        b'{"small":2147483648,"small":1}',
        b"[" * 100_000,
    ],
)
def test_refused_documents(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_object(body, KINDS)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(),
            "flag": st.booleans(),
            "small": st.sampled_from([INT32[0], INT32[-1], 0]),
            "large": st.integers(INT64[0], INT64[-1]),
        },
    )
)
def test_encoded_fields_are_read_back(fields: dict[str, object]) -> None:
    assert read_object(json.dumps(fields).encode(), KINDS) == fields


@given(st.binary())
def test_garbage_is_a_value_error_or_nothing(body: bytes) -> None:
    try:
        assert read_object(body, KINDS).keys() <= KINDS.keys()
    except ValueError:
        pass
