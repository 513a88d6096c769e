"""Checks of arguments: names of options, lengths of time, addresses, and objects that a client is given.

Each refusal is an OptionError: one sentence with the name of the argument, the value and the allowed values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import plain_seconds
from nsqkit.transport.address import is_socket_path, shown_url, shown_value, split_address

if TYPE_CHECKING:
    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

WAIT_MAX: Final = 1e9
"""Seconds that a method may wait; Python refuses a longer wait of a thread."""

_TOOLS: Final = {
    "clock": (("now_ns", "wait_until"), "a clock such as nsqkit.clock.ManualClock()"),
    "dial": (("__call__",), "an async function of an address"),
    "random": (("random", "uniform"), "a random.Random"),
    "serializer": (("encode", "decode"), "a serializer such as nsqkit.JSON"),
    "on_backoff": (("__call__",), "a function of a BackoffStats"),
}


def make_options(
    cls: type[T], values: dict[str, Any], *, elsewhere: Mapping[str, type[AttrsInstance]] | None = None
) -> T:
    """Return ``cls(**values)``; raise OptionError for an unknown option, or a value that is not allowed.

    ``elsewhere`` has the calls that take other options, such as ``run(…)``, with the classes of those.
    """
    known = attrs.fields_dict(cls)
    for name in values:
        if name not in known:
            raise unknown_name(name, cls, elsewhere=elsewhere)
    return cls(**values)


def unknown_name(
    name: str, cls: type[AttrsInstance], *, elsewhere: Mapping[str, type[AttrsInstance]] | None = None
) -> OptionError:
    """Return the refusal of a name that ``cls`` does not have, with the most similar name; see ``make_options``."""
    for call, other in (elsewhere or {}).items():
        if name in attrs.fields_dict(other):
            return OptionError(f"there is no option {name!r} here; it is an option of {call}")
    from difflib import get_close_matches  # only for the error

    known = list(attrs.fields_dict(cls))
    addresses: tuple[str, ...] = getattr(cls, "addresses", ())
    beside = (*addresses, "serializer") if addresses else ()  # arguments of the same calls
    if nearest := get_close_matches(name, [*known, *beside], n=1):
        return OptionError(f"there is no option {name!r}; did you mean {nearest[0]!r}?")
    return OptionError(f"there is no option {name!r}; there are {', '.join(known)}")


def check_value(cls: type[AttrsInstance], name: str, value: object) -> None:
    """Raise OptionError if an option may not have a value."""
    field = attrs.fields_dict(cls)[name]
    assert field.validator is not None
    field.validator(None, field, value)


def take_seconds(name: str, value: object, most: float = math.inf, *, least: float = 0.0) -> float:
    """Return a length of time, a number or a timedelta that is the argument ``name``, in seconds.

    Raises:
        OptionError: it is neither, is not finite, or is outside of ``least`` to ``most``.
    """
    number = plain_seconds(value)
    # Comparisons with NaN are False, so it is refused.
    right = isinstance(number, int | float) and not isinstance(number, bool)
    if not right or not least <= number <= most or number == math.inf:
        allowed = f"{least:g} seconds or more" if most == math.inf else f"{least:g} to {most:g} seconds"
        raise OptionError(f"{name} is {value!r}; allowed is {allowed}")
    return cast("float", number)


def take_timeout(value: object) -> float | None:
    """Return the argument ``timeout`` of a method in seconds, None for no limit; raise OptionError for other values."""
    return None if value is None else take_seconds("timeout", value, WAIT_MAX)


def check_addresses(addresses: object, name: str, *, or_url: bool = False) -> tuple[str, ...]:
    """Return the addresses, each once; each is ``host:port``, or the path of a Unix socket (``is_socket_path``).

    With ``or_url`` an address may also be a URL, which is not checked here; ``name`` is that of the argument.

    Raises:
        OptionError: one of them is not an address, or ``addresses`` is not a list.
    """
    if isinstance(addresses, str | bytes) or not isinstance(addresses, Sequence):
        raise OptionError(f'{name} is {shown_value(addresses)}; allowed is a list such as ["127.0.0.1:4150"]')
    for address in addresses:
        if not isinstance(address, str):
            raise OptionError(f'{name} holds {shown_value(address)}; allowed are texts such as "127.0.0.1:4150"')
        if "://" in address:
            if not or_url:
                raise OptionError(f"address {shown_value(address)} is a URL; allowed is host:port, without a scheme")
        elif not is_socket_path(address):
            shown = shown_url(address) if or_url else address
            host, port = split_address(shown)
            if not host or not port:
                missing = "port" if host else "host"
                raise OptionError(f"address {shown!r} names no {missing}; allowed is host:port")
    return tuple(dict.fromkeys(addresses))


def check_tools(**tools: object) -> None:
    """Raise OptionError if a clock, dial, random, serializer or on_backoff is neither None nor has its methods."""
    for name, value in tools.items():
        methods, allowed = _TOOLS[name]
        if value is not None and not all(callable(getattr(value, method, None)) for method in methods):
            raise OptionError(f"{name} is {value!r}; allowed is None or {allowed}")
