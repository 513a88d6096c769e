"""A scripted broker for tests of clients, without sockets.

Connections to a ``ScriptedBroker`` are in memory, and the test sends each of its answers. No test waits for time to
pass: ``settle`` lets all other tasks run until they wait, and trio's test clock in ``BACKENDS`` jumps to the next
deadline when all tasks wait.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream
from trio.testing import MockClock

from nsqkit.broker.server import Nsqd
from nsqkit.errors import BrokerError
from nsqkit.transport.memory import memory_pair
from nsqkit.wire.bodies import parse_int32
from nsqkit.wire.commands import MAGIC_V2
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message

BACKENDS = [
    pytest.param("asyncio", id="asyncio"),
    pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio"),
]
"""Parameters of ``anyio_backend`` for tests without sockets, since trio's test clock does not wait for a socket."""

ADDRESS = "nsqd:4150"
WAIT_LIMIT = 60.0
"""Seconds after which a test fails."""


async def settle() -> None:
    """Let all other tasks run until each waits for the test."""
    # On asyncio the last call sleeps for 0.1 s if a task can still run; after the loop there is mostly none.
    for _ in range(30):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


def dialler(nsqd: Nsqd) -> Callable[[str], Awaitable[ByteStream]]:
    """Return a ``dial`` that connects to ``nsqd`` without sockets, for any address."""

    async def dial(address: str) -> ByteStream:
        await anyio.lowlevel.checkpoint()
        return nsqd.connect(address)

    return dial


class ScriptedBroker:
    """Accepts the connections that ``dial`` makes, and gives the test the broker's ends.

    Attributes:
        dial_count: the number of calls of ``dial``.
        refusal: raised by ``dial`` while it is set.
        hanging: while True, ``dial`` does not return.
    """

    def __init__(self) -> None:
        self.dial_count = 0
        self.refusal: Exception | None = None
        self.hanging = False
        self._peers: list[Peer] = []
        self._dialled = anyio.Event()

    async def dial(self, address: str) -> ByteStream:
        """Connect, as ``Dial`` does."""
        await anyio.lowlevel.checkpoint()
        self.dial_count += 1
        if self.hanging:
            await anyio.sleep_forever()
        if self.refusal is not None:
            raise self.refusal
        theirs, ours = memory_pair()
        self._peers.append(Peer(ours))
        self._dialled.set()
        return theirs

    async def accept(self) -> Peer:
        """Return the broker's end of the next connection."""
        with anyio.fail_after(WAIT_LIMIT):
            while not self._peers:
                self._dialled = anyio.Event()
                await self._dialled.wait()
        return self._peers.pop(0)

    async def close(self) -> None:
        """Close the connections that were not accepted."""
        while self._peers:
            await self._peers.pop().close()

    async def handshake(self, **answer: Any) -> Peer:
        """Return the next connection after answering IDENTIFY."""
        peer = await self.accept()
        await peer.handshake(**answer)
        return peer

    async def subscribe(self, **answer: Any) -> Peer:
        """Return the next connection after answering IDENTIFY and SUB."""
        peer = await self.handshake(**answer)
        assert (await peer.line()).startswith(b"SUB ")
        await peer.send(OK_FRAME)
        return peer


class Peer:
    """The broker's end of one connection.

    Attributes:
        identity: the body of IDENTIFY.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.identity: dict[str, Any] = {}
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)

    # ---- receiving ----

    async def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        with anyio.fail_after(WAIT_LIMIT):
            return await self._received.receive_exactly(size)

    async def line(self) -> bytes:
        """Return the next command without its newline."""
        with anyio.fail_after(WAIT_LIMIT):
            return await self._received.receive_until(b"\n", 1000)

    async def body(self) -> bytes:
        """Return the body of a command, after its line."""
        return await self.take(parse_int32(await self.take(4)))

    async def command(self) -> tuple[bytes, bytes]:
        """Return line and body of the next command."""
        return await self.line(), await self.body()

    async def receive(self) -> bytes:
        """Return the next data, of any length; ``b""`` at the end."""
        try:
            return await self._received.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    async def wait_end(self) -> None:
        """Return when the client closes its direction, without further data."""
        with anyio.fail_after(WAIT_LIMIT), pytest.raises((anyio.EndOfStream, anyio.IncompleteRead)):
            raise AssertionError(await self._received.receive_exactly(1))

    # ---- sending ----

    async def handshake(self, **answer: Any) -> None:
        """Read the magic and IDENTIFY, and send the answer."""
        assert await self.take(4) == MAGIC_V2
        line, body = await self.command()
        assert line == b"IDENTIFY"
        self.identity = json.loads(body)
        await self.send(encode_response(json.dumps(answer).encode()))

    async def send(self, *frames: bytes | BrokerError) -> None:
        """Send frames, or any bytes, in one write; an error is encoded."""
        data = b"".join(f if isinstance(f, bytes) else encode_error(f) for f in frames)
        with anyio.fail_after(WAIT_LIMIT):
            await self._stream.send(data)

    async def deliver(self, *numbers: int, attempts: int = 1) -> None:
        """Send messages made by ``encode_numbered``."""
        await self.send(encode_numbered(*numbers, attempts=attempts))

    async def dismiss(self) -> None:
        """Answer CLS."""
        await self.send(CLOSE_WAIT_FRAME)

    async def close(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def message_id(number: int) -> bytes:
    """Return the id of message ``number``."""
    return b"%016x" % number


def body_of(number: int) -> bytes:
    """Return the body of message ``number``."""
    return b"body %d" % number


def encode_numbered(*numbers: int, attempts: int = 1) -> bytes:
    """Return the frames of messages with ids and bodies by ``message_id`` and ``body_of``."""
    return b"".join(encode_message(0, attempts, message_id(n), body_of(n)) for n in numbers)
