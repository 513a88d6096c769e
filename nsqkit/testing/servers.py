"""A broker and an nsqlookupd for tests: asyncio, trio, or plain functions.

A server runs in the process of the test, in its own thread, on a free port. It answers when ``with`` has entered
it; after the ``with`` its port is closed and its tasks have ended. For a server in the test's own event loop use
``nsqkit.broker.server.Nsqd`` and ``nsqkit.lookupd.server.Nsqlookupd``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import attrs

from nsqkit.broker.server import Nsqd
from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.loop_thread import portal_provider
from nsqkit.testing.clock import ControlledClock, Mode
from nsqkit.testing.inject import inject, messages, publish
from nsqkit.testing.link.assertions import JournalAssertions
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.options import HOST, nsqd_options, nsqlookupd_options
from nsqkit.testing.proxy import Proxy
from nsqkit.testing.snapshot import reset, restore, snapshot
from nsqkit.testing.state import of_broker
from nsqkit.transport.address import port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType

    from anyio.abc import ByteStream
    from anyio.from_thread import BlockingPortal

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.lookupd.registry import Registry
    from nsqkit.testing.inject import MessageState
    from nsqkit.testing.snapshot import Snapshot
    from nsqkit.testing.state import ClientState, NsqdState, TopicState

S = TypeVar("S", bound="EmbeddedNsqd | Nsqlookupd")
T = TypeVar("T")

STOP_LIMIT = 0.1
"""Real seconds after which a stop lets a clock that stands still follow the real time."""


class _Server(Generic[S]):
    """The common part of both: a thread, two addresses and a clock."""

    def __init__(self, make: Callable[[], S], clock: ControlledClock) -> None:
        self.clock = clock
        self._make = make
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._service: S | None = None
        self.tcp_address = ""
        self.http_address = ""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = self._portal = stack.enter_context(portal_provider())
            service = self._service = portal.call(self._make)
            stack.enter_context(portal.wrap_async_context_manager(service))
            self.tcp_address = service.tcp_address
            self.http_address = service.http_address
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def http_url(self) -> str:
        """``http://host:port`` of the HTTP routes."""
        return f"http://{self.http_address}"

    def _call(self, look: Callable[[S], T]) -> T:
        assert self._portal is not None
        assert self._service is not None
        return self._portal.call(look, self._service)


class EmbeddedNsqd:
    """A broker behind a proxy, both in this event loop, for ``async with``.

    Args:
        options: nsqd's flags; ``tcp_address`` is that of the proxy.
        journal: records what the clients and the broker send.
        clock: the time.

    Attributes:
        tcp_address: ``host:port`` that clients connect to.
        http_address: ``host:port`` of the HTTP routes.
    """

    def __init__(self, options: BrokerOptions, journal: Journal, clock: ControlledClock) -> None:
        self.clock = clock
        self._journal = journal
        self.tcp_address = options.tcp_address
        self.http_address = options.http_address
        self._options = options
        self._stack = AsyncExitStack()
        self._nsqd: Nsqd | None = None

    @property
    def nsqd(self) -> Nsqd:
        """The broker."""
        assert self._nsqd is not None
        return self._nsqd

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(Proxy(self.tcp_address, self._connect, self._journal, self.clock))
            self.tcp_address = proxy.address
            options = attrs.evolve(
                self._options,
                tcp_address=f"{HOST}:0",
                broadcast_tcp_port=self._options.broadcast_tcp_port or port_of(proxy.address),
            )
            self._nsqd = await stack.enter_async_context(
                Nsqd(options, clock=self.clock, data_path=options.data_path or None)
            )
            self.http_address = self._nsqd.http_address
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # A client that does not read holds up the stop until the broker's limits for it have passed.
        with self.clock.released(after=STOP_LIMIT):
            await self._stack.aclose()

    async def _connect(self, name: str) -> ByteStream:
        return self.nsqd.connect(name)


def _clock_of(clock: Mode | ControlledClock) -> ControlledClock:
    return clock if isinstance(clock, ControlledClock) else ControlledClock(clock)


class NsqdServer(JournalAssertions, _Server[EmbeddedNsqd]):
    """A broker in a thread, for ``with``.

    Args:
        clock: the time: the mode of a ``ControlledClock``, or one that other servers use, too.
        options: nsqd's flags in snake case, such as ``msg_timeout="2s"`` or ``msg_timeout=2`` (seconds); the
            addresses default to free ports of 127.0.0.1. Without ``data_path`` messages are in memory only.

    Attributes:
        clock: the time; give it to nsqkit's clients to control their limits, too.
        tcp_address: ``host:port`` that clients connect to.
        http_address: ``host:port`` of the HTTP routes.
        journal: what the clients and the broker have sent; the methods ``assert_…`` are about it.

    Raises:
        OptionError: an option that cannot be used.
    """

    def __init__(self, *, clock: Mode | ControlledClock = "running", **options: Any) -> None:
        clock = _clock_of(clock)
        self.journal = Journal()
        super().__init__(partial(EmbeddedNsqd, nsqd_options(options), self.journal, clock), clock)

    def inspect(self, look: Callable[[Broker], T]) -> T:
        """Call ``look`` with the engine, in the broker's thread between two commands, and return its result."""
        return self._call(lambda embedded: look(embedded.nsqd.broker))

    def _change(self, change: Callable[[Broker, int], T]) -> T:
        """Call ``change`` with the engine and the time, then have the broker act on the changes."""

        def run(embedded: EmbeddedNsqd) -> T:
            try:
                return change(embedded.nsqd.broker, embedded.nsqd.clock.now_ns())
            finally:
                embedded.nsqd.process_changes()

        return self._call(run)

    @property
    def state(self) -> NsqdState:
        """The present topics, channels, clients and counts; ``str(nsqd.state)`` is a table."""
        return self.inspect(of_broker)

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """The present topics, by name."""
        return self.state.topics

    @property
    def connections(self) -> tuple[ClientState, ...]:
        """The present clients: consumers first."""
        return self.state.connections

    def topic(self, name: str) -> TopicState:
        """Return the present state of a topic; with zeros and ``exists`` false if there is none."""
        return self.state.topic(name)

    def publish(self, topic: str, *bodies: bytes, defer: float | timedelta | None = None) -> None:
        """Publish messages without a client; ``nsqkit.testing.inject.publish`` has the arguments and errors."""
        self._change(lambda broker, now_ns: publish(broker, now_ns, topic, *bodies, defer=defer))

    def inject(
        self,
        topic: str,
        body: bytes,
        *,
        channel: str | None = None,
        id: str | bytes | None = None,  # noqa: A002 - its name in a consumer's message
        attempts: int = 1,
        timestamp: datetime | int | None = None,
        deferred: float | timedelta | None = None,
    ) -> bytes:
        """Place one message with these values; ``nsqkit.testing.inject.inject`` has the arguments and errors.

        Returns:
            Its id.
        """
        place = partial(inject, channel=channel, id=id, attempts=attempts, timestamp=timestamp, deferred=deferred)
        return self._change(lambda broker, now_ns: place(broker, now_ns, topic, body))

    def messages(self, topic: str, channel: str | None = None) -> list[MessageState]:
        """Return the messages of a channel, or those that wait in a topic: in flight, waiting, then deferred ones."""
        return self.inspect(lambda broker: messages(broker, topic, channel))

    def snapshot(self) -> Snapshot:
        """Return topics, channels, messages and counts as a value, without a change."""
        return self._change(snapshot)

    def restore(self, saved: Snapshot) -> None:
        """Disconnect all clients, and have the topics, messages and counts of a snapshot, also of another server."""
        self._change(lambda broker, now_ns: restore(broker, saved, now_ns))

    def reset(self) -> None:
        """Disconnect all clients, delete all topics, and clear the journal."""
        self._change(lambda broker, _: reset(broker))
        self.journal.clear()


class NsqlookupdServer(_Server[Nsqlookupd]):
    """An nsqlookupd in a thread, for ``with``.

    Args:
        clock: as for ``NsqdServer``.
        options: nsqlookupd's flags in snake case, such as ``tombstone_lifetime=5`` (seconds); the addresses default
            to free ports of 127.0.0.1.

    Attributes:
        clock: the time.
        tcp_address: ``host:port`` that nsqds connect to.
        http_address: ``host:port`` of the HTTP routes, for consumers.

    Raises:
        OptionError: an option that cannot be used.
    """

    def __init__(self, *, clock: Mode | ControlledClock = "running", **options: Any) -> None:
        clock = _clock_of(clock)
        super().__init__(partial(Nsqlookupd, nsqlookupd_options(options), clock=clock), clock)

    def inspect(self, look: Callable[[Registry], T]) -> T:
        """Call ``look`` with the registrations, in the thread of the nsqlookupd, and return its result."""
        return self._call(lambda lookupd: look(lookupd.registry))
