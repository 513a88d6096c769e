"""The description of one option: the kind of its value, its limits, and how a text stands for a value.

An option is described once, where its field is declared (``nsqkit.options.fields``). The check of its value, the
command line, configuration files, environment variables and ``GET /config`` follow that description.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import Any, Final

import attrs

from nsqkit.options.durations import DURATION_NS_MAX, format_duration, parse_duration, parse_seconds

INT64_MAX: Final = DURATION_NS_MAX

_GO_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_SWITCH_WORDS: Final = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


class Kind(enum.Enum):
    """The kind of an option's value. nsqd's flags have separate kinds, since their texts are in Go's notation."""

    STRING = "a text"
    BOOL = "true or false"
    INT = "an integer"
    DURATION = "a duration"
    STRINGS = "a list of texts"
    FLOATS = "a list of numbers above 0 and up to 1"
    CHOICE = "one word of a few"
    SWITCH = "True or False"
    WHOLE = "a whole number"
    NUMBER = "a number"
    SECONDS = "a number of seconds"
    OBJECT = "an object, for which no text stands"


@attrs.frozen(kw_only=True)
class Option:
    """The description of one option.

    Attributes:
        kind: what the value is.
        low: the least value of a number.
        high: the greatest one.
        or_zero: 0 is allowed although it is below ``low``.
        or_none: None is allowed.
        choices: the words allowed, if not every text is; of a CHOICE of nsqd, a mapping to nsqd's number for each.
        is_object: returns whether an OBJECT is allowed.
        expected: how an error describes the allowed values, where ``kind`` and the limits do not.
        flag: the name on nsqd's command line, without dashes: ``mem-queue-size``. Empty for the options of clients.
        config_name: the key in a configuration file and in ``/config/NAME``: ``mem_queue_size``.
        help: a few words for the usage text.
    """

    kind: Kind
    low: float = 0
    high: float = INT64_MAX
    or_zero: bool = False
    or_none: bool = False
    choices: Collection[str] = ()
    is_object: Callable[[object], bool] = callable
    expected: str = ""
    flag: str = ""
    config_name: str = ""
    help: str = ""

    def accepts(self, value: object) -> bool:
        """Return whether the option may have this value."""
        if value is None:
            return self.or_none
        match self.kind:
            case Kind.BOOL | Kind.SWITCH:
                return isinstance(value, bool)
            case Kind.INT | Kind.WHOLE | Kind.DURATION:
                return isinstance(value, int) and self._in_range(value)
            case Kind.NUMBER | Kind.SECONDS:
                return isinstance(value, int | float) and self._in_range(value)
            case Kind.STRING | Kind.CHOICE:
                return self._is_word(value)
            case Kind.STRINGS:
                return isinstance(value, tuple) and all(map(self._is_word, value))
            case Kind.FLOATS:
                return isinstance(value, tuple) and all(map(_is_percentile, value))
            case Kind.OBJECT:
                return self.is_object(value)

    def _is_word(self, word: object) -> bool:
        return isinstance(word, str) and (not self.choices or word in self.choices)

    def _in_range(self, value: float) -> bool:
        # Comparisons with NaN are False, so it is refused.
        in_range = self.low <= value <= self.high or (self.or_zero and value == 0)
        return in_range and not isinstance(value, bool)

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of a sentence."""
        if self.expected:
            return self.expected
        if self.choices:
            words = " or ".join(word or "nothing" for word in self.choices)
            return f"a list of {words}" if self.kind is Kind.STRINGS else words
        match self.kind:
            case Kind.DURATION:
                return f"a duration in nanoseconds of at least {self.low} ({format_duration(int(self.low))})"
            case Kind.INT:
                if self.high < INT64_MAX:
                    return f"an integer from {self.low} to {self.high}"
                return f"an integer of at least {self.low}"
            case Kind.WHOLE | Kind.NUMBER | Kind.SECONDS:
                noun = "a whole number" if self.kind is Kind.WHOLE else "a number"
                unit = " seconds" if self.kind is Kind.SECONDS else ""
                limits = f"{noun} from {self.low:.12g} to {self.high:.12g}{unit}"
                return f"{'0, or ' * self.or_zero}{limits}{', or None' * self.or_none}"
        return str(self.kind.value)

    def read(self, text: str) -> Any:
        """Return the value for which a text stands; raise ValueError if it is not of this kind."""
        match self.kind:
            case Kind.BOOL:
                return _read_bool(text)
            case Kind.SWITCH:
                return _look_up(text.strip().lower(), _SWITCH_WORDS)
            case Kind.INT:
                return _read_int(text)
            case Kind.WHOLE:
                return int(text)
            case Kind.NUMBER:
                return float(text)
            case Kind.DURATION:
                return parse_duration(text)
            case Kind.SECONDS:
                return parse_seconds(text)
            case Kind.STRINGS:
                return (text,)
            case Kind.FLOATS:
                return tuple(map(float, text.split(",")))
            case Kind.CHOICE if self.flag:
                return self._read_choice(text.lower())
        return text

    def _read_choice(self, word: str) -> str:
        if word not in self.choices:
            word = str(_read_bool(word)).lower()
        if word not in self.choices:
            raise ValueError(word)
        return word


def _is_percentile(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _read_bool(text: str) -> bool:
    return _look_up(text, _GO_BOOLS)


def _look_up(word: str, words: dict[str, bool]) -> bool:
    if word not in words:
        raise ValueError(word)
    return words[word]


def _read_int(text: str) -> int:
    """Read an integer as Go does with base 0: 42, 0x2a, 0b101010, 0o52 and 052, with single underscores."""
    if not text.isascii() or text != text.strip():
        raise ValueError(text)
    digits = text.lstrip("+-")
    # Python requires an "o" after the zero of an octal number.
    value = int(text.replace("0", "0o", 1) if digits[:1] == "0" and digits[1:2].isdigit() else text, 0)
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise ValueError(text)
    return value
