"""An HTTP server on a real socket whose answers a test determines.

A test sees the bytes of each request, and writes the bytes of each answer. An answer is bytes, after which the
connection is closed, or None for silence until the test ends.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener

PATIENT: Any = {"connect_timeout": 60.0, "request_timeout": 60.0}
"""Options for requests that are answered: a busy machine must not fail them."""


@attrs.define
class Answering:
    """The address and the requests of the server.

    Attributes:
        address: ``host:port``.
        requests: all requests, head and body together.
    """

    address: str
    requests: list[bytes]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def http_answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return an answer as a server sends it."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


@asynccontextmanager
async def answering(
    answer: Callable[[bytes], bytes | None], *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Answering]:
    """Run a server that calls ``answer`` with each request."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server = Answering(f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}", [])

    async def serve(stream: ByteStream) -> None:
        async with stream:
            try:
                request = await _read_request(stream)
            except (anyio.IncompleteRead, anyio.BrokenResourceError):
                return  # not an HTTP request
            server.requests.append(request)
            reply = answer(request)
            if reply is None:
                await anyio.sleep_forever()
            else:
                await stream.send(reply)

    where = TLSListener(listener, tls, standard_compatible=False) if tls else listener
    async with where, anyio.create_task_group() as tasks:
        tasks.start_soon(where.serve, serve)
        yield server
        tasks.cancel_scope.cancel()


async def _read_request(stream: ByteStream) -> bytes:
    received = BufferedByteReceiveStream(stream)
    head = await received.receive_until(b"\r\n\r\n", 65536) + b"\r\n\r\n"
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head + await received.receive_exactly(int(line.partition(b":")[2]))
    return head


async def unused_address() -> str:
    """Return an address that is not in use."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        return f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
