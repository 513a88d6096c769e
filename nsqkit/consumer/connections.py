"""The connections of a consumer: one to each nsqd that is wanted, and those that are on their way out.

The rule it guards: an address has one connection that counts. One that is left says good-bye beside it, for as long as
``close_timeout`` lets it, and is in nobody's way: a new one to the same address may stand before it has gone.

How to read it: ``add``, ``remove`` and ``set_listed`` change what is wanted (``nodes``); ``_on_change`` draws the
consequences when a connection has ended; ``_drain`` is the good-bye.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import anyio

from nsqkit.client.connection import Connection
from nsqkit.client.dialler import Dialler
from nsqkit.client.reconnect import Reconnect
from nsqkit.clock import NS_PER_S, Clock
from nsqkit.consumer.log import TopicLog
from nsqkit.consumer.nodes import Nodes
from nsqkit.consumer.session import ConsumerSession
from nsqkit.consumer.stats import ConnectionStats

if TYPE_CHECKING:
    from random import Random

    from nsqkit.client.dialler import Dial
    from nsqkit.client.task_scope import TaskScope
    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.errors import NSQError

logger = logging.getLogger("nsqkit.client")

ConsumerConnection: TypeAlias = "Connection[ConsumerSession]"


class Connections:
    """Keeps the connections of one consumer.

    Args:
        core: the consumer's core.
        addresses: of the nsqds that the user has named.
        dial: how to reach an address, in the place of connecting to it.
        random: draws the delays before dialling again.
        on_change: called after something has come on a connection, or it has ended.
        on_failure: called after a permanent error, if that is to be the end.

    Attributes:
        failure: that error.
    """

    def __init__(
        self,
        core: ConsumerCore,
        addresses: Iterable[str],
        *,
        dial: Dial | None,
        random: Random,
        on_change: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._core = core
        self._nodes = Nodes(addresses, count_max=core.options.max_connections)
        self._dial = Dialler(core.options, dial)
        self._random = random
        self._on_change = on_change
        self._on_failure = on_failure
        self.failure: NSQError | None = None
        self._log = TopicLog(
            logger, {"topic": core.topic.decode("ascii"), "channel": core.channel.decode("ascii")}
        )
        self._present: dict[str, ConsumerConnection] = {}
        self._leaving: dict[ConsumerConnection, None] = {}
        self._scopes: dict[ConsumerConnection, anyio.CancelScope] = {}
        self._owners: dict[ConsumerSession, ConsumerConnection] = {}
        self._tasks: TaskScope | None = None
        self._clock: Clock | None = None
        self._stopped = False
        self._changed = anyio.Event()

    # ---- which nsqds ---------------------------------------------------------------------------------------------

    def start(self, tasks: TaskScope, clock: Clock) -> None:
        """Begin to connect."""
        self._tasks = tasks
        self._clock = clock
        self._connect_wanted()

    def add(self, address: str) -> None:
        """Have a connection to an address, for good."""
        self._nodes.add(address)
        self._connect(address)

    def remove(self, address: str) -> bool:
        """Have no connection to an address; tell whether there was one, or was to be one."""
        known = address in self._nodes or address in self._present
        self._nodes.remove(address)
        self._drop(address)
        self._connect_wanted()
        return known

    def set_listed(self, addresses: Iterable[str]) -> None:
        """Take the list of all nsqds that are discovered by now.

        A connection to one that is not listed any more lasts until it is lost, and is not made again.
        """
        was_complete = not self._nodes.left_out_count
        change = self._nodes.set_listed(addresses)
        if was_complete and self._nodes.left_out_count:
            self._log.warning(
                "nsqlookupds list %d nsqds, and %d of them are not connected: max_connections is %d",
                self._nodes.listed_count,
                self._nodes.left_out_count,
                self._core.options.max_connections,
            )
        for address in change.gone:
            connection = self._present.get(address)
            if connection is not None and _is_open(connection):
                connection.stop()
            else:
                self._drop(address)
        self._connect_wanted()

    def stop(self) -> None:
        """Dial nobody any more."""
        self._stopped = True
        for connection in self._present.values():
            connection.stop()
        self._changed.set()

    def fail(self, error: NSQError) -> None:
        """Have it all end with a permanent error, if the options say so."""
        if self._core.options.end_on_permanent_error and not self._stopped:
            self.failure = error
            self._on_failure()

    def check_failure(self) -> None:
        """Raise the permanent error that it all has ended with, if there is one."""
        if self.failure is not None:
            raise self.failure

    async def wait_gone(self) -> None:
        """Return when every good-bye is said; a connection that was never open has none to say."""
        while any(map(_is_leaving, [*self._present.values(), *self._leaving])):
            await self.wait_change()

    async def wait_change(self) -> None:
        """Return when something has come on a connection, or it has ended."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        await self._changed.wait()

    # ---- looking on ----------------------------------------------------------------------------------------------

    def wake(self, session: ConsumerSession) -> None:
        """Have sent what a session has to send."""
        if (connection := self._owners.get(session)) is not None:
            connection.wake()

    def flush(self, session: ConsumerSession) -> None:
        """Have it sent at once, where that is possible."""
        if (connection := self._owners.get(session)) is not None:
            connection.flush()

    @property
    def left_out_count(self) -> int:
        """How many nsqds are listed and not connected, because ``max_connections`` are."""
        return self._nodes.left_out_count

    @property
    def unconnected(self) -> dict[str, Exception | None]:
        """The addresses whose subscription does not stand, each with the last error of its connection."""
        present = {address: self._present.get(address) for address in self._nodes.wanted}
        return {
            address: None if connection is None else connection.error
            for address, connection in present.items()
            if connection is None or not _is_open(connection)
        }

    @property
    def are_complete(self) -> bool:
        """True while an nsqd is wanted, and every subscription stands."""
        return bool(self._nodes.wanted) and not self.unconnected

    def stats(self) -> tuple[ConnectionStats, ...]:
        """Return the figures of all connections."""
        return tuple(self._stats_of(connection) for connection in [*self._present.values(), *self._leaving])

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
            **{
                name: getattr(session, f"{name}_count", 0)
                for name in ("received", "finished", "requeued", "touched", "timed_out", "refused")
            },
        )

    # ---- within --------------------------------------------------------------------------------------------------

    def _connect_wanted(self) -> None:
        """Connect to all that are wanted; connections that stand and are wanted no more take their room, too."""
        count_max = self._core.options.max_connections
        for address in self._nodes.wanted:
            if len(self._present) < count_max or self._nodes.is_named(address):
                self._connect(address)

    def _connect(self, address: str) -> None:
        if self._tasks is None or self._stopped or address in self._present:
            return
        assert self._clock is not None
        options = self._core.options
        connection = self._present[address] = Connection(
            address,
            lambda now_ns: self._make_session(connection, now_ns),
            clock=self._clock,
            dial=self._dial,
            dial_timeout=options.dial_timeout,
            reconnect=Reconnect(
                delay_min_ns=round(options.reconnect_delay_min * NS_PER_S),
                delay_max_ns=round(options.reconnect_delay_max * NS_PER_S),
                random=self._random,
            ),
            on_change=self._after_change,
            log=self._log,
        )
        self._tasks.start_soon(self._run, connection)

    def _make_session(self, connection: ConsumerConnection, now_ns: int) -> ConsumerSession:
        session = ConsumerSession(self._core, connection.address, now_ns)
        self._disown(connection)
        self._owners[session] = connection
        return session

    def _disown(self, connection: ConsumerConnection) -> None:
        if connection.session is not None:
            self._owners.pop(connection.session, None)

    async def _run(self, connection: ConsumerConnection) -> None:
        with anyio.CancelScope() as self._scopes[connection]:
            await connection.run()
        if connection.failure is not None:
            self.fail(connection.failure)
        self._forget(connection)

    def _forget(self, connection: ConsumerConnection) -> None:
        """Draw the consequences of a connection's end: perhaps it is wanted again meanwhile."""
        address = connection.address
        del self._scopes[connection]
        self._disown(connection)
        self._leaving.pop(connection, None)
        if self._present.get(address) is connection and connection.failure is None:
            del self._present[address]
            self._connect_wanted()
        self._changed.set()
        self._on_change()

    def _drop(self, address: str) -> None:
        """Leave an address; who has subscribed there says good-bye first."""
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
        """Wait until all is answered and CLOSE_WAIT has come; give back what is not answered in time."""
        for _ in range(2):
            with anyio.move_on_after(self._core.options.close_timeout):
                while connection.is_running:
                    await self.wait_change()
                return
            session.requeue_now(session.held.values())
        self._scopes[connection].cancel()

    def _after_change(self, connection: ConsumerConnection) -> None:
        self._changed.set()
        self._on_change()


def _is_open(connection: ConsumerConnection) -> bool:
    return connection.session is not None and connection.session.is_open


def _is_leaving(connection: ConsumerConnection) -> bool:
    session = connection.session
    return connection.is_running and session is not None and session.is_closing
