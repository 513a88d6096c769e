"""Publishers and consumers of one broker, each with one connection at a time, which record all they do.

A consumer's FINs are confirmed by a barrier: the refusal of a FIN for an id that no message has.
"""

from __future__ import annotations

import zlib
from collections import deque
from random import Random
from typing import Final

import anyio

from tests.jepsen.client import ERROR, MESSAGE, Client, Frame, Lost, connection, publish_command
from tests.jepsen.process import TOPIC, BrokerProcess
from tests.jepsen.run import Run
from tests.jepsen.wire import Wire

OUTSTANDING_MAX: Final = 32
DELAY_MAX_MS: Final = 1500
RECONNECT_S: Final = 0.1
ANSWERS_LIMIT_S: Final = 10.0

BARRIER: Final = "no-such-message!"

BODY: Final = "{name}.{number}.{checksum:08x}{padding}"
"""The checksum is of the name and the number, so that a body that was cut or mixed is unknown to the checker."""


def make_body(name: str, number: int, random: Random) -> str:
    """Return a body that no other message of the run has."""
    checksum = zlib.crc32(f"{name}.{number}".encode())
    return BODY.format(name=name, number=number, checksum=checksum, padding=random.choice(["", "." * 20, "." * 300]))


class Publisher:
    """Publishes at a rate until the faults are over.

    Args:
        run: the run.
        broker: the number of its broker.
        wire: the path to it.
        name: of the publisher, unique in the run.
        rate: messages a second.
        random: decides what it publishes.
    """

    def __init__(self, run: Run, broker: int, wire: Wire, name: str, rate: float, random: Random) -> None:
        self._run = run
        self._broker = broker
        self._wire = wire
        self._name = name
        self._rate = rate
        self._random = random
        self._number = 0
        self._outstanding: deque[list[str]] = deque()

    async def work(self) -> None:
        """Publish over one connection after the other."""
        while not self._run.calm.is_set():
            try:
                async with connection(self._wire.port) as client, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_answers, client)
                    await self._publish(client)
            except* Lost:
                pass
            for bodies in self._outstanding:
                self._end(bodies, "info")
            self._outstanding.clear()
            await self._run.wait(RECONNECT_S)

    async def _publish(self, client: Client) -> None:
        while not self._run.calm.is_set():
            if len(self._outstanding) < OUTSTANDING_MAX:
                count, delay_ms = self._random.choice(
                    [(1, 0)] * 6 + [(4, 0), (1, self._random.randrange(DELAY_MAX_MS))]
                )
                bodies = [self._next_body() for _ in range(count)]
                for body in bodies:
                    self._run.publishing(self._broker, body)
                self._outstanding.append(bodies)
                await client.send(publish_command(TOPIC, [body.encode() for body in bodies], delay_ms))
            await self._run.wait(self._random.expovariate(self._rate / 1.4))
        with anyio.move_on_after(ANSWERS_LIMIT_S):
            while self._outstanding:
                await self._run.pause(0.05)
        raise Lost

    def _next_body(self) -> str:
        self._number += 1
        return make_body(self._name, self._number, self._random)

    async def _read_answers(self, client: Client) -> None:
        while True:
            for frame in await client.receive():
                if not self._outstanding:
                    raise Lost  # an error that belongs to no publish
                self._answered(self._outstanding.popleft(), frame)

    def _answered(self, bodies: list[str], frame: Frame) -> None:
        # A part of an MPUB may be stored though it is refused, and so may a message whose commit has failed.
        is_refused = frame.kind == ERROR and frame.payload.startswith((b"E_PUB_FAILED", b"E_DPUB_FAILED"))
        if frame.payload == b"OK":
            self._end(bodies, "ok")
        else:
            self._end(bodies, "fail" if is_refused else "info", frame.payload.decode("latin-1"))

    def _end(self, bodies: list[str], kind: str, text: str = "") -> None:
        for body in bodies:
            self._run.published(body, kind, text)


class Consumer:
    """Consumes from one channel until the run is over.

    Args:
        run: the run.
        broker: the number of its broker.
        process: the broker.
        wire: the path to it.
        channel: its channel.
        random: decides how it answers.
    """

    def __init__(self, run: Run, broker: int, process: BrokerProcess, wire: Wire, channel: str, random: Random) -> None:
        self._run = run
        self._broker = broker
        self._process = process
        self._wire = wire
        self._channel = channel
        self._random = random

    async def work(self) -> None:
        """Consume over one connection after the other, each of a drawn duration."""
        while not self._run.over.is_set():
            life = self._process.life
            try:
                async with connection(self._wire.port) as client:
                    await client.send(f"SUB {TOPIC} {self._channel}\n".encode())
                    frames = await client.expect_ok()
                    if self._process.life == life:
                        await self._consume(client, life, frames)
            except* Lost:
                pass
            await self._run.pause(RECONNECT_S)

    async def _consume(self, client: Client, life: int, frames: list[Frame]) -> None:
        rdy = self._random.choice([1, 5, 20, 50])
        number = self._run.new_connection()
        fields = {"broker": self._broker, "channel": self._channel, "life": life, "count": rdy}
        self._run.record("subscribe", connection=number, **fields)
        async with anyio.create_task_group() as tasks:
            subscription = _Subscription(self._run, client, number, self._channel, self._random, tasks)
            await client.send(b"RDY %d\n" % rdy)
            seconds = 3600.0 if self._run.calm.is_set() else self._random.uniform(2, 60)
            with anyio.move_on_after(seconds):
                while True:
                    await subscription.act_on(frames)
                    frames = await client.receive()
            tasks.cancel_scope.cancel()


class _Subscription:
    """One connection of a consumer: which messages it holds, and which FINs the broker has processed."""

    def __init__(
        self, run: Run, client: Client, number: int, channel: str, random: Random, tasks: anyio.abc.TaskGroup
    ) -> None:
        self._run = run
        self._client = client
        self._number = number
        self._channel = channel
        self._random = random
        self._tasks = tasks
        self._held: dict[str, str] = {}
        self._finished: deque[tuple[str, str]] = deque()
        self._finish_count = 0
        self._barriers: deque[int] = deque()

    async def act_on(self, frames: list[Frame]) -> None:
        """Act on frames; answer most messages at once."""
        finishes: list[str] = []
        for frame in frames:
            if frame.kind == MESSAGE:
                body = frame.payload.decode("latin-1")
                self._run.delivering(self._number, body, frame.id, frame.attempt)
                self._held[frame.id] = body
                match 0 if self._run.calm.is_set() else self._random.randrange(50):
                    case 1 | 2:
                        await self._requeue(frame.id)
                    case 3:
                        self._tasks.start_soon(self._hold, frame.id)
                    case 4:
                        pass  # it times out
                    case _:
                        finishes.append(frame.id)
            elif frame.kind == ERROR:
                self._refused(frame.payload)
        await self._finish(finishes)

    async def _finish(self, message_ids: list[str]) -> None:
        commands = []
        for message_id in message_ids:
            body = self._held.pop(message_id, None)
            if body is not None:
                self._run.finishing(self._number, self._channel, body, message_id)
                self._finished.append((message_id, body))
                self._finish_count += 1
                commands.append(b"FIN %s\n" % message_id.encode("latin-1"))
        if commands:
            self._barriers.append(self._finish_count)
            await self._client.send(*commands, f"FIN {BARRIER}\n".encode())

    async def _requeue(self, message_id: str) -> None:
        del self._held[message_id]
        self._run.record("requeue", connection=self._number, id=message_id)
        delay_ms = self._random.choice([0, 0, 100, 500])
        await self._client.send(f"REQ {message_id} {delay_ms}\n".encode("latin-1"))

    async def _hold(self, message_id: str) -> None:
        await self._run.pause(self._random.uniform(0, 2))
        await self._client.send(b"TOUCH %s\n" % message_id.encode("latin-1"))
        await self._run.pause(self._random.uniform(0, 2))
        await self._finish([message_id])

    def _refused(self, payload: bytes) -> None:
        verb, _, rest = payload.partition(b" ")
        if verb not in {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"}:
            raise Lost
        message_id = rest.split(b" ")[1].decode("latin-1")
        if message_id == BARRIER:
            count = self._barriers.popleft()
            self._run.record("confirm", connection=self._number, count=count)
            while self._finish_count - len(self._finished) < count:
                self._finished.popleft()
        elif verb == b"E_FIN_FAILED":
            body = next(body for finished, body in self._finished if finished == message_id)
            self._run.refused(self._number, self._channel, body, message_id)
