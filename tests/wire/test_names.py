from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.wire.names import encode_channel, encode_topic, is_ephemeral, is_valid_name, quote
from tests import strategies


@pytest.mark.parametrize("name", ["a", ".", "a" * 64, "aZ.0_9-x", "0123", "t#ephemeral", "a" * 54 + "#ephemeral"])
def test_valid_name_is_accepted(name: str) -> None:
    assert is_valid_name(name.encode())
    assert encode_topic(name) == encode_channel(name) == name.encode()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 65,
        "a" * 55 + "#ephemeral",
        "#ephemeral",
        "a#ephemeralx",
        "a#EPHEMERAL",
        "a#ephemeral#ephemeral",
        "a#b",
        "a$b",
        "a:b",
        "a/b",
        "a b",
        "a\n",
        "a#ephemeral\n",
        "caf\u00e9",
        "\u0661",  # a digit, but not an ASCII one
        "\ud800",
        "a\udcff",
    ],
)
def test_invalid_name_is_refused(name: str) -> None:
    assert not is_valid_name(name.encode("utf-8", "surrogatepass"))
    with pytest.raises(OptionError, match=r"^topic name .* is not valid: 1 to 64 characters") as refused:
        encode_topic(name)
    assert repr(name) in str(refused.value)
    with pytest.raises(OptionError, match=r"^channel name "):
        encode_channel(name)


@given(strategies.names())
def test_strategy_draws_valid_names(name: bytes) -> None:
    assert is_valid_name(name)
    assert encode_topic(name.decode()) == name
    assert is_ephemeral(name) is (b"#" in name)


@given(st.one_of(st.binary(max_size=70), st.from_regex(rb"\A[.a-zA-Z0-9_#-]{0,70}\Z")))
def test_name_is_valid_if_it_matches_the_expression_of_nsqd(name: bytes) -> None:
    expression = rb"\A[.a-zA-Z0-9_-]+(#ephemeral)?\Z"
    assert is_valid_name(name) is (1 <= len(name) <= 64 and re.search(expression, name) is not None)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"", '""'),
        (b"a$b", '"a$b"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"it's", '"it\'s"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x01\x1f\x7f", r'"\x00\x01\x1f\x7f"'),
        (b"a b", '"a b"'),
        ("caf\u00e9".encode(), '"caf\u00e9"'),
        ("\u00a0\u00ad\u0085\u0080".encode(), r'"\u00a0\u00ad\u0085\u0080"'),
        ("\u2028\ufeff\ue000".encode(), r'"\u2028\ufeff\ue000"'),
        ("\U0001f600".encode(), '"\U0001f600"'),
        ("\U000e0001\U0010ffff".encode(), r'"\U000e0001\U0010ffff"'),
        (b"\xff", r'"\xff"'),
        (b"\xe4\xb8", r'"\xe4\xb8"'),
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
        ("\ufffd".encode(), '"\ufffd"'),
    ],
)
def test_name_is_quoted_as_by_go(name: bytes, quoted: str) -> None:
    assert quote(name) == quoted


@given(st.binary(max_size=30))
def test_quoted_name_is_printable_and_terminated(name: bytes) -> None:
    quoted = quote(name)
    assert quoted.isprintable()
    assert re.fullmatch(r'"([^"\\]|\\.)*"', quoted)


@pytest.mark.parametrize("name", [b"t", None, 5])
def test_name_of_another_type_is_refused(name: object) -> None:
    for encode, kind in ((encode_topic, "topic"), (encode_channel, "channel")):
        with pytest.raises(OptionError, match=f"{kind} name is .*; allowed is a str"):
            encode(name)  # type: ignore[arg-type]
