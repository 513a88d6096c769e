"""JSON documents of commands, decoded as Go decodes them into a struct.

A document is accepted or refused as by nsqd and nsqlookupd: the case of keys does not matter, ``null`` and unknown keys
are ignored, ``1000.0`` is not an integer, and bytes that are not UTF-8 are replaced.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias, cast

import attrs

FieldType: TypeAlias = type | range
"""The values that a field may have: those of exactly this type, or integers in this range."""

INT32: Final = range(-(1 << 31), 1 << 31)
INT64: Final = range(-(1 << 63), 1 << 63)

_DIGITS_MAX = 20  # with the sign
_SURROGATE = re.compile("[\ud800-\udfff]")


def field_types_of(cls: type[attrs.AttrsInstance], **others: FieldType) -> dict[str, FieldType]:
    """Return the types of a class's fields: INT64 for an int, or the one in ``others``."""
    types: dict[str, FieldType] = {"bool": bool, "int": INT64, "str": str}
    return {field.name: others.get(field.name, types[cast("str", field.type)]) for field in attrs.fields(cls)}


def read_object(body: bytes, field_types: Mapping[str, FieldType]) -> dict[str, Any]:
    """Return the fields of a JSON object that are in ``field_types``; ``null`` is an object without fields.

    Raises:
        ValueError: the body is not a JSON object, or a value is not allowed in its field.
    """
    # Go replaces bytes that are not UTF-8; here they become surrogates, which are replaced below.
    text = body.decode("utf-8", "surrogateescape")
    try:
        # An object becomes a tuple of its pairs, so that both values of a repeated key are checked.
        document = json.loads(text, parse_constant=_refuse, parse_int=_number, object_pairs_hook=tuple)
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error
    if document is None:
        return {}
    if not isinstance(document, tuple):
        raise ValueError("the document is not an object")
    return _known_fields(document, field_types)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _number(text: str) -> int | float:
    # Python may refuse to convert more digits, which are an error only in a known field.
    return int(text) if len(text) <= _DIGITS_MAX else math.inf


def check_type(name: str, value: object, field_type: FieldType) -> None:
    """Raise ValueError if a field may not have a value."""
    is_integer = type(value) is int  # not a bool
    if not (is_integer and value in field_type if isinstance(field_type, range) else type(value) is field_type):
        raise ValueError(f"{name} is {value!r}")


def _known_fields(pairs: Iterable[tuple[str, object]], field_types: Mapping[str, FieldType]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        name = key.lower().replace("\u017f", "s")  # the one letter that Go folds to ASCII and Python does not
        field_type = field_types.get(name)
        if field_type is None or value is None:
            continue
        check_type(name, value, field_type)
        fields[name] = _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
    return fields
