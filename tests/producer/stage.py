"""Helpers for the tests of the producer: calls in separate tasks, pools, and a broker with prepared answers.

No test waits for real time; see ``tests.peers``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream

from nsqkit import Producer
from nsqkit.clock import ManualClock
from nsqkit.errors import BrokerError, NSQError
from nsqkit.wire.commands import MAGIC_V2, CommandDecoder
from nsqkit.wire.frames import OK_FRAME
from tests.peers import WAIT_LIMIT, Peer, ScriptedBroker, settle
from tests.rules import AllowAll


class Call:
    """One call in a separate task, and its outcome."""

    def __init__(self) -> None:
        self.done = False
        self.error: NSQError | None = None
        self._end = anyio.Event()

    async def run(self, function: Any, *args: Any) -> None:
        try:
            await function(*args)
        except NSQError as error:
            self.error = error
        self.done = True
        self._end.set()

    async def wait(self) -> None:
        with anyio.fail_after(WAIT_LIMIT):
            await self._end.wait()

    @property
    def succeeded(self) -> bool:
        return self.done and self.error is None


class Pool:
    """A producer of several nsqds, each a ``ScriptedBroker``."""

    def __init__(self, producer: Producer, brokers: list[ScriptedBroker], clock: ManualClock) -> None:
        self.producer = producer
        self.brokers = brokers
        self.clock = clock

    async def handshake(self) -> list[Peer]:
        peers = [await broker.handshake() for broker in self.brokers]
        await settle()
        return peers


@asynccontextmanager
async def pool(count: int, **options: Any) -> AsyncIterator[Pool]:
    """Run a producer of ``count`` nsqds; at the end their connections are closed, before it is left."""
    brokers = {f"nsqd-{n}:4150": ScriptedBroker() for n in range(count)}
    peers: list[Peer] = []

    async def dial(address: str) -> ByteStream:
        stream = await brokers[address].dial(address)
        peers.append(brokers[address]._peers[-1])
        return stream

    clock = ManualClock()
    async with Producer(*brokers, dial=dial, clock=clock, **options) as producer:
        try:
            yield Pool(producer, [*brokers.values()], clock)
        finally:
            for broker in brokers.values():
                broker.hanging = True
            with anyio.CancelScope(shield=True):
                for peer in peers:
                    await peer.close()


@asynccontextmanager
async def advancing(clock: ManualClock, seconds: float) -> AsyncIterator[None]:
    """Advance the clock when the block waits for something."""

    async def advance() -> None:
        await settle()
        clock.advance(seconds)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(advance)
        yield


class PlayingBroker:
    """Takes connections one after the other, and answers commands with ``answer``.

    Attributes:
        arrived: topic and body of every message, in order of arrival.
        command_count: the number of commands.
    """

    def __init__(self) -> None:
        self.arrived: list[tuple[bytes, bytes]] = []
        self.command_count = 0
        self.broker = ScriptedBroker()

    def answer(self, topic: bytes, bodies: list[bytes]) -> bytes | BrokerError | None:
        """Return the answer to a command; None to close the connection."""
        return OK_FRAME

    async def run(self) -> None:
        while True:
            try:
                peer = await self.broker.accept()
            except TimeoutError:
                continue
            await self._serve(peer)

    async def _serve(self, peer: Peer) -> None:
        decoder = CommandDecoder(AllowAll(), max_msg_size=1 << 20, max_body_size=5 << 20)
        assert list(decoder.feed(MAGIC_V2)) == []
        async with peer:
            await peer.handshake()
            while data := await peer.receive():
                for command in decoder.feed(data):
                    many = [command.bodies] if command.verb == b"MPUB" else [(b,) for b in command.bodies]
                    for bodies in many:
                        topic = command.params[0]
                        self.command_count += 1
                        self.arrived += [(topic, body) for body in bodies]
                        answer = self.answer(topic, list(bodies))
                        if answer is None:
                            return
                        await peer.send(answer)
