"""JSON objects read into attrs classes.

Documents of older and newer daemons are accepted: unknown keys are ignored, and a key that is missing or null leaves
the field at its default. A value whose type is not that of the field's default is an error. ``part`` and ``parts`` are
the metadata of fields that hold objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attrs import AttrsInstance

T = TypeVar("T", bound="AttrsInstance")

_PART: Final = "part"
_PARTS: Final = "parts"


def part(cls: type[AttrsInstance]) -> dict[str, type]:
    """Return the metadata of a field that holds one object of a class."""
    return {_PART: cls}


def parts(cls: type[AttrsInstance]) -> dict[str, type]:
    """Return the metadata of a field that holds a tuple of objects of a class."""
    return {_PARTS: cls}


def read(cls: type[T], document: Mapping[str, Any]) -> T:
    """Return an instance of ``cls`` with the values of a JSON object.

    Raises:
        ValueError: a value has the wrong type; the text names its field.
    """
    fields = attrs.fields(cls)
    given = {field.name: value for field in fields if (value := document.get(field.name)) is not None}
    return cls(**{field.name: _read(field, given[field.name]) for field in fields if field.name in given})


def _read(field: attrs.Attribute[Any], value: object) -> object:
    if _PARTS in field.metadata and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return tuple(read(field.metadata[_PARTS], item) for item in value)
    if _PART in field.metadata and isinstance(value, dict):
        return read(field.metadata[_PART], value)
    kind = type(field.default)
    if field.metadata or type(value) not in ((int, float) if kind is float else (kind,)):
        raise ValueError(f"{field.name} is of a kind that cannot be understood, {type(value).__name__}")
    return value
