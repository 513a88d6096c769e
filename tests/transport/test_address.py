from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.transport.address import (
    is_path,
    is_socket_path,
    join_address,
    path_of,
    port_of,
    shown_url,
    shown_value,
    split_address,
    url_fault,
)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        ("nsqd.example:0", "nsqd.example", 0),
        (":65535", "", 65535),
        ("[::1]:4150", "::1", 4150),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_split_and_join(address, host, port):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@given(st.one_of(st.ip_addresses().map(str), st.from_regex("[a-z0-9.-]+", fullmatch=True)), st.integers(0, 65535))
def test_join_is_inverse_of_split(host, port):
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nsqd",
        "nsqd:",
        "nsqd:http",
        "nsqd:-1",
        "nsqd:65536",
        "nsqd:104150",
        "nsqd:" + "1" * 5000,
        "nsqd:4150 ",
        "nsqd:+1",
        "nsqd:٤",
        "4150",
        "::",
    ],
)
def test_invalid_address_is_refused_with_limits(address):
    with pytest.raises(OptionError) as caught:
        split_address(address)
    assert str(caught.value) == f"address {address!r} is not host:port with a port of 0 to 65535"


@pytest.mark.parametrize("address", [None, 4150, b"nsqd:4150", ("nsqd", 4150)])
def test_other_types_are_refused_with_same_text(address):
    with pytest.raises(OptionError, match="is not host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("127.0.0.1:4150", False),
        (":4150", False),
        (":", False),
        ("[::1]:4150", False),
        ("nsqd:http", False),
        ("/tmp/a:b", False),
        ("", False),
        ("/tmp/nsqd.sock", True),
        ("nsqd.sock", True),
        ("localhost", True),
        ("4150", True),
        ("@name", True),
        ("::1:4150", True),
        ("[::1]", True),
        ("[::1]4150", True),
        ("[a]b:1", True),
        ("a[b:1", True),
    ],
)
def test_address_that_go_cannot_split_is_path(address, path):
    assert is_path(address) is path


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("127.0.0.1:4150", False),
        ("[::1]:4150", False),
        ("localhost", False),
        ("nsqd.sock", False),
        ("", False),
        ("./nsqd.sock", True),
        ("/run/nsqd:1.sock", True),
        ("@nsqd", True),
    ],
)
def test_socket_path_has_slash_or_at_sign(address, path):
    assert is_socket_path(address) is path


def test_port_is_reported_as_by_nsqd():
    assert [port_of(address) for address in ("127.0.0.1:4150", "", "/tmp/nsqd.sock")] == [4150, 0, -1]


def test_abstract_socket_has_at_sign():
    assert [path_of(name) for name in ("/tmp/a", "", b"", b"\0name")] == ["/tmp/a", "@", "@", "@name"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:1/a", "http://h:1/a"),
        ("http://me:secret@h:1/a?secret", "http://h:1/a"),
        ("//me:secret@h", "//h"),
        ("me:secret@h:1", "h:1"),
        ("me:s://ecret@h:1", "h:1"),
        ("http://me:secret/x@y@h:1/a", "http://h:1/a"),
        ("me:secret#x@h:1", "h:1"),
        ("http://me:secret?x@h:1", "http://..."),
        ("http://h:1/a?secret@x", "http://..."),
        ("h:1?secret", "h:1"),
        ("@nsqd", "@nsqd"),
        ("", ""),
    ],
)
def test_url_is_shown_without_secrets(url, shown):
    assert shown_url(url) == shown
    assert shown_value(url) == repr(shown)


def test_other_value_is_shown_without_secrets():
    assert shown_value(None) == "None"
    assert shown_value(["h:1"]) == "['h:1']"
    assert shown_value(["http://me:secret@h:1"]) == "a list"
    assert shown_value(b"http://h:1?secret") == "a bytes"


def test_fault_of_a_url_quotes_no_password():
    error = ValueError("Port could not be cast to integer value as 'x'")
    assert url_fault("http://h:x", error) == str(error)
    assert "/ ? #" in url_fault("http://me:x/y@h", error)
    assert "'x'" not in url_fault("http://me:x/y@h", error)
