"""Brokers and clients of one test, over TCP or memory.

A test states what happens, not how the bytes travel nor on which event loop. So each test runs over sockets and over
streams in memory. No test sleeps: the relevant time is a ``ManualClock``, the work of other tasks is awaited with
``until``, and a limit around each broker ends a wait that would never end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream, TaskStatus

from nsqkit import Consumer, Message, Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.transport.tcp import connect

FREE_PORT = "127.0.0.1:0"
TOPIC = "t"
CHANNEL = "c"
WAIT_LIMIT = 60.0
"""Seconds after which a test counts as stuck."""


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until ``condition`` holds."""
    while not condition():
        await anyio.lowlevel.checkpoint()


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Return the next ``count`` messages."""
    return [await anext(consumer) for _ in range(count)]


def bodies_of(messages: Sequence[Message]) -> list[bytes]:
    """Return the published messages."""
    return [message.body for message in messages]


def channel_of(nsqd: Nsqd, name: bytes = b"c") -> Channel:
    """Return a channel of the topic."""
    return nsqd.broker.topics[b"t"].channels[name]


def is_empty(channel: Channel) -> bool:
    """Return whether every message of the channel was finished."""
    return not (channel.queue or channel.deferred or channel.in_flight_count)


def consuming(nsqd: Nsqd) -> Subscription:
    """Return the subscription of the one consumer."""
    (subscription,) = channel_of(nsqd).subscriptions
    return subscription


class Stage:
    """Creates the brokers and clients of one test.

    Args:
        transport: ``tcp`` or ``memory``.

    Attributes:
        clock: the brokers' time, and that of clients which are created with it. Other clients use the real time, and
            reconnect after a millisecond.
    """

    def __init__(self, transport: str) -> None:
        self.clock = ManualClock()
        self._transport = transport
        self._nsqds: dict[str, Nsqd] = {}

    @asynccontextmanager
    async def broker(self, address: str = FREE_PORT, **options: Any) -> AsyncIterator[Nsqd]:
        """Run a broker."""
        flags = BrokerOptions(tcp_address=address, http_address="", **options)
        with anyio.fail_after(WAIT_LIMIT):
            async with Nsqd(flags, clock=self.clock) as nsqd:
                self._nsqds[nsqd.tcp_address] = nsqd
                yield nsqd

    async def run_broker(
        self, address: str, end: anyio.Event, *, task_status: TaskStatus[Nsqd] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a broker until ``end``, for ``TaskGroup.start``; it may end before its clients."""
        async with self.broker(address) as nsqd:
            task_status.started(nsqd)
            await end.wait()

    async def dial(self, address: str) -> ByteStream:
        """Connect, as ``Dial`` does."""
        if self._transport == "tcp":
            return await connect(address)
        await anyio.lowlevel.checkpoint()
        return self._nsqds[address].connect()

    def producer(self, nsqd: Nsqd, **options: Any) -> Producer:
        """Return a producer for ``nsqd``."""
        return Producer(nsqd.tcp_address, dial=self.dial, **self._defaults(options))

    def consumer(self, *nsqds: Nsqd, **options: Any) -> Consumer:
        """Return a consumer of the channel on all of ``nsqds``."""
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        options = {"max_in_flight": 10, **self._defaults(options)}
        return Consumer(TOPIC, CHANNEL, nsqd_tcp_addresses=addresses, dial=self.dial, **options)

    @staticmethod
    def _defaults(options: dict[str, Any]) -> dict[str, Any]:
        if "clock" in options:
            return options
        return {"reconnect_delay_min": 0.001, "reconnect_delay_max": 0.001, **options}
