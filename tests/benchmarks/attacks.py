"""Measures how long a client waits for its answers while another client attacks the server.

The waiting client and the attacker are separate processes. The attack lasts until the server has processed all of it,
or until its time is over. The client waits for the answer to a PUB, or, at nsqlookupd, to a PING.

``ATTACKS`` lists the attacks; each attack is a function of the addresses. ``_run`` runs one of them against one server,
while ``_wait`` measures.
"""

from __future__ import annotations

import json
import multiprocessing
import select
import selectors
import socket
import statistics
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from tests.benchmarks.harness import NSQKIT_NSQLOOKUPD, Bench, BrokerProcess, LookupdProcess, Sample
from tests.benchmarks.table import Floor, Row

WAIT_MAX_MS: Final = 300.0
CONNECT_MAX_S: Final = 1.0

SECONDS_MIN: Final = 0.5
SECONDS_MAX: Final = 4.0
"""Minimum and maximum duration of a measurement, in seconds."""

TIMEOUT: Final = 60.0

NOBODYS_ID: Final = b"0123456789abcdef"


@attrs.frozen
class Target:
    """The addresses of a server.

    Attributes:
        tcp: ``host:port``.
        http: ``host:port`` of its HTTP routes.
        scale: the share of the whole attack.
    """

    tcp: str
    http: str
    scale: float

    def count(self, whole: int) -> int:
        """Return the number of commands, ``whole`` in a whole attack."""
        return max(round(whole * self.scale), 1)

    @property
    def seconds(self) -> float:
        """Maximum duration of the measurement, in seconds."""
        return max(SECONDS_MAX * self.scale, 0.2)


@attrs.frozen(kw_only=True)
class Attack:
    """One way to keep a server busy.

    Attributes:
        what: its name in the table.
        run: runs it.
        prepare: runs before the measurement, and returns connections that stay open.
        lookupd: the server is nsqlookupd.
        seconds_max: limit of the whole attack; None for no limit.
        memory: whether the server's memory is measured.
    """

    what: str
    run: Callable[[Target], None]
    prepare: Callable[[Target], AbstractContextManager[Any]] = lambda target: nullcontext()
    lookupd: bool = False
    seconds_max: float | None = None
    memory: bool = False


# ---- the attacks -----------------------------------------------------------------------------------------------


def connect(address: str) -> socket.socket:
    """Return a connection."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), TIMEOUT)


def nothing(target: Target) -> None:
    """Do nothing."""


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def publish(topic: str) -> bytes:
    return f"PUB {topic}\n".encode() + sized(b"x")


def read_until(client: socket.socket, end: bytes) -> None:
    """Read until the answer ends so, or the server closes."""
    data = b""
    while piece := client.recv(1 << 20):
        data = data[-len(end) :] + piece
        if data.endswith(end):
            return


def flood(target: Target) -> None:
    """Send NOPs, and wait until all were processed."""
    with connect(target.tcp) as client:
        client.sendall(b"  V2" + b"NOP\n" * target.count(5_000_000) + publish("flood"))
        read_until(client, b"OK")


def deflated(commands: bytes, target: Target, *, before: bytes = b"", reads: bool = True) -> None:
    """Send compressed commands, and read the answers or leave them unread."""
    document = json.dumps({"feature_negotiation": True, "deflate": True, "deflate_level": 6}).encode()
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    with connect(target.tcp) as client:
        client.sendall(b"  V2IDENTIFY\n" + sized(document))
        client.recv(1 << 16)
        client.sendall(compressor.compress(before + commands) + compressor.flush(zlib.Z_SYNC_FLUSH))
        begin = time.monotonic()
        while (left := begin + target.seconds - time.monotonic()) > 0:
            # The server may have closed the connection; then there is nothing to read, and only the time is awaited.
            if not (select.select([client] if reads else [], [], [], left)[0] and client.recv(1 << 20)):
                reads = False


def deflated_nops(target: Target) -> None:
    """Send 64 KiB that become 64 MB."""
    deflated(b"NOP\n" * target.count(16_000_000), target)


def deflated_touches(target: Target) -> None:
    """Send 56 KB that decompress to a million TOUCHes, each answered by an error."""
    touches = (b"TOUCH " + NOBODYS_ID + b"\n") * target.count(1_000_000)
    deflated(touches, target, before=b"SUB wait channel\n")


def unread(target: Target) -> None:
    """Send 56 KB that decompress to a million FINs, each answered by an error, and read none of the errors."""
    finishes = (b"FIN " + NOBODYS_ID + b"\n") * target.count(1_000_000)
    deflated(finishes, target, before=b"SUB wait channel\n", reads=False)


def pipeline(target: Target) -> None:
    """Send HTTP requests over two connections, one after the other."""
    request = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
    count = target.count(5000)
    clients = [connect(target.http) for _ in range(2)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.sendall(request * count)
            selector.register(client, selectors.EVENT_READ)
        answers = dict.fromkeys(clients, 0)
        while selector.get_map():
            for key, _ in selector.select(TIMEOUT):
                assert isinstance(key.fileobj, socket.socket)
                answers[key.fileobj] += key.fileobj.recv(1 << 20).count(b"HTTP/1.1 200")
                if answers[key.fileobj] == count:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def chunks(target: Target) -> None:
    """Publish 0.9 MB over HTTP in chunks of one byte."""
    head = b"POST /pub?topic=chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(target.http) as client:
        client.sendall(head + b"1\r\nx\r\n" * target.count(900_000) + b"0\r\n\r\n")
        read_until(client, b"OK")


def batch(target: Target) -> None:
    """Publish a million messages of one byte in one MPUB."""
    count = target.count(1_000_000)
    body = count.to_bytes(4, "big") + sized(b"x") * count
    with connect(target.tcp) as client:
        client.sendall(b"  V2MPUB batch\n" + sized(body))
        read_until(client, b"OK")


def crowd(target: Target) -> None:
    """Connect 1,500 times at once, and wait until all connections are answered."""
    clients = []
    host, port = target.tcp.rsplit(":", 1)
    with selectors.DefaultSelector() as selector:
        for _ in range(target.count(1500)):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex((host, int(port)))
            selector.register(client, selectors.EVENT_WRITE)
            clients.append(client)
        while selector.get_map():
            for key, events in selector.select(TIMEOUT):
                client = key.fileobj  # type: ignore[assignment]
                if events & selectors.EVENT_WRITE:
                    client.sendall(b"  V2" + publish("crowd"))
                    selector.modify(client, selectors.EVENT_READ)
                elif client.recv(100):
                    selector.unregister(client)
    for client in clients:
        client.close()


def queue(target: Target) -> None:
    """Connect 5,000 times, one after the other."""
    for _ in range(target.count(5000)):
        connect(target.tcp).close()


def registered(target: Target) -> socket.socket:
    """Return a connection to nsqlookupd on which 100,000 channels were registered."""
    count = target.count(100_000)
    document = {"broadcast_address": "b", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "1"}
    lines = [b"REGISTER t%d c\n" % number for number in range(count)]
    client = connect(target.tcp)
    client.sendall(b"  V1IDENTIFY\n" + sized(json.dumps(document).encode()))
    client.recv(1 << 16)
    for start in range(0, count, 1000):
        part = lines[start : start + 1000]
        client.sendall(b"".join(part))
        size = 6 * len(part)
        while size > 0:
            size -= len(client.recv(size))
    return client


def register(target: Target) -> None:
    """Register 100,000 channels, and disconnect."""
    registered(target).close()


def describe(target: Target) -> None:
    """Query the nodes of 100,000 channels from nsqlookupd."""
    with connect(target.http) as client:
        client.sendall(b"GET /debug HTTP/1.0\r\n\r\n")
        while client.recv(1 << 20):
            pass


ATTACKS: Final = (
    Attack(what="nothing", run=nothing),
    Attack(what="5,000,000 NOPs", run=flood),
    Attack(what="64 KB deflated, 16,000,000 NOPs", run=deflated_nops),
    Attack(what="56 KB deflated, 1,000,000 TOUCHes", run=deflated_touches, memory=True),
    Attack(what="56 KB deflated, 1,000,000 FINs, unread", run=unread, memory=True),
    Attack(what="10,000 HTTP requests, two pipelines", run=pipeline),
    Attack(what="0.9 MB over HTTP, chunks of 1 byte", run=chunks),
    Attack(what="MPUB, 1,000,000 messages of 1 byte", run=batch),
    Attack(what="1,500 connections at once", run=crowd, seconds_max=CONNECT_MAX_S),
    Attack(what="5,000 connections in a row", run=queue, seconds_max=5 * CONNECT_MAX_S),
    Attack(what="100,000 REGISTERs", run=register, lookupd=True),
    Attack(what="/debug of 100,000 channels", run=describe, prepare=registered, lookupd=True),
)


# ---- the measurement -------------------------------------------------------------------------------------------


def measure(bench: Bench) -> Iterator[Row]:
    """Measure all attacks."""
    for attack in ATTACKS:
        servers = _lookupds(bench) if attack.lookupd else bench.brokers
        samples = bench.take_turns({name: partial(_run, bench, attack, command) for name, command in servers.items()})
        if "nsqkit" in samples:
            yield from _rows(attack, samples)


def _lookupds(bench: Bench) -> dict[str, Sequence[str]]:
    lookupds: dict[str, Sequence[str]] = {"nsqkit": NSQKIT_NSQLOOKUPD}
    if bench.nsqd_binary and (path := Path(bench.nsqd_binary).with_name("nsqlookupd")).exists():
        lookupds["nsqd"] = (str(path),)
    return lookupds


def _rows(attack: Attack, samples: dict[str, Sample]) -> Iterator[Row]:
    ours = samples.pop("nsqkit")
    floors = {"worst wait, ms": (Floor(at_most=WAIT_MAX_MS),)}
    if attack.seconds_max is not None:
        floors["whole, s"] = (Floor(at_most=attack.seconds_max),)
    for key, value in ours.items():
        yield Row(
            what=f"attack, {attack.what}",
            unit=key,
            value=value,
            peers={name: sample[key] for name, sample in samples.items()},
            less_is_better=True,
            floors=floors.get(key, ()),
        )


def _run(bench: Bench, attack: Attack, command: Sequence[str]) -> Sample:
    with (LookupdProcess if attack.lookupd else BrokerProcess)(command) as server:
        target = Target(server.address, server.http_address, bench.effort.scale)
        memory = server.memory_bytes()
        context = multiprocessing.get_context("fork")
        attacker = context.Process(target=_attack, args=[attack, target], daemon=True)
        with attack.prepare(target):
            waits, seconds = _wait(attacker, target, attack)
        figures = {"worst wait, ms": max(waits) * 1e3, "median wait, ms": statistics.median(waits) * 1e3}
        if attack.seconds_max is not None:
            figures["whole, s"] = seconds
        if attack.memory:
            figures["memory, MB"] = (server.memory_bytes() - memory) / 1e6
    return figures


def _attack(attack: Attack, target: Target) -> None:
    with suppress(ConnectionError):  # the server ends with the measurement
        attack.run(target)


def _wait(attacker: multiprocessing.process.BaseProcess, target: Target, attack: Attack) -> tuple[list[float], float]:
    """Send one request at a time during the attack; return the waits, and the duration of the attack."""
    question = b"PING\n" if attack.lookupd else publish("wait")
    waits = []
    seconds = 0.0
    with connect(target.tcp) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"  V1" if attack.lookupd else b"  V2")
        begin = time.perf_counter()
        attacker.start()
        while not seconds or time.perf_counter() < begin + min(SECONDS_MIN, target.seconds):
            asked = time.perf_counter()
            client.sendall(question)
            read_until(client, b"OK")
            now = time.perf_counter()
            waits.append(now - asked)
            if not seconds and (not attacker.is_alive() or now > begin + target.seconds):
                seconds = now - begin
            time.sleep(0.001)  # an occasional client, not one that keeps the server busy
    if attack.seconds_max is not None:
        attacker.join()
    attacker.kill()
    attacker.join()
    return waits, seconds
