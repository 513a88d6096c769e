"""Command lines and configuration files, read as by nsqd.

A command line has the same meaning as for nsqd: one dash or two, ``-name=value`` or ``-name value``, a boolean flag
without value for true, numbers in Go's notation (Go, package flag). A word that is not a flag is refused, while nsqd
ignores it together with all flags after it. Unknown keys of a file are ignored, as by nsqd, and ``unknown_keys`` lists
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from nsqkit.errors import OptionError
from nsqkit.options.durations import format_duration
from nsqkit.options.option import Kind, Option
from nsqkit.transport.address import shown_url, shown_value

_NS_PER_MS: Final = 1_000_000

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}")

_FORMS: Final[dict[Kind, str]] = {
    Kind.BOOL: "allowed is true or false",
    Kind.INT: "allowed is an integer of 64 bits, as in 42 or 0x2a",
    Kind.DURATION: "allowed is a duration, as in 300ms, 1.5s or 1h30m",
    Kind.STRINGS: "allowed is a list of texts",
    Kind.FLOATS: "allowed are numbers, separated by commas",
}
_USAGE_WORDS: Final[dict[Kind, str]] = {
    Kind.STRING: " string",
    Kind.BOOL: "",
    Kind.INT: " int",
    Kind.DURATION: " duration",
}


class UnknownFlag(OptionError):
    """The command line has a flag that does not exist.

    Attributes:
        flag: its name without dashes.
    """

    def __init__(self, flag: str) -> None:
        super().__init__(f"flag provided but not defined: -{flag}")  # Go's text
        self.flag = flag


def parse_flags(words: Iterable[str], options: Mapping[str, Option]) -> dict[str, Any]:
    """Read the words after the name of the command; the options are by the name of the field.

    Returns:
        The values that are set, by the name of the field. A list has the values of all its flags; of any other option
        the last flag counts.

    Raises:
        UnknownFlag: a flag does not exist.
        OptionError: a flag has no value or one of the wrong form, or a word is not a flag.
    """
    fields = {option.flag: name for name, option in options.items()}
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            _refuse_words(rest)
            break
        flag, equals, text = _flag_of(word).partition("=")
        if flag not in fields:
            raise UnknownFlag(flag)
        name = fields[flag]
        option = options[name]
        if not equals:
            text = "true" if _is_bare(option) else _next_word(rest, flag, option)
        value = _parse_text(option, text, flag_place(option))
        given[name] = given.get(name, ()) + value if isinstance(value, tuple) else value
        if option.kind is Kind.FLOATS:
            given[name] = tuple(sorted(given[name], reverse=True))
    return given


def _flag_of(word: str) -> str:
    if len(word) < 2 or word[0] != "-":
        _refuse_words([word])
    flag = word[2:] if word.startswith("--") else word[1:]
    if flag[0] in "-=":
        raise OptionError(f"bad flag syntax: {word}; allowed is -name=value")
    return flag


def _next_word(rest: Iterator[str], flag: str, option: Option) -> str:
    for word in rest:
        return word
    raise OptionError(f"flag needs an argument: --{flag}; {_form(option)}")


def _refuse_words(words: Iterable[str]) -> None:
    for word in words:
        raise OptionError(
            f'unexpected argument "{word}"; allowed are flags, -name=value, and a boolean flag takes its value '
            "only after an equals sign"
        )


def _is_bare(option: Option) -> bool:
    """Return whether the flag without value is true: a boolean, or tls-required, which nsqd treats as one."""
    return option.kind is Kind.BOOL or (option.kind is Kind.CHOICE and "true" in option.choices)


def parse_document(document: Mapping[str, object], options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values in a decoded configuration file, by the name of the field; OptionError if one is wrong."""
    return {
        name: _parse_item(option, document[option.config_name], key_place(option))
        for name, option in options.items()
        if option.config_name in document
    }


def unknown_keys(document: Mapping[str, object], options: Mapping[str, Option]) -> list[str]:
    """Return the keys of a configuration file that are not options."""
    known = {option.config_name for option in options.values()}
    return [key for key in document if key not in known]


def flag_place(option: Option) -> str:
    """Return the name of an option of the command line, for an error."""
    return f"flag --{option.flag}"


def key_place(option: Option) -> str:
    """Return the name of an option of a configuration file, for an error."""
    return f"option {option.config_name}"


def check_limits(option: Option, value: object, place: str) -> None:
    """Compare a value with the limits of its option; ``place`` is its origin.

    Raises:
        OptionError: it is outside; the text has the value as it was written, and the limits.
    """
    if option.accepts(value):
        return
    text, allowed = str(value), option.allowed
    if option.kind is Kind.DURATION and isinstance(value, int):
        text, allowed = format_duration(value), f"a duration of at least {format_duration(int(option.low))}"
    elif isinstance(value, tuple):
        text = ",".join(shown_url(str(item)) for item in value)  # a URL may have a password
    raise OptionError(f'invalid value "{text}" for {place}: allowed is {allowed}')


def _parse_item(option: Option, value: object, place: str) -> Any:
    match option.kind, value:
        case (Kind.STRINGS, str() as text):
            return tuple(text.split(","))
        case (Kind.INT, str() as text) if _DECIMAL.fullmatch(text):  # for flags, a leading zero means base 8
            return _parse_text(option, str(int(text)), place)
        case (Kind.INT, str() as text):
            raise _invalid(option, text, place)
        case (_, str() as text):
            return _parse_text(option, text, place)
        case (Kind.BOOL, bool()):
            return value
        case (Kind.CHOICE, bool()):
            return _parse_text(option, str(value), place)
        case (Kind.INT, int()) if not isinstance(value, bool):
            return value
        case (Kind.DURATION, int() as milliseconds) if not isinstance(value, bool):
            return milliseconds * _NS_PER_MS
        case (Kind.STRINGS | Kind.FLOATS, list() as items):
            return tuple(items)
        case (Kind.STRINGS, _):
            raise _invalid(option, shown_value(value), place)
    raise _invalid(option, str(value), place)


def _parse_text(option: Option, text: str, place: str) -> Any:
    """Return the value for which ``text`` stands; ``place`` is its origin, for the error."""
    try:
        return option.read(text)
    except ValueError as error:
        raise _invalid(option, text, place) from error


def _invalid(option: Option, text: str, place: str) -> OptionError:
    return OptionError(f'invalid value "{text}" for {place}: {_form(option)}')


def _form(option: Option) -> str:
    return _FORMS.get(option.kind) or f"allowed is {option.allowed}"


def usage(command: str, options: Mapping[str, Option], defaults: object) -> str:
    """Return the output of ``-help``: each flag with its type, help and default, in alphabetical order.

    The options are by the name of the field; the attributes of ``defaults`` are the default values.
    """
    lines = [f"Usage of {command}:"]
    for name, option in sorted(options.items(), key=lambda item: item[1].flag):
        lines.append(f"  -{option.flag}{_USAGE_WORDS.get(option.kind, ' value')}")
        lines.append(f"        {option.help}{_limits(option)}{_default(option, getattr(defaults, name, None))}")
    return "\n".join(lines) + "\n"


def _limits(option: Option) -> str:
    """Return the limits of a value, unless the help has them."""
    words = [word for word in option.choices if word]
    if any(word not in option.help for word in words):
        return f": {', '.join(words)}"
    if option.kind is Kind.INT and option.high < 1 << 32:
        return f", from {option.low} to {option.high}"
    return f", at least {option.low}" if option.kind is Kind.INT and option.low > 0 else ""


def _default(option: Option, value: object) -> str:
    if not value or "default" in option.help:
        return ""
    if isinstance(value, int) and option.kind is Kind.DURATION:
        return f" (default {format_duration(value)})"
    return f' (default "{value}")' if isinstance(value, str) else f" (default {str(value).lower()})"
