from __future__ import annotations

from typing import Any

import attrs
import pytest

from nsqkit import Consumer, ConsumerOptions
from nsqkit.client.options import ConnectionOptions
from nsqkit.consumer.options import ConsumerKeywords
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from tests.wrong_options import check_option, declared_types, keyword_types, names


def make(**options: Any) -> Consumer:
    return Consumer("t", "c", nsqd_tcp_addresses=["nsqd:4150"], **options)


@pytest.mark.parametrize("name", sorted({*names(ConsumerOptions)} - {"backoff_strategy"}))
def test_invalid_value_is_refused_with_name_and_limits(name):
    check_option(make, name)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_in_flight": -1}, "max_in_flight is -1; allowed is a whole number from 0 to 1000000"),
        ({"max_in_flight": 2.5}, "max_in_flight is 2.5; allowed is a whole number from 0 to 1000000"),
        ({"sample_rate": 100}, "sample_rate is 100; allowed is a whole number from 0 to 99"),
        ({"msg_timeout": 0.5}, "msg_timeout is 0.5; allowed is 0, or a number from 1 to 86400 seconds"),
        (
            {"low_rdy_idle_timeout": 0},
            "low_rdy_idle_timeout is 0; allowed is a number from 1 to 300 seconds",
        ),
        (
            {"heartbeat_interval": 0},
            "heartbeat_interval is 0; allowed is at least 1 second, but for producers",
        ),
        ({"lookupd_poll_jitter": 2}, "lookupd_poll_jitter is 2; allowed is a number from 0 to 1"),
        ({"max_attempts": -1}, "max_attempts is -1; allowed is a whole number from 0 to 65535"),
        (
            {"backoff_strategy": "linear"},
            'backoff_strategy is \'linear\'; allowed is "exponential", "full-jitter" or a function of the attempt',
        ),
        (
            {"heartbeat_interval": 50, "read_timeout": 10},
            "heartbeat_interval is 50; allowed is at most read_timeout, 10",
        ),
    ],
)
def test_error_texts(options, sentence):
    with pytest.raises(OptionError) as caught:
        ConsumerOptions(**options)
    assert str(caught.value) == sentence


def test_an_option_that_does_not_exist_is_refused_by_name():
    with pytest.raises(OptionError, match=r"^there is no option 'max_inflight'; did you mean 'max_in_flight'\?$"):
        make(max_inflight=5)


def test_the_keywords_are_the_options():
    assert declared_types(ConsumerKeywords) == keyword_types(ConsumerOptions)


def test_the_defaults_are_those_of_go_nsq():
    elsewhere = {*names(ConnectionOptions), *names(LookupOptions)}
    own = {name: value for name, value in attrs.asdict(ConsumerOptions()).items() if name not in elsewhere}
    assert own == {
        "max_in_flight": 1,
        "msg_timeout": 0.0,
        "sample_rate": 0,
        "default_requeue_delay": 90.0,
        "max_requeue_delay": 900.0,
        "requeue_delay_policy": None,
        "max_attempts": 5,
        "backoff_strategy": "exponential",
        "backoff_multiplier": 1.0,
        "max_backoff_duration": 120.0,
        "low_rdy_idle_timeout": 10.0,
        "low_rdy_timeout": 30.0,
        "rdy_redistribute_interval": 5.0,
        "close_timeout": 25.0,
        "max_connections": 1000,
    }


def test_a_message_timeout_may_be_nsqds_or_a_second_or_more():
    assert ConsumerOptions(msg_timeout=0).msg_timeout == 0
    assert ConsumerOptions(msg_timeout=1).msg_timeout == 1
