from __future__ import annotations

import gc
import socket

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.ports import IS_SHARED, KeptPort
from nsqkit.transport.address import split_address


def test_free_port_is_kept_and_refuses_connections() -> None:
    port = KeptPort("127.0.0.1:0")
    host, number = split_address(port.address)
    assert (host, number > 0) == ("127.0.0.1", True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, number), timeout=60)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, number))


def test_released_port_is_free_for_a_listener_and_kept_again() -> None:
    port = KeptPort("127.0.0.1:0")
    address = port.address
    for _ in range(3):
        port.release()
        with socket.create_server(split_address(port.address)) as listener:
            port.keep()  # without effect
            with socket.create_connection(split_address(port.address), timeout=60):
                listener.accept()[0].close()
        port.keep()
        port.keep()
        assert port.address == address


@pytest.mark.skipif(not IS_SHARED, reason="the port is free between the two sockets")
def test_no_other_program_gets_the_port_before_the_listener() -> None:
    port = KeptPort("127.0.0.1:0")
    port.release()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(split_address(port.address))


def test_collected_port_is_free() -> None:
    address = split_address(KeptPort("127.0.0.1:0").address)
    gc.collect()
    with socket.socket() as other:
        other.bind(address)


def test_used_address_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"listen \({address}\) failed - Address already in use"):
            KeptPort(address)


def test_wrong_address_is_refused() -> None:
    with pytest.raises(OptionError, match="host:port"):
        KeptPort("127.0.0.1:x")


@pytest.mark.parametrize("address", ["", "/tmp/nsqd.sock", "@nsqd"])
def test_no_port_is_needed_for(address: str) -> None:
    port = KeptPort(address)
    port.release()
    port.keep()
    assert port.address == address
