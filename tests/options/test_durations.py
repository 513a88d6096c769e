from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.options.durations import (
    DURATION_NS_MAX,
    DURATION_NS_MIN,
    format_duration,
    parse_duration,
    plain_seconds,
)

SECOND = 1_000_000_000


# The results of Go's time.ParseDuration and Duration.String.
@pytest.mark.parametrize(
    ("text", "duration_ns", "printed"),
    [
        ("0", 0, "0s"),
        ("-0", 0, "0s"),
        ("0s", 0, "0s"),
        ("1ns", 1, "1ns"),
        ("1.9ns", 1, "1ns"),
        ("1500us", 1_500_000, "1.5ms"),
        ("1.5\u00b5s", 1500, "1.5\u00b5s"),
        ("1.5\u03bcs", 1500, "1.5\u00b5s"),
        ("300ms", 300_000_000, "300ms"),
        ("2s", 2 * SECOND, "2s"),
        ("1.5s", 1_500_000_000, "1.5s"),
        ("+1.5s", 1_500_000_000, "1.5s"),
        ("-1s", -SECOND, "-1s"),
        (".5s", 500_000_000, "500ms"),
        ("1.s", SECOND, "1s"),
        ("60s", 60 * SECOND, "1m0s"),
        ("90m", 5400 * SECOND, "1h30m0s"),
        ("1h30m", 5400 * SECOND, "1h30m0s"),
        ("1m1h", 3660 * SECOND, "1h1m0s"),
        ("1h0.25s", 3600 * SECOND + 250_000_000, "1h0m0.25s"),
        ("0.3333333333333333333h", 1200 * SECOND, "20m0s"),
        ("1.00000000000000000000000000001s", SECOND, "1s"),
        ("9223372036854775807ns", DURATION_NS_MAX, "2562047h47m16.854775807s"),
        ("-9223372036854775808ns", DURATION_NS_MIN, "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_read_and_printed_as_by_go(text, duration_ns, printed):
    assert parse_duration(text) == duration_ns
    assert format_duration(duration_ns) == printed


@pytest.mark.parametrize(
    "text",
    ["", "+", "-", "5", "1.5", "s", ".s", ".", "1x", "1S", "1 s", " 1s", "1s ", "1h 2m", "--1s", "1,5s", "1e3s", "0h1"],
)  # fmt: skip
def test_text_that_is_not_a_duration_is_refused(text):
    with pytest.raises(OptionError) as info:
        parse_duration(text)
    assert str(info.value).startswith(f"{text!r} is not a duration: allowed are numbers with a unit of h, m")


def test_long_text_is_refused_quickly():
    with pytest.raises(OptionError, match="is not a duration"):
        parse_duration("9" * 100_000 + "s")


@pytest.mark.parametrize("text", ["9223372036854775808ns", "-9223372036854775809ns", "2562048h", "9999999999h1s"])
def test_a_duration_of_more_than_64_bits_is_refused(text):
    with pytest.raises(OptionError, match=r"too long a duration: allowed is at most 2562047h47m16\.854775807s"):
        parse_duration(text)


@given(st.integers(DURATION_NS_MIN, DURATION_NS_MAX))
def test_printed_duration_is_read_back(duration_ns):
    assert parse_duration(format_duration(duration_ns)) == duration_ns


@given(st.text(alphabet="0123456789.+-hmsun\u00b5\u03bc ", max_size=20))
def test_any_text_is_a_duration_or_refused(text):
    try:
        duration_ns = parse_duration(text)
    except OptionError:
        return
    assert parse_duration(format_duration(duration_ns)) == duration_ns


def test_timedelta_is_converted_and_other_values_are_not():
    assert plain_seconds(timedelta(minutes=1, milliseconds=500)) == 60.5
    assert [plain_seconds(value) for value in (1.5, "1s", None)] == [1.5, "1s", None]
