"""The pool behind a producer: made when the producer is entered, ended when it is left.

The rule it guards: every task and connection of a producer begins and ends here. The end gives answers that somebody
waits for some time, then brokers some time to take what was said, and then it is the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from nsqkit.client.connection import Connection, Dial
from nsqkit.client.reconnect import Reconnect
from nsqkit.client.task_scope import TaskScope
from nsqkit.clock import NS_PER_S, Clock
from nsqkit.producer.linger import Linger
from nsqkit.producer.policy import POLICIES
from nsqkit.producer.pool_connection import PoolConnection
from nsqkit.producer.publisher import Publisher
from nsqkit.producer.send_window import SendWindow
from nsqkit.producer.session import ProducerSession
from nsqkit.producer.waiter import waiter_factory

if TYPE_CHECKING:
    from random import Random
    from types import TracebackType

    from nsqkit.producer.options import ProducerOptions
    from nsqkit.wire.identify import IdentifyRequest

DRAIN_TIMEOUT = 5.0
"""Seconds that brokers have to answer what was published before the end."""

CLOSE_TIMEOUT = 1.0
"""Seconds that they have, after that, to take what was said."""


class Pool:
    """Connections to all nsqds of a producer, from ``start`` to ``end``; to be made inside the event loop.

    Args:
        addresses: of the nsqds.
        options: of the producer.
        identity: what is told and asked in IDENTIFY.
        clock: the time.
        dial: how to reach an address.
        random: draws delays and, if the policy wants it, nsqds.

    Attributes:
        publisher: brings publishes to their answers.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        options: ProducerOptions,
        identity: IdentifyRequest,
        *,
        clock: Clock,
        dial: Dial,
        random: Random,
    ) -> None:
        self._options = options
        self._identity = identity
        self._clock = clock
        self._dial = dial
        self._random = random
        size_max = options.max_outstanding_bytes
        self._outstanding = SendWindow(size_max) if size_max else None
        self._destinations = [self._make_destination(address) for address in addresses]
        self._tasks = TaskScope()
        self.publisher = Publisher(
            self._destinations,
            POLICIES[options.policy](random),
            make_waiter=waiter_factory(),
            outstanding=self._outstanding,
            attempts=options.publish_attempts,
            connect_timeout=options.connect_timeout,
        )

    async def start(self) -> None:
        """Begin to connect."""
        await self._tasks.start()
        for destination in self._destinations:
            for task in destination.tasks:
                self._tasks.start_soon(task)
        if self._options.linger:
            self._tasks.start_soon(self.publisher.keep_sending_again)

    async def end(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Take no more, wait for answers, say good-bye; return what ``__aexit__`` has to return."""
        self.publisher.close()
        with anyio.move_on_after(DRAIN_TIMEOUT, shield=True):
            await self.publisher.drain()  # what was refused in a batch goes again, on a new connection
        for destination in self._destinations:
            destination.connection.stop()
        leaving = [destination for destination in self._destinations if destination.say_goodbye()]
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            while any(destination.connection.is_running for destination in leaving):
                await self.publisher.wait_change()
        return await self._tasks.end(exc_type, exc, traceback)

    def _make_destination(self, address: str) -> PoolConnection:
        options = self._options
        linger = None
        if options.linger:
            linger = Linger(
                linger_ns=round(options.linger * NS_PER_S),
                count_max=options.linger_max_messages,
                size_max=options.batch_size_max,
            )

        def make_session(now_ns: int) -> ProducerSession:
            return ProducerSession(
                self._identity,
                read_timeout_ns=round(options.read_timeout * NS_PER_S),
                max_msg_size=options.max_msg_size,
                now_ns=now_ns,
                linger=linger,
                outstanding=self._outstanding,
            )

        connection = Connection(
            address,
            make_session,
            clock=self._clock,
            dial=self._dial,
            dial_timeout=options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=self._on_change,
        )
        return PoolConnection(connection, linger, self._clock, self._outstanding)

    def _on_change(self, connection: Connection[ProducerSession]) -> None:
        self.publisher.on_change()
