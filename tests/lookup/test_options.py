from __future__ import annotations

import re
import ssl

import attrs
import pytest

from nsqkit.client.options import ConnectionOptions
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions


def test_the_defaults_are_go_nsqs():
    options = LookupOptions()
    assert options.lookupd_poll_interval == 60
    assert options.lookupd_poll_jitter == 0.3
    assert options.lookupd_poll_timeout == 60


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lookupd_poll_interval", 0),
        ("lookupd_poll_interval", 301),
        ("lookupd_poll_interval", "60"),
        ("lookupd_poll_jitter", -0.1),
        ("lookupd_poll_jitter", 1.1),
        ("lookupd_poll_jitter", float("nan")),
        ("lookupd_poll_jitter", True),
        ("lookupd_poll_timeout", 0.05),
        ("lookupd_poll_timeout", None),
        ("lookupd_authorization", "Bearer x\r\n"),
        ("lookupd_authorization", None),
        ("lookupd_tls_context", "ca.pem"),
        ("lookupd_http_request", "requests"),
        ("discovery_filter", ["127.0.0.1:4150"]),
        ("address_map", ["127.0.0.1:4150"]),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(OptionError, match=f"^{name} is "):
        LookupOptions(**{name: value})


def test_no_secret_is_shown():
    assert "secret" not in repr(LookupOptions(lookupd_authorization="Bearer secret"))
    with pytest.raises(OptionError) as caught:
        LookupOptions(lookupd_authorization="secret\n")
    assert "secret" not in str(caught.value)


def test_they_are_what_nsqlookupds_are_asked_with():
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


def test_the_same_nsqlookupd_is_asked_once():
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
def test_what_is_no_list_of_addresses(addresses):
    with pytest.raises(OptionError, match=f"^lookupd_http_addresses is {re.escape(repr(addresses))}; "):
        LookupOptions().daemons(addresses)


def test_options_of_a_client_can_inherit_from_them():
    @attrs.frozen(kw_only=True)
    class Both(ConnectionOptions, LookupOptions):
        """As those of a consumer."""

    options = Both(client_id="me", lookupd_poll_interval=5)
    assert (options.client_id, options.lookupd_poll_interval) == ("me", 5)
