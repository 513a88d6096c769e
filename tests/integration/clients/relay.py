"""Stands between a client and a broker, and keeps what the client says.

The rule it guards: neither notices. Bytes go on as they come, and an end is an end for both. What a broker's /stats do
not count (TOUCH, CLS) can be seen here.
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
    """Where it listens, and all that clients have said so far."""

    address: str
    heard: bytearray = attrs.field(factory=bytearray)


@contextmanager
def relay(address: str) -> Iterator[Relay]:
    """Pass on what comes to a free port to ``address``, ``host:port``."""
    host, _, port = address.rpartition(":")

    class Conversation(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection((host, int(port))) as broker:
                back = Thread(target=_pass_on, args=(broker, client, None))
                back.start()
                _pass_on(client, broker, here.heard)
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


def _pass_on(source: socket.socket, target: socket.socket, heard: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(SIZE):
            if heard is not None:
                heard += data
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
