"""A network in memory: hosts that connect and listen, and the faults of what lies between them.

A connection is two pipes. Bytes stay in order within a pipe; nothing is in order between connections. The network
calls the loop for everything that takes time, so it works on asyncio and on trio.

    fault        effect
    cut          both ends are reset; bytes on the way are lost
    stall        nothing arrives for a while, then all of it
    half-open    nothing arrives any more in one direction or both, without a reset, also after the end of all faults
    slow         pieces of a few bytes, each after a pause
    refuse       no host accepts a connection, for a while
    mute         connections are accepted, and nothing answers
    unanswered   a connection that is begun has no answer for ``DIAL_MAX`` seconds, also after the end of all faults
    partition    as stall, between two sets of hosts; new connections wait
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from random import Random
from typing import Any, Final, Protocol, Self

import anyio
from anyio.abc import ByteStream

from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.pipe import Endpoint, Pipe, Stream
from tests.simulation.driver.transport import Transport
from tests.simulation.driver.wire import Wire

HOST: Final[ContextVar[str]] = ContextVar("host")
"""The host that the present task runs on."""

LINK_FAULTS: Final = frozenset(("cut", "stall", "half-open", "slow", "partition", "mute", "refuse", "unanswered"))
DELAYS: Final = (0.0002, 0.0005, 0.002)
HANDLER_DELAYS: Final = (0.0, 0.0, 0.0005, 0.003)
"""Seconds until the task of an accepted connection begins; data arrive meanwhile."""
NSQD_PORT: Final = 4150
LOOKUPD_PORT: Final = 4160
DIAL_MAX: Final = 130.0
"""Seconds after which the kernel of Linux gives up a connection that no host answers."""


Kind = type[Stream] | type[Transport]


class Loop(Protocol):
    """A virtual loop of asyncio or trio."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], Any], /) -> Any: ...


class Connection:
    """One connection; ``client`` and ``server`` are its ends, and ``hosts`` those that they are on."""

    def __init__(
        self, network: Network, kinds: tuple[Kind, Kind], hosts: tuple[str, str], port: int, random: Random
    ) -> None:
        self.hosts = hosts
        there, back = Pipe(network.loop, random), Pipe(network.loop, random)
        local, remote = (hosts[0], network.next_port()), (hosts[1], port)
        self.client: Endpoint = kinds[0](there, back, local, remote)
        self.server: Endpoint = kinds[1](back, there, remote, local)
        self.is_accepted = False
        self.pipes = {hosts[0]: there, hosts[1]: back}  # by the host that sends

    @property
    def is_open(self) -> bool:
        return not (self.client.is_over and self.server.is_over)

    def cut(self) -> None:
        """Reset both ends."""
        for end in (self.client, self.server):
            end.reset()

    def stall(self, until: float) -> None:
        for pipe in self.pipes.values():
            pipe.stall(until)


class Network:
    """All hosts and connections of a world.

    Args:
        loop: the time.
        seed: begins the name of the random generator of each pair of hosts, and of each listener.
        note: called with what happens.
        is_asyncio: whether nsqkit has transports of asyncio.

    Attributes:
        wires: makes the reader of each new connection of a host to an nsqd, for hosts whose bytes are read.
        on_dial: called with the nsqd that a host begins to connect to, for the same hosts.
        on_refused: called with the nsqd that has refused a connection of a host, for the same hosts.
        on_attempt: surrounds the attempts of a broker to connect to the nsqlookupd that it is called with.
    """

    def __init__(self, loop: Loop, seed: str, note: Callable[..., None], *, is_asyncio: bool) -> None:
        self.loop = loop
        self._kind: Kind = Transport if is_asyncio else Stream
        self.connections: list[Connection] = []
        self.wires: dict[str, Callable[[Endpoint], Wire]] = {}
        self.on_dial: dict[str, Callable[[str], None]] = {}
        self.on_refused: dict[str, Callable[[str], None]] = {}
        self.on_attempt: dict[str, Callable[[str], AbstractContextManager[None]]] = {}
        self.seed = seed
        self._note = note
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._randoms: dict[tuple[str, str], Random] = {}
        self._refused_until: dict[str, float] = {}
        self._mute_until: dict[tuple[str, str], float] = {}
        self._unanswered_until: dict[tuple[str, str], float] = {}  # with "" for all clients
        self._slow: dict[frozenset[str], tuple[int, float]] = {}
        self._partitions: list[tuple[frozenset[str], frozenset[str], float]] = []
        self._port = 40_000
        self._healed = anyio.Event()

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def _random(self, client: str, server: str) -> Random:
        key = (client, server)
        if key not in self._randoms:
            self._randoms[key] = Random(f"{self.seed}/{client}/{server}")
        return self._randoms[key]

    # ---- what the code under test calls --------------------------------------------------------------------------

    async def connect_tcp(self, host: str, port: int, *, local_host: str | None = None) -> ByteStream:
        """As ``nsqkit.transport.tcp.connect_tcp``."""
        watch = self.on_attempt.get(HOST.get()) if port == LOOKUPD_PORT else None
        with watch(host) if watch is not None else nullcontext():
            return (await self._connect(host, port, self._kind)).stream

    async def connect(self, address: str, *, local_host: str | None = None) -> ByteStream:
        """As ``nsqkit.transport.tcp.connect``."""
        host, _, port = address.rpartition(":")
        begun = self.loop.time()
        end = await self._connect(host, int(port), self._kind)
        end.dialled_at = begun
        return end.stream

    async def connect_by_hand(self, host: str, port: int) -> Stream:
        """Return a connection that reads nothing before it is asked to, for clients that are not nsqkit's."""
        end = await self._connect(host, port, Stream)
        assert isinstance(end, Stream)
        return end

    async def _connect(self, host: str, port: int, kind: Kind) -> Endpoint:
        client, loop = HOST.get(), self.loop
        random = self._random(client, host)
        if port == NSQD_PORT and client in self.on_dial:
            self.on_dial[client](host)
        await pass_time(random.choice(DELAYS))
        while (until := self._partitioned_until(client, host)) > loop.time():
            with anyio.move_on_after(until - loop.time()):
                await self._healed.wait()
        if any(self._unanswered_until.get((each, host), 0.0) > loop.time() for each in (client, "")):
            await pass_time(DIAL_MAX)
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        listener = self._listeners.get((host, port))
        if listener is None or self._refused_until.get(host, 0.0) > loop.time():
            if port == NSQD_PORT and client in self.on_refused:
                self.on_refused[client](host)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        connection = Connection(self, (kind, listener.kind), (client, host), port, random)
        self.connections.append(connection)
        if port == NSQD_PORT and client in self.wires:
            connection.client.wire = self.wires[client](connection.client)
        self._note("%s connects to %s:%d", client, host, port)
        size, pause = self._slow.get(frozenset((client, host)), (0, 0.0))
        for pipe in connection.pipes.values():
            pipe.slow(size, pause)
        if self._mute_until.get((client, host), 0.0) > loop.time():
            connection.stall(self._mute_until[client, host])
        else:
            connection.is_accepted = True
            listener.accept(connection.server)
        connection.client.open()
        return connection.client

    async def listen(self, address: str, *, paths: bool = True) -> Listener:
        """As ``nsqkit.transport.tcp.listen``."""
        return await self._listen(address, self._kind)

    async def listen_by_hand(self, address: str) -> Listener:
        """Listen for connections that read nothing before they are asked to."""
        return await self._listen(address, Stream)

    async def _listen(self, address: str, kind: Kind) -> Listener:
        host, _, port = address.rpartition(":")
        key = (host, int(port))
        await anyio.lowlevel.checkpoint()
        if key in self._listeners:
            raise OSError(errno.EADDRINUSE, f"listen ({address}) failed - {os.strerror(errno.EADDRINUSE)}")
        listener = self._listeners[key] = Listener(self, key, kind)
        return listener

    def close_listener(self, listener: Listener) -> None:
        if self._listeners.get(listener.local_address) is listener:
            del self._listeners[listener.local_address]

    # ---- faults --------------------------------------------------------------------------------------------------

    def between(self, one: str, other: str) -> list[Connection]:
        """Return the open connections between two hosts."""
        self.connections = [connection for connection in self.connections if connection.is_open]
        return [connection for connection in self.connections if set(connection.hosts) == {one, other}]

    def clients_of(self, host: str) -> list[str]:
        """Return the hosts with a connection to a host that it has not closed."""
        return [
            each.hosts[0]
            for each in self.connections
            if each.hosts[1] == host and each.is_accepted and not each.server.is_over
        ]

    def clients_at(self, address: str) -> list[Connection]:
        """Return the connections to an address that were accepted."""
        return [each for each in self.connections if each.server.local_address == address and each.is_accepted]

    def cut(self, one: str, other: str) -> None:
        for connection in self.between(one, other):
            connection.cut()

    def stall(self, one: str, other: str, until: float) -> None:
        for connection in self.between(one, other):
            connection.stall(until)

    def half_open(self, sender: str, other: str, *, both: bool, until: float) -> None:
        """Have nothing that ``sender`` sends arrive."""
        for connection in self.between(sender, other):
            for host, pipe in connection.pipes.items():
                if both or host == sender:
                    pipe.stall(until)

    def slow(self, one: str, other: str, size: int, pause: float) -> None:
        """Deliver pieces of up to ``size`` bytes, each after ``pause`` seconds; 0 for whole writes."""
        self._slow[frozenset((one, other))] = (size, pause)
        for connection in self.between(one, other):
            for pipe in connection.pipes.values():
                pipe.slow(size, pause)

    def refuse(self, host: str, until: float) -> None:
        self._refused_until[host] = until

    def mute(self, client: str, host: str, until: float) -> None:
        self._mute_until[client, host] = until

    def unanswered(self, client: str, host: str, until: float) -> None:
        """Have no new connection answered; ``client`` is empty for all."""
        self._unanswered_until[client, host] = until

    def partition(self, some: frozenset[str], others: frozenset[str], until: float) -> None:
        self._partitions.append((some, others, until))
        for connection in self.connections:
            if self._partitioned_until(*connection.hosts) >= until:
                connection.stall(until)

    def _partitioned_until(self, one: str, other: str) -> float:
        return max(
            (
                until
                for some, others, until in self._partitions
                if (one in some and other in others) or (one in others and other in some)
            ),
            default=0.0,
        )

    def drop_host(self, host: str) -> None:
        """End all connections of a host at once, as if its process was killed."""
        for key in [key for key in self._listeners if key[0] == host]:
            del self._listeners[key]
        for connection in self.connections:
            if host in connection.hosts:
                connection.cut()

    def heal(self) -> None:
        """End all faults; connections that are half-open stay so."""
        self._refused_until.clear()
        self._mute_until.clear()
        self._unanswered_until.clear()
        self._slow.clear()
        self._partitions.clear()
        self._healed.set()
        for connection in self.connections:
            for pipe in connection.pipes.values():
                pipe.heal()


class Listener:
    """As ``nsqkit.transport.tcp.Listener``."""

    def __init__(self, network: Network, key: tuple[str, int], kind: Kind) -> None:
        self._network = network
        self._accepted: list[Endpoint] = []
        self._ends: list[Endpoint] = []
        self._random = Random(f"{network.seed}/{key}/accept")
        self.kind = kind
        self._arrived = anyio.Event()
        self.address = f"{key[0]}:{key[1]}"
        self.local_address = key

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._network.close_listener(self)
        while self._accepted:
            self._accepted.pop().abort()
        await anyio.lowlevel.checkpoint()

    def accept(self, end: Endpoint) -> None:
        end.open()
        self._accepted.append(end)
        self._arrived.set()

    def reset_on_close(self) -> None:
        for end in self._ends:
            end.resets_on_close = True

    async def serve(self, handler: Callable[[Any], Awaitable[None]], tasks: Any) -> None:
        while True:
            while self._accepted:
                end = self._accepted.pop(0)
                self._ends = [*(each for each in self._ends if not each.is_over), end]
                tasks.start_soon(self._handle, handler, end)
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _handle(self, handler: Callable[[Any], Awaitable[None]], end: Endpoint) -> None:
        try:
            await pass_time(self._random.choice(HANDLER_DELAYS))
        except anyio.get_cancelled_exc_class():
            end.abort()
            raise
        await handler(end.stream)


def end_of(stream: Any) -> Endpoint:
    """Return the end of a connection that a program has a stream for."""
    end: Endpoint = stream if isinstance(stream, Endpoint) else stream._transport
    return end
