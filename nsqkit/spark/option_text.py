"""Options as Spark passes them: texts under keys whose case does not matter.

Spark lower-cases the keys of ``option("maxInFlight", 5)`` and turns the value into a text. A table of ``TextOption``
has the documented names with the kinds and limits of their values; ``read_options`` reads a map by such a table. An
error names an option as it is documented, with its value and the allowed values. The values of secrets, and those of
addresses, which may be URLs with passwords, are in no error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from nsqkit.options.option import Kind, Option

PREFIX: Final = "nsq."
"""How the names begin that are options of nsqkit's clients."""

DAY_MS: Final = 86_400_000

LOOKUPD_TIMEOUT: Final = 10.0
"""Seconds that an nsqlookupd may take to answer, by default. Less than for a client, since a batch waits for it."""

_SECRETS: Final = frozenset({"auth_secret", "lookupd_authorization"})

# nsqlookupds are queried for each plan, so an interval has no effect.
_POLLING: Final = frozenset({"lookupd_poll_interval", "lookupd_poll_jitter"})


@attrs.frozen(kw_only=True)
class TextOption:
    """One option of a data source.

    Attributes:
        name: as documented: ``maxInFlight``.
        option: the kind and the limits of its value.
        default: the value if it is not set; None if there is none.
        aliases: other names for it.
        hidden: its value must not be shown.
        reads: which reads have it: ``batch``, ``stream``, or both if it is empty.
        field: the name of the argument that it becomes, if an error may have that name.
        meaning: for the documentation: sentences in Markdown.
    """

    name: str
    option: Option
    default: Any = None
    aliases: tuple[str, ...] = ()
    hidden: bool = False
    reads: str = ""
    field: str = ""
    meaning: str

    @property
    def allowed(self) -> str:
        """The allowed values, as the end of a sentence."""
        return self.option.allowed

    def read(self, text: object) -> Any:
        """Return the value for which a text stands.

        Raises:
            OptionError: it is not allowed.
        """
        try:
            value = self._value(text)
        except (ValueError, OptionError):
            value = None
        if value is None or not self.option.accepts(value):
            found = "cannot be used" if self.hidden else f"is {text!r}"
            raise OptionError(f"{self.name} {found}; allowed is {self.allowed}")
        return value

    def _value(self, text: object) -> Any:
        if not isinstance(text, str):
            raise ValueError(text)
        if self.option.kind is Kind.STRINGS:
            return tuple(filter(None, map(str.strip, text.split(","))))
        if self.hidden and not text.isprintable():
            raise ValueError
        return self.option.read(text.strip() if self.option.kind is Kind.CHOICE else text)


def text_option(name: str, default: str | None, meaning: str, *, expected: str = "a text", **more: Any) -> TextOption:
    """Return an option whose value is any text."""
    return _option(name, Option(kind=Kind.STRING, expected=expected), default, meaning, **more)


def list_option(name: str, meaning: str, *, expected: str, **more: Any) -> TextOption:
    """Return an option whose value is a list, with commas in its text; empty by default."""
    return _option(name, Option(kind=Kind.STRINGS, expected=expected), (), meaning, **more)


def whole_option(name: str, default: int | None, low: int, high: int, meaning: str, **more: Any) -> TextOption:
    """Return an option whose value is a whole number."""
    return _option(name, Option(kind=Kind.WHOLE, low=low, high=high), default, meaning, **more)


def milliseconds_option(
    name: str, default: int | None, low: int, meaning: str, *, high: int = DAY_MS, **more: Any
) -> TextOption:
    """Return an option whose value is a length of time, a whole number of milliseconds."""
    expected = f"a whole number of milliseconds from {low} to {high}"
    option = Option(kind=Kind.WHOLE, low=low, high=high, expected=expected)
    return _option(name, option, default, meaning, **more)


def switch_option(name: str, default: bool | None, meaning: str, **more: Any) -> TextOption:
    """Return an option whose value is true or false."""
    return _option(name, Option(kind=Kind.SWITCH, expected="true or false"), default, meaning, **more)


def word_option(name: str, default: str | None, words: Collection[str], meaning: str, **more: Any) -> TextOption:
    """Return an option whose value is one word of a few."""
    return _option(name, Option(kind=Kind.CHOICE, choices=words), default, meaning, **more)


def _option(name: str, option: Option, default: object, meaning: str, **more: Any) -> TextOption:
    return TextOption(name=name, option=option, default=default, meaning=meaning, **more)


def camel_case(name: str) -> str:
    """Return the documented form of an argument's name: ``tlsRootCaFile`` for ``tls_root_ca_file``."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _connection_option(field: attrs.Attribute[Any]) -> TextOption:
    option: Option = field.metadata[Option]
    name = field.name
    if option.kind is Kind.SWITCH:
        option = attrs.evolve(option, expected="true or false")
    elif option.kind is Kind.SECONDS:
        option = attrs.evolve(option, expected=f"{option.allowed}, or with a unit as in 500ms")
    elif name in _SECRETS:
        option = attrs.evolve(option, expected="a text of printable characters")
    elif option.kind is Kind.STRING:
        option = attrs.evolve(option, expected="a text")
    return TextOption(
        name=PREFIX + camel_case(name),
        option=option,
        default=LOOKUPD_TIMEOUT if name == "lookupd_poll_timeout" else field.default,
        hidden=name in _SECRETS,
        field=name,
        meaning=f"`{name}` of nsqkit's clients.",
    )


NSQ_OPTIONS: Final = tuple(
    _connection_option(field)
    for field in (attrs.fields_dict(ConnectionOptions) | attrs.fields_dict(LookupOptions)).values()
    # No text stands for an object such as an ssl.SSLContext.
    if field.name not in _POLLING and field.metadata[Option].kind is not Kind.OBJECT
)
"""TLS, AUTH, compression and the rest: the options of connections and of requests to nsqlookupds."""


def read_options(
    options: Mapping[str, str], known: Iterable[TextOption], *, ignored: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of the options that are set, by their documented names.

    Args:
        options: Spark's map.
        known: the options that there are.
        ignored: names that Spark itself reads, such as ``checkpointLocation``.

    Raises:
        OptionError: an unknown name, a value that is not allowed, or an option that is set twice.
    """
    table = list(known)
    names = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    passed_over = {name.lower() for name in ignored}
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key.lower() in passed_over:
            continue
        if (option := names.get(key.lower())) is None:
            raise _unknown(key, table)
        if option.name in values:
            raise OptionError(f"{' or '.join((option.name, *option.aliases))} is set twice; allowed is once")
        values[option.name] = option.read(text)
    return values


def connection_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under ``nsq.`` among the values of ``read_options``, as keywords of nsqkit's clients."""
    return {option.field: values[option.name] for option in NSQ_OPTIONS if option.name in values}


def with_documented_names(error: OptionError, known: Iterable[TextOption]) -> OptionError:
    """Return an error with the documented names of options in place of the arguments that they became."""
    names = {option.field: option.name for option in known if option.field}
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return OptionError(re.sub(rf"\b({pattern})\b", lambda match: names[match[0]], str(error)))


def _unknown(key: str, known: Iterable[TextOption]) -> OptionError:
    from difflib import get_close_matches  # only for the error

    names = {name.lower(): name for option in known for name in (option.name, *option.aliases)}
    if nearest := get_close_matches(key.lower(), names, n=1):
        return OptionError(f"there is no option {key!r}; did you mean {names[nearest[0]]!r}?")
    own = [name for name in names.values() if not name.startswith(PREFIX)]
    return OptionError(f"there is no option {key!r}; there are {', '.join(own)}, and those that begin with {PREFIX}")
