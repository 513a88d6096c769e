"""JSON objects read into attrs classes, which say with their fields what they take.

The rule it guards: a daemon that is older or newer than nsqkit is understood. A key that no field has is nothing to
us, and a key that is missing or null leaves the field at its default; a value of another kind than the default's is an
error, so that whoever computes with a field can rely on it.

How to read it: a field's kind is that of its default; ``part`` and ``parts`` are the metadata of fields that hold
objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attrs import AttrsInstance

__all__ = ["part", "parts", "read"]

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
    """Return an instance of ``cls`` with what a JSON object says.

    Raises:
        ValueError: a value of another kind than its field's; the text names it.
    """
    fields = attrs.fields(cls)
    told = {field.name: value for field in fields if (value := document.get(field.name)) is not None}
    return cls(**{field.name: _read(field, told[field.name]) for field in fields if field.name in told})


def _read(field: attrs.Attribute[Any], value: object) -> object:
    if _PARTS in field.metadata and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return tuple(read(field.metadata[_PARTS], item) for item in value)
    if _PART in field.metadata and isinstance(value, dict):
        return read(field.metadata[_PART], value)
    kind = type(field.default)
    if field.metadata or type(value) not in ((int, float) if kind is float else (kind,)):
        raise ValueError(f"{field.name} is of a kind that cannot be understood, {type(value).__name__}")
    return value
