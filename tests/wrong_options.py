"""Wrong values of options and their errors.

The error of a wrong value has the option's name, the value and the limits. The limits are read from the error for
a meaningless value, and then tested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from nsqkit.errors import OptionError
from nsqkit.options.option import Kind, Option

_SENTENCE = re.compile(
    r"(?P<name>\w+) is (?P<value>.+); allowed is (?:(?P<text>a str)|(?P<flag>True or False)"
    r"|(?P<words>'\S+'(?: or '\S+')+)|None, or an object such as (?P<object>\S+)"
    r"|(?P<function>None(?: or a|, a mapping or a) function)"
    r"|(?P<zero>0, or )?(?P<kind>a number|a whole number) from (?P<least>\S+) to (?P<most>\S+?)(?: seconds)?)"
)


SECRETS = {"auth_secret", "lookupd_authorization"}

WRONG: dict[str, list[object]] = {
    "text": [None, 5, b"bytes"],
    "flag": [None, 0, 1, "true"],
    "words": [None, "", "no such word"],
    "object": [5, "text"],
    "function": [5, "text", ["list"]],
}


def is_seconds(field: attrs.Attribute[Any]) -> bool:
    """Return whether an option is a length of time in seconds."""
    option: Option | None = field.metadata.get(Option)
    return option is not None and option.kind is Kind.SECONDS


def names(cls: type[attrs.AttrsInstance]) -> list[str]:
    """Return the names of all options of a class."""
    return [field.name for field in attrs.fields(cls)]


def keyword_types(cls: type[attrs.AttrsInstance]) -> dict[str, object]:
    """Return the types of the keyword arguments for a class of options; seconds may also be a timedelta."""
    return {field.name: "Seconds" if is_seconds(field) else field.type for field in attrs.fields(cls)}


def declared_types(keywords: Any) -> dict[str, object]:
    """Return the types in a TypedDict, as written."""
    return {name: hint.__forward_arg__ for name, hint in keywords.__annotations__.items()}


def refusal(make: Callable[..., object], name: str, value: object) -> re.Match[str]:
    """Return the parts of the error of ``make(name=value)``."""
    with pytest.raises(OptionError) as caught:
        make(**{name: value})
    sentence = _SENTENCE.fullmatch(str(caught.value))
    assert sentence, str(caught.value)
    assert (sentence["name"], sentence["value"]) == (name, repr(value))
    return sentence


def check_option(make: Callable[..., Any], name: str) -> None:
    """Check that an option accepts the values in its error and refuses others."""
    if name in SECRETS:
        check_secret(make, name)
        return
    sentence = refusal(make, name, object())
    if kind := next((kind for kind in WRONG if sentence[kind]), None):
        for value in WRONG[kind]:
            refusal(make, name, value)
        return
    least, most = float(sentence["least"]), float(sentence["most"])
    whole = sentence["kind"] == "a whole number"
    step = 1 if whole else 1e-6
    for value in (least - step, most + step, -1, math.nan, math.inf, -math.inf, "5", True, [1]):
        if not (value == 0 and sentence["zero"]):
            refusal(make, name, int(value) if whole and value in (least - 1, most + 1) else value)
    if whole:
        refusal(make, name, least + 0.5)
        least, most = int(least), int(most)
    for value in (least, most, *([0] if sentence["zero"] else [])):
        make_within(make, name, value)


def check_secret(make: Callable[..., Any], name: str) -> None:
    """Check that a wrong secret is refused and not shown."""
    for value in (None, 5, b"hush", "hush\n"):
        with pytest.raises(OptionError, match=rf"^{name} (is a|has) [^;]+; allowed is a str") as caught:
            make(**{name: value})
        assert "hush" not in str(caught.value)
    assert "hush" not in repr(make(**{name: "hush"}))


def make_within(make: Callable[..., Any], name: str, value: float) -> None:
    """Check that a value at a limit is accepted, or refused because of another option that the error names."""
    try:
        make(**{name: value})
    except OptionError as error:
        if not re.search(r"allowed is (at most|at least|0, or at least|to set it only with)", str(error)):
            raise
