"""What is known about one option beside its value: names, kind, limits, a sentence of help.

The rule it guards: an option is described once, where it is declared. The check of its value, the command line,
the configuration file and ``GET /config`` all follow that description.

How to read it: ``Kind`` and ``Option`` first; then one function per kind, each of which declares a field of an
attrs class, with the description as the field's metadata under the key ``Option``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import Any, Final

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.durations import DURATION_NS_MAX, format_duration

_INT64_MAX: Final = DURATION_NS_MAX


class Kind(enum.Enum):
    """What an option's value is; the value of each member says it to a reader."""

    STRING = "a text"
    BOOL = "true or false"
    INT = "an integer"
    DURATION = "a duration"
    STRINGS = "a list of texts"
    FLOATS = "a list of numbers above 0 and up to 1"
    CHOICE = "one word of a few"


@attrs.frozen(kw_only=True)
class Option:
    """The description of one option.

    Attributes:
        flag: the name on nsqd's command line, without dashes: ``mem-queue-size``.
        config_name: the key in a configuration file and in ``/config/NAME``: ``mem_queue_size``.
        kind: what the value is.
        help: a few words for the usage text.
        low: the least value allowed, of an INT or a DURATION.
        high: the greatest one.
        choices: the words allowed, where not every text is; of a CHOICE a mapping to nsqd's number for each.
    """

    flag: str
    config_name: str
    kind: Kind
    help: str
    low: int = 0
    high: int = _INT64_MAX
    choices: Collection[str] = ()

    def accepts(self, value: object) -> bool:
        """Tell whether the option may have this value."""
        match self.kind:
            case Kind.BOOL:
                return isinstance(value, bool)
            case Kind.INT | Kind.DURATION:
                return (
                    isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
                )
            case Kind.STRING | Kind.CHOICE:
                return self._accepts_word(value)
            case Kind.STRINGS:
                return isinstance(value, tuple) and all(map(self._accepts_word, value))
            case Kind.FLOATS:
                return isinstance(value, tuple) and all(map(_is_percentile, value))

    def _accepts_word(self, word: object) -> bool:
        return isinstance(word, str) and (not self.choices or word in self.choices)

    def allowed(self) -> str:
        """Say what is allowed, as the end of a sentence."""
        if self.choices:
            words = " or ".join(word or "nothing" for word in self.choices)
            return f"a list of {words}" if self.kind is Kind.STRINGS else words
        if self.kind is Kind.DURATION:
            return f"a duration in nanoseconds of at least {self.low} ({format_duration(self.low)})"
        if self.kind is Kind.INT:
            limits = (
                f"from {self.low} to {self.high}" if self.high < _INT64_MAX else f"of at least {self.low}"
            )
            return f"an integer {limits}"
        description: str = self.kind.value
        return description


def _is_percentile(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


# The functions below return Any, as attrs.field does: the type of a field is what its class says beside the name.


def string(flag: str, default: str, text: str, *, choices: Collection[str] = ()) -> Any:
    """Declare an option that is a text."""
    return _field(flag, Kind.STRING, default, text, choices=choices)


def boolean(flag: str, default: bool, text: str) -> Any:
    """Declare an option that is on or off."""
    return _field(flag, Kind.BOOL, default, text)


def integer(
    flag: str, default: int, text: str, *, low: int = 0, high: int = _INT64_MAX, config_name: str = ""
) -> Any:
    """Declare an option that is a number."""
    return _field(flag, Kind.INT, default, text, low=low, high=high, config_name=config_name)


def duration(flag: str, default_ns: int, text: str, *, low: int = 0) -> Any:
    """Declare an option that is a length of time, in nanoseconds."""
    return _field(flag, Kind.DURATION, default_ns, text, low=low)


def strings(flag: str, text: str, *, choices: Collection[str] = (), config_name: str = "") -> Any:
    """Declare an option that is a list of texts, empty by default."""
    return _field(flag, Kind.STRINGS, (), text, choices=choices, config_name=config_name, converter=_as_tuple)


def floats(flag: str, text: str, *, config_name: str = "") -> Any:
    """Declare an option that is a list of percentiles, empty by default."""
    return _field(flag, Kind.FLOATS, (), text, config_name=config_name, converter=_as_tuple)


def choice(flag: str, default: str, text: str, choices: dict[str, int]) -> Any:
    """Declare an option that is one of a few words, each of which nsqd has a number for."""
    return _field(flag, Kind.CHOICE, default, text, choices=choices)


def _field(
    flag: str,
    kind: Kind,
    default: object,
    text: str,
    *,
    low: int = 0,
    high: int = _INT64_MAX,
    choices: Collection[str] = (),
    config_name: str = "",
    converter: Callable[[object], object] | None = None,
) -> Any:
    option = Option(
        flag=flag,
        config_name=config_name or flag.replace("-", "_"),
        kind=kind,
        help=text,
        low=low,
        high=high,
        choices=choices,
    )
    return attrs.field(default=default, converter=converter, validator=_validate, metadata={Option: option})


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _validate(_: object, attribute: attrs.Attribute[object], value: object) -> None:
    option: Option = attribute.metadata[Option]
    if not option.accepts(value):
        raise OptionError(f"option {attribute.name} is {value!r}; allowed is {option.allowed()}")
