from __future__ import annotations

import socket
from collections.abc import Iterator

import anyio
import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.consumer import Consumer
from nsqkit.errors import PublishFailed
from nsqkit.producer import Producer
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.ports import KeptPort
from nsqkit.testing.proxy import Proxy
from nsqkit.testing.servers import NsqdServer
from nsqkit.testing.waiting import Traffic
from nsqkit.transport.address import split_address
from nsqkit.transport.tcp import connect
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME, encode_error


@pytest.mark.anyio
async def test_clients_reach_the_broker_through_the_proxy() -> None:
    options = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")
    async with Nsqd(options) as nsqd:

        async def upstream(name: str) -> anyio.abc.ByteStream:
            return await connect(nsqd.tcp_address)

        journal = Journal()
        async with Proxy(KeptPort("127.0.0.1:0"), upstream, journal, Faults(), ControlledClock(), Traffic()) as proxy:
            await proxy.open_listener()
            async with Producer(proxy.address) as producer:
                await producer.publish("t", b"x" * 500_000)
            async with Consumer("t", "c", nsqd_tcp_addresses=[proxy.address]) as consumer:
                message = await anext(aiter(consumer))
                assert message.body == b"x" * 500_000
                message.finish()
        names = [entry.name for entry in journal]
        assert names.count("PUB") == names.count("MESSAGE") == names.count("FIN") == 1


def publish(nsqd: NsqdServer) -> bytes:
    """Return what a client receives for two publishes until the connection is closed or has answered both."""
    received = b""
    with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        while data := client.recv(1000):
            received += data
            if received == OK_FRAME:
                client.sendall(encode_publish(b"t", b"x"))
            elif received == 2 * OK_FRAME:
                break
    return received


@pytest.fixture(scope="module")
def server() -> Iterator[NsqdServer]:
    with NsqdServer() as server:
        yield server


@pytest.fixture
def nsqd(server: NsqdServer) -> NsqdServer:
    server.faults.clear()
    return server


def test_connections_are_refused_while_the_fault_lasts(nsqd: NsqdServer) -> None:
    with nsqd.faults.refuse(), pytest.raises(ConnectionRefusedError):
        publish(nsqd)
    assert publish(nsqd) == 2 * OK_FRAME


def test_port_stays_closed_after_a_restart() -> None:
    with NsqdServer() as nsqd:
        with nsqd.faults.refuse():
            nsqd.restart()
            with pytest.raises(ConnectionRefusedError):
                publish(nsqd)
            nsqd.stop()
        nsqd.start()
        assert publish(nsqd) == 2 * OK_FRAME


def test_connection_is_reset(nsqd: NsqdServer) -> None:
    with nsqd.faults.reset(command="PUB", times=1), pytest.raises(ConnectionResetError):
        publish(nsqd)
    assert publish(nsqd) == 2 * OK_FRAME


def test_connection_is_closed_on_accept(nsqd: NsqdServer) -> None:
    nsqd.faults.close_on_accept(times=1)
    with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        assert client.recv(1) == b""
    assert publish(nsqd) == 2 * OK_FRAME


def test_silent_connection_is_reset_later(nsqd: NsqdServer) -> None:
    with nsqd.faults.silence() as fault:
        client = socket.create_connection(split_address(nsqd.tcp_address), timeout=60)
        while not fault.count:
            nsqd.inspect(lambda _: None)  # a turn of the server's event loop
    with client, pytest.raises(ConnectionError):
        client.sendall(encode_publish(b"t", b"x"))
        client.recv(1)


def test_connection_is_closed_in_a_frame(nsqd: NsqdServer) -> None:
    nsqd.faults.close_at(3, frame=2, command="OK")
    assert publish(nsqd) == OK_FRAME + OK_FRAME[:3]


def test_frames_come_in_slices_and_late(nsqd: NsqdServer) -> None:
    with nsqd.faults.slices(1) as slices, nsqd.faults.delay(0.01, command="OK") as delay:
        assert publish(nsqd) == 2 * OK_FRAME
        assert (slices.count, delay.count) == (5, 2)


def test_fatal_error_closes_the_connection(nsqd: NsqdServer) -> None:
    nsqd.faults.error("E_PUB_FAILED", command="PUB", after=1, times=1)
    assert publish(nsqd) == OK_FRAME + encode_error(PublishFailed("PUB failed by faults.error()"))


def test_client_that_closes_its_direction_receives_the_answers(nsqd: NsqdServer) -> None:
    with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read() == OK_FRAME
