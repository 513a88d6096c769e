"""The path of clients to one broker: a proxy of bytes that loses, delays and slices them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import anyio
import attrs
from anyio.abc import ByteStream, SocketAttribute, SocketStream

TO_BROKER: Final = "to broker"
TO_CLIENT: Final = "to client"

UNLIMITED: Final = 1 << 62
SLICED_MAX: Final = 200
"""Bytes of a read that are sent in slices; the rest goes in one write."""


@attrs.define(eq=False)
class Carried:
    """One connection.

    Attributes:
        left: the number of bytes until it is cut.
        mute: directions in which bytes disappear.
        scope: ends it.
    """

    left: int = UNLIMITED
    mute: set[str] = attrs.field(factory=set)
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)


class Wire:
    """A proxy in front of one broker.

    Args:
        port: the broker's.
        random: decides about bytes.

    Attributes:
        port: where clients connect.
    """

    def __init__(self, port: int, random: Random) -> None:
        self.port = 0
        self._broker_port = port
        self._random = random
        self._carried: set[Carried] = set()
        self._open = {TO_BROKER: anyio.Event(), TO_CLIENT: anyio.Event()}
        self._is_slicing = False
        self.heal()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Wire]:
        """Accept connections during the block."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        async with listener, anyio.create_task_group() as tasks:
            self.port = listener.extra(SocketAttribute.local_port)
            tasks.start_soon(listener.serve, self._carry)
            yield self
            tasks.cancel_scope.cancel()

    def cut(self) -> None:
        """End each connection after a few more bytes, often in the middle of a frame."""
        for carried in self._carried:
            carried.left = self._random.randrange(200)

    def half_open(self, *directions: str) -> None:
        """Lose all further bytes of the present connections, without their ends noticing."""
        for carried in self._carried:
            carried.mute.update(directions)

    def stall(self, *directions: str) -> None:
        """Keep all bytes until ``heal``."""
        for direction in directions:
            self._open[direction] = anyio.Event()

    def slice(self) -> None:
        """Send the beginning of each read in small pieces until ``heal``."""
        self._is_slicing = True

    def heal(self) -> None:
        """End the faults; half-open connections remain so until their ends give up."""
        self._is_slicing = False
        for event in self._open.values():
            event.set()

    async def _carry(self, client: SocketStream) -> None:
        try:
            broker = await anyio.connect_tcp("127.0.0.1", self._broker_port)
        except OSError:
            await client.aclose()
            return
        carried = Carried()
        self._carried.add(carried)
        try:
            with carried.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._copy, client, broker, carried, TO_BROKER)
                    tasks.start_soon(self._copy, broker, client, carried, TO_CLIENT)
        finally:
            self._carried.discard(carried)
            with anyio.CancelScope(shield=True):
                await client.aclose()
                await broker.aclose()

    async def _copy(self, source: ByteStream, target: ByteStream, carried: Carried, direction: str) -> None:
        try:
            async for data in source:
                await self._open[direction].wait()
                if direction in carried.mute:
                    continue
                await self._send(target, data[: carried.left])
                carried.left -= len(data)
                if carried.left <= 0:
                    break
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if not carried.mute:  # otherwise not even the end of a connection is noticed
            carried.scope.cancel()

    async def _send(self, target: ByteStream, data: bytes) -> None:
        sliced = min(len(data), SLICED_MAX) if self._is_slicing else 0
        start = 0
        while start < sliced:
            end = min(start + self._random.randrange(1, 20), sliced)
            await target.send(data[start:end])
            start = end
        if start < len(data):
            await target.send(data[start:])
