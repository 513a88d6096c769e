"""One client cannot disturb the others: real programs over real sockets.

No client ends the program or delays the other clients for long. The machine may be busy, so a delay is the CPU time
that the program uses before it answers, and the bound is generous; without turns the delays are many times larger.
``tests/broker/core/session/test_turns.py`` counts the work of one call, and ``python -m tests.benchmarks attacks``
measures the delays.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.benchmarks import attacks
from tests.benchmarks.attacks import Target, connect, publish, read_until, sized
from tests.benchmarks.harness import NSQKIT_NSQD, NSQKIT_NSQLOOKUPD, BrokerProcess, LookupdProcess
from tests.integration.test_durability import broker as durable_broker

WAIT_MAX = 0.3
"""CPU seconds."""
PUB = publish("t")
SUB = b"SUB t c\n"
IDENTIFY = b"IDENTIFY\n" + sized(b"{}")


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(NSQKIT_NSQD) as process:
        yield process


@contextmanager
def watched(broker: BrokerProcess, question: bytes = publish("wait"), magic: bytes = b"  V2") -> Iterator[list[float]]:
    """Send one request at a time during the block; return the CPU seconds that the program used for each answer."""
    waits: list[float] = []
    is_over = False

    def ask() -> None:
        with connect(broker.address) as client:
            client.sendall(magic)
            while not is_over:
                asked = broker.cpu_seconds()
                client.sendall(question)
                read_until(client, b"OK")
                waits.append(broker.cpu_seconds() - asked)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield waits
    finally:
        is_over = True
        thread.join(attacks.TIMEOUT)
    assert len(waits) > 10


def is_short(worst: Callable[[], float]) -> bool:
    """Return whether one of five delays is below the bound: a watching client that runs late sees longer ones."""
    return any(worst() < WAIT_MAX for _ in range(5))


@pytest.mark.parametrize(
    ("attack", "scale"),
    [
        (attacks.flood, 0.3),
        (attacks.pipeline, 0.5),
        (attacks.chunks, 0.2),
        (attacks.batch, 1.0),
    ],
)
def test_large_input_of_one_client_does_not_delay_others(broker: BrokerProcess, attack, scale):
    def worst() -> float:
        with watched(broker) as waits:
            attack(Target(broker.address, broker.http_address, scale))
        return max(waits)

    assert is_short(worst)


def bomb(address: str, commands: bytes) -> None:
    """Send compressed commands, and read all answers to the end."""
    with connect(address) as client:
        client.sendall(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}'))
        client.recv(1 << 16)
        compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        client.sendall(compressor.compress(commands) + compressor.flush())
        while client.recv(1 << 20):
            pass


@pytest.mark.parametrize(
    "commands",
    [
        b"NOP\n" * 1_000_000,
        b"SUB bomb c\n" + b"TOUCH 0123456789abcdef\n" * 200_000,
        b"SUB bomb c\n" + b"FIN 0123456789abcdef\n" * 200_000,
    ],
    ids=["NOP", "TOUCH", "FIN"],
)
def test_input_that_decompresses_to_much_does_not_delay_others(broker: BrokerProcess, commands):
    def worst() -> float:
        with watched(broker) as waits:
            bomb(broker.address, commands)
        return max(waits)

    assert is_short(worst)


def test_answers_are_not_created_while_the_client_does_not_read(broker: BrokerProcess):
    with connect(broker.address) as client:
        client.sendall(b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}'))
        client.recv(1 << 16)
        before = broker.memory_bytes()
        compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        commands = b"SUB t c\n" + b"FIN 0123456789abcdef\n" * 1_000_000
        client.sendall(compressor.compress(commands) + compressor.flush(zlib.Z_SYNC_FLUSH))
        with watched(broker) as waits:
            while len(waits) < 1000:
                assert broker.memory_bytes() - before < 50_000_000


def test_crowd_that_connects_while_the_broker_is_busy_is_served(
    broker: BrokerProcess,
):
    """The system completes their connections; else each would try again after one second, then three, then seven."""
    count = min(1500, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    with ExitStack() as stack:
        with connect(broker.address) as client:
            client.sendall(b"  V2" + PUB)
            read_until(client, b"OK")
        with broker.suspended():
            clients = [stack.enter_context(connect(broker.address)) for _ in range(count)]
        for client in clients:
            client.sendall(b"  V2" + PUB)
        for client in clients:
            read_until(client, b"OK")


@pytest.mark.parametrize("attack", [attacks.register, attacks.describe])
def test_many_registrations_of_one_nsqd_do_not_delay_others(attack):
    with LookupdProcess(NSQKIT_NSQLOOKUPD) as lookupd:
        target = Target(lookupd.address, lookupd.http_address, 0.2)
        with attacks.registered(target):

            def worst() -> float:
                with watched(lookupd, b"PING\n", b"  V1") as waits:
                    attack(target)
                return max(waits)

            assert is_short(worst)


def test_file_that_cannot_be_opened_ends_the_subscription_and_not_the_broker(tmp_path: Path):
    """The commands wait for the commit of the PUB, and are executed when it has ended."""
    name = "t:c.diskqueue.meta.dat"
    os.symlink(name, tmp_path / name)  # too many levels of symbolic links
    with durable_broker(tmp_path, "--durability=fsync") as (process, address):
        for commands in (PUB + IDENTIFY + SUB, SUB, PUB + SUB):
            with socket.create_connection(address, timeout=60) as client:
                client.sendall(b"  V2" + commands)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass
        with socket.create_connection(address, timeout=60) as client:
            client.sendall(b"  V2" + PUB)
            read_until(client, b"OK")
        assert process.poll() is None
