from __future__ import annotations

import ssl

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.option import (
    Kind,
    flag,
    fraction,
    function,
    instance_with,
    seconds,
    secret,
    text,
    whole,
    word,
)
from nsqkit.errors import OptionError
from nsqkit.options.durations import format_duration
from tests.wrong_options import check_option, names


@attrs.frozen(kw_only=True)
class Options:
    patience: float = seconds(2.0, 0.5, 60.0)
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
        ({"patience": 0}, "patience is 0; allowed is a number from 0.5 to 60 seconds"),
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
def test_the_sentences(options, sentence):
    with pytest.raises(OptionError) as caught:
        Options(**options)
    assert str(caught.value) == sentence


def test_what_is_right_is_taken():
    context = ssl.create_default_context()
    options = Options(interval=0, size=0, loud=True, policy="by-key", auth_secret="hush", context=context)
    assert (options.interval, options.size, options.loud) == (0, 0, True)
    assert options.context is context
    assert options.auth_secret == "hush"
    assert "hush" not in repr(options)
    assert Options(jitter=0, filter=print, map={}).jitter == Options(jitter=1, map=print).jitter - 1


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("patience", "1m30s", 90.0),
        ("patience", "250ms", 0.25),
        ("patience", " 1s ", 1.0),
        ("patience", "2.5", 2.5),
        ("patience", "-5", -5.0),
        ("patience", "5 parsecs", "5 parsecs"),
        ("patience", "", ""),
        ("count", "7", 7),
        ("count", "7.0", "7.0"),
        ("count", "x", "x"),
        ("count", "9" * 5000, "9" * 5000),
        ("loud", "true", True),
        ("loud", "ON", True),
        ("loud", "1", True),
        ("loud", "no", False),
        ("loud", " false", False),
        ("loud", "maybe", "maybe"),
        ("name", "true", "true"),
        ("policy", "by-key", "by-key"),
        ("auth_secret", "0", "0"),
        ("jitter", "0.5", 0.5),
        ("jitter", "1s", "1s"),
        ("filter", "print", "print"),
        ("context", "None", "None"),
    ],
)
def test_each_kind_is_written_as_text_in_its_own_way(name, written, value):
    kind = attrs.fields_dict(Options)[name].metadata[Kind]
    read = kind.read(written)
    assert (type(read), read) == (type(value), value)


@given(st.integers(0, 10**12))
def test_a_duration_written_in_gos_way_is_read_as_seconds(milliseconds):
    assert Kind.SECONDS.read(format_duration(milliseconds * 1_000_000)) == milliseconds / 1000


@given(st.text(), st.sampled_from(Kind))
def test_any_text_is_read_or_left_as_it_is(written, kind):
    value = kind.read(written)
    assert isinstance(value, float | int | bool) or value == written
