from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from nsqkit import BlockingProducer
from nsqkit.testing.leaks import LeakCheck
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import join_address, split_address


@contextmanager
def stopping(server: NsqdServer) -> Iterator[None]:
    try:
        yield
    finally:
        server.stop()


def connect(server: NsqdServer) -> socket.socket:
    client = socket.create_connection(split_address(server.tcp_address), timeout=60)
    client.sendall(b"  V2SUB t c\nRDY 1\n")
    server.wait_for(lambda: server.topic("t").channel("c").clients)
    return client


def test_open_connection_is_a_leak_until_it_is_closed() -> None:
    check = LeakCheck()
    with NsqdServer() as server:
        check.add(server)
        with connect(server) as client:
            address = join_address(*client.getsockname())
            (sentence,) = check.leaks()
            assert sentence == (
                f"the client of t/c at {address} (without IDENTIFY) is still connected: close it before the test ends"
            )
        assert check.leaks() == []


def test_closed_client_whose_bytes_are_delayed_is_no_leak() -> None:
    check = LeakCheck()
    with NsqdServer() as server:
        check.add(server)
        with connect(server) as client:
            server.faults.delay(3600)
            client.sendall(b"NOP\n")
        assert check.leaks() == []


def test_connection_from_before_is_no_leak() -> None:
    with NsqdServer() as server, connect(server):
        check = LeakCheck()
        check.add(server)
        assert check.leaks() == []


def test_blocking_clients_are_leaks_and_servers_are_not() -> None:
    before = NsqdServer()
    before.start()
    check = LeakCheck()
    with stopping(before), NsqdServer():
        assert check.leaks() == []
        before.stop()
        with BlockingProducer("127.0.0.1:1"), BlockingProducer("127.0.0.1:1"):
            (sentence,) = check.leaks()
            assert sentence.startswith("2 blocking clients of nsqkit")
        assert check.leaks() == []
