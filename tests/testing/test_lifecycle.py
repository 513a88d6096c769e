"""The life of the servers, seen by clients that use sockets."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.testing.errors import ServerState
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME
from nsqkit.wire.lookup import MAGIC_V1, OK_ANSWER, PING


def connect(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=60)


def publish(server: NsqdServer, body: bytes) -> None:
    with connect(server.tcp_address) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", body))
        assert client.recv(len(OK_FRAME)) == OK_FRAME


def bodies(server: NsqdServer) -> list[bytes]:
    return [message.body for message in server.messages("t")] if "t" in server.topics else []


def assert_refused(*addresses: str) -> None:
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            connect(address)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_addresses_are_kept_and_refuse_while_it_is_stopped() -> None:
    server = NsqdServer()
    server.start()
    addresses = (server.tcp_address, server.http_address)
    for begin in (server.stop, server.kill, server.stop):
        publish(server, b"x")
        begin()
        assert not server.is_running
        assert_refused(*addresses)
        server.start()
        assert server.is_running
        assert (server.tcp_address, server.http_address) == addresses
    server.restart()
    assert (server.tcp_address, server.http_address) == addresses
    with connect(server.http_address) as client:
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert client.makefile("rb").read().endswith(b"OK")
    server.stop()


def test_messages_are_lost_or_kept() -> None:
    with NsqdServer() as server:
        publish(server, b"one")
        server.restart()
        assert bodies(server) == []
        publish(server, b"two")
        server.restart(keep_data=True)
        publish(server, b"three")
        assert bodies(server) == [b"two", b"three"]
        server.stop()
        server.start(keep_data=True)
        assert bodies(server) == [b"two", b"three"]
        server.kill()
        server.start(keep_data=True)
        assert bodies(server) == []


def test_files_of_a_data_path_decide(tmp_path: Path) -> None:
    with NsqdServer(data_path=str(tmp_path), mem_queue_size=1) as server:
        publish(server, b"one")
        server.restart()
        assert bodies(server) == [b"one"]
        for body in (b"two", b"three"):
            publish(server, body)
        server.kill()
        server.start()
        assert bodies(server) == [b"one", b"two", b"three"]
    with NsqdServer(data_path=str(tmp_path)) as server:
        server.inspect(lambda broker: broker.topics[b"t"].empty())
        publish(server, b"in memory")
        server.kill()
        server.start(keep_data=True)
        assert bodies(server) == []


def test_stop_sends_the_last_answers() -> None:
    with NsqdServer() as server, connect(server.tcp_address) as client:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        assert client.recv(len(OK_FRAME)) == OK_FRAME
        server.stop()
        assert client.recv(1) == b""


def test_kill_resets_every_connection(caplog: pytest.LogCaptureFixture) -> None:
    with NsqdServer() as server, connect(server.tcp_address) as client, connect(server.http_address) as http:
        client.sendall(MAGIC_V2 + encode_publish(b"t", b"x"))
        assert client.recv(len(OK_FRAME)) == OK_FRAME
        http.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert http.recv(4096)
        server.kill()
        for sock in (client, http):
            with pytest.raises(ConnectionResetError):
                while sock.recv(4096):
                    """The rest of an answer."""
    assert errors_of(caplog) == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_server_ends_while_a_client_does_not_read(end: str) -> None:
    with NsqdServer(clock="manual") as server, connect(server.tcp_address) as client:
        body = b"x" * 1_000_000
        server.publish("t", *[body] * 20)
        client.sendall(MAGIC_V2 + b"SUB t c\nRDY 20\n")
        assert client.recv(1)
        getattr(server, end)()
        assert_refused(server.tcp_address)


def test_consumer_reconnects_after_each_restart() -> None:
    async def main() -> None:
        options: dict[str, Any] = {"reconnect_delay_min": 0.01, "max_backoff_duration": 0}
        with NsqdServer() as server:
            async with Consumer("t", "c", nsqd_tcp_addresses=[server.tcp_address], **options) as consumer:
                for number, end in enumerate((server.stop, server.kill, server.stop)):
                    body = b"%d" % number
                    server.publish("t", body)
                    message = await anext(consumer)
                    assert message.body == body
                    message.finish()
                    end()
                    server.start()

    anyio.run(main)


def test_use_while_stopped_is_refused_with_a_sentence() -> None:
    server = NsqdServer()
    with pytest.raises(ServerState, match=r"the nsqd is not running; start\(\) has to come before this call"):
        server.inspect(lambda broker: None)
    server.stop()
    server.kill()
    with server:
        with pytest.raises(ServerState, match=rf"the nsqd at {server.tcp_address} is running; stop\(\) has to come"):
            server.start()
        server.stop()
    with pytest.raises(ServerState, match="not running"):
        server.publish("t", b"x")
    lookupd = NsqlookupdServer()
    with pytest.raises(ServerState, match="the nsqlookupd is not running"):
        lookupd.inspect(lambda registry: None)


def test_nsqlookupd_has_the_same_life() -> None:
    with NsqlookupdServer() as lookupd:
        addresses = (lookupd.tcp_address, lookupd.http_address)
        for end in (lookupd.stop, lookupd.kill):
            lookupd.inspect(lambda registry: registry.create_topic(b"t"))
            end()
            assert_refused(*addresses)
            lookupd.start()
            assert (lookupd.tcp_address, lookupd.http_address) == addresses
            assert lookupd.inspect(lambda registry: registry.topics()) == []
        with connect(lookupd.tcp_address) as nsqd:
            nsqd.sendall(MAGIC_V1 + PING)
            assert nsqd.recv(len(OK_ANSWER)) == OK_ANSWER
            lookupd.kill()
            with pytest.raises(ConnectionResetError):
                nsqd.recv(1)


@pytest.mark.anyio
async def test_life_in_an_event_loop(nsqd: NsqdServer) -> None:
    for body in (b"x", b"y"):
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", body)
            nsqd.restart(keep_data=True)
    assert bodies(nsqd) == [b"x", b"y"]


def test_failed_start_leaves_the_server_stopped(tmp_path: Path) -> None:
    server = NsqdServer(data_path=str(tmp_path / "missing"))
    with pytest.raises(OSError, match="missing"):
        server.start()
    assert not server.is_running
    (tmp_path / "missing").mkdir()
    with server:
        publish(server, b"x")
