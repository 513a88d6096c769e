from __future__ import annotations

from typing import get_type_hints

import attrs
import pytest

from nsqkit.client.options import (
    USER_AGENT,
    ConnectionKeywords,
    ConnectionOptions,
    check_addresses,
    make_options,
)
from nsqkit.errors import OptionError
from tests.wrong_options import check_option, names


@pytest.mark.parametrize("name", names(ConnectionOptions))
def test_a_wrong_value_is_refused_by_name_value_and_limits(name):
    check_option(ConnectionOptions, name)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"heartbeat_interval": 0.5},
            "heartbeat_interval is 0.5; allowed is a number from 1 to 60 seconds",
        ),
        ({"max_msg_size": 1.0}, "max_msg_size is 1.0; allowed is a whole number from 1 to 1073741824"),
        ({"client_id": None}, "client_id is None; allowed is a str"),
        (
            {"heartbeat_interval": 30, "read_timeout": 29},
            "heartbeat_interval is 30; allowed is at most read_timeout, 29",
        ),
        (
            {"reconnect_delay_min": 20, "reconnect_delay_max": 15},
            "reconnect_delay_min is 20; allowed is at most reconnect_delay_max, 15",
        ),
    ],
)
def test_the_sentences(options, sentence):
    with pytest.raises(OptionError) as caught:
        ConnectionOptions(**options)
    assert str(caught.value) == sentence


def test_the_defaults_are_those_of_go_nsq_where_it_has_the_option():
    assert attrs.asdict(ConnectionOptions()) == {
        "client_id": "",
        "hostname": "",
        "user_agent": USER_AGENT,
        "heartbeat_interval": 30.0,
        "dial_timeout": 1.0,
        "read_timeout": 60.0,
        "max_msg_size": 1024 * 1024,
        "max_body_size": 5 * 1024 * 1024,
        "reconnect_delay_min": 0.1,
        "reconnect_delay_max": 15.0,
    }


def test_the_keywords_are_the_options():
    assert get_type_hints(ConnectionKeywords) == get_type_hints(ConnectionOptions)


def test_a_client_is_told_by_the_name_of_its_host():
    def told(**options):
        request = ConnectionOptions(**options).identify_request("worker-7.example.org", sample_rate=5)
        assert (request.feature_negotiation, request.heartbeat_interval, request.sample_rate) == (
            True,
            30_000,
            5,
        )
        return request.hostname, request.client_id

    assert told() == ("worker-7.example.org", "worker-7")
    assert told(hostname="other.example.org") == ("other.example.org", "other")
    assert told(hostname="h", client_id="me.myself") == ("h", "me.myself")


class TestMakeOptions:
    def test_values_are_taken_by_name(self):
        assert make_options(ConnectionOptions, {"client_id": "me"}) == ConnectionOptions(client_id="me")

    def test_a_name_that_is_no_option_is_refused_with_those_that_are(self):
        with pytest.raises(OptionError) as caught:
            make_options(ConnectionOptions, {"client_id": "me", "clientid": "me"})
        listed = ", ".join(names(ConnectionOptions))
        assert str(caught.value) == f"there is no option 'clientid'; there are {listed}"


class TestCheckAddresses:
    def test_they_are_kept_in_order_without_doubles(self):
        addresses = check_addresses(["b:1", "a:1", "b:1"], "nsqd_tcp_addresses")
        assert addresses == ("b:1", "a:1")

    @pytest.mark.parametrize("addresses", ["a:1", b"b:1", None, 5, {"a:1"}])
    def test_what_is_no_list_is_refused_with_an_example(self, addresses):
        with pytest.raises(OptionError) as caught:
            check_addresses(addresses, "peers")
        assert str(caught.value) == f'peers is {addresses!r}; allowed is a list such as ["127.0.0.1:4150"]'

    def test_each_must_be_a_text(self):
        with pytest.raises(OptionError) as caught:
            check_addresses(["a:1", ("b", 1)], "peers")
        assert str(caught.value) == "peers holds ('b', 1); allowed are texts such as \"127.0.0.1:4150\""

    def test_each_must_be_an_address(self):
        with pytest.raises(OptionError, match="address 'b' is not host:port"):
            check_addresses(["a:1", "b"], "peers")
