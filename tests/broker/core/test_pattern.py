from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.pattern import INSTRUCTIONS_MAX, compile_pattern
from tests import strategies

EMPTY = b""


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [b"", b"t"], []),
        ("ood", [b"a.good.one"], [b"od", b""]),
        (".*", [b"", b"t"], []),
        (".", [b"t"], [b""]),
        ("^good$", [b"good"], [b"goods", b"agood"]),
        (r"\Agood\z", [b"good"], [b"goods", b"agood"]),
        ("^$", [b""], [b"t"]),
        ("^a|b$", [b"ax", b"xb"], [b"xax"]),
        ("^(a|b|)$", [b"a", b"b", b""], [b"ab"]),
        ("^a+b*c?$", [b"a", b"aabb", b"abc"], [b"bc", b"acc"]),
        ("^a{2}$", [b"aa"], [b"a", b"aaa"]),
        ("^a{2,}$", [b"aa", b"aaaa"], [b"a"]),
        ("^a{1,3}$", [b"a", b"aaa"], [b"", b"aaaa"]),
        ("^a{0}$", [b""], [b"a"]),
        ("^(ab){2}$", [b"abab"], [b"ab"]),
        ("^(a*)*$", [b"", b"aa"], [b"b"]),
        ("^(?:a|(b)+?)*$", [b"abba"], [b"c"]),
        (r"\bb\b", [b"a.b-c", b"b"], [b"ab", b"b1"]),
        (r"a\Bb", [b"ab"], [b"a.b"]),
        (r"\B", [b"", b".", b"ab"], [b"a"]),
        ("^*a", [b"a"], [b"b"]),
    ],
)
def test_a_pattern_is_looked_for(pattern, matching, others):
    found = compile_pattern(pattern)
    assert [name for name in [*matching, *others] if found.search(name)] == matching


@pytest.mark.timeout(5)
@pytest.mark.parametrize("pattern", ["(a|a)*$", "(a*)*$", "(a?){60}a{60}$", "(a+)+$", "((a{0,9}){9}){9}$"])
def test_no_pattern_takes_long(pattern):
    assert not compile_pattern("^" + pattern.replace("$", "!$")).search(b"a" * 64)


def test_a_pattern_has_a_greatest_size():
    compile_pattern("a" * (INSTRUCTIONS_MAX - 1))
    with pytest.raises(ValueError, match=f"expression too large: more than {INSTRUCTIONS_MAX} instructions"):
        compile_pattern("a" * INSTRUCTIONS_MAX)
    with pytest.raises(ValueError, match="expression too large"):
        compile_pattern(r"(\w\w\w\w\w\w\w\w\w\w){1000}")


def test_a_pattern_is_compiled_once():
    assert compile_pattern("^a$") is compile_pattern("^a$")
    assert compile_pattern("^a$").text == "^a$"


# What Go and Python understand alike.
_ATOMS = st.sampled_from(
    ["a", "b", "A", "_", ".", "[a-c]", "[^ab]", r"\d", r"\w", r"\W", r"\.", "^", "$", r"\b"]
)
_ALIKE = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(_ALIKE, st.text("abcAB1_.-", max_size=6) | strategies.names().map(bytes.decode))
def test_where_go_and_python_agree_so_do_we(pattern, name):
    expected = re.search(pattern, name, re.ASCII) is not None
    assert compile_pattern(pattern).search(name.encode()) is expected
