"""An HTTP client over one kept connection: writes any request line, and reads status, headers and body."""

from __future__ import annotations

import socket
from typing import Final

import attrs

from tests.differential.wire import ANSWER_LIMIT

_END: Final = b"\r\n\r\n"


@attrs.frozen
class Answer:
    """The answer to a request; status 0 if the connection ended before it.

    Attributes:
        headers: by their names in lower case.
    """

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient:
    """Requests to one program, one at a time: ``send``, then ``receive``."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._method = ""

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> None:
        """Write a request; ``path`` is written as it is, and a body with its length."""
        self._method = method
        lines = [f"{method} {path} HTTP/1.1", "Host: differential"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        data = "\r\n".join(lines).encode("latin-1") + _END + (body or b"")
        if self._socket is None:
            self._socket = socket.create_connection(self._address, ANSWER_LIMIT)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(data)
        except OSError:  # the program refused the request before it had read all of it
            pass

    def receive(self) -> Answer:
        """Return the answer to the request."""
        try:
            return self._receive()
        except (OSError, EOFError):
            self.close()
            return Answer(0, {}, b"")

    def _receive(self) -> Answer:
        while _END not in self._buffer:
            self._fill()
        head, _, self._buffer = self._buffer.partition(_END)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ", 2)[1])
        if self._method == "HEAD" or status in {204, 304}:
            body = b""
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = self._chunks()
        else:
            body = self._rest()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, headers, body)

    def _fill(self) -> None:
        assert self._socket is not None
        if not (data := self._socket.recv(262144)):
            raise EOFError
        self._buffer += data

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return body

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._buffer:
                self._fill()
            line, _, self._buffer = self._buffer.partition(b"\r\n")
            size = int(line, 16)
            body += self._exactly(size + 2)[:size]
            if not size:
                return body

    def _rest(self) -> bytes:
        try:
            while True:
                self._fill()
        except EOFError:
            body, self._buffer = self._buffer, b""
            self.close()
            return body

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""
