"""Durations in Go's notation, as in nsqd's flags and configuration files: ``1h30m``, ``300ms``, ``-1.5s``, ``0``.

A text is read and written as by Go (package time, ParseDuration and Duration.String). The number is nanoseconds in a
signed 64-bit integer. In Python programs a length of time is ``Seconds``.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, TypeAlias

from nsqkit.errors import OptionError

Seconds: TypeAlias = float | timedelta
"""A length of time in a Python program."""

DURATION_NS_MAX = (1 << 63) - 1
DURATION_NS_MIN = -(1 << 63)

_MICROSECOND = 1_000
_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

_UNITS = {
    "ns": 1,
    "us": _MICROSECOND,
    "\u00b5s": _MICROSECOND,  # the micro sign
    "\u03bcs": _MICROSECOND,  # the Greek letter mu, which has the same shape
    "ms": _MILLISECOND,
    "s": _SECOND,
    "m": _MINUTE,
    "h": _HOUR,
}

# A 64-bit number has fewer than 30 digits; the bound keeps long texts away from int().
_PAIR = re.compile(r"([0-9]{0,30})(?:\.([0-9]*))?([^0-9.]+)")


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration; smaller fractions are truncated.

    Args:
        text: an optional sign, and pairs of a decimal number and a unit: h, m, s, ms, us (or µs) and ns; or ``0``.

    Raises:
        OptionError: the text is not a duration, or it does not fit into 64 bits (about 292 years).
    """
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return 0
    total = 0
    position = 0
    while position < len(body):
        pair = _PAIR.match(body, position)
        if pair is None or not (pair[1] or pair[2]) or pair[3] not in _UNITS:
            break
        total += _pair_ns(pair[1], pair[2] or "", _UNITS[pair[3]])
        position = pair.end()
    if not body or position < len(body):
        raise OptionError(
            f"{text!r} is not a duration: allowed are numbers with a unit of h, m, s, ms, us or ns, "
            "as in 1h30m, 1.5s or 300ms"
        )
    if text[0] == "-":
        total = -total
    if not DURATION_NS_MIN <= total <= DURATION_NS_MAX:
        raise OptionError(f"{text!r} is too long a duration: allowed is at most {format_duration(DURATION_NS_MAX)}")
    return total


def _pair_ns(whole: str, fraction: str, unit_ns: int) -> int:
    value, scale = _leading_digits(fraction)
    # In floating point, as in Go: 0.3333333333333333333h is 20 minutes there, not one nanosecond less.
    return int(whole or "0") * unit_ns + int(float(value) * (unit_ns / scale))


def _leading_digits(fraction: str) -> tuple[int, float]:
    """Return the leading digits that fit into 63 bits as a number, and the power of ten to divide it by."""
    value = 0
    scale = 1.0
    for digit in fraction:
        grown = value * 10 + int(digit)
        if grown > DURATION_NS_MAX:
            break
        value = grown
        scale *= 10
    return value, scale


def format_duration(duration_ns: int) -> str:
    """Return a duration as Go prints it: ``1h30m0s``, ``1.5s``, ``300ms``, ``0s``."""
    size = abs(duration_ns)
    sign = "-" if duration_ns < 0 else ""
    if size == 0:
        return "0s"
    if size < _MICROSECOND:
        return f"{sign}{size}ns"
    if size < _MILLISECOND:
        return f"{sign}{_decimal(size, 3)}\u00b5s"
    if size < _SECOND:
        return f"{sign}{_decimal(size, 6)}ms"
    minutes, rest = divmod(size, _MINUTE)
    seconds = f"{_decimal(rest, 9)}s"
    if minutes == 0:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"


def _decimal(value: int, places: int) -> str:
    """Return ``value`` divided by ten to the power ``places``, without trailing zeros."""
    whole, fraction = divmod(value, 10**places)
    digits = f"{fraction:0{places}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def parse_seconds(text: str) -> float:
    """Return the seconds in a text, a number or a duration in Go's notation; raise ValueError for others."""
    try:
        return float(text)
    except ValueError:
        return parse_duration(text.strip()) / _SECOND


def plain_seconds(value: Any) -> Any:
    """Return the seconds of a timedelta, and any other value as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value
