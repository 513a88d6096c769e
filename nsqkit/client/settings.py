"""Options from elsewhere: from the environment and from a TOML file, beneath what the program itself says.

    arguments  >  environment  >  file  >  defaults

The rule it guards: nothing that somebody has set is ignored, and nothing wrong is guessed at. Each value is checked
where it comes from, and a refusal names that place: the variable, or the file and its table. A name that is no option
is refused like a value that is none; the names of another client's options may stand beside, if that client is named.

How to read it: ``load_settings`` is the whole of it. Where values come from, a *source*, becomes a mapping of names to
``Setting``; what they mean is known by the fields of the options' class (``nsqkit.client.option``).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs

from nsqkit.client.option import Kind
from nsqkit.client.options import check_addresses, make_options, unknown_name
from nsqkit.errors import OptionError

if TYPE_CHECKING:
    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

PREFIX: Final = "NSQKIT_"
"""What the names of environment variables begin with, before the option's own in capitals."""


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
        environ: variables such as ``NSQKIT_MAX_IN_FLIGHT=200``, mostly ``os.environ``; None to look at none.
        toml_path: a TOML file; None for none.
        toml_table: the table of it, with dots, that holds the options: ``nsqkit``, ``tool.nsqkit``.
        beside: classes whose options may stand in the same places; they are left alone.
        arguments: options that the program itself sets; they count before all others.

    Raises:
        OptionError: a name that is no option, a value that is not allowed, or a file that cannot be read.
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
    """Return what is set, as keyword arguments: ``Consumer("topic", "channel", **load_settings(ConsumerOptions, …))``.

    Beside the options it has the lists of addresses that the client takes, if they are set: ``nsqd_tcp_addresses``,
    for a consumer ``lookupd_http_addresses``, for a producer ``nsqd_http_addresses``. Durations are numbers of seconds
    or Go's texts: ``90``, ``1.5``, ``"1m30s"``.

    Args:
        cls: as in ``load_options``, as are all others.
        environ: variables.
        toml_path: a TOML file.
        toml_table: the table of it.
        beside: classes whose options may stand in the same places.
        arguments: options that the program itself sets.

    Raises:
        OptionError: as ``load_options``.
    """
    sources = [{name: Setting(value, "") for name, value in arguments.items()}]
    if environ is not None:
        sources.append(_environment(environ))
    if toml_path is not None:
        sources.append(_table(_read(toml_path), toml_table, os.fspath(toml_path)))
    others = {name for other in beside for name in (*attrs.fields_dict(other), *_addresses_of(other))}
    settings: dict[str, Setting] = {}
    for source in reversed(sources):
        settings |= _checked(cls, source, others)
    values = {name: setting.value for name, setting in settings.items()}
    _check_together(cls, values, settings)
    return values


@attrs.frozen
class Setting:
    """A value that somebody has set.

    Attributes:
        value: the value; a text where that place holds only texts.
        place: where; empty in the program.
        is_written: the value is a text that stands for another one.
    """

    value: object
    place: str
    is_written: bool = False


Source: TypeAlias = "dict[str, Setting]"


def _environment(environ: Mapping[str, str]) -> Source:
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


def _table(document: Mapping[str, Any], table: str, path: str) -> Source:
    found: Any = document
    for key in table.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise OptionError(f"{path} has no table [{table}]")
    return {name: Setting(value, f"{name} in [{table}] of {path}") for name, value in found.items()}


def _checked(cls: type[AttrsInstance], source: Source, others: Collection[str]) -> Source:
    """Return those settings that are for ``cls``, each read and checked."""
    fields, addresses = attrs.fields_dict(cls), _addresses_of(cls)
    checked = {}
    value: object
    for name, setting in source.items():
        try:
            if name in addresses:
                value = _addresses(setting, name)
            elif name in fields:
                value = _value(setting, fields[name])
            elif name in others and setting.place:
                continue
            else:
                raise unknown_name(name, cls)
        except OptionError as error:
            raise (OptionError(f"{setting.place}: {error}") if setting.place else error) from error
        checked[name] = Setting(value, setting.place)
    return checked


def _addresses(setting: Setting, name: str) -> list[str]:
    value = setting.value
    if setting.is_written and isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value else []
    return list(check_addresses(value, name, or_url="_http_" in name))


def _addresses_of(cls: type[AttrsInstance]) -> tuple[str, ...]:
    """Return the names of the lists of addresses that the client takes; in a variable, commas separate them."""
    addresses: tuple[str, ...] = getattr(cls, "addresses", ())
    return addresses


def _options_among(cls: type[AttrsInstance], values: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _addresses_of(cls)}


def _value(setting: Setting, field: attrs.Attribute[Any]) -> object:
    value = setting.value
    kind = field.metadata.get(Kind, Kind.TEXT)
    if isinstance(value, str) and (setting.is_written or (kind is Kind.SECONDS and setting.place)):
        value = kind.read(value)
    if callable(field.converter):
        value = field.converter(value)
    if field.validator is not None:
        field.validator(None, field, value)
    return value


def _check_together(cls: type[AttrsInstance], values: dict[str, object], settings: Source) -> None:
    """Refuse what does not go together, and tell where those that are named come from."""
    try:
        make_options(cls, _options_among(cls, values))
    except OptionError as error:
        named = set(re.findall(r"\w+", str(error)))
        places = [setting.place for name, setting in settings.items() if setting.place and name in named]
        raise OptionError(f"{error} ({', '.join(places)})" if places else str(error)) from error
