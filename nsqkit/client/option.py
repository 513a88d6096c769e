"""What an option may be: functions that declare the fields of an attrs class, one for each kind of value.

The rule it guards: a value that cannot be used is refused when the object is made, by a sentence that names the option,
the value and what is allowed. A secret is the exception: its value is in no sentence, and in no ``repr``.

How to read it: ``Kind`` says how an option's value is written where there are only texts; then come the declarations.
All return Any, as ``attrs.field`` does: the type of a field is what its class says beside the name.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import Seconds, parse_duration, plain_seconds

__all__ = [
    "Kind",
    "Seconds",
    "flag",
    "fraction",
    "function",
    "instance_with",
    "seconds",
    "secret",
    "take_seconds",
    "take_timeout",
    "text",
    "whole",
    "word",
]

_FLAGS: Final = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

WAIT_MAX: Final = 1e9
"""Seconds that a method may wait; more than a thread can be told to wait for is refused by Python itself."""

_NS_PER_S: Final = 1_000_000_000

Validator: TypeAlias = Callable[[Any, "attrs.Attribute[Any]", object], None]


class Kind(enum.Enum):
    """How an option's value is written; it stands in the field's metadata under ``Kind``."""

    SECONDS = "a number of seconds, or a duration in Go's way: 1m30s"
    WHOLE = "digits"
    NUMBER = "a number"
    TEXT = "the text itself"
    FLAG = "true or false"
    OBJECT = "not at all: it is an object of the program"

    def read(self, text: str) -> object:
        """Return the value that ``text`` stands for, or ``text`` itself if it stands for none of this kind."""
        try:
            match self:
                case Kind.SECONDS:
                    return _read_seconds(text)
                case Kind.WHOLE:
                    return int(text)
                case Kind.NUMBER:
                    return float(text)
                case Kind.FLAG:
                    return _FLAGS.get(text.strip().lower(), text)
                case _:
                    return text
        except ValueError:
            return text


def _read_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return parse_duration(text.strip()) / _NS_PER_S


def take_seconds(name: str, value: object, most: float = math.inf, *, least: float = 0.0) -> float:
    """Return a length of time that is an argument of a method, in seconds.

    Args:
        name: of the argument.
        value: a number, or a timedelta.
        most: the longest that is allowed; by default any that is finite.
        least: the shortest.

    Raises:
        OptionError: it is neither, or outside of that range.
    """
    number = plain_seconds(value)
    # Comparisons with NaN are False, so it is refused like everything else that is outside.
    right = isinstance(number, int | float) and not isinstance(number, bool)
    if not right or not least <= number <= most or number == math.inf:
        allowed = f"{least:g} seconds or more" if most == math.inf else f"{least:g} to {most:g} seconds"
        raise OptionError(f"{name} is {value!r}; allowed is {allowed}")
    return cast("float", number)


def take_timeout(value: object) -> float | None:
    """Return the argument ``timeout`` of a method that waits without one for as long as it takes.

    Raises:
        OptionError: it is neither None nor a length of time.
    """
    return None if value is None else take_seconds("timeout", value, WAIT_MAX)


def seconds(default: float, least: float, most: float, *, or_zero: bool = False) -> Any:
    """Declare an option that is a length of time, a number or a timedelta; 0 may stand outside of its range."""
    check = _in_range(int | float, "a number", least, most, " seconds", or_zero)
    return _field(Kind.SECONDS, default, check, converter=plain_seconds)


def whole(default: int, least: int, most: int, *, or_zero: bool = False) -> Any:
    """Declare an option that is a count or a size; 0 may stand outside of its range."""
    return _field(Kind.WHOLE, default, _in_range(int, "a whole number", least, most, "", or_zero))


def fraction(default: float) -> Any:
    """Declare an option that is a part of something, from 0 to 1."""
    return _field(Kind.NUMBER, default, _in_range(int | float, "a number", 0, 1, "", or_zero=False))


def text(default: str) -> Any:
    """Declare an option that is a text."""
    return _field(Kind.TEXT, default, _one_of(str, "a str"))


def flag(default: bool) -> Any:
    """Declare an option that is on or off."""
    return _field(Kind.FLAG, default, _one_of(bool, "True or False"))


def word(default: str, allowed: Sequence[str]) -> Any:
    """Declare an option that is one of a few words."""

    def check(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise OptionError(f"{attribute.name} is {value!r}; allowed is {' or '.join(map(repr, allowed))}")

    return _field(Kind.TEXT, default, check)


def secret() -> Any:
    """Declare an option that is a text which nobody is to see; empty for none."""

    def check(instance: object, attribute: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str):
            raise OptionError(f"{attribute.name} is a {type(value).__name__}; allowed is a str")
        if not value.isprintable():  # nor can a lone surrogate be encoded
            raise OptionError(
                f"{attribute.name} has characters that cannot be printed; allowed is a str without them"
            )

    return _field(Kind.TEXT, "", check, shown=False)


def instance_with(method: str, example: str) -> Any:
    """Declare an option that is an object with a method, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None and not callable(getattr(value, method, None)):
            raise OptionError(
                f"{attribute.name} is {value!r}; allowed is None, or an object such as {example}"
            )

    return _field(Kind.OBJECT, None, check)


def function(*, or_mapping: bool = False) -> Any:
    """Declare an option that is a function, or None; perhaps a mapping does as well."""
    allowed = "None, a mapping or a function" if or_mapping else "None or a function"

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None and not callable(value) and not (or_mapping and isinstance(value, Mapping)):
            raise OptionError(f"{attribute.name} is {value!r}; allowed is {allowed}")

    return _field(Kind.OBJECT, None, check)


def _one_of(cls: type, allowed: str) -> Validator:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, cls):
            raise OptionError(f"{attribute.name} is {value!r}; allowed is {allowed}")

    return check


def _in_range(types: Any, kind: str, least: float, most: float, unit: str, or_zero: bool) -> Validator:
    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        # Comparisons with NaN are False, so it is refused like everything else that is outside.
        right = isinstance(value, types) and not isinstance(value, bool)
        if not right or not (least <= value <= most or (or_zero and value == 0)):
            allowed = f"{'0, or ' if or_zero else ''}{kind} from {least:.12g} to {most:.12g}{unit}"
            raise OptionError(f"{attribute.name} is {value!r}; allowed is {allowed}")

    return check


def _field(
    kind: Kind,
    default: object,
    check: Validator,
    *,
    shown: bool = True,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    return attrs.field(
        default=default, converter=converter, validator=check, repr=shown, metadata={Kind: kind}
    )
