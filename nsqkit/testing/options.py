"""Options of test servers: the flags of nsqd and nsqlookupd as keywords, with values of Python.

A keyword is the flag in snake case: ``msg_timeout``, ``lookupd_tcp_address``. A duration is a number of seconds, a
timedelta, or a text as the flag takes it (``"1.5s"``); a list may be one text; a path may be a ``Path``. All is checked
before a server starts, and an error names the keyword. Names, kinds and limits are those of ``OPTIONS`` of a service.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from nsqkit.broker.core.options import OPTIONS as BROKER_OPTIONS
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.errors import OptionError
from nsqkit.lookupd.options import OPTIONS as LOOKUPD_OPTIONS
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.options.durations import format_duration, parse_duration
from nsqkit.options.option import Kind, Option

if TYPE_CHECKING:
    from collections.abc import Collection

    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

HOST: Final = "127.0.0.1"

_FREE_PORT: Final = f"{HOST}:0"
_NSQLOOKUPD_DEFAULTS: Final = {"tcp_address": _FREE_PORT, "http_address": _FREE_PORT, "broadcast_address": HOST}
_NSQD_DEFAULTS: Final = {**_NSQLOOKUPD_DEFAULTS, "https_address": _FREE_PORT}
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MICROSECOND: Final = 1_000
_FORMS: Final = {
    Kind.STRINGS: "a text or a list of texts",
    Kind.FLOATS: "a number above 0 and up to 1, or a list of them",
}


def nsqd_options(values: Mapping[str, object], *, beside: Collection[str] = ()) -> BrokerOptions:
    """Return the options of an nsqd; addresses that are not given are free ports of 127.0.0.1.

    Args:
        values: by keyword.
        beside: other keywords of the same call, for the error of an unknown one.

    Raises:
        OptionError: a keyword is unknown, or a value is not allowed.
    """
    return _make("nsqd", BrokerOptions, BROKER_OPTIONS, _NSQD_DEFAULTS, values, beside)


def nsqlookupd_options(values: Mapping[str, object], *, beside: Collection[str] = ()) -> LookupdOptions:
    """Return the options of an nsqlookupd, as ``nsqd_options`` does those of an nsqd."""
    return _make("nsqlookupd", LookupdOptions, LOOKUPD_OPTIONS, _NSQLOOKUPD_DEFAULTS, values, beside)


def flag_words(options: BrokerOptions) -> list[str]:
    """Return the command line of an nsqd with these options; it has no flag for a value that is nsqd's default."""
    words: list[str] = []
    for field in attrs.fields(BrokerOptions):
        option, value = BROKER_OPTIONS[field.name], getattr(options, field.name)
        if value != field.default:
            words += [f"--{option.flag}={_flag_text(option, item)}" for item in _items(value)]
    return words


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flag_text(option: Option, value: object) -> str:
    if option.kind is Kind.DURATION:
        assert isinstance(value, int)
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _make(
    service: str,
    cls: type[T],
    options: Mapping[str, Option],
    defaults: Mapping[str, object],
    values: Mapping[str, object],
    beside: Collection[str],
) -> T:
    fields = {_keyword(option): field for field, option in options.items()}
    made = dict(defaults)
    for name, value in values.items():
        if name not in fields:
            raise _unknown(service, name, options, [*fields, *beside])
        field = fields[name]
        made[field] = _convert(name, options[field], value)
    return cls(**made)


def _keyword(option: Option) -> str:
    return option.flag.replace("-", "_")


def _unknown(service: str, name: str, options: Mapping[str, Option], allowed: Collection[str]) -> OptionError:
    if name in options:
        unit = ", in seconds" if options[name].kind is Kind.DURATION else ""
        return OptionError(f"there is no option {name!r}; its name is {_keyword(options[name])!r}{unit}")
    from difflib import get_close_matches  # only for the error

    nearest = " or ".join(map(repr, get_close_matches(name, allowed)))
    hint = f"did you mean {nearest}? " if nearest else ""
    return OptionError(
        f"there is no option {name!r}; {hint}Options have the names of {service}'s flags, which "
        f"`python -m nsqkit {service} --help` lists, with underscores"
    )


def _convert(name: str, option: Option, value: object) -> object:
    """Return the value of the field, for a value of the keyword."""
    try:
        converted = _field_value(option, value)
    except (ValueError, OverflowError):  # a text that is no duration, or a number that is not finite
        converted = None
    if not option.accepts(converted):
        raise OptionError(f"{name} is {value!r}; allowed is {_allowed(option)}")
    return converted


def _field_value(option: Option, value: Any) -> object:
    match option.kind, value:
        case (_, bool()):
            return str(value).lower() if option.kind is Kind.CHOICE else value
        case (Kind.STRING, Path()):
            return str(value)
        case (Kind.DURATION, timedelta()):
            return value // timedelta(microseconds=1) * _NS_PER_MICROSECOND
        case (Kind.DURATION, int() | float()):
            return round(value * _NS_PER_S)
        case (Kind.DURATION, str()):
            return parse_duration(value)
        case (Kind.DURATION, _):
            return None
        case (Kind.STRINGS, str()):
            return (value,)
        case (Kind.FLOATS, int() | float()):
            return (value,)
        case (Kind.FLOATS, list() | tuple()):
            return tuple(sorted(value, reverse=True)) if all(isinstance(item, int | float) for item in value) else None
        case (Kind.STRINGS, list()):
            return tuple(value)
    return value


def _allowed(option: Option) -> str:
    if option.kind is Kind.DURATION:
        least = format_duration(math.ceil(option.low))
        return f'a number of seconds, a timedelta or a text such as "1.5s", of at least {least}'
    return (not option.choices and _FORMS.get(option.kind)) or option.allowed
