from __future__ import annotations

import ssl

import attrs
import pytest

from nsqkit.errors import OptionError
from nsqkit.options.fields import (
    boolean,
    choice,
    duration,
    flag,
    flags_of,
    floats,
    fraction,
    function,
    instance_with,
    integer,
    seconds,
    secret,
    string,
    strings,
    text,
    whole,
    word,
)
from nsqkit.options.option import INT64_MAX, Kind, Option
from tests.wrong_options import check_option, names


@attrs.frozen(kw_only=True)
class Options:
    pause: float = seconds(2.0, 0.5, 60.0)
    interval: float = seconds(2.0, 1.0, 60.0, or_zero=True)
    count: int = whole(5, 2, 9)
    size: int = whole(64, 64, 4096, or_zero=True)
    name: str = text("n")
    loud: bool = flag(False)
    policy: str = word("random", ["random", "by-key"])
    auth_secret: str = secret()
    context: object = instance_with("wrap_bio", "ssl.create_default_context()")
    jitter: float = fraction(0.3)
    filter: object = function()
    map: object = function(or_mapping=True)


@pytest.mark.parametrize("name", names(Options))
def test_a_wrong_value_is_refused_by_name_value_and_limits(name):
    check_option(Options, name)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pause": 0}, "pause is 0; allowed is a number from 0.5 to 60 seconds"),
        ({"interval": 0.5}, "interval is 0.5; allowed is 0, or a number from 1 to 60 seconds"),
        ({"count": 1}, "count is 1; allowed is a whole number from 2 to 9"),
        ({"size": 63}, "size is 63; allowed is 0, or a whole number from 64 to 4096"),
        ({"name": 5}, "name is 5; allowed is a str"),
        ({"loud": 1}, "loud is 1; allowed is True or False"),
        ({"policy": "Random"}, "policy is 'Random'; allowed is 'random' or 'by-key'"),
        ({"auth_secret": 5}, "auth_secret is a int; allowed is a str"),
        (
            {"auth_secret": "a\nb"},
            "auth_secret has characters that cannot be printed; allowed is a str without them",
        ),
        (
            {"context": "c"},
            "context is 'c'; allowed is None, or an object such as ssl.create_default_context()",
        ),
        ({"jitter": 1.1}, "jitter is 1.1; allowed is a number from 0 to 1"),
        ({"filter": {}}, "filter is {}; allowed is None or a function"),
        ({"map": "m"}, "map is 'm'; allowed is None, a mapping or a function"),
    ],
)
def test_error_of_a_wrong_value(options, sentence):
    with pytest.raises(OptionError) as caught:
        Options(**options)
    assert str(caught.value) == sentence


def test_allowed_values_are_accepted():
    context = ssl.create_default_context()
    options = Options(interval=0, size=0, loud=True, policy="by-key", auth_secret="hush", context=context)
    assert (options.interval, options.size, options.loud) == (0, 0, True)
    assert options.context is context
    assert options.auth_secret == "hush"
    assert "hush" not in repr(options)
    assert Options(jitter=0, filter=print, map={}).jitter == Options(jitter=1, map=print).jitter - 1


# ---- flags ------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Flags:
    the_name: str = string("x", "a name")
    colour: str = string("red", "a colour", choices=("red", "green"))
    on: bool = boolean(False, "a switch")
    size: int = integer(1, "a size", low=1, high=9, config_name="the_size")
    count: int = integer(0, "a count")
    pause_ns: int = duration(0, "a pause", low=5)
    hosts: tuple[str, ...] = strings("hosts", flag="host", config_name="all_hosts")
    tricks: tuple[str, ...] = strings("tricks", flag="trick", choices=("a", "b"))
    shares: tuple[float, ...] = floats("shares", flag="share")
    level: str = choice("low", "a level", {"low": 1, "high": 2})


OPTIONS = flags_of(Flags)


def test_field_of_a_flag_has_its_description():
    assert OPTIONS["size"] == Option(flag="size", config_name="the_size", kind=Kind.INT, help="a size", low=1, high=9)
    assert {name: (option.flag, option.config_name) for name, option in OPTIONS.items()} == {
        "the_name": ("the-name", "the_name"),
        "colour": ("colour", "colour"),
        "on": ("on", "on"),
        "size": ("size", "the_size"),
        "count": ("count", "count"),
        "pause_ns": ("pause", "pause"),
        "hosts": ("host", "all_hosts"),
        "tricks": ("trick", "trick"),
        "shares": ("share", "share"),
        "level": ("level", "level"),
    }
    assert [option.kind for option in OPTIONS.values()] == [
        *(Kind.STRING, Kind.STRING, Kind.BOOL, Kind.INT, Kind.INT, Kind.DURATION),
        *(Kind.STRINGS, Kind.STRINGS, Kind.FLOATS, Kind.CHOICE),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("the_name", ""),
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
def test_a_value_of_a_flag_is_accepted(name, value):
    assert getattr(Flags(**{"pause_ns": 5, name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("the_name", 1, "a text"),
        ("the_name", None, "a text"),
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
def test_a_wrong_value_of_a_flag_is_refused_by_name_value_and_limits(name, value, allowed):
    with pytest.raises(OptionError) as info:
        Flags(**{"pause_ns": 5, name: value})
    assert str(info.value) == f"option {name} is {value!r}; allowed is {allowed}"


def test_a_list_becomes_a_tuple():
    assert Flags(pause_ns=5, hosts=["a", "b"]).hosts == ("a", "b")  # type: ignore[arg-type]
