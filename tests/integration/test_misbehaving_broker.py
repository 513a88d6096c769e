"""Brokers that send without end: memory and the work of one iteration are bounded, and the user gets an error.

The brokers are raw servers on real sockets, in a thread of their own, so that they do not wait for the client.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.consumer.session import OVERSHOOT
from nsqkit.errors import ProtocolError
from nsqkit.wire.compression import Deflate
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME, encode_response
from nsqkit.wire.messages import encode_message
from tests.integration.stage import until
from tests.peers import encode_numbered
from tests.runners import Run

WAIT_LIMIT = 60
DIALLING: dict[str, Any] = {"dial_timeout": 10.0, "reconnect_delay_max": 0.05, "reconnect_delay_min": 0.01}

HEARTBEAT_COUNT = 400_000
"""7.6 MB, which deflate makes 7.5 KB of."""


class Sending(threading.Thread):
    """A broker that does the handshake, waits for a command, and calls ``send``.

    Attributes:
        address: where it is.
        count: connections that it has had.
    """

    def __init__(self, send: Callable[[socket.socket], None], **answer: object) -> None:
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.count = 0
        self._send = send
        self._answer = encode_response(json.dumps(answer).encode())

    def run(self) -> None:
        with suppress(OSError):  # closed
            while True:
                peer, _ = self.listener.accept()
                self.count += 1
                with peer, suppress(OSError):
                    peer.recv(1 << 16)
                    peer.sendall(self._answer)
                    self._send(peer)


@contextmanager
def sending(send: Callable[[socket.socket], None], **answer: object) -> Iterator[Sending]:
    broker = Sending(send, **answer)
    broker.start()
    try:
        yield broker
    finally:
        broker.listener.shutdown(socket.SHUT_RDWR)
        broker.listener.close()
        broker.join()


async def count_turns(counted: list[int]) -> None:
    """Count the iterations of the event loop in another task."""
    while True:
        counted[0] += 1
        await anyio.lowlevel.checkpoint()


def flood(peer: socket.socket) -> None:
    """Subscribe the client, and send messages without end, ignoring RDY."""
    peer.recv(1 << 16)
    peer.sendall(OK_FRAME)
    peer.recv(1 << 16)  # RDY 10
    number = 0
    while True:
        peer.sendall(encode_numbered(*range(number, number + 1000)))
        number += 1000


def test_broker_that_ignores_rdy_is_dialled_with_growing_delays(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "nsqkit")

    async def main() -> None:
        in_flight: list[int] = []
        with sending(flood, msg_timeout=60_000) as broker:
            async with (
                Consumer(
                    "t",
                    "c",
                    nsqd_tcp_addresses=[broker.address],
                    max_in_flight=10,
                    on_connection=lambda *_: in_flight.append(consumer.stats().in_flight),
                    close_timeout=0,
                    **DIALLING,
                ) as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(consumer.wait_connected)
                await until(lambda: broker.count >= 3)
                await until(lambda: consumer.unconnected.get(broker.address))
                error = consumer.unconnected[broker.address]
                assert isinstance(error, ProtocolError)
                assert "the highest RDY was 10" in str(error)
                connection = next(iter(consumer._connections._present.values()))
                assert connection._reconnect.failure_count >= 2
                tasks.cancel_scope.cancel()
            assert max(in_flight) <= 30 + OVERSHOOT
            assert consumer.stats().received <= broker.count * (30 + OVERSHOOT)

    run(main)
    (record,) = (record for record in caplog.records if record.name == "nsqkit.client")
    assert "does not keep to RDY" in record.getMessage()


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_highly_compressed_heartbeats_do_not_block_the_event_loop(run: Run, kind: str) -> None:
    layer = Deflate(9)
    identified = layer.encode(OK_FRAME)
    subscribed = layer.encode(OK_FRAME)
    last = encode_message(0, 1, b"0" * 16, b"x") if kind == "consumer" else OK_FRAME
    bomb = layer.encode(HEARTBEAT_FRAME * HEARTBEAT_COUNT + last)

    def send(peer: socket.socket) -> None:
        peer.sendall(identified)
        if kind == "consumer":
            peer.recv(1 << 16)
            peer.sendall(subscribed)
        peer.recv(1 << 16)
        peer.sendall(bomb)
        peer.recv(1 << 16)
        while peer.recv(1 << 16):
            pass

    async def main() -> None:
        turns = [0]
        with sending(send, deflate=True, msg_timeout=60_000) as broker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(count_turns, turns)
                if kind == "consumer":
                    async with Consumer(
                        "t",
                        "c",
                        nsqd_tcp_addresses=[broker.address],
                        deflate=True,
                        close_timeout=0,
                        **DIALLING,
                    ) as consumer:
                        await consumer.wait_connected()
                        before = turns[0]
                        assert (await anext(consumer)).body == b"x"
                else:
                    async with Producer(broker.address, deflate=True, **DIALLING) as producer:
                        await until(lambda: producer.is_connected)
                        before = turns[0]
                        await producer.publish("t", b"x")
                # Each iteration processes no more than one read without compression.
                assert turns[0] - before >= HEARTBEAT_COUNT * len(HEARTBEAT_FRAME) / (1 << 18) / 2
                tasks.cancel_scope.cancel()

    run(main)
