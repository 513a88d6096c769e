from __future__ import annotations

import attrs
import pytest

from nsqkit.errors import OptionError
from nsqkit.lookupd.options import OPTIONS, LookupdOptions

SECOND_NS = 1_000_000_000


def test_the_defaults_are_nsqlookupds():
    assert attrs.asdict(LookupdOptions()) == {
        "log_level": "info",
        "log_prefix": "[nsqlookupd] ",
        "tcp_address": "0.0.0.0:4160",
        "http_address": "0.0.0.0:4161",
        "broadcast_address": "localhost",
        "inactive_producer_timeout_ns": 300 * SECOND_NS,
        "tombstone_lifetime_ns": 45 * SECOND_NS,
    }


def test_flags_and_keys_are_nsqlookupds():
    assert [(option.flag, option.config_name) for option in OPTIONS.values()] == [
        ("log-level", "log_level"),
        ("log-prefix", "log_prefix"),
        ("tcp-address", "tcp_address"),
        ("http-address", "http_address"),
        ("broadcast-address", "broadcast_address"),
        ("inactive-producer-timeout", "inactive_producer_timeout"),
        ("tombstone-lifetime", "tombstone_lifetime"),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log_level", "loud"),
        ("tcp_address", 4160),
        ("inactive_producer_timeout_ns", -1),
        ("tombstone_lifetime_ns", 1.5),
    ],
)
def test_an_invalid_value_is_named(name, value):
    with pytest.raises(OptionError, match=f"^option {name} is {value!r}; allowed is "):
        LookupdOptions(**{name: value})
