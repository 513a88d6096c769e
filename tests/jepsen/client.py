"""One connection to a broker, with an encoding of its own: the checker must not depend on nsqkit's clients."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs
from anyio.abc import SocketStream

ERROR: Final = 1
MESSAGE: Final = 2

SILENCE_LIMIT_S: Final = 4.0
"""A broker that sends nothing for so long is taken for gone; it sends a heartbeat each second."""


class Lost(Exception):
    """The connection is closed, or silent."""


@attrs.frozen
class Frame:
    """A frame; ``payload`` of a message is its body."""

    kind: int
    payload: bytes
    id: str = ""
    attempt: int = 0


class Client:
    """A connection after IDENTIFY."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._buffer = b""
        self._sending = anyio.Lock()

    async def send(self, *commands: bytes) -> None:
        """Send commands in one write.

        Raises:
            Lost: the connection is lost, or the broker reads nothing.
        """
        try:
            with anyio.fail_after(SILENCE_LIMIT_S):
                async with self._sending:
                    await self._stream.send(b"".join(commands))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError) as error:
            raise Lost from error

    async def receive(self) -> list[Frame]:
        """Return the next frames, of one read or more; heartbeats are answered and left out.

        Raises:
            Lost: the connection is lost, or the broker sends nothing.
        """
        try:
            with anyio.fail_after(SILENCE_LIMIT_S):
                self._buffer += await self._stream.receive()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, TimeoutError) as error:
            raise Lost from error
        frames = self._whole_frames()
        if beats := [frame for frame in frames if frame.payload == b"_heartbeat_" and frame.kind == 0]:
            await self.send(b"NOP\n" * len(beats))
        return [frame for frame in frames if frame not in beats]

    def _whole_frames(self) -> list[Frame]:
        frames, start = [], 0
        while len(self._buffer) >= start + 8:
            size, kind = struct.unpack_from(">ii", self._buffer, start)
            end = start + 4 + size
            if end > len(self._buffer):
                break
            payload = self._buffer[start + 8 : end]
            start = end
            if kind == MESSAGE:
                _, attempt, message_id = struct.unpack_from(">qH16s", payload)
                frames.append(Frame(kind, payload[26:], message_id.decode("latin-1"), attempt))
            else:
                frames.append(Frame(kind, payload))
        self._buffer = self._buffer[start:]
        return frames

    async def expect_ok(self) -> list[Frame]:
        """Read the answer to a command, which is not a publish; return the frames that came with it."""
        while not (frames := await self.receive()):
            pass
        if frames[0].payload != b"OK":
            raise Lost
        return frames[1:]


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def publish_command(topic: str, bodies: Sequence[bytes], delay_ms: int) -> bytes:
    """Return PUB, MPUB for several bodies, or DPUB with a delay."""
    if delay_ms:
        return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(bodies[0])
    if len(bodies) == 1:
        return b"PUB %s\n" % topic.encode() + sized(bodies[0])
    batch = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB %s\n" % topic.encode() + sized(batch)


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Client]:
    """Connect, and identify.

    Raises:
        Lost: it cannot connect, or the connection is lost during the block.
    """
    try:
        with anyio.fail_after(SILENCE_LIMIT_S):
            stream = await anyio.connect_tcp("127.0.0.1", port)
    except (OSError, TimeoutError) as error:
        raise Lost from error
    try:
        client = Client(stream)
        document = json.dumps({"heartbeat_interval": 1000, "output_buffer_timeout": 25}).encode()
        await client.send(b"  V2", b"IDENTIFY\n" + sized(document))
        await client.expect_ok()
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
