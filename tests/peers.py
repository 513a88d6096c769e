"""Whom the clients of a test talk to, without sockets: a broker that says what the test tells it.

The rule it guards: no test waits for time to pass. A ``ScriptedBroker`` is dialled in memory and answers when the test
says so; ``settle`` lets everybody else run until only the test can go on; and on trio the clock of ``BACKENDS`` jumps
to the next deadline as soon as nothing else is left to do, so that timeouts of any length take no time.

How to read it: ``BACKENDS`` and ``settle``, then the broker, then one of its connections, ``Peer``.
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
"""What to parametrize ``anyio_backend`` with where no socket is used: the clock would not wait for one."""

ADDRESS = "nsqd:4150"
WAIT_LIMIT = 60.0
"""Seconds after which something that has to happen at once has not happened."""


async def settle() -> None:
    """Let all other tasks run until each waits for something that only the test can bring about."""
    # On asyncio the function below sleeps for 0.1 s when it finds a task that could run; mostly there is none then.
    for _ in range(30):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


def dialler(nsqd: Nsqd) -> Callable[[str], Awaitable[ByteStream]]:
    """Return a ``dial`` that reaches ``nsqd`` without sockets, whatever the address."""

    async def dial(address: str) -> ByteStream:
        await anyio.lowlevel.checkpoint()
        return nsqd.connect(address)

    return dial


class ScriptedBroker:
    """Takes the connections that ``dial`` makes and hands their far ends to the test.

    Attributes:
        dial_count: how often it was dialled.
        refusal: raised by ``dial`` while it is set.
        hanging: while True, ``dial`` never comes back.
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
        """Return the far end of the next connection."""
        with anyio.fail_after(WAIT_LIMIT):
            while not self._peers:
                self._dialled = anyio.Event()
                await self._dialled.wait()
        return self._peers.pop(0)

    async def close(self) -> None:
        """Close the connections that nobody has accepted."""
        while self._peers:
            await self._peers.pop().close()

    async def handshake(self, **answer: Any) -> Peer:
        """Return the next connection, after IDENTIFY was answered."""
        peer = await self.accept()
        await peer.handshake(**answer)
        return peer

    async def subscribe(self, **answer: Any) -> Peer:
        """Return the next connection, after SUB was answered, too."""
        peer = await self.handshake(**answer)
        assert (await peer.line()).startswith(b"SUB ")
        await peer.send(OK_FRAME)
        return peer


class Peer:
    """The broker's end of one connection.

    Attributes:
        identity: what the client said of itself in IDENTIFY.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.identity: dict[str, Any] = {}
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)

    # ---- what the client says ----

    async def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        with anyio.fail_after(WAIT_LIMIT):
            return await self._received.receive_exactly(size)

    async def line(self) -> bytes:
        """Return the next command without its newline."""
        with anyio.fail_after(WAIT_LIMIT):
            return await self._received.receive_until(b"\n", 1000)

    async def body(self) -> bytes:
        """Return what follows the line of a command that has a body."""
        return await self.take(parse_int32(await self.take(4)))

    async def command(self) -> tuple[bytes, bytes]:
        """Return line and body of the next command, one that has a body."""
        return await self.line(), await self.body()

    async def receive(self) -> bytes:
        """Return whatever comes next, of any length; nothing at the end."""
        try:
            return await self._received.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    async def wait_end(self) -> None:
        """Return when the client says that it sends no more, and has said nothing else."""
        with anyio.fail_after(WAIT_LIMIT), pytest.raises((anyio.EndOfStream, anyio.IncompleteRead)):
            raise AssertionError(await self._received.receive_exactly(1))

    # ---- what the broker says ----

    async def handshake(self, **answer: Any) -> None:
        """Read the magic and IDENTIFY, and answer it."""
        assert await self.take(4) == MAGIC_V2
        line, body = await self.command()
        assert line == b"IDENTIFY"
        self.identity = json.loads(body)
        await self.send(encode_response(json.dumps(answer).encode()))

    async def send(self, *frames: bytes | BrokerError) -> None:
        """Send frames, or whatever bytes, in one write; an error is encoded."""
        data = b"".join(f if isinstance(f, bytes) else encode_error(f) for f in frames)
        with anyio.fail_after(WAIT_LIMIT):
            await self._stream.send(data)

    async def deliver(self, *numbers: int, attempts: int = 1) -> None:
        """Send messages, as ``encode_numbered`` makes them."""
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
    """Return the frames of messages; number n has the id and the body that the two functions above say."""
    return b"".join(encode_message(0, attempts, message_id(n), body_of(n)) for n in numbers)
