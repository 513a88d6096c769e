"""A client of raw sockets, for measuring brokers: it costs next to nothing itself.

The rule it guards: what is measured is the broker. Commands are made once and sent again and again, answers are
compared as bytes, and the ids of a whole receive buffer become one write of FINs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from struct import Struct

BODY = b"x" * 200
BATCH = 200
RDY = 2500
CONNECTIONS = 2
SLACK = 20_000
"""Messages beyond those that are counted: nsqd holds the end of a queue back in its output buffer, up to 250 ms."""

_TIMEOUT = 20.0
_INT32 = Struct(">i")
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_FRAME_LENGTH = 34 + len(BODY)
_RECEIVE_SIZE = 256 * 1024


def connect(address: str) -> socket.socket:
    """Return a connection on which commands can be sent; the broker has answered on it."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), _TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"  V2")
    ask(connection, b"IDENTIFY\n" + _INT32.pack(2) + b"{}")
    return connection


def ask(connection: socket.socket, command: bytes) -> None:
    """Send a command that is answered with OK."""
    connection.sendall(command)
    answer = connection.recv(len(_OK_FRAME), socket.MSG_WAITALL)
    if answer != _OK_FRAME:
        raise OSError(f"the broker answered {answer!r} to {command[:40]!r}")


def subscribe(address: str, topic: str) -> socket.socket:
    """Return a connection that is subscribed to the channel, and asks for nothing."""
    connection = connect(address)
    ask(connection, f"SUB {topic} channel\n".encode())
    return connection


def make_channel(address: str, topic: str) -> None:
    """Make the topic and the channel, so that what is published goes there at once."""
    subscribe(address, topic).close()


def fill(address: str, topic: str, count: int) -> None:
    """Publish at least ``count`` messages: MPUBs of 200 over two connections, each with one outstanding."""
    body = _INT32.pack(BATCH) + (_INT32.pack(len(BODY)) + BODY) * BATCH
    command = f"MPUB {topic}\n".encode() + _INT32.pack(len(body)) + body
    per_connection = -(-count // (BATCH * CONNECTIONS))

    def work(connection: socket.socket) -> None:
        for _ in range(per_connection):
            ask(connection, command)

    with _connections(lambda: connect(address)) as connections:
        _in_threads(work, connections)


def drain(address: str, topic: str, count: int, on_start: Callable[[], None]) -> None:
    """Consume ``count`` messages with RDY 2500 over two connections, FINs written in bulk; more must be there.

    Args:
        address: the broker's.
        topic: a topic with the channel.
        count: how many.
        on_start: called once everything is subscribed, before the first message.
    """
    finished = [0] * CONNECTIONS
    begin = threading.Barrier(CONNECTIONS, on_start)

    def work(connection: socket.socket) -> None:
        number = begin.wait(_TIMEOUT)
        connection.sendall(b"RDY %d\n" % RDY)
        rest = b""
        while sum(finished) < count:
            data = connection.recv(_RECEIVE_SIZE)
            if not data:
                raise OSError("the broker closed the connection")
            data = rest + data
            whole = len(data) - len(data) % _FRAME_LENGTH
            rest = data[whole:]
            if whole:
                ids = [data[at + 18 : at + 34] for at in range(0, whole, _FRAME_LENGTH)]
                connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
                finished[number] += len(ids)

    with _connections(lambda: subscribe(address, topic)) as connections:
        _in_threads(work, connections)


@contextmanager
def _connections(make: Callable[[], socket.socket]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(make()) for _ in range(CONNECTIONS)]


def _in_threads(work: Callable[[socket.socket], None], connections: list[socket.socket]) -> None:
    with ThreadPoolExecutor(len(connections)) as threads:
        for _ in threads.map(work, connections):
            pass
