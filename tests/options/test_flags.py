from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.options.flags import (
    UnknownFlag,
    check_limits,
    flag_place,
    key_place,
    parse_document,
    parse_flags,
    unknown_keys,
    usage,
)
from nsqkit.options.option import Kind, Option


def option(flag, kind, *, config_name="", choices=()):
    return Option(
        flag=flag,
        config_name=config_name or flag.replace("-", "_"),
        kind=kind,
        help=f"sets {flag}",
        choices=choices,
    )


OPTIONS = {
    "address": option("tcp-address", Kind.STRING),
    "on": option("on", Kind.BOOL),
    "size": option("the-size", Kind.INT, config_name="size"),
    "pause_ns": option("pause", Kind.DURATION),
    "hosts": option("host", Kind.STRINGS, config_name="all_hosts"),
    "shares": option("share", Kind.FLOATS),
    "level": option("level", Kind.CHOICE, choices={"low": 1, "high": 2}),
    "tls": option("tls", Kind.CHOICE, choices={"false": 0, "some": 1, "true": 2}),
}


def flags(*words):
    return parse_flags(words, OPTIONS)


def document(**items):
    return parse_document(items, OPTIONS)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--"], {}),
        (["-tcp-address=x"], {"address": "x"}),
        (["--tcp-address=x"], {"address": "x"}),
        (["-tcp-address", "x"], {"address": "x"}),
        (["--tcp-address", "x"], {"address": "x"}),
        (["--tcp-address="], {"address": ""}),
        (["--tcp-address", ""], {"address": ""}),
        (["--tcp-address=a=b"], {"address": "a=b"}),
        (["--tcp-address", "--on"], {"address": "--on"}),
        (["--tcp-address=x", "--tcp-address=y"], {"address": "y"}),
        (["-on"], {"on": True}),
        (["--on", "--tcp-address", "x"], {"on": True, "address": "x"}),
        (["--on=false"], {"on": False}),
        (["--on", "--on=F"], {"on": False}),
        (["--host=a", "-host", "b", "--host=a,b"], {"hosts": ("a", "b", "a,b")}),
        (["--share=0.5,1.0", "-share", "0.9"], {"shares": (1.0, 0.9, 0.5)}),
        (["--level=HIGH"], {"level": "high"}),
        (["--tls"], {"tls": "true"}),
        (["--tls=F"], {"tls": "false"}),
        (["--tls=1"], {"tls": "true"}),
        (["--tls=Some"], {"tls": "some"}),
        (["--pause=1m30s"], {"pause_ns": 90_000_000_000}),
    ],
)
def test_flags_are_read_as_go_reads_them(words, given):
    assert flags(*words) == given


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_all_of_gos_words_for_true_are_read(text):
    assert flags(f"--on={text}") == {"on": True}


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_all_of_gos_words_for_false_are_read(text):
    assert flags(f"--on={text}") == {"on": False}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("42", 42),
        ("-42", -42),
        ("+42", 42),
        ("0x2a", 42),
        ("0X2A", 42),
        ("0b101010", 42),
        ("0o52", 42),
        ("052", 42),
        ("-052", -42),
        ("00", 0),
        ("1_000", 1000),
        ("9223372036854775807", 9223372036854775807),
        ("-9223372036854775808", -9223372036854775808),
    ],
)
def test_numbers_are_read_in_gos_notation(text, number):
    assert flags(f"--the-size={text}") == {"size": number}


@pytest.mark.parametrize(
    "text",
    ["", "-", "+-1", "1.5", "1e3", " 1", "1 ", "1_", "089", "0x", "x", "\u0661", "9223372036854775808", "9" * 5000],
)  # fmt: skip
def test_number_of_more_than_64_bits_is_refused(text):
    with pytest.raises(OptionError) as info:
        flags(f"--the-size={text}")
    form = "allowed is an integer of 64 bits, as in 42 or 0x2a"
    assert str(info.value) == f'invalid value "{text}" for flag --the-size: {form}'


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_number_of_64_bits_is_read(number):
    assert flags("--the-size", str(number)) == {"size": number}
    assert flags(f"--the-size={number:#x}") == {"size": number}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on=yes"], 'invalid value "yes" for flag --on: allowed is true or false'),
        (["--on="], 'invalid value "" for flag --on: allowed is true or false'),
        (
            ["--pause=5"],
            'invalid value "5" for flag --pause: allowed is a duration, as in 300ms, 1.5s or 1h30m',
        ),
        (["--share=a"], 'invalid value "a" for flag --share: allowed are numbers, separated by commas'),
        (["--share="], 'invalid value "" for flag --share: allowed are numbers, separated by commas'),
        (["--level=loud"], 'invalid value "loud" for flag --level: allowed is low or high'),
        (["--level=true"], 'invalid value "true" for flag --level: allowed is low or high'),
        (["--tls=maybe"], 'invalid value "maybe" for flag --tls: allowed is false or some or true'),
        (["--level"], "flag needs an argument: --level; allowed is low or high"),
        (["--tcp-address"], "flag needs an argument: --tcp-address; allowed is a text"),
        (["---on"], "bad flag syntax: ---on; allowed is -name=value"),
        (["-=x"], "bad flag syntax: -=x; allowed is -name=value"),
        (["--=x"], "bad flag syntax: --=x; allowed is -name=value"),
    ],
)
def test_wrong_flag_is_refused_by_name_value_and_form(words, sentence):
    with pytest.raises(OptionError) as info:
        flags(*words)
    assert str(info.value) == sentence


@pytest.mark.parametrize("words", [["--nope"], ["-nope=5"], ["--nope", "5"], ["--on", "--nope"]])
def test_unknown_flag_has_the_error_of_go(words):
    with pytest.raises(UnknownFlag) as info:
        flags(*words)
    assert str(info.value) == "flag provided but not defined: -nope"


@pytest.mark.parametrize("words", [["x"], ["--on", "x"], ["-"], [""], ["--", "x"], ["--tls", "x", "--nope"]])
def test_word_that_is_not_a_flag_is_refused(words):
    with pytest.raises(OptionError, match=r'^unexpected argument ".?"; allowed are flags, -name=value, and a bool'):
        flags(*words)


@pytest.mark.parametrize(
    ("items", "given"),
    [
        ({}, {}),
        ({"tcp_address": "x", "size": 5}, {"address": "x", "size": 5}),
        ({"size": "5"}, {"size": 5}),
        ({"size": "-010"}, {"size": -10}),  # base 10, unlike in a flag
        ({"on": False}, {"on": False}),
        ({"on": "true"}, {"on": True}),
        ({"pause": "2s"}, {"pause_ns": 2_000_000_000}),
        ({"pause": 250}, {"pause_ns": 250_000_000}),  # milliseconds, as in nsqd
        ({"all_hosts": ["a", "b"]}, {"hosts": ("a", "b")}),
        ({"all_hosts": "a,b"}, {"hosts": ("a", "b")}),
        ({"share": [1.0, 0.5]}, {"shares": (1.0, 0.5)}),
        ({"share": "1.0,0.5"}, {"shares": (1.0, 0.5)}),
        ({"level": "Low"}, {"level": "low"}),
        ({"tls": True}, {"tls": "true"}),
        ({"tls": "some"}, {"tls": "some"}),
    ],
)
def test_a_document_is_read_as_nsqd_reads_it(items, given):
    assert document(**items) == given


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ({"on": 1}, 'invalid value "1" for option on: allowed is true or false'),
        ({"size": True}, 'invalid value "True" for option size: allowed is an integer of 64 bits, as in 42 or 0x2a'),
        ({"size": 1.5}, 'invalid value "1.5" for option size: allowed is an integer of 64 bits, as in 42 or 0x2a'),
        ({"size": "0x2a"}, 'invalid value "0x2a" for option size: allowed is an integer of 64 bits, as in 42 or 0x2a'),
        ({"pause": True}, 'invalid value "True" for option pause: allowed is a duration, as in 300ms, 1.5s or 1h30m'),
        ({"pause": "5"}, 'invalid value "5" for option pause: allowed is a duration, as in 300ms, 1.5s or 1h30m'),
        ({"tcp_address": 5}, 'invalid value "5" for option tcp_address: allowed is a text'),
        ({"all_hosts": 5}, 'invalid value "5" for option all_hosts: allowed is a list of texts'),
        (
            {"all_hosts": {"url": "http://user:secret@host/"}},
            'invalid value "a dict" for option all_hosts: allowed is a list of texts',
        ),
        ({"level": True}, 'invalid value "True" for option level: allowed is low or high'),
        ({"level": {}}, 'invalid value "{}" for option level: allowed is low or high'),
    ],
)  # fmt: skip
def test_a_wrong_item_of_a_document_is_refused(items, sentence):
    with pytest.raises(OptionError) as info:
        document(**items)
    assert str(info.value) == sentence


@pytest.mark.parametrize("key", ["nope", "tcp-address", "address", "the_size", "host"])
def test_unknown_key_of_a_document_is_ignored_and_listed(key):
    items = {key: "5", "on": True}
    assert document(**items) == {"on": True}
    assert unknown_keys(items, OPTIONS) == [key]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (("pause_ns", -1), 'invalid value "-1ns" for flag --pause: allowed is a duration of at least 0s'),
        (("size", -1), 'invalid value "-1" for flag --the-size: allowed is an integer of at least 0'),
        (
            ("shares", (2.0, 0.5)),
            'invalid value "2.0,0.5" for flag --share: allowed is a list of numbers above 0',
        ),
        (
            ("hosts", (5, "http://user:secret@host/auth")),
            'invalid value "5,http://host/auth" for flag --host: allowed is a list of texts',
        ),
    ],
)
def test_error_of_a_value_outside_its_limits_has_it_as_written(value, sentence):
    name, given_value = value
    with pytest.raises(OptionError) as info:
        check_limits(OPTIONS[name], given_value, flag_place(OPTIONS[name]))
    assert str(info.value).startswith(sentence)
    check_limits(OPTIONS["size"], 5, key_place(OPTIONS["size"]))


@attrs.frozen
class Defaults:
    address: str = "0.0.0.0:1"
    on: bool = True
    size: int = 0
    pause_ns: int = 60_000_000_000


def test_usage_lists_every_flag():
    lines = usage("nsqd", OPTIONS, Defaults()).splitlines()
    assert lines[0] == "Usage of nsqd:"
    assert lines[1::2] == [
        "  -host value",
        "  -level value",
        "  -on",
        "  -pause duration",
        "  -share value",
        "  -tcp-address string",
        "  -the-size int",
        "  -tls value",
    ]
    assert lines[6] == "        sets on (default true)"
    assert lines[8] == "        sets pause (default 1m0s)"
    assert lines[12] == '        sets tcp-address (default "0.0.0.0:1")'
    assert lines[14] == "        sets the-size"
