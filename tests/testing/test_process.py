"""A server whose nsqd is a process: nsqkit's own program."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.testing.errors import StartFailed, Unsupported
from nsqkit.testing.process import default_command
from nsqkit.testing.servers import NsqdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdServer]:
    """One process for all tests of this module, without topics in each."""
    with NsqdServer(backend="process", msg_timeout=1.5) as server:
        yield server


@pytest.fixture(autouse=True)
def reset(request: pytest.FixtureRequest) -> None:
    if "nsqd" in request.fixturenames:
        server: NsqdServer = request.getfixturevalue("nsqd")
        server.reset()


def test_default_command_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSQD", raising=False)
    assert default_command() == [sys.executable, "-m", "nsqkit", "nsqd"]
    monkeypatch.setenv("NSQD", "/usr/bin/nsqd")
    assert default_command() == ["/usr/bin/nsqd"]


def test_process_has_state_journal_faults_and_waits(nsqd: NsqdServer) -> None:
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("t", b"x")
        nsqd.publish("t", b"y", b"z")
        nsqd.publish("t", b"later", defer=0.001)
        nsqd.wait_depth("t", None, 4)
        nsqd.assert_published("t", b"x", times=1)
        assert nsqd.connection_count == 1
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        for _ in range(4):
            next(iter(consumer)).finish()
        nsqd.wait_idle("t", "c")
        nsqd.assert_answered_once()
        (client,) = nsqd.topic("t").channel("c").clients
        assert client.user_agent.startswith("nsqkit/")
    with nsqd.faults.refuse(), pytest.raises(ConnectionRefusedError):
        socket.create_connection(split_address(nsqd.tcp_address), timeout=60)


def test_options_are_passed(nsqd: NsqdServer) -> None:
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]):
        nsqd.wait_for(lambda: nsqd.topic("t").exists)
        grant = next(entry.body for entry in nsqd.journal.frames("RESPONSE") if b"msg_timeout" in entry.body)
        assert b'"msg_timeout":1500' in grant


def test_reset_deletes_topics_and_closes_connections(nsqd: NsqdServer) -> None:
    with socket.create_connection(split_address(nsqd.tcp_address), timeout=60) as client:
        client.sendall(MAGIC_V2)
        nsqd.wait_connected()
        nsqd.publish("t", b"x")
        nsqd.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert nsqd.topics == {}
    assert len(nsqd.journal) == 0


def test_broker_of_this_process_is_needed_for(nsqd: NsqdServer) -> None:
    for call in (
        lambda: nsqd.inspect(lambda broker: None),
        lambda: nsqd.inject("t", b"x"),
        lambda: nsqd.messages("t"),
        nsqd.snapshot,
        lambda: nsqd.clock.advance(1),
    ):
        with pytest.raises(Unsupported, match="with the backend 'process'; that needs backend='embedded'"):
            call()


def test_life_of_a_process() -> None:
    server = NsqdServer(backend="process")
    with server:
        addresses = (server.tcp_address, server.http_address)
        server.publish("t", b"x")
        server.restart(keep_data=True)
        assert (server.tcp_address, server.http_address) == addresses
        assert server.topic("t").depth == 1
        with socket.create_connection(split_address(server.tcp_address), timeout=60) as client:
            client.sendall(MAGIC_V2)
            server.wait_connected()
            server.kill()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        for address in addresses:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(split_address(address), timeout=60)
        server.start()
        assert server.topics == {}


def test_messages_of_a_data_path_stay(tmp_path: Path) -> None:
    with NsqdServer(backend="process", data_path=str(tmp_path)) as server:
        server.publish("t", b"x")
    assert "nsqd.dat" in os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (["/nowhere/nsqd"], StartFailed, "/nowhere/nsqd cannot be started: No such file or directory"),
        ([sys.executable, "-c", "print('no'); raise SystemExit(3)"], StartFailed, "has ended with status 3:\nno"),
        (
            [sys.executable, "-c", "print('flag provided but not defined: -x'); raise SystemExit(1)"],
            Unsupported,
            "does not have one of the options: flag provided but not defined: -x$",
        ),
        (
            [
                sys.executable,
                "-c",
                "print('flag provided but not defined: -x\\n' + 'usage\\n' * 1000); raise SystemExit(1)",
            ],
            Unsupported,
            "does not have one of the options: flag provided but not defined: -x$",
        ),
    ],
    ids=["missing", "ends", "old", "old-with-long-usage"],
)
def test_program_that_does_not_start(words: list[str], kind: type[Exception], text: str) -> None:
    server = NsqdServer(backend=words)
    with pytest.raises(kind, match=text):
        server.start()
    assert not server.is_running


def test_error_has_the_end_of_a_long_output() -> None:
    server = NsqdServer(backend=[sys.executable, "-c", "print('x' * 5000 + 'the reason'); raise SystemExit(3)"])
    with pytest.raises(StartFailed, match=r"has ended with status 3:\nx{1990}the reason$"):
        server.start()
