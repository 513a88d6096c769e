from __future__ import annotations

import attrs
import pytest

from nsqkit.errors import OptionError
from nsqkit.options.option import (
    Kind,
    Option,
    boolean,
    choice,
    duration,
    floats,
    integer,
    string,
    strings,
)

INT64_MAX = (1 << 63) - 1


@attrs.frozen(kw_only=True)
class Example:
    name: str = string("the-name", "x", "a name")
    colour: str = string("colour", "red", "a colour", choices=("red", "green"))
    on: bool = boolean("on", False, "a switch")
    size: int = integer("the-size", 1, "a size", low=1, high=9, config_name="size")
    count: int = integer("count", 0, "a count")
    pause_ns: int = duration("pause", 0, "a pause", low=5)
    hosts: tuple[str, ...] = strings("host", "hosts", config_name="all_hosts")
    tricks: tuple[str, ...] = strings("trick", "tricks", choices=("a", "b"))
    shares: tuple[float, ...] = floats("share", "shares")
    level: str = choice("level", "low", "a level", {"low": 1, "high": 2})


OPTIONS = {field.name: field.metadata[Option] for field in attrs.fields(Example)}


def test_a_field_carries_its_description():
    assert OPTIONS["size"] == Option(
        flag="the-size", config_name="size", kind=Kind.INT, help="a size", low=1, high=9
    )
    assert OPTIONS["name"].config_name == "the_name"
    assert [option.kind for option in OPTIONS.values()] == [
        *(Kind.STRING, Kind.STRING, Kind.BOOL, Kind.INT, Kind.INT, Kind.DURATION),
        *(Kind.STRINGS, Kind.STRINGS, Kind.FLOATS, Kind.CHOICE),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("colour", "green"),
        ("on", True),
        ("size", 1),
        ("size", 9),
        ("count", 0),
        ("count", INT64_MAX),
        ("pause_ns", 5),
        ("hosts", ()),
        ("hosts", ("a", "a")),
        ("tricks", ("b",)),
        ("shares", (1, 0.5)),
        ("level", "high"),
    ],
)
def test_a_value_is_accepted(name, value):
    assert getattr(Example(**{"pause_ns": 5, name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("name", 1, "a text"),
        ("name", None, "a text"),
        ("colour", "blue", "red or green"),
        ("on", 1, "true or false"),
        ("size", 0, "an integer from 1 to 9"),
        ("size", 10, "an integer from 1 to 9"),
        ("size", True, "an integer from 1 to 9"),
        ("size", 5.0, "an integer from 1 to 9"),
        ("count", -1, "an integer of at least 0"),
        ("count", INT64_MAX + 1, "an integer of at least 0"),
        ("count", "1", "an integer of at least 0"),
        ("pause_ns", 4, "a duration in nanoseconds of at least 5 (5ns)"),
        ("pause_ns", "5s", "a duration in nanoseconds of at least 5 (5ns)"),
        ("hosts", "a", "a list of texts"),
        ("hosts", (1,), "a list of texts"),
        ("tricks", ("a", "c"), "a list of a or b"),
        ("shares", (0,), "a list of numbers above 0 and up to 1"),
        ("shares", (1.01,), "a list of numbers above 0 and up to 1"),
        ("shares", (True,), "a list of numbers above 0 and up to 1"),
        ("shares", (float("nan"),), "a list of numbers above 0 and up to 1"),
        ("shares", 0.5, "a list of numbers above 0 and up to 1"),
        ("level", "LOW", "low or high"),
        ("level", 1, "low or high"),
    ],
)
def test_any_other_value_is_refused_by_a_sentence_with_name_value_and_limits(name, value, allowed):
    with pytest.raises(OptionError) as info:
        Example(**{"pause_ns": 5, name: value})
    assert str(info.value) == f"option {name} is {value!r}; allowed is {allowed}"


def test_a_list_becomes_a_tuple():
    assert Example(pause_ns=5, hosts=["a", "b"]).hosts == ("a", "b")  # type: ignore[arg-type]
