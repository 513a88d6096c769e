"""Forwards bytes between a client and a broker, and records what the client sends.

It forwards bytes as they come, and the end of a stream in both directions. It shows commands that a broker's /stats do
not count (TOUCH, CLS).
"""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import attrs

SIZE = 65_536


@attrs.define(eq=False)
class Relay:
    """Its address, and all commands that clients have sent."""

    address: str
    received: bytearray = attrs.field(factory=bytearray)


@contextmanager
def relay(address: str) -> Iterator[Relay]:
    """Forward connections to a free port to ``address``, ``host:port``."""
    host, _, port = address.rpartition(":")

    class Conversation(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection((host, int(port))) as broker:
                back = Thread(target=_pass_on, args=(broker, client, None))
                back.start()
                _pass_on(client, broker, here.received)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Conversation) as server:
        here = Relay(f"127.0.0.1:{server.server_address[1]}")
        listening = Thread(target=server.serve_forever)
        listening.start()
        try:
            yield here
        finally:
            server.shutdown()
            listening.join()


def _pass_on(source: socket.socket, target: socket.socket, received: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(SIZE):
            if received is not None:
                received += data
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
