"""JSON documents of commands, read as Go reads them into a struct.

The rule it guards: what nsqd's and nsqlookupd's decoder takes is taken, and what it refuses is refused. Keys count in
any case, ``null`` and unknown keys say nothing, ``1000.0`` is no integer, and bytes that are not UTF-8 are replaced.

How to read it: ``read_object`` is what others call; a *kind* says which values a field may have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

Kind: TypeAlias = type | range
"""What a field's value must be: of this very type, or an integer of this range."""

INT32: Final = range(-(1 << 31), 1 << 31)
INT64: Final = range(-(1 << 63), 1 << 63)

_DIGITS_MAX = 20  # with the sign
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_object(body: bytes, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return those fields of a JSON object that it has and ``kinds`` names; ``null`` is an object without any.

    Raises:
        ValueError: not a JSON object, or a value that its field cannot have.
    """
    # Each byte that is not UTF-8 becomes a surrogate, to be replaced, as Go does; it does not refuse them.
    text = body.decode("utf-8", "surrogateescape")
    try:
        # An object becomes a tuple of its pairs: a key that comes twice has both its values looked at.
        document = json.loads(text, parse_constant=_refuse, parse_int=_number, object_pairs_hook=tuple)
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error
    if document is None:
        return {}
    if not isinstance(document, tuple):
        raise ValueError("the document is not an object")
    return _known_fields(document, kinds)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _number(text: str) -> int | float:
    # More digits than any field takes, perhaps more than Python converts; where nobody asks, they do no harm.
    return int(text) if len(text) <= _DIGITS_MAX else math.inf


def _known_fields(pairs: Iterable[tuple[str, object]], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        name = key.lower().replace("\u017f", "s")  # the one letter that Go folds to ASCII and Python does not
        kind = kinds.get(name)
        if kind is None or value is None:
            continue
        if not (type(value) is int and value in kind if isinstance(kind, range) else type(value) is kind):
            raise ValueError(f"{name} is {value!r}")
        fields[name] = _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
    return fields
