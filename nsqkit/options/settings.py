"""Options of clients from the environment and from a TOML file, beneath the arguments of the program.

    arguments  >  environment  >  file  >  defaults

Each value is checked where it comes from, and a refusal names that place: the variable, or the file and its table. A
name that is not an option is refused; the names of another client's options are allowed if that client is named.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from nsqkit.errors import OptionError
from nsqkit.options.checks import check_addresses, make_options, unknown_name
from nsqkit.options.option import Kind, Option

if TYPE_CHECKING:
    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

PREFIX: Final = "NSQKIT_"
"""How the names of environment variables begin, before the option's own in capitals."""


def load_options(
    cls: type[T],
    *,
    environ: Mapping[str, str] | None = None,
    toml_path: str | os.PathLike[str] | None = None,
    toml_table: str = "nsqkit",
    beside: Collection[type[AttrsInstance]] = (),
    **arguments: object,
) -> T:
    """Return an object of options from all the places where they may be set.

    Args:
        cls: ``ConsumerOptions``, ``ProducerOptions``, ``HTTPProducerOptions`` or ``ConnectionOptions``.
        environ: variables such as ``NSQKIT_MAX_IN_FLIGHT=200``, usually ``os.environ``; None for none.
        toml_path: a TOML file; None for none.
        toml_table: the table of it, with dots, that holds the options: ``nsqkit``, ``tool.nsqkit``.
        beside: classes whose options may be set in the same places; they are ignored.
        arguments: options that the program itself sets; they have precedence.

    Raises:
        OptionError: a name that is not an option, a value that is not allowed, or a file that cannot be read.
    """
    settings = load_settings(
        cls, environ=environ, toml_path=toml_path, toml_table=toml_table, beside=beside, **arguments
    )
    return make_options(cls, _options_among(cls, settings))


def load_settings(
    cls: type[AttrsInstance],
    *,
    environ: Mapping[str, str] | None = None,
    toml_path: str | os.PathLike[str] | None = None,
    toml_table: str = "nsqkit",
    beside: Collection[type[AttrsInstance]] = (),
    **arguments: object,
) -> dict[str, Any]:
    """Return the options that are set, as keyword arguments of a client.

    For example ``Consumer("topic", "channel", **load_settings(ConsumerOptions, environ=os.environ))``. The result also
    has the lists of addresses that the client takes, if they are set: ``nsqd_tcp_addresses``, for a consumer
    ``lookupd_http_addresses``, for a producer ``nsqd_http_addresses``. In a variable, commas separate them. Durations
    are numbers of seconds or Go's notation: ``90``, ``1.5``, ``"1m30s"``.

    The arguments and errors are those of ``load_options``.
    """
    sources = [{name: Setting(value, "") for name, value in arguments.items()}]
    if environ is not None:
        sources.append(_environment(environ))
    if toml_path is not None:
        sources.append(_table(_read(toml_path), toml_table, os.fspath(toml_path)))
    others = {name for other in beside for name in (*attrs.fields_dict(other), *_addresses_of(other))}
    settings: dict[str, Setting] = {}
    for source in reversed(sources):
        settings |= {
            name: attrs.evolve(setting, value=_check(cls, name, setting))
            for name, setting in source.items()
            if not _is_foreign(cls, name, setting, others)
        }
    values = {name: setting.value for name, setting in settings.items()}
    _check_together(cls, values, settings)
    return values


@attrs.frozen
class Setting:
    """A value that is set somewhere."""

    value: object
    place: str  # empty for an argument
    is_written: bool = False  # the value is a text that stands for another one


def _environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    return {
        variable[len(PREFIX) :].lower(): Setting(text, f"environment variable {variable}", is_written=True)
        for variable, text in environ.items()
        if variable.upper().startswith(PREFIX)
    }


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise OptionError(f"{os.fspath(path)} is no TOML: {error}") from error


def _table(document: Mapping[str, Any], table: str, path: str) -> dict[str, Setting]:
    found: Any = document
    for key in table.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise OptionError(f"{path} has no table [{table}]")
    return {name: Setting(value, f"{name} in [{table}] of {path}") for name, value in found.items()}


def _is_foreign(cls: type[AttrsInstance], name: str, setting: Setting, others: Collection[str]) -> bool:
    is_own = name in _addresses_of(cls) or name in attrs.fields_dict(cls)
    return not is_own and name in others and setting.place != ""


def _check(cls: type[AttrsInstance], name: str, setting: Setting) -> object:
    """Return the value of a setting, read and checked; an error names the place of the setting."""
    try:
        if name in _addresses_of(cls):
            return _addresses(setting, name)
        if name in (fields := attrs.fields_dict(cls)):
            return _value(setting, fields[name])
        raise unknown_name(name, cls)
    except OptionError as error:
        raise (OptionError(f"{setting.place}: {error}") if setting.place else error) from error


def _addresses(setting: Setting, name: str) -> list[str]:
    value = setting.value
    if setting.is_written and isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value else []
    return list(check_addresses(value, name, or_url="_http_" in name))


def _addresses_of(cls: type[AttrsInstance]) -> tuple[str, ...]:
    """Return the names of the lists of addresses that the client takes."""
    addresses: tuple[str, ...] = getattr(cls, "addresses", ())
    return addresses


def _options_among(cls: type[AttrsInstance], values: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _addresses_of(cls)}


def _value(setting: Setting, field: attrs.Attribute[Any]) -> object:
    value = setting.value
    option: Option | None = field.metadata.get(Option)
    is_text = setting.is_written or (option and option.kind is Kind.SECONDS and setting.place)
    if option and is_text and isinstance(value, str):
        with suppress(ValueError):  # the validator refuses a text that cannot be read
            value = option.read(value)
    if callable(field.converter):
        value = field.converter(value)
    if field.validator is not None:
        field.validator(None, field, value)
    return value


def _check_together(cls: type[AttrsInstance], values: dict[str, object], settings: Mapping[str, Setting]) -> None:
    """Refuse options that contradict each other; the error names the places of those that it mentions."""
    try:
        make_options(cls, _options_among(cls, values))
    except OptionError as error:
        named = set(re.findall(r"\w+", str(error)))
        places = [setting.place for name, setting in settings.items() if setting.place and name in named]
        raise OptionError(f"{error} ({', '.join(places)})" if places else str(error)) from error
