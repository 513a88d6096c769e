"""A client of raw sockets, for measuring brokers: it costs next to nothing itself.

The rule it guards: what is measured is the broker. Commands are made once and sent again and again, answers are
compared as bytes, and the ids of a whole receive buffer become one write of FINs.

As a program (``python -m tests.benchmarks.raw_client publish|consume ADDRESS SECONDS BATCH [LAYER]``) it does so for a
while, over two connections, and prints how many messages that were and how long it took.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from struct import Struct

from tests.benchmarks.layers import Connection, add_layer

TOPIC = "bench"
BODY = b"x" * 200
BATCH = 200
RDY = 2500
CONNECTIONS = 2

_TIMEOUT = 20.0
_INT32 = Struct(">i")
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_FRAME_LENGTH = 34 + len(BODY)
_RECEIVE_SIZE = 256 * 1024


def connect(address: str, layer: str = "") -> Connection:
    """Return a connection on which commands can be sent; the broker has answered on it.

    Args:
        address: the broker's.
        layer: what goes between: nothing, or "tls", "snappy" or "deflate".
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), _TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"  V2")
    if not layer:
        ask(connection, b"IDENTIFY\n" + _INT32.pack(2) + b"{}")
        return connection
    document = json.dumps(
        {"feature_negotiation": True, {"tls": "tls_v1"}.get(layer, layer): True, "deflate_level": 6}
    ).encode()
    connection.sendall(b"IDENTIFY\n" + _INT32.pack(len(document)) + document)
    (size,) = _INT32.unpack(receive_exactly(connection, 4))
    receive_exactly(connection, size)
    upgraded = add_layer(connection, layer)
    expect_ok(upgraded, b"IDENTIFY")
    return upgraded


def receive_exactly(connection: Connection, size: int) -> bytes:
    """Return the next ``size`` bytes."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise OSError("the broker closed the connection")
        data += piece
    return data


def expect_ok(connection: Connection, command: bytes) -> None:
    """Read the answer to ``command``."""
    answer = receive_exactly(connection, len(_OK_FRAME))
    if answer != _OK_FRAME:
        raise OSError(f"the broker answered {answer!r} to {command[:40]!r}")


def ask(connection: Connection, command: bytes) -> None:
    """Send a command that is answered with OK."""
    connection.sendall(command)
    expect_ok(connection, command)


def subscribe(address: str, topic: str, layer: str = "") -> Connection:
    """Return a connection that is subscribed to the channel, and asks for nothing."""
    connection = connect(address, layer)
    ask(connection, f"SUB {topic} channel\n".encode())
    return connection


def make_channel(address: str, topic: str) -> None:
    """Make the topic and the channel, so that what is published goes there at once."""
    subscribe(address, topic).close()


def batch_command(topic: str, count: int) -> bytes:
    """Return the MPUB of ``count`` messages."""
    body = _INT32.pack(count) + (_INT32.pack(len(BODY)) + BODY) * count
    return f"MPUB {topic}\n".encode() + _INT32.pack(len(body)) + body


def deferred_command(topic: str, delay_ms: int) -> bytes:
    """Return the DPUB of a message."""
    return f"DPUB {topic} {delay_ms}\n".encode() + _INT32.pack(len(BODY)) + BODY


def fill(address: str, topic: str, count: int) -> None:
    """Publish at least ``count`` messages: MPUBs of 200 over two connections, each with one outstanding."""
    command = batch_command(topic, BATCH)
    per_connection = -(-count // (BATCH * CONNECTIONS))

    def work(connection: Connection) -> None:
        for _ in range(per_connection):
            ask(connection, command)

    _in_threads(work, lambda: connect(address))


def publish(address: str, seconds: float, batch: int, layer: str = "") -> int:
    """Publish for a while, each connection with one MPUB outstanding; return how many messages."""
    command = batch_command(TOPIC, batch)

    def work(connection: Connection) -> int:
        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            ask(connection, command)
            count += batch
        return count

    return sum(_in_threads(work, lambda: connect(address, layer)))


def consume(address: str, seconds: float, rdy_count: int, layer: str = "") -> int:
    """Consume for a while, FINs written in bulk; return how many messages."""

    def work(connection: Connection) -> int:
        connection.sendall(b"RDY %d\n" % rdy_count)
        count = 0
        rest = b""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            data = connection.recv(_RECEIVE_SIZE)
            if not data:
                raise OSError("the broker closed the connection")
            data = rest + data
            whole = len(data) - len(data) % _FRAME_LENGTH
            rest = data[whole:]
            if whole:
                ids = [data[at + 18 : at + 34] for at in range(0, whole, _FRAME_LENGTH)]
                connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
                count += len(ids)
        return count

    return sum(_in_threads(work, lambda: subscribe(address, TOPIC, layer)))


def _in_threads(work: Callable[[Connection], int | None], make: Callable[[], Connection]) -> list[int]:
    with ExitStack() as stack:
        connections = [stack.enter_context(make()) for _ in range(CONNECTIONS)]
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            return [count or 0 for count in threads.map(work, connections)]


def main(words: Sequence[str]) -> None:
    """Run as a program."""
    verb, address, seconds, batch, *layer = words
    function = {"publish": publish, "consume": consume}[verb]
    begin = time.perf_counter()
    count = function(address, float(seconds), int(batch), *layer)
    print(json.dumps({"count": count, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main(sys.argv[1:])
