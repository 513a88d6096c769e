from __future__ import annotations

import re
import ssl

import attrs
import pytest

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from tests.wrong_options import check_option, names


def test_defaults_are_those_of_go_nsq():
    options = LookupOptions()
    assert options.lookupd_poll_interval == 60
    assert options.lookupd_poll_jitter == 0.3
    assert options.lookupd_poll_timeout == 60


@pytest.mark.parametrize("name", names(LookupOptions))
def test_invalid_value_is_refused_with_name_and_limits(name):
    check_option(LookupOptions, name)


def test_invalid_authorization_is_refused_and_not_shown():
    with pytest.raises(OptionError, match=r"^authorization is not the value of a header") as caught:
        LookupOptions(lookupd_authorization="s\xe9cret").daemon("h:1")
    assert "cret" not in str(caught.value)


def test_daemons_get_the_options():
    async def request(method, url, headers, body):
        return 200, b""

    context = ssl.create_default_context()
    options = LookupOptions(
        lookupd_poll_timeout=2,
        lookupd_authorization="Bearer t",
        lookupd_tls_context=context,
        lookupd_http_request=request,
    )
    daemon = options.daemon("h:4161")
    assert (daemon.connect_timeout, daemon.request_timeout) == (2, 2)
    assert daemon.authorization == "Bearer t"
    assert daemon.tls_context is context
    assert daemon.http_request is request


def test_equal_addresses_are_one_daemon():
    addresses = [
        "h:4161",
        "http://h:4161",
        "http://h:4161/",
        "http://h:4161/lookup",
        "https://h:4161",
        "g:4161",
    ]
    names = [daemon.name for daemon in LookupOptions().daemons(addresses).values()]
    assert names == ["http://h:4161", "https://h:4161", "http://g:4161"]


@pytest.mark.parametrize("addresses", ["h:4161", b"h:4161", None, 4161, {"h:4161"}], ids=repr)
def test_addresses_must_be_a_list(addresses):
    with pytest.raises(OptionError, match=f"^lookupd_http_addresses is {re.escape(repr(addresses))}; "):
        LookupOptions().daemons(addresses)


def test_refused_list_shows_no_password():
    with pytest.raises(OptionError, match=r"^lookupd_http_addresses is 'http://h:4161'; "):
        LookupOptions().daemons("http://admin:secret@h:4161")


def test_client_options_can_inherit_lookup_options():
    @attrs.frozen(kw_only=True)
    class Both(ConnectionOptions, LookupOptions):
        """As those of a consumer."""

    options = Both(client_id="me", lookupd_poll_interval=5)
    assert (options.client_id, options.lookupd_poll_interval) == ("me", 5)
