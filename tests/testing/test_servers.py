from __future__ import annotations

import socket
import threading

import pytest

from nsqkit.errors import OptionError
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME
from nsqkit.wire.lookup import MAGIC_V1, OK_ANSWER, PING


def nsqkit_threads() -> list[str]:
    """Return the names of nsqkit's threads; those of event loops may end at any time."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nsqkit")]


def publish(server: NsqdServer, topic: bytes, body: bytes) -> None:
    with socket.create_connection(split_address(server.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2 + encode_publish(topic, body))
        assert client.recv(len(OK_FRAME)) == OK_FRAME


def test_server_answers_within_the_with_only():
    threads = nsqkit_threads()
    with NsqdServer() as server:
        publish(server, b"t", b"x")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_address(server.tcp_address), timeout=60)
    assert nsqkit_threads() == threads


def test_two_servers_share_only_the_thread():
    with NsqdServer() as one, NsqdServer() as other:
        publish(one, b"t", b"x")
        assert one.tcp_address != other.tcp_address
        assert one.inspect(lambda broker: list(broker.topics)) == [b"t"]
        assert other.inspect(lambda broker: list(broker.topics)) == []


def test_server_has_http():
    with NsqdServer() as server:
        assert server.http_url == f"http://{server.http_address}"
        with socket.create_connection(split_address(server.http_address), timeout=60) as client:
            client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"\r\n\r\nOK")


def test_options_are_those_of_nsqd():
    with NsqdServer(max_msg_size=5, http_address="") as server:
        assert server.http_address == ""
        assert server.inspect(lambda broker: broker.options.max_msg_size) == 5


def test_server_with_a_data_path_keeps_its_messages(tmp_path):
    for kept in ([], [1]):
        with NsqdServer(data_path=str(tmp_path)) as server:
            assert server.inspect(lambda broker: [len(topic.queue) for topic in broker.topics.values()]) == kept
            publish(server, b"t", b"x")


def test_wrong_option_is_refused_at_construction():
    with pytest.raises(OptionError, match="max_rdy_count is -1"):
        NsqdServer(max_rdy_count=-1)
    with pytest.raises(OptionError, match="'max_ready_count'; did you mean 'max_rdy_count'"):
        NsqdServer(max_ready_count=1)


def test_used_address_leaves_no_server():
    threads = nsqkit_threads()
    with NsqdServer() as server, pytest.raises(OSError, match=server.tcp_address):
        NsqdServer(tcp_address=server.tcp_address).__enter__()
    assert nsqkit_threads() == threads


def test_many_servers_one_after_another():
    for _ in range(20):
        with NsqdServer() as server:
            publish(server, b"t", b"x")


def test_nsqlookupd_answers_within_the_with():
    threads = nsqkit_threads()
    with NsqlookupdServer(tombstone_lifetime=5) as server:
        with socket.create_connection(split_address(server.tcp_address), timeout=60) as client:
            client.sendall(MAGIC_V1 + PING)
            assert client.recv(len(OK_ANSWER)) == OK_ANSWER
        with socket.create_connection(split_address(server.http_address), timeout=60) as client:
            client.sendall(b"POST /topic/create?topic=t HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 OK\r\n")
        assert server.inspect(lambda registry: registry.topics()) == [b"t"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_address(server.tcp_address), timeout=60)
    assert nsqkit_threads() == threads


def test_a_wrong_option_of_an_nsqlookupd_is_refused():
    with pytest.raises(OptionError, match="tombstone_lifetime is -1"):
        NsqlookupdServer(tombstone_lifetime=-1)


def test_nsqlookupd_shows_its_registrations_and_has_faults():
    with NsqlookupdServer() as lookupd, NsqdServer(lookupd_tcp_address=lookupd.tcp_address) as nsqd:
        publish(nsqd, b"t", b"x")
        while not lookupd.registry.producers("t"):
            pass
        assert [node.tcp_address for node in lookupd.registry.nodes] == [nsqd.tcp_address]
        lookupd.faults.status(500)
        with socket.create_connection(split_address(lookupd.http_address), timeout=60) as client:
            client.sendall(b"GET /lookup?topic=t HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 500 ")
        lookupd.reset()
        assert lookupd.registry.topics == {}
        assert lookupd.faults.plan("/lookup", "t") == []
