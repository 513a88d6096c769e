"""The pool behind a producer: it starts and ends every connection and task.

The end waits ``DRAIN_TIMEOUT`` for answers, then gives brokers ``CLOSE_TIMEOUT`` to read the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from nsqkit.client.connection import Connection, Dial
from nsqkit.client.reconnect import Reconnect
from nsqkit.client.task_scope import TaskScope
from nsqkit.clock import NS_PER_S, Clock, move_on_after
from nsqkit.producer.linger import Linger
from nsqkit.producer.policy import POLICIES
from nsqkit.producer.pool_connection import PoolConnection
from nsqkit.producer.publisher import Publisher
from nsqkit.producer.send_window import SendWindow
from nsqkit.producer.session import ProducerSession

if TYPE_CHECKING:
    from random import Random

    from nsqkit.loop_thread.one_shot import OneShot
    from nsqkit.producer.options import ProducerOptions
    from nsqkit.wire.identify import IdentifyRequest

DRAIN_TIMEOUT = 5.0
"""Seconds that brokers have to answer the publishes before the end."""

CLOSE_TIMEOUT = 1.0
"""Seconds that they have, after that, to read the sent bytes."""


class Pool:
    """Connections to all nsqds of a producer, from ``start`` to ``end``; create it inside the event loop."""

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
        self.clock = clock
        self._dial = dial
        self._random = random
        size_max = options.max_outstanding_bytes
        self._window: SendWindow[OneShot[None]] | None = SendWindow(size_max) if size_max else None
        self._connections = [self._connect(address) for address in addresses]
        self._tasks = TaskScope()
        self.publisher = Publisher(
            self._connections,
            POLICIES[options.policy](random),
            clock=clock,
            window=self._window,
            attempts=options.publish_attempts,
            connect_timeout=options.connect_timeout,
        )

    async def start(self) -> None:
        """Start to connect."""
        await self._tasks.start()
        for connection in self._connections:
            for task in connection.tasks:
                self.start_soon(task)
        if self._options.linger:
            self.start_soon(self.publisher.resend)

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a function in a task until the end; callbacks of the event loop may call this, too."""
        self._tasks.start_soon(task)

    async def end(self, *exc_info: Any) -> bool | None:
        """Accept no more, wait for answers and close; return what ``__aexit__`` has to return."""
        self.publisher.close()
        with move_on_after(self.clock, DRAIN_TIMEOUT, shield=True):
            await self.publisher.drain()  # messages of a refused batch are sent again, on a new connection
        for connection in self._connections:
            connection.connection.stop()
        leaving = [connection for connection in self._connections if connection.close()]
        with move_on_after(self.clock, CLOSE_TIMEOUT, shield=True):
            while any(connection.connection.is_running for connection in leaving):
                await self.publisher.wait_change()
        return await self._tasks.end(*exc_info)

    def _connect(self, address: str) -> PoolConnection:
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
            )

        connection = Connection(
            address,
            make_session,
            clock=self.clock,
            dial=self._dial,
            dial_timeout=options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=lambda *_: self.publisher.on_change(pool_connection),
        )
        pool_connection = PoolConnection(connection, linger, self.clock, self._window)
        return pool_connection
