"""An nsqd for tests that answers publishes with OK while ``answers`` is set."""

from __future__ import annotations

import re
import socket
import threading
from typing import Self

from nsqkit.wire.frames import encode_response
from tests.threads import WAIT_LIMIT, start, until

OK = encode_response(b"OK")
HEARTBEAT = encode_response(b"_heartbeat_")


class PlayedNsqd:
    """A context manager. Each ``PUB`` and ``MPUB`` in its input counts as a publish, so no body may contain that.

    Attributes:
        address: where it listens.
        answers: while it is set, publishes are answered; those received meanwhile never are.
        reads: while it is not set, it reads once, and does not answer.
        received: all bytes of all connections.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self.answers, self.reads = threading.Event(), threading.Event()
        self.answers.set()
        self.reads.set()
        self.received = bytearray()
        self._connections: list[socket.socket] = []
        self._is_over = False
        self._serving = [start(self._accept)]

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._is_over:
                connection.close()
                return
            self._connections.append(connection)
            self._serving.append(start(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        handshake = b""
        while not handshake.endswith(b"}"):
            handshake += connection.recv(1000)
        connection.sendall(encode_response(b"{}"))
        while data := connection.recv(1 << 20):
            self.received += data
            self.reads.wait(WAIT_LIMIT)
            if self.answers.is_set():
                connection.sendall(OK * len(re.findall(rb"M?PUB ", data)))
        connection.shutdown(socket.SHUT_RDWR)

    @property
    def connection(self) -> socket.socket:
        """The last one."""
        return self._connections[-1]

    def cut(self) -> None:
        """Close the last connection."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_received(self, word: bytes, count: int = 1) -> None:
        """Return when ``word`` was received ``count`` times."""
        until(lambda: self.received.count(word) >= count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over = True
        self.reads.set()
        with socket.create_connection(self._listener.getsockname()):
            pass
        self._listener.close()
        for each in self._serving[1:]:
            each.exception(WAIT_LIMIT)
        self._serving[0].exception(WAIT_LIMIT)
        for connection in self._connections:
            connection.close()
