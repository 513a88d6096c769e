from __future__ import annotations

import socket

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.errors import OptionError
from nsqkit.transport.address import join_address, listen, split_address


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
def test_an_address_is_split_and_joined(address, host, port):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@given(st.one_of(st.ip_addresses().map(str), st.from_regex("[a-z0-9.-]+", fullmatch=True)), st.integers(0, 65535))
def test_what_was_joined_is_split_again(host, port):
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "address",
    ["", "nsqd", "nsqd:", "nsqd:http", "nsqd:-1", "nsqd:65536", "nsqd:4150 ", "nsqd:+1", "nsqd:٤", "4150", "::"],
)
def test_what_is_no_address_is_refused_with_the_limits(address):
    with pytest.raises(OptionError) as caught:
        split_address(address)
    assert str(caught.value) == f"address {address!r} is not host:port with a port of 0 to 65535"


@pytest.mark.parametrize("address", [None, 4150, b"nsqd:4150", ("nsqd", 4150)])
def test_what_is_no_text_is_refused_in_the_same_words(address):
    with pytest.raises(OptionError, match="is not host:port"):
        split_address(address)


@pytest.mark.anyio
class TestListen:
    async def test_port_0_takes_a_free_one(self):
        async with await listen("127.0.0.1:0") as listener:
            host, port = listener.extra(SocketAttribute.local_address)
            assert host == "127.0.0.1"
            assert port > 0

    @pytest.mark.parametrize("any_host", ["", "0.0.0.0"])
    async def test_every_interface_means_both_families(self, any_host):
        hosts = ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]
        async with await listen(f"{any_host}:0") as listener, anyio.create_task_group() as tasks:
            port = listener.extra(SocketAttribute.local_port)
            tasks.start_soon(listener.serve, greet)
            for host in hosts:
                async with await anyio.connect_tcp(host, port) as stream:
                    assert await stream.receive() == b"hello"
            tasks.cancel_scope.cancel()

    async def test_an_address_that_is_taken_is_refused_by_name(self):
        async with await listen("127.0.0.1:0") as listener:
            address = join_address(*listener.extra(SocketAttribute.local_address))
            with pytest.raises(OSError, match=f"listen \\({address}\\) failed - .*in use"):
                await listen(address)

    async def test_what_is_no_address_is_refused_before_a_socket_is_made(self):
        with pytest.raises(OptionError, match="'4150' is not host:port"):
            await listen("4150")


async def greet(stream: ByteStream) -> None:
    await stream.send(b"hello")
    await stream.aclose()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
