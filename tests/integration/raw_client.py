"""A client that sends any bytes over TCP.

Tests compare the broker's whole answer: its frames in order, and whether it then closed the connection. The client
waits only for the next byte or the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.abc import ByteStream

from nsqkit.broker.server import Nsqd
from nsqkit.errors import BrokerError
from nsqkit.transport.tcp import connect
from nsqkit.wire.commands import MAGIC_V2
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response

Answer: TypeAlias = bytes | MessageFrame


class RawClient:
    """One connection: ``send`` bytes, read frames."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()
        self._answers: list[Answer] = []

    async def send(self, *data: bytes) -> None:
        """Send bytes in one write."""
        await self._stream.send(b"".join(data))

    async def send_eof(self) -> None:
        """Send nothing more; the answers can still be read."""
        await self._stream.send_eof()

    async def answer(self) -> Answer:
        """Return the next frame: the payload of a response or an error, or a message.

        Raises:
            anyio.EndOfStream: the broker has closed the connection.
        """
        while not self._answers:
            self._answers += map(_answer, self._decoder.feed(await self._stream.receive()))
        return self._answers.pop(0)

    async def answers(self) -> list[Answer]:
        """Return all frames until the broker closes the connection."""
        answers = []
        try:
            while True:
                answers.append(await self.answer())
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            # It is a reset, not an end, if the broker has left some of the sent bytes unread.
            return answers

    async def is_alive(self) -> bool:
        """Return whether the broker still accepts commands from this client."""
        await self.send(b"PUB alive\n\0\0\0\1x")
        return await self.answer() == b"OK"


def _answer(frame: Response | BrokerError | MessageFrame) -> Answer:
    if isinstance(frame, Response):
        return frame.payload
    if isinstance(frame, BrokerError):
        return encode_error_text(frame)
    return frame


@asynccontextmanager
async def raw_client(nsqd: Nsqd, *, magic: bytes = MAGIC_V2) -> AsyncIterator[RawClient]:
    """Connect to a broker and send the magic."""
    async with await connect(nsqd.tcp_address) as stream:
        client = RawClient(stream)
        if magic:
            await client.send(magic)
        yield client
