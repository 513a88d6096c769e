"""A broker and an nsqlookupd for tests: asyncio, trio, or plain functions.

A server runs in the process of the test, in its own thread, on a free port. It answers when ``with`` has entered
it; after the ``with`` its port is closed and its tasks have ended. For a server in the test's own event loop use
``nsqkit.broker.server.Nsqd`` and ``nsqkit.lookupd.server.Nsqlookupd``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsqkit.errors import OptionError
from nsqkit.lookupd.registry import ANY_TOPIC
from nsqkit.testing.backend import make_backend, make_clock, make_journal
from nsqkit.testing.embedded import change
from nsqkit.testing.inject import inject, messages
from nsqkit.testing.lifecycle import Server
from nsqkit.testing.link.assertions import JournalAssertions
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.lookup_faults import LookupFaults
from nsqkit.testing.lookup_state import of_registry
from nsqkit.testing.lookupd_run import NsqlookupdRun
from nsqkit.testing.nsqd_run import NsqdRun
from nsqkit.testing.options import nsqd_options, nsqlookupd_options
from nsqkit.testing.proxy import Proxy
from nsqkit.testing.snapshot import restore, snapshot
from nsqkit.testing.waiting import Traffic, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from nsqkit.broker.core.broker import Broker
    from nsqkit.lookupd.registry import Registry
    from nsqkit.options.durations import Seconds
    from nsqkit.testing.clock import ControlledClock, Mode
    from nsqkit.testing.disk import Disk
    from nsqkit.testing.inject import MessageState
    from nsqkit.testing.link.items import Connection
    from nsqkit.testing.lookup_state import LookupState
    from nsqkit.testing.ports import KeptPort
    from nsqkit.testing.snapshot import Snapshot
    from nsqkit.testing.state import ClientState, NsqdState, TopicState

T = TypeVar("T")

KEYWORDS: Final = ("backend", "clock", "journal", "seed")
"""Keywords of ``NsqdServer`` that are no flags of nsqd."""


class NsqdServer(JournalAssertions, Waits, Server[NsqdRun]):
    """A broker in a thread, for ``with``, or for ``start`` and ``stop``.

    Args:
        clock: the time: the mode of a ``ControlledClock``, or one that other servers use, too.
        seed: of the broker's random numbers, None for another one at each start; and of the faults, None for 0.
        options: nsqd's flags in snake case, such as ``msg_timeout="2s"`` or ``msg_timeout=2`` (seconds); the
            addresses default to free ports of 127.0.0.1. Without ``data_path`` messages are in memory only.

    Attributes:
        clock: the time; give it to nsqkit's clients to control their limits, too.
        tcp_address: ``host:port`` that clients connect to; the same after each start.
        http_address: ``host:port`` of the HTTP routes, likewise; empty without HTTP.
        options: nsqd's flags as values.
        journal: what the clients and the broker have sent; the methods ``assert_…`` are about it.
        faults: faults of all connections and of the TCP port; none at first.
        traffic: for the methods ``wait_…``.

    Raises:
        OptionError: an option that cannot be used.
    """

    name = "nsqd"

    def __init__(
        self,
        *,
        backend: str | Sequence[str] | None = None,
        clock: Mode | ControlledClock = "running",
        journal: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.options = nsqd_options(options, beside=KEYWORDS)
        super().__init__(self.options.tcp_address, self.options.http_address)
        self.clock = make_clock(clock, backend)
        self._named: set[str] = set()  # topics; those of clients only with an nsqd at an address
        self.journal = make_journal(backend, self._named, enabled=journal)
        self.faults = Faults(seed or 0)
        self.faults.on_refuse = self._update_listener
        self.traffic = Traffic()
        self._backend = make_backend(
            backend, self.options, self.clock, seed=seed, given=options, named_topics=self._named.copy
        )

    def _make_run(self, tcp_port: KeptPort, http_port: KeptPort, *, keep_data: bool) -> NsqdRun:
        proxy = Proxy(tcp_port, self._backend.connect, self.journal, self.faults, self.clock, self.traffic)
        return NsqdRun(self._backend, proxy, http_port, keep_data=keep_data)

    def _update_listener(self) -> None:
        if self._portal is not None and self._run is not None:
            self._portal.call(self._run.proxy.update_listener)

    def inspect(self, look: Callable[[Broker], T]) -> T:
        """Call ``look`` with the engine, in the broker's thread between two commands, and return its result.

        Raises:
            ServerState: the server is stopped.
        """
        return self._call(lambda run: look(run.nsqd.broker))

    def _change(self, function: Callable[[Broker, int], T]) -> T:
        return self._call(lambda run: change(run.nsqd, function))

    @property
    def state(self) -> NsqdState:
        """The present topics, channels, clients and counts; ``str(nsqd.state)`` is a table."""
        state: NsqdState = self._call(lambda run: run.backend.state())
        return state

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

    @property
    def connection_count(self) -> int:
        """The number of open connections, also of clients that have not subscribed or published."""
        return self._call(lambda run: len(run.proxy.links))

    @property
    def open_clients(self) -> tuple[Connection, ...]:
        """The clients that have not closed their connections, as their commands describe them."""
        links = self._call(lambda run: tuple(run.proxy.links))
        return tuple(link.connection for link in links if not (link.client_end.ended or link.client_end.peer_has_ended))

    def publish(self, topic: str, *bodies: bytes, defer: Seconds | None = None) -> None:
        """Publish messages without a client; ``nsqkit.testing.inject.publish`` has the arguments and errors."""
        self._named.add(topic)
        self._call(lambda run: run.backend.publish(topic, bodies, defer))

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

    @property
    def disk(self) -> Disk:
        """The faults of the disk, for a broker with a ``data_path``."""
        disk = self._backend.disk
        if disk is None:
            raise OptionError("a broker without data_path has no disk; allowed is NsqdServer(data_path=...)")
        return disk

    def reset(self) -> None:
        """Disconnect all clients, delete all topics, and clear journal and faults; the disk works again.

        Of an nsqd at an address, only the topics are deleted that clients of this server have created.
        """
        self.faults.clear()
        self._call(lambda run: run.reset())
        self._named.clear()


class NsqlookupdServer(Server[NsqlookupdRun]):
    """An nsqlookupd in a thread, for ``with``, or for ``start`` and ``stop``.

    Args:
        clock: as for ``NsqdServer``.
        seed: of the probabilities of the faults.
        options: nsqlookupd's flags in snake case, such as ``tombstone_lifetime=5`` (seconds); the addresses default
            to free ports of 127.0.0.1.

    Attributes:
        clock: the time.
        tcp_address: ``host:port`` that nsqds connect to; the same after each start.
        http_address: ``host:port`` of the HTTP routes, for consumers, likewise.
        options: nsqlookupd's flags as values.
        faults: rules for its answers to HTTP clients.

    Raises:
        OptionError: an option that cannot be used.
    """

    name = "nsqlookupd"

    def __init__(self, *, clock: Mode | ControlledClock = "running", seed: int = 0, **options: Any) -> None:
        self.options = nsqlookupd_options(options, beside=("clock", "seed"))
        super().__init__(self.options.tcp_address, self.options.http_address)
        self.clock = make_clock(clock, None)
        self.faults = LookupFaults(seed)

    def _make_run(self, tcp_port: KeptPort, http_port: KeptPort, *, keep_data: bool) -> NsqlookupdRun:
        return NsqlookupdRun(self.options, tcp_port, http_port, self.clock, self.faults)

    def inspect(self, look: Callable[[Registry], T]) -> T:
        """Call ``look`` with the registrations, in the thread of the nsqlookupd, and return its result.

        Raises:
            ServerState: the server is stopped.
        """
        return self._call(lambda run: look(run.registry))

    @property
    def registry(self) -> LookupState:
        """The present topics and nsqds, as they are without faults."""
        return self.inspect(lambda registry: of_registry(registry, self.clock.now_ns()))

    def reset(self) -> None:
        """Delete all topics, and remove all faults; nsqds remain connected."""
        self.inspect(lambda registry: registry.delete_topic(ANY_TOPIC))
        self.faults.clear()
