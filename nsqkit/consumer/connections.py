"""The connections of a consumer: one to each wanted nsqd, and those that are being closed.

An address has one present connection. One that is being closed waits for its answers and CLOSE_WAIT for up to
``close_timeout``. Meanwhile a new connection to the same address may be opened.

Each connection runs in a task. After each buffer the events of its session are handed to the core
(``_on_connection_change``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import anyio
import attrs

from nsqkit.client.connection import Connection
from nsqkit.client.dialler import Dialler
from nsqkit.client.reconnect import Reconnect
from nsqkit.clock import NS_PER_S, Clock, move_on_after
from nsqkit.consumer.log import TopicLog
from nsqkit.consumer.nodes import Nodes
from nsqkit.consumer.session import ConsumerSession, Ended
from nsqkit.consumer.stats import ConnectionStats, MessageCounts

if TYPE_CHECKING:
    from random import Random

    from nsqkit.client.dialler import Dial
    from nsqkit.client.task_scope import TaskScope
    from nsqkit.consumer.confirmation import Confirmation, Confirming
    from nsqkit.consumer.subscription import Subscription
    from nsqkit.errors import NSQError

logger = logging.getLogger("nsqkit.client")

ConsumerConnection: TypeAlias = "Connection[ConsumerSession]"


class Connections:
    """The connections of one consumer.

    ``on_lost`` is called after a session has ended, ``on_failure`` after a permanent error that ends the consumer.
    """

    def __init__(
        self,
        subscription: Subscription,
        addresses: Iterable[str],
        *,
        dial: Dial | None,
        random: Random,
        on_lost: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._subscription = subscription
        self._core = subscription.core
        self._options = subscription.options
        self._nodes = Nodes(addresses, count_max=self._options.max_connections)
        self._dial = Dialler(self._options, dial)
        self._random = random
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._log = TopicLog(logger, subscription.log_fields)
        self._present: dict[str, ConsumerConnection] = {}
        self._leaving: dict[ConsumerConnection, None] = {}
        self._scopes: dict[ConsumerConnection, anyio.CancelScope] = {}
        self._tasks: TaskScope | None = None
        self._clock: Clock | None = None
        self._stopped = False
        self._changed = anyio.Event()

    # ---- which nsqds ---------------------------------------------------------------------------------------------

    def start(self, tasks: TaskScope, clock: Clock) -> None:
        """Start to connect."""
        self._tasks = tasks
        self._clock = clock
        self._connect_wanted()

    def add(self, address: str) -> None:
        """Add an address; it is connected until ``remove``."""
        self._nodes.add(address)
        self._connect(address)

    def remove(self, address: str) -> bool:
        """Remove an address; return whether it was connected or wanted."""
        known = address in self._nodes or address in self._present
        self._nodes.remove(address)
        self._drop(address)
        self._connect_wanted()
        return known

    def set_listed(self, addresses: Iterable[str]) -> None:
        """Replace the list of discovered nsqds.

        A connection to one that is not listed any more lasts until it is lost, and is not made again.
        """
        was_complete = not self._nodes.left_out_count
        gone = self._nodes.set_listed(addresses)
        if was_complete and self._nodes.left_out_count:
            self._log.warning(
                "nsqlookupds list %d nsqds, and %d of them are not connected: max_connections is %d",
                self._nodes.listed_count,
                self._nodes.left_out_count,
                self._options.max_connections,
            )
        for address in gone:
            connection = self._present.get(address)
            if connection is not None and _is_open(connection):
                connection.stop()
            else:
                self._drop(address)
        self._connect_wanted()

    def stop(self) -> None:
        """Dial no more."""
        self._stopped = True
        for connection in self._present.values():
            connection.stop()
        self._changed.set()

    def fail(self, error: NSQError) -> None:
        """End the consumer with a permanent error, with the option ``end_on_permanent_error``."""
        if self._options.end_on_permanent_error and not self._stopped:
            self._subscription.failure = error
            self._on_failure()

    async def wait_gone(self) -> None:
        """Return when every session that has sent CLS has ended."""
        while any(map(_is_leaving, [*self._present.values(), *self._leaving])):
            await self.wait_change()

    async def wait_complete(self, check: Callable[[], None]) -> None:
        """Return when at least one nsqd is wanted, and all of them are subscribed.

        ``check`` is called before each wait; its exception is raised.
        """
        while not self._nodes.wanted or self.unconnected:
            check()
            await self.wait_change()

    async def wait_confirmed(self, confirming: Confirming) -> Confirmation:
        """Return the outcome of commands when it is known."""
        while not confirming.is_done:
            await self.wait_change()
        return confirming.result()

    async def wait_change(self) -> None:
        """Return after a connection has received something or has ended."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def left_out_count(self) -> int:
        """How many nsqds are listed and not connected, because ``max_connections`` are."""
        return self._nodes.left_out_count

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """The addresses without a subscription, each with the last error of its connection."""
        present = {address: self._present.get(address) for address in self._nodes.wanted}
        return {
            address: None if connection is None else connection.error
            for address, connection in present.items()
            if connection is None or not _is_open(connection)
        }

    def stats(self) -> tuple[ConnectionStats, ...]:
        """Return the statistics of all connections."""
        return tuple(map(self._stats_of, [*self._present.values(), *self._leaving]))

    def _stats_of(self, connection: ConsumerConnection) -> ConnectionStats:
        session = connection.session
        answer = session.answer if session is not None else None
        return ConnectionStats(
            address=connection.address,
            connected=_is_open(connection),
            error=connection.error,
            version=answer.version if answer is not None else "",
            rdy_count=self._core.flow.rdy_count(session) if session in self._core.sessions else 0,
            in_flight=len(session.held) if session is not None else 0,
            auth=session.auth if session is not None else None,
            **attrs.asdict(MessageCounts() if session is None else session.counts),
        )

    # ---- within --------------------------------------------------------------------------------------------------

    def _connect_wanted(self) -> None:
        """Connect to the wanted addresses; connections that are not wanted any more count for the maximum, too."""
        count_max = self._options.max_connections
        for address in self._nodes.wanted:
            if len(self._present) < count_max or self._nodes.is_named(address):
                self._connect(address)

    def _connect(self, address: str) -> None:
        if self._tasks is None or self._stopped or address in self._present:
            return
        assert self._clock is not None
        options = self._options
        connection = self._present[address] = Connection(
            address,
            lambda now_ns: self._subscription.make_session(address, connection, now_ns),
            clock=self._clock,
            dial=self._dial,
            dial_timeout=options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=self._on_connection_change,
            log=self._log,
        )
        self._tasks.start_soon(self._run, connection)

    async def _run(self, connection: ConsumerConnection) -> None:
        with anyio.CancelScope() as self._scopes[connection]:
            await connection.run()
        if connection.failure is not None:
            self.fail(connection.failure)
        self._forget(connection)

    def _forget(self, connection: ConsumerConnection) -> None:
        """Remove a connection that has ended; connect again if its address is wanted again meanwhile."""
        address = connection.address
        del self._scopes[connection]
        self._leaving.pop(connection, None)
        if self._present.get(address) is connection and connection.failure is None:
            del self._present[address]
            self._connect_wanted()
        self._changed.set()
        self._subscription.after()

    def _drop(self, address: str) -> None:
        """Close the connection to an address; one that is subscribed sends CLS first."""
        connection = self._present.pop(address, None)
        if connection is None:
            return
        assert self._tasks is not None
        assert self._clock is not None
        connection.stop()
        if _is_open(connection):
            assert connection.session is not None
            self._leaving[connection] = None
            self._core.leave(connection.session, self._clock.now_ns())
            self._tasks.start_soon(self._drain, connection, connection.session)
        elif connection in self._scopes:  # else its task has not begun, and will see that it is stopped
            self._scopes[connection].cancel()

    async def _drain(self, connection: ConsumerConnection, session: ConsumerSession) -> None:
        """Wait for the answers and CLOSE_WAIT; requeue the messages that are not answered in time."""
        assert self._clock is not None
        for _ in range(2):
            with move_on_after(self._clock, self._options.close_timeout):
                while connection.is_running:
                    await self.wait_change()
                return
            self._core.requeue_now([*session.held.values()])
            self._subscription.after()
        self._scopes[connection].cancel()

    def _on_connection_change(self, connection: ConsumerConnection, now_ns: int) -> None:
        """Hand the events of a session to the core."""
        session, core = connection.session, self._core
        if session is not None:
            while session.has_events:
                events = session.events()
                core.handle_events(session, events, now_ns)
                if isinstance(events[-1], Ended):
                    self._on_lost()
            if session.is_open and not core.has_changes:
                if core.inbox:
                    self._subscription.arrived.set()
                return  # mostly, messages and answers have no other consequences
        self._changed.set()
        self._subscription.after()


def _is_open(connection: ConsumerConnection) -> bool:
    return connection.session is not None and connection.session.is_open


def _is_leaving(connection: ConsumerConnection) -> bool:
    session = connection.session
    if session is None or not connection.is_running:
        return False
    return session.is_closing or (session.ended and session.error is None)
