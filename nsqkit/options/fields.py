"""Declarations of options: functions that return the fields of an attrs class, one function for each kind of value.

An invalid value is refused when the object is created, by a sentence with the option's name, the value and the allowed
values. The value of a secret is in no error and in no ``repr``.

The first half declares the options of clients, the second half the flags of nsqd and nsqlookupd, with Go's notation.
Lists are empty by default, floats are percentiles, and a choice has nsqd's number for each word. All functions return
Any, as ``attrs.field`` does: the type of a field is its annotation in the class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import plain_seconds
from nsqkit.options.option import INT64_MAX, Kind, Option

if TYPE_CHECKING:
    from attrs import AttrsInstance


def seconds(default: float | None, least: float, most: float, *, or_zero: bool = False, or_none: bool = False) -> Any:
    """Declare a length of time in seconds; a timedelta is converted. 0 may be allowed outside the range."""
    option = Option(kind=Kind.SECONDS, low=least, high=most, or_zero=or_zero, or_none=or_none)
    return _field(option, default, converter=plain_seconds)


def whole(default: int | None, least: int, most: int, *, or_zero: bool = False, or_none: bool = False) -> Any:
    """Declare a count or a size; 0 may be allowed outside the range."""
    return _field(Option(kind=Kind.WHOLE, low=least, high=most, or_zero=or_zero, or_none=or_none), default)


def fraction(default: float) -> Any:
    """Declare a number from 0 to 1."""
    return _field(Option(kind=Kind.NUMBER, high=1), default)


def text(default: str) -> Any:
    """Declare a text."""
    return _field(Option(kind=Kind.STRING, expected="a str"), default)


def flag(default: bool) -> Any:
    """Declare a switch."""
    return _field(Option(kind=Kind.SWITCH), default)


def word(default: str, allowed: Sequence[str]) -> Any:
    """Declare one of a few words."""
    expected = " or ".join(map(repr, allowed))
    return _field(Option(kind=Kind.CHOICE, choices=allowed, expected=expected), default)


def secret() -> Any:
    """Declare a text that must not be shown; empty for none."""

    def check(_: object, attribute: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str):
            raise OptionError(f"{attribute.name} is a {type(value).__name__}; allowed is a str")
        if not value.isprintable():  # nor can a lone surrogate be encoded
            raise OptionError(f"{attribute.name} has characters that cannot be printed; allowed is a str without them")

    return attrs.field(default="", validator=check, repr=False, metadata={Option: Option(kind=Kind.STRING)})


def instance_with(method: str, example: str) -> Any:
    """Declare an object with a method, or None."""
    expected = f"None, or an object such as {example}"
    return _object(lambda value: callable(getattr(value, method, None)), expected)


def function(*, or_mapping: bool = False) -> Any:
    """Declare a function, or None; or a mapping in its place."""
    if or_mapping:
        return _object(lambda value: callable(value) or isinstance(value, Mapping), "None, a mapping or a function")
    return _object(callable, "None or a function")


def _object(is_object: Callable[[object], bool], expected: str) -> Any:
    return _field(Option(kind=Kind.OBJECT, is_object=is_object, expected=expected, or_none=True), None)


# ---- flags ------------------------------------------------------------------------------------------------------


def string(default: str, text: str, *, choices: Collection[str] = ()) -> Any:
    return _flag(Kind.STRING, default, help=text, choices=choices)


def boolean(default: bool, text: str) -> Any:
    return _flag(Kind.BOOL, default, help=text)


def integer(default: int, text: str, *, low: int = 0, high: int = INT64_MAX, config_name: str = "") -> Any:
    return _flag(Kind.INT, default, help=text, low=low, high=high, config_name=config_name)


def duration(default_ns: int, text: str, *, low: int = 0) -> Any:
    return _flag(Kind.DURATION, default_ns, help=text, low=low)


def strings(
    text: str, *, choices: Collection[str] = (), flag: str = "", config_name: str = "", shown: bool = True
) -> Any:
    return _flag(Kind.STRINGS, (), shown=shown, help=text, choices=choices, flag=flag, config_name=config_name)


def floats(text: str, *, flag: str = "", config_name: str = "") -> Any:
    return _flag(Kind.FLOATS, (), help=text, flag=flag, config_name=config_name)


def choice(default: str, text: str, choices: dict[str, int]) -> Any:
    return _flag(Kind.CHOICE, default, help=text, choices=choices)


def _flag(kind: Kind, default: object, *, shown: bool = True, **description: Any) -> Any:
    converter = _as_tuple if isinstance(default, tuple) else None
    return _field(Option(kind=kind, **description), default, converter=converter, shown=shown)


def flags_of(cls: type[AttrsInstance]) -> dict[str, Option]:
    """Return the options of a class of flags, by the names of its fields and in their order.

    Without a name of its own, a flag has that of its field without ``_ns``, with dashes, and a key of the configuration
    file has that of the flag, with underscores.
    """
    options = {}
    for field in attrs.fields(cls):
        option: Option = field.metadata[Option]
        flag = option.flag or field.name.removesuffix("_ns").replace("_", "-")
        config_name = option.config_name or flag.replace("-", "_")
        options[field.name] = attrs.evolve(option, flag=flag, config_name=config_name)
    return options


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _field(
    option: Option, default: object, *, converter: Callable[[Any], Any] | None = None, shown: bool = True
) -> Any:
    return attrs.field(default=default, converter=converter, validator=_validate, repr=shown, metadata={Option: option})


def _validate(_: object, attribute: attrs.Attribute[object], value: object) -> None:
    option: Option = attribute.metadata[Option]
    if not option.accepts(value):
        name = f"option {attribute.name}" if option.help else attribute.name
        shown = repr(value) if attribute.repr else f"a {type(value).__name__}"
        raise OptionError(f"{name} is {shown}; allowed is {option.allowed}")
