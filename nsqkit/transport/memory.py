"""A pair of connected byte streams without sockets.

They behave as a connection: bytes in order, no message boundaries, an end of stream when the other side closes, and a
sender that waits while the other side does not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ByteStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

BUFFERED_WRITES_MAX = 16
"""Writes that one side can do before the other side reads."""


class MemoryByteStream(ByteStream):
    """One end of the pair."""

    def __init__(self, send: MemoryObjectSendStream[bytes], receive: MemoryObjectReceiveStream[bytes]) -> None:
        self._send = send
        self._receive = receive
        self._rest = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = self._rest or await self._receive.receive()
        self._rest = data[max_bytes:]
        return data[:max_bytes]

    async def send(self, item: bytes) -> None:
        if item:
            await self._send.send(bytes(item))

    async def send_eof(self) -> None:
        await self._send.aclose()

    async def aclose(self) -> None:
        await self._send.aclose()
        await self._receive.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


def memory_pair() -> tuple[MemoryByteStream, MemoryByteStream]:
    """Return two streams; bytes sent into one are received from the other."""
    send_a, receive_b = anyio.create_memory_object_stream[bytes](BUFFERED_WRITES_MAX)
    send_b, receive_a = anyio.create_memory_object_stream[bytes](BUFFERED_WRITES_MAX)
    return MemoryByteStream(send_a, receive_a), MemoryByteStream(send_b, receive_b)
