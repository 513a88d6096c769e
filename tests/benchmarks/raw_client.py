"""A client of raw sockets to measure brokers with: it uses very little CPU itself.

It encodes commands once and sends them repeatedly, compares answers as bytes, and writes the ids of a whole receive
buffer as one run of FINs.

As a program (``python -m tests.benchmarks.raw_client publish|consume ADDRESS SECONDS COUNT [LAYER]``, where COUNT is
the batch or the RDY) it uses two connections, each in its own process, and prints the number of messages and the
duration.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random
from struct import Struct

from tests.benchmarks.layers import Connection, add_layer

TOPIC = "bench"
BODY_LENGTH = 200
BATCH = 200
RDY = 2500
CONNECTIONS = 2

_TIMEOUT = 20.0
_INT32 = Struct(">i")
_OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_FRAME_LENGTH = 34 + BODY_LENGTH
_RECEIVE_SIZE = 256 * 1024


# ---- connections -----------------------------------------------------------------------------------------------


def connect(address: str, layer: str = "", *, heartbeat_ms: int = 30_000) -> Connection:
    """Return a connection on which commands can be sent; the broker has answered on it.

    Args:
        address: the broker's.
        layer: what goes between: nothing, or "tls", "snappy" or "deflate".
        heartbeat_ms: heartbeat interval to request.
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), _TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    document: dict[str, object] = {"heartbeat_interval": heartbeat_ms}
    if not layer:
        ask(connection, b"  V2" + _identify(document))
        return connection
    document |= {"feature_negotiation": True, {"tls": "tls_v1"}.get(layer, layer): True, "deflate_level": 6}
    connection.sendall(b"  V2" + _identify(document))
    (size,) = _INT32.unpack(receive_exactly(connection, 4))
    receive_exactly(connection, size)
    upgraded = add_layer(connection, layer)
    expect_ok(upgraded, b"IDENTIFY")
    return upgraded


def _identify(document: dict[str, object]) -> bytes:
    data = json.dumps(document).encode()
    return b"IDENTIFY\n" + _INT32.pack(len(data)) + data


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


def subscribe(address: str, topic: str, layer: str = "", *, heartbeat_ms: int = 30_000) -> Connection:
    """Return a connection that is subscribed to the channel, with RDY 0."""
    connection = connect(address, layer, heartbeat_ms=heartbeat_ms)
    ask(connection, f"SUB {topic} channel\n".encode())
    return connection


def make_channel(address: str, topic: str) -> None:
    """Create the topic and the channel, so that published messages go to the channel at once."""
    subscribe(address, topic).close()


# ---- commands --------------------------------------------------------------------------------------------------


def bodies(count: int) -> list[bytes]:
    """Return records as a program might send them: no two alike, so that they do not compress too well."""
    random = Random(0)

    def body() -> bytes:
        record = {
            "time": f"2024-01-{random.randint(1, 31):02}T{random.randrange(24):02}:00:00Z",
            "flight": f"{random.choice(('UA', 'AA', 'B6', 'DL'))}{random.randrange(10_000)}",
            "from": random.choice(("EWR", "JFK", "LGA")),
            "delay": random.randrange(-30, 300),
            "tail": f"{random.getrandbits(96):024x}",
        }
        return json.dumps(record).encode().ljust(BODY_LENGTH)

    return [body() for _ in range(count)]


def publish_command(topic: str, count: int) -> bytes:
    """Return the PUB of one message, or the MPUB of ``count``."""
    sized = [_INT32.pack(len(body)) + body for body in bodies(count)]
    if count == 1:
        return f"PUB {topic}\n".encode() + sized[0]
    batch = _INT32.pack(count) + b"".join(sized)
    return f"MPUB {topic}\n".encode() + _INT32.pack(len(batch)) + batch


def deferred_command(topic: str, delay_ms: int) -> bytes:
    """Return the DPUB of a message."""
    (body,) = bodies(1)
    return f"DPUB {topic} {delay_ms}\n".encode() + _INT32.pack(len(body)) + body


# ---- from the process that measures ----------------------------------------------------------------------------


def fill(address: str, topic: str, count: int) -> None:
    """Publish at least ``count`` messages: MPUBs of 200 over two connections, each with one outstanding."""
    command = publish_command(topic, BATCH)
    per_connection = -(-count // (BATCH * CONNECTIONS))

    def work(connection: Connection) -> None:
        for _ in range(per_connection):
            ask(connection, command)

    with ExitStack() as stack:
        connections = [stack.enter_context(connect(address)) for _ in range(CONNECTIONS)]
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(work, connections))


def drain(address: str, topic: str, count: int) -> int:
    """Consume ``count`` messages that wait, over one connection; return how many the broker has delivered.

    They may be more than ``count``: the broker may have sent up to ``RDY`` others before it received RDY 0.
    """
    delivered = 0
    with subscribe(address, topic) as connection:
        connection.sendall(b"RDY %d\n" % RDY)
        for finished in finish_all(connection):
            delivered += finished
            if delivered >= count:
                break
        connection.sendall(b"CLS\n")
        size = 0
        data = b""
        while b"CLOSE_WAIT" not in data:
            data = data[-_FRAME_LENGTH:] + (piece := connection.recv(_RECEIVE_SIZE))
            size += len(piece)
            if not piece:
                raise OSError("the broker closed the connection")
    return delivered + size // _FRAME_LENGTH


def hold(connection: Connection, count: int) -> None:
    """Receive ``count`` messages, and leave them in flight."""
    connection.sendall(b"RDY %d\n" % count)
    size = count * _FRAME_LENGTH
    while size > 0:
        size -= len(receive_exactly(connection, min(size, _RECEIVE_SIZE)))


def finish_all(connection: Connection) -> Iterator[int]:
    """Finish messages, a receive buffer at a time; yield the number of messages of each."""
    rest = b""
    while True:
        data = connection.recv(_RECEIVE_SIZE)
        if not data:
            raise OSError("the broker closed the connection")
        data = rest + data
        whole = len(data) - len(data) % _FRAME_LENGTH
        rest = data[whole:]
        ids = [data[at + 18 : at + 34] for at in range(0, whole, _FRAME_LENGTH)]
        if ids:
            connection.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
        yield len(ids)


# ---- as a program ----------------------------------------------------------------------------------------------


def publish(connection: Connection, seconds: float, batch: int) -> int:
    """Publish for a while with one command outstanding; return how many messages."""
    command = publish_command(TOPIC, batch)
    count = 0
    end = time.perf_counter() + seconds
    while True:
        ask(connection, command)
        count += batch
        if time.perf_counter() >= end:
            return count


def consume(connection: Connection, seconds: float, rdy_count: int) -> int:
    """Consume for a while, FINs written in bulk; return how many messages."""
    connection.sendall(b"RDY %d\n" % rdy_count)
    count = 0
    end = time.perf_counter() + seconds
    with suppress(TimeoutError):  # there are no more, which the caller finds by their number
        for delivered in finish_all(connection):
            count += delivered
            if time.perf_counter() >= end:
                break
    return count


def main(words: Sequence[str]) -> None:
    """Run as a program."""
    verb, address, seconds, number, *layer = words
    if verb == "publish":
        in_processes(
            lambda connection: publish(connection, float(seconds), int(number)),
            lambda: connect(address, *layer),
        )
    else:
        in_processes(
            lambda connection: consume(connection, float(seconds), int(number)),
            lambda: subscribe(address, TOPIC, *layer),
        )


def in_processes(work: Callable[[Connection], int], make: Callable[[], Connection]) -> None:
    """Run ``work`` on each connection in a separate process, at the same time; print the results."""
    context = multiprocessing.get_context("fork")
    connected = context.Barrier(CONNECTIONS)
    results = context.SimpleQueue()

    def run() -> None:
        with make() as connection:
            connected.wait(_TIMEOUT)
            begin = time.perf_counter()
            count = work(connection)
            results.put((count, time.perf_counter() - begin))

    processes = [context.Process(target=run) for _ in range(CONNECTIONS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a connection failed")
    counts, seconds = zip(*(results.get() for _ in processes), strict=True)
    print(json.dumps({"count": sum(counts), "seconds": max(seconds)}))


if __name__ == "__main__":
    main(sys.argv[1:])
