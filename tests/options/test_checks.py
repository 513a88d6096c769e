from __future__ import annotations

from datetime import timedelta

import pytest

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from nsqkit.options.checks import (
    check_addresses,
    check_tools,
    check_value,
    make_options,
    take_seconds,
    take_timeout,
)
from tests.wrong_options import names


class TestMakeOptions:
    def test_values_are_set_by_name(self):
        assert make_options(ConnectionOptions, {"client_id": "me"}) == ConnectionOptions(client_id="me")

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("clientid", "client_id"),
            ("ReadTimeout", "read_timeout"),
            ("nsqd_tcp_adresses", "nsqd_tcp_addresses"),
        ],
    )
    def test_unknown_name_is_refused_with_a_similar_one(self, name, nearest):
        with pytest.raises(OptionError) as caught:
            make_options(ConnectionOptions, {"client_id": "me", name: 1})
        assert str(caught.value) == f"there is no option {name!r}; did you mean {nearest!r}?"

    def test_unknown_name_is_refused_with_all_names(self):
        with pytest.raises(OptionError) as caught:
            make_options(ConnectionOptions, {"qqq": "me"})
        assert str(caught.value) == f"there is no option 'qqq'; there are {', '.join(names(ConnectionOptions))}"

    def test_option_of_another_call_is_refused_with_that_call(self):
        with pytest.raises(OptionError) as caught:
            make_options(LookupOptions, {"client_id": "me"}, elsewhere={"Consumer(…)": ConnectionOptions})
        assert str(caught.value) == "there is no option 'client_id' here; it is an option of Consumer(…)"

    def test_seconds_may_be_a_timedelta(self):
        options = make_options(ConnectionOptions, {"read_timeout": timedelta(minutes=1.5)})
        assert options == ConnectionOptions(read_timeout=90.0)
        with pytest.raises(OptionError, match=r"^read_timeout is 3600\.0; allowed is a number from 0\.1 to 300 sec"):
            make_options(ConnectionOptions, {"read_timeout": timedelta(hours=1)})


class TestCheckAddresses:
    def test_addresses_are_in_order_without_duplicates(self):
        addresses = check_addresses(["b:1", "[::1]:1", "b:1", "/run/nsqd:1.sock", "@nsqd"], "nsqd_tcp_addresses")
        assert addresses == ("b:1", "[::1]:1", "/run/nsqd:1.sock", "@nsqd")

    @pytest.mark.parametrize("addresses", ["a:1", b"b:1", None, 5, {"a:1"}])
    def test_value_that_is_not_a_list_is_refused_with_an_example(self, addresses):
        with pytest.raises(OptionError) as caught:
            check_addresses(addresses, "peers")
        assert str(caught.value) == f'peers is {addresses!r}; allowed is a list such as ["127.0.0.1:4150"]'

    def test_address_that_is_not_a_text_is_refused(self):
        with pytest.raises(OptionError) as caught:
            check_addresses(["a:1", ("b", 1)], "peers")
        assert str(caught.value) == "peers holds ('b', 1); allowed are texts such as \"127.0.0.1:4150\""

    @pytest.mark.parametrize(
        ("address", "sentence"),
        [
            ("http://a:4151", "address 'http://a:4151' is a URL; allowed is host:port, without a scheme"),
            (":4150", "address ':4150' names no host; allowed is host:port"),
            ("[]:4150", "address '[]:4150' names no host; allowed is host:port"),
            ("a:0", "address 'a:0' names no port; allowed is host:port"),
        ],
    )
    def test_address_that_cannot_be_dialled_is_refused(self, address, sentence):
        with pytest.raises(OptionError) as caught:
            check_addresses(["a:1", address], "peers")
        assert str(caught.value) == sentence

    def test_urls_are_allowed_for_http(self):
        addresses = ("https://a/x", "me:secret@a:1", "a:1?secret")
        assert check_addresses(addresses, "peers", or_url=True) == addresses

    @pytest.mark.parametrize(
        "addresses",
        [
            "http://me:secret@a:1",
            {"me:secret@a:1"},
            [b"me:secret@a:1"],
            ["me:secret@a"],
            ["me:secret@:1"],
            ["a?secret"],
        ],
    )
    def test_refusal_shows_no_secrets(self, addresses):
        with pytest.raises(OptionError) as caught:
            check_addresses(addresses, "peers", or_url=True)
        assert "secret" not in str(caught.value)

    def test_refusal_of_url_shows_no_secrets(self):
        with pytest.raises(OptionError, match=r"^address 'http://a:1' is a URL; "):
            check_addresses(["http://me:secret@a:1?secret"], "peers")

    def test_text_that_is_not_an_address_is_refused(self):
        with pytest.raises(OptionError, match="address 'b' is not host:port"):
            check_addresses(["a:1", "b"], "peers")


class TestSeconds:
    @pytest.mark.parametrize(
        ("value", "sentence"),
        [
            (-1, "delay is -1; allowed is 0 seconds or more"),
            (float("nan"), "delay is nan; allowed is 0 seconds or more"),
            (float("inf"), "delay is inf; allowed is 0 seconds or more"),
            (True, "delay is True; allowed is 0 seconds or more"),
            ("1", "delay is '1'; allowed is 0 seconds or more"),
        ],
    )
    def test_a_wrong_length_is_refused(self, value, sentence):
        with pytest.raises(OptionError) as caught:
            take_seconds("delay", value)
        assert str(caught.value) == sentence

    def test_limits_are_inclusive_and_a_timedelta_is_converted(self):
        assert [take_seconds("delay", value, 2.0, least=1.0) for value in (1, 2.0)] == [1, 2.0]
        assert take_seconds("delay", timedelta(seconds=1.5)) == 1.5
        with pytest.raises(OptionError, match="delay is 3; allowed is 1 to 2 seconds"):
            take_seconds("delay", 3, 2.0, least=1.0)

    def test_a_timeout_may_be_none(self):
        assert [take_timeout(None), take_timeout(5)] == [None, 5]
        with pytest.raises(OptionError, match=r"timeout is 1e\+20; allowed is 0 to 1e\+09 seconds"):
            take_timeout(1e20)


def test_a_new_value_of_an_option_is_checked():
    check_value(ConnectionOptions, "max_msg_size", 1)
    with pytest.raises(OptionError, match="max_msg_size is 0; allowed is a whole number from 1 to"):
        check_value(ConnectionOptions, "max_msg_size", 0)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("clock", "a clock such as nsqkit.clock.ManualClock()"),
        ("dial", "an async function of an address"),
        ("random", "a random.Random"),
        ("serializer", "a serializer such as nsqkit.JSON"),
        ("on_backoff", "a function of a BackoffStats"),
    ],
)
def test_a_wrong_tool_is_refused(name, allowed):
    check_tools(**{name: None})
    with pytest.raises(OptionError) as caught:
        check_tools(**{name: 5})
    assert str(caught.value) == f"{name} is 5; allowed is None or {allowed}"
