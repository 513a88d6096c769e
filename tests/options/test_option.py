"""How texts are read; flags are read in test_flags.py, and limits are checked in test_fields.py."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.options.durations import format_duration
from nsqkit.options.option import Kind, Option

OPTIONS = {
    "pause": Option(kind=Kind.SECONDS),
    "count": Option(kind=Kind.WHOLE),
    "loud": Option(kind=Kind.SWITCH),
    "name": Option(kind=Kind.STRING),
    "policy": Option(kind=Kind.CHOICE, choices=["random", "by-key"]),
    "jitter": Option(kind=Kind.NUMBER),
    "filter": Option(kind=Kind.OBJECT),
}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("pause", "1m30s", 90.0),
        ("pause", "250ms", 0.25),
        ("pause", " 1s ", 1.0),
        ("pause", "2.5", 2.5),
        ("pause", "-5", -5.0),
        ("count", "7", 7),
        ("loud", "true", True),
        ("loud", "ON", True),
        ("loud", "1", True),
        ("loud", "no", False),
        ("loud", " false", False),
        ("name", "true", "true"),
        ("policy", "by-key", "by-key"),
        ("jitter", "0.5", 0.5),
        ("filter", "print", "print"),
    ],
)
def test_text_is_read_by_its_kind(name, written, value):
    assert (type(read := OPTIONS[name].read(written)), read) == (type(value), value)


@given(st.integers(0, 10**12))
def test_duration_in_gos_notation_is_read_as_seconds(milliseconds):
    assert OPTIONS["pause"].read(format_duration(milliseconds * 1_000_000)) == milliseconds / 1000


@given(st.text(), st.sampled_from(Kind))
def test_any_text_is_read_or_refused(written, kind):
    option = Option(kind=kind, flag="f", choices=("true", "false") if kind is Kind.CHOICE else ())
    with contextlib.suppress(ValueError):
        assert isinstance(option.read(written), float | int | bool | str | tuple)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("pause", "5 parsecs"),
        ("pause", ""),
        ("count", "7.0"),
        ("count", "x"),
        ("count", "9" * 5000),
        ("loud", "maybe"),
        ("jitter", "1s"),
    ],
)
def test_an_unreadable_text_raises_value_error(name, written):
    with pytest.raises(ValueError, match=r"convert|not a duration|limit|invalid literal|maybe"):
        OPTIONS[name].read(written)
