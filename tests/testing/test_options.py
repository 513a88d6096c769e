from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.errors import OptionError
from nsqkit.lookupd.options import OPTIONS as LOOKUPD_OPTIONS
from nsqkit.options.durations import format_duration
from nsqkit.options.flags import parse_flags
from nsqkit.options.option import Kind
from nsqkit.testing.options import flag_words, nsqd_options, nsqlookupd_options

DURATIONS = [option.flag.replace("-", "_") for option in OPTIONS.values() if option.kind is Kind.DURATION]


@pytest.mark.parametrize(
    ("value", "expected_ns"),
    [
        (2, 2_000_000_000),
        (0.25, 250_000_000),
        ("1.5s", 1_500_000_000),
        ("1h30m", 5_400_000_000_000),
        (timedelta(milliseconds=3), 3_000_000),
        (timedelta(days=10_000, microseconds=1), 864_000_000_000_001_000),
    ],
    ids=str,
)
def test_duration_is_seconds_a_timedelta_or_a_text(value: object, expected_ns: int) -> None:
    assert nsqd_options({"msg_timeout": value}).msg_timeout_ns == expected_ns


@pytest.mark.parametrize("name", DURATIONS)
def test_every_duration_has_the_name_of_its_flag(name: str) -> None:
    assert getattr(nsqd_options({name: 7}), f"{name}_ns") == 7_000_000_000


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"lookupd_tcp_address": "a:1"}, "lookupd_tcp_addresses", ("a:1",)),
        ({"lookupd_tcp_address": ["a:1", "b:2"]}, "lookupd_tcp_addresses", ("a:1", "b:2")),
        ({"auth_http_address": ("a:1",)}, "auth_http_addresses", ("a:1",)),
        ({"e2e_processing_latency_percentile": 0.5}, "e2e_processing_latency_percentiles", (0.5,)),
        ({"e2e_processing_latency_percentile": [0.5, 1]}, "e2e_processing_latency_percentiles", (1, 0.5)),
        ({"tls_required": False}, "tls_required", "false"),
        ({"deflate": False}, "deflate", False),
        ({"mem_queue_size": 5}, "mem_queue_size", 5),
        ({"data_path": "x"}, "data_path", "x"),
        ({"data_path": Path("x")}, "data_path", "x"),
    ],
    ids=str,
)
def test_value_is_that_of_the_flag(values: dict[str, object], field: str, expected: object) -> None:
    assert getattr(nsqd_options(values), field) == expected


def test_addresses_are_free_ports_of_this_machine() -> None:
    for options in (nsqd_options({}), nsqlookupd_options({})):
        assert options.tcp_address == options.http_address == "127.0.0.1:0"
        assert options.broadcast_address == "127.0.0.1"
    assert nsqd_options({"http_address": ""}).http_address == ""


def test_nsqlookupd_has_its_own_options() -> None:
    options = nsqlookupd_options({"inactive_producer_timeout": "1m", "tombstone_lifetime": 0.5})
    assert options.inactive_producer_timeout_ns == 60_000_000_000
    assert options.tombstone_lifetime_ns == 500_000_000
    with pytest.raises(OptionError, match="python -m nsqkit nsqlookupd --help"):
        nsqlookupd_options({"msg_timeout": 2})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"msg_timout": 2}, "there is no option 'msg_timout'; did you mean 'msg_timeout' or"),
        ({"msg_timeout_ns": 2}, "there is no option 'msg_timeout_ns'; its name is 'msg_timeout', in seconds"),
        ({"lookupd_tcp_addresses": []}, "its name is 'lookupd_tcp_address'$"),
        ({"clok": "manual"}, "did you mean 'clock'"),
        ({"xyz": 1}, "there is no option 'xyz'; Options have the names of nsqd's flags"),
        ({"msg_timeout": "2"}, "msg_timeout is '2'; allowed is a number of seconds, a timedelta or a text"),
        ({"msg_timeout": 0}, "msg_timeout is 0; .* of at least 1ns"),
        ({"msg_timeout": True}, "msg_timeout is True"),
        ({"msg_timeout": None}, "msg_timeout is None"),
        ({"msg_timeout": float("nan")}, "msg_timeout is nan"),
        ({"msg_timeout": float("inf")}, "msg_timeout is inf"),
        ({"msg_timeout": 1e12}, "msg_timeout is 1000000000000.0"),
        ({"mem_queue_size": "5"}, "mem_queue_size is '5'; allowed is an integer of at least 0"),
        ({"mem_queue_size": -1}, "mem_queue_size is -1"),
        ({"deflate": 1}, "deflate is 1; allowed is true or false"),
        ({"tls_required": "no"}, "tls_required is 'no'; allowed is false or tcp-https or true"),
        ({"lookupd_tcp_address": 4160}, "lookupd_tcp_address is 4160; allowed is a text or a list of texts"),
        ({"e2e_processing_latency_percentile": ["a"]}, "allowed is a number above 0 and up to 1, or a list of them"),
        ({"enable_experiment": "x"}, "enable_experiment is 'x'; allowed is a list of topology-aware-consumption"),
        ({"tls_cert": "x"}, "option tls_key is empty"),
    ],
    ids=str,
)
def test_error_names_the_option_and_the_allowed_values(values: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        nsqd_options(values, beside=("clock",))


def test_every_flag_is_a_keyword_and_no_field_of_another_name_is() -> None:
    for make, options in ((nsqd_options, OPTIONS), (nsqlookupd_options, LOOKUPD_OPTIONS)):
        for field, option in options.items():
            name = option.flag.replace("-", "_")
            with pytest.raises(OptionError, match=f"^{name} is "):
                make({name: object()})
            if field != name:
                with pytest.raises(OptionError, match=f"its name is '{name}'"):
                    make({field: object()})


values = st.fixed_dictionaries(
    {},
    optional={
        "msg_timeout": st.integers(1, 10**15).map(format_duration),
        "mem_queue_size": st.integers(0, 10**9),
        "lookupd_tcp_address": st.lists(st.sampled_from(["a:1", "b:2"])),
        "e2e_processing_latency_percentile": st.lists(st.sampled_from([0.5, 0.99, 1.0])),
        "snappy": st.booleans(),
        "durability": st.sampled_from(["nsqd", "fsync"]),
    },
)


@given(values)
def test_command_line_has_the_same_options(values: dict[str, Any]) -> None:
    options = nsqd_options(values)
    assert BrokerOptions(**parse_flags(flag_words(options), OPTIONS)) == options


def test_command_line_of_nsqd_defaults_is_empty() -> None:
    assert flag_words(BrokerOptions()) == []
    assert flag_words(attrs.evolve(BrokerOptions(), msg_timeout_ns=1_500_000_000)) == ["--msg-timeout=1.5s"]
