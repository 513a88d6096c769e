"""A server whose nsqd runs elsewhere: here a second server, reached by its addresses."""

from __future__ import annotations

import socket

import pytest

import nsqkit.testing.remote
from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.testing.errors import StartFailed, Unsupported
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address


def remote(nsqd: NsqdServer) -> NsqdServer:
    return NsqdServer(backend=f"{nsqd.tcp_address},{nsqd.http_address}")


def test_clients_reach_the_nsqd_through_the_server(nsqd: NsqdServer) -> None:
    with remote(nsqd) as server:
        assert server.tcp_address != nsqd.tcp_address
        assert server.http_address == nsqd.http_address
        with BlockingProducer(server.tcp_address) as producer:
            producer.publish("t", b"x")
        with BlockingConsumer("t", "c", nsqd_tcp_addresses=[server.tcp_address]) as consumer:
            next(iter(consumer)).finish()
            server.wait_idle("t", "c")
        server.assert_finished(b"x")
        assert server.topic("t").message_count == nsqd.topic("t").message_count == 1


def test_only_topics_of_its_clients_are_deleted(nsqd: NsqdServer) -> None:
    nsqd.publish("earlier", b"x")
    with remote(nsqd) as server:
        with BlockingProducer(server.tcp_address) as producer:
            producer.publish("earlier", b"y")
            producer.publish("ours", b"y")
        server.publish("our_other", b"y")
        nsqd.publish("others", b"x")
        assert sorted(nsqd.topics) == ["earlier", "others", "our_other", "ours"]
        server.reset()
        assert sorted(nsqd.topics) == ["earlier", "others"]
        assert nsqd.topic("earlier").depth == 2
        server.publish("ours", b"y")
    assert sorted(nsqd.topics) == ["earlier", "others"]


@pytest.mark.parametrize("journal", [True, False], ids=["cleared journal", "no journal"])
def test_topic_that_the_journal_does_not_have_is_deleted(nsqd: NsqdServer, journal: bool) -> None:
    with NsqdServer(backend=f"{nsqd.tcp_address},{nsqd.http_address}", journal=journal) as server:
        with BlockingProducer(server.tcp_address) as producer:
            producer.publish("t", b"x")
        server.journal.clear()
    assert nsqd.topics == {}


def test_life_of_the_port_in_front_of_it(nsqd: NsqdServer) -> None:
    with remote(nsqd) as server:
        address = split_address(server.tcp_address)
        server.publish("t", b"x")
        for end in (server.stop, server.stop):
            end()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=60)
        server.start(keep_data=True)
        assert server.topic("t").depth == 1
        server.restart()
        assert server.topics == {}
        server.publish("t", b"x")
        server.kill()
        assert nsqd.topics == {}


def test_embedded_broker_is_needed_for(nsqd: NsqdServer) -> None:
    with remote(nsqd) as server:
        for call in (lambda: server.inject("t", b"x"), server.snapshot, server.clock.advance_to_next):
            with pytest.raises(Unsupported, match=f"the backend '{nsqd.tcp_address}"):
                call()


def test_address_without_nsqd_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqkit.testing.remote, "ANSWER_LIMIT", 0.01)
    with NsqdServer() as stopped:
        address = f"{stopped.tcp_address},{stopped.http_address}"
    with pytest.raises(StartFailed, match="has not answered for"):
        NsqdServer(backend=address).start()
