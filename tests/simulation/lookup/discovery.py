"""How a consumer of a world finds brokers: the real ``Discovery`` and ``Connections``, run by hand.

Both need an event loop for their tasks alone. Here a request is a coroutine that pauses until its answer has arrived,
and a connection of a world takes the place of a task that dials.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs

from nsqkit.client.connection import STEADY_NS
from nsqkit.clock import NS_PER_S
from nsqkit.consumer.connections import Connections, ConsumerConnection
from nsqkit.errors import NotConnected, NSQError, ProtocolError, RequestFailed
from nsqkit.lookup.discovery import Discovery
from nsqkit.lookup.schedule import PollSchedule
from tests.simulation.broken import Broken, conclude
from tests.simulation.by_hand import pause
from tests.simulation.lookup.lookupd import HTTP_PORT, address_of
from tests.simulation.workload import Consumer, WorldClock

if TYPE_CHECKING:
    from tests.simulation.connection import Connection
    from tests.simulation.world import World


@attrs.define(eq=False)
class Poll:
    """The requests to one nsqlookupd.

    Attributes:
        request: the one that is under way.
        due_ns: when it goes on.
        answer: of the present request, or of the last one; None if there is none.
        listed: the addresses in the last good answer.
        ended_ns: the end of the last request.
        is_outdated: a connection was lost while the present request was under way.
    """

    lookupd: Any
    name: str
    schedule: PollSchedule
    request: Generator[int, None, None] | None = None
    due_ns: int = 0
    answer: tuple[int, bytes] | None = None
    listed: frozenset[str] = frozenset()
    ended_ns: int = 0
    is_outdated: bool = False

    @property
    def next_ns(self) -> int:
        return self.schedule.next_poll_ns if self.request is None else self.due_ns


@attrs.define(eq=False)
class Dialling:
    """The dialling of one address.

    Attributes:
        link: the connection; None while it waits for the next attempt.
        due_ns: of the next attempt, or the end of the time for the handshake; None once that is done.
    """

    connection: ConsumerConnection
    due_ns: int | None
    dialled_ns: int = 0
    link: Connection | None = None
    is_cancelled: bool = False


class LookupConsumer(Consumer):
    """A consumer that connects to the brokers that its nsqlookupds list."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._counts: dict[str, int] = {}
        super().__init__(world, name, options)
        world.touch(self)

    def _begin(self) -> None:
        super()._begin()
        world = self._world
        random = Random(f"{world.plan.seed}/{self.name}/{self._life}/lookup")
        self._dials: dict[ConsumerConnection, Dialling] = {}
        self._connections = Connections(
            self.subscription, (), dial=None, random=random, on_lost=lambda: None, on_failure=lambda: None
        )
        self.discovery = Discovery(
            [f"{name}:{HTTP_PORT}" for name in self._options["lookupds"]],
            topic=self.topic,
            on_change=lambda came, gone: self._connections.set_listed(self.discovery.addresses),
            options=world.consumer_options,
            clock=WorldClock(world),
            random=random,
        )
        tasks: Any = SimpleNamespace(start_soon=lambda function, connection: self._start(connection))
        self._connections.start(tasks, WorldClock(world))
        self._polls = [self._poll(lookupd, random) for lookupd in self.discovery._lookupds.values()]

    def _poll(self, lookupd: Any, random: Random) -> Poll:
        options = self._world.consumer_options
        schedule = lookupd.schedule = PollSchedule(
            interval_ns=round(options.lookupd_poll_interval * 1e9),
            jitter=options.lookupd_poll_jitter,
            random=random,
            now_ns=self._world.now_ns,
        )
        poll = Poll(lookupd, lookupd.daemon.name.removeprefix("http://").partition(":")[0], schedule)
        vars(lookupd.daemon)["_fetch"] = partial(self._fetch, poll)
        return poll

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _fetch(
        self, poll: Poll, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Send a request: it arrives, is answered, and the answer arrives, all within the time limit."""
        world, name = self._world, poll.name
        lookupd = world.lookups.lookupds[name]
        limit_ns = world.now_ns + round(world.consumer_options.lookupd_poll_timeout * 1e9)
        await self._wait(world.now_ns + lookupd.delay_ns, limit_ns)
        if not lookupd.accepts:
            raise RequestFailed(f"{name} refuses")
        while lookupd.resume_ns > world.now_ns:
            await self._wait(lookupd.resume_ns, limit_ns)
        if lookupd.registry is None:
            raise RequestFailed(f"{name} is down")
        answer = lookupd.respond(url.partition(f":{HTTP_PORT}")[2])
        await self._wait(world.now_ns + lookupd.delay_ns, limit_ns)
        world.note("%s ◀ %s: %s", self.name, name, answer)
        poll.answer = answer
        return answer

    async def _wait(self, until_ns: int, limit_ns: int) -> None:
        await pause(min(until_ns, limit_ns))
        if self._world.now_ns >= limit_ns:
            raise RequestFailed("no answer in time")

    def _step(self, poll: Poll, now_ns: int) -> None:
        if poll.request is None:
            poll.answer = None
            poll.request = self.discovery._poll_once(poll.lookupd, poll.schedule, WorldClock(self._world)).__await__()
        try:
            poll.due_ns = next(poll.request)
        except StopIteration:
            poll.request, poll.ended_ns = None, now_ns
            self._check_union(poll)
            if poll.is_outdated:
                self._check_woken(poll)

    def _check_woken(self, poll: Poll) -> None:
        """Check that a request follows a lost connection soon: a second after the last one ends, with its jitter."""
        options = self._world.consumer_options
        poll.is_outdated = poll.request is not None
        if poll.request is None:
            gap_ns = min(NS_PER_S, round(options.lookupd_poll_interval * NS_PER_S))
            soon_ns = max(self._world.now_ns, poll.ended_ns + gap_ns) + round(options.lookupd_poll_jitter * gap_ns)
            is_soon = poll.schedule.next_poll_ns <= soon_ns
            conclude(28, is_soon, f"{self.name} has lost an nsqd, and asks {poll.name} not before {poll.next_ns}")

    def _check_union(self, poll: Poll) -> None:
        match poll.answer:
            case (200, body) if body.startswith(b"{"):
                poll.listed = frozenset(map(address_of, json.loads(body)["producers"]))
            case (404, _):
                poll.listed = frozenset()
        union = frozenset().union(*(each.listed for each in self._polls))
        if union != set(self.discovery.addresses):
            raise Broken(21, f"{self.name} has found {self.discovery.addresses}, not {sorted(union)}")

    # ---- connections -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Do nothing: connections are made when they are due."""

    def _start(self, connection: ConsumerConnection) -> None:
        """Begin to dial an address."""
        dialling = self._dials[connection] = Dialling(connection, self._world.now_ns)
        scope: Any = SimpleNamespace(cancel=partial(setattr, dialling, "is_cancelled", True))
        self._connections._scopes[connection] = scope
        self._world.touch(self)

    def _dial(self, dialling: Dialling, now_ns: int) -> None:
        connection, options = dialling.connection, self._world.consumer_options
        dialling.dialled_ns = now_ns
        if connection.address not in self.discovery.addresses:
            raise Broken(21, f"{self.name} dials {connection.address}, which is not listed any more")
        node = self._world.lookups.node_at(connection.address)
        if node is None or not node.accepts:
            self._lost(dialling, NotConnected(f"{connection.address} refuses"), was_open=False)
            return
        session = connection.session = connection._make_session(now_ns)
        link = dialling.link = self._world.connect(self.name, self, node, session)
        assert link is not None
        connection.wake = connection.flush = link.wake
        dialling.due_ns = now_ns + round(options.dial_timeout * 1e9)
        self._links[f"{connection.address}/{self._counts.setdefault(connection.address, 0)}"] = link
        self._counts[connection.address] += 1

    def _follow(self, dialling: Dialling, now_ns: int) -> None:
        """Act on a connection that has opened or ended, or on a time that has come."""
        link, is_due = dialling.link, dialling.due_ns is not None and dialling.due_ns <= now_ns
        if dialling.is_cancelled:
            if link is not None:
                link.machine.end(NotConnected("cancelled"))
                self._world.touch(link)
            self._forget(dialling)
        elif link is None:
            if is_due:
                self._dial(dialling, now_ns)
        elif link.machine.ended:
            self._lost(dialling, link.machine.error, was_open=dialling.due_ns is None)
        elif link.machine.is_open:
            dialling.due_ns = None
        elif is_due:
            link.machine.end(NotConnected("no handshake in time"))
            self._world.touch(link)

    def _lost(self, dialling: Dialling, error: NSQError | None, *, was_open: bool) -> None:
        now_ns, connection = self._world.now_ns, dialling.connection
        dialling.link = None
        lasted_ns = now_ns - dialling.dialled_ns
        if was_open and not (isinstance(error, ProtocolError) and lasted_ns < STEADY_NS):
            connection._reconnect.connected()
        if was_open and not self.core.is_closing:
            self.discovery.wake()
            for poll in self._polls:
                self._check_woken(poll)
        if connection._stopped:
            self._forget(dialling)
        else:
            dialling.due_ns = now_ns + connection._reconnect.next_delay_ns()

    def _forget(self, dialling: Dialling) -> None:
        dialling.connection.is_running = False
        del self._dials[dialling.connection]
        self._connections._forget(dialling.connection)

    def _leave(self, limit_ms: int) -> None:
        self._connections.stop()
        super()._leave(limit_ms)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        deadlines = [poll.next_ns for poll in self._polls if not self.core.is_closing]
        deadlines += [dialling.due_ns for dialling in self._dials.values() if dialling.due_ns is not None]
        if (core_ns := super().next_deadline()) is not None:
            deadlines.append(core_ns)
        return min(deadlines, default=None)

    def handle_deadline(self, now_ns: int) -> None:
        for poll in self._polls:
            if poll.next_ns <= now_ns and not self.core.is_closing:
                self._step(poll, now_ns)
        core_ns = super().next_deadline()
        if core_ns is not None and core_ns <= now_ns:
            super().handle_deadline(now_ns)
        self._world.touch(self)

    def service(self) -> None:
        """Follow all connections."""
        super().service()
        for dialling in list(self._dials.values()):
            if dialling.connection in self._dials:
                self._follow(dialling, self._world.now_ns)

    # ---- the end -----------------------------------------------------------------------------------------------------

    @property
    def missing(self) -> str:
        """Why it is not connected to all that its nsqlookupds list, and to nothing else for good; empty if it is."""
        lookupds = self._world.lookups.lookupds
        now_ns = self._world.now_ns
        wanted = {
            address
            for name in self._options["lookupds"]
            for address in lookupds[name].oracle.lookup(self.topic.encode(), now_ns)
        }
        if wanted != set(self.discovery.addresses):
            return f"{self.name} has found {self.discovery.addresses}, not {sorted(wanted)}"
        is_open = {
            dialling.connection.address: dialling.link is not None and dialling.link.machine.is_open
            for dialling in self._dials.values()
        }
        if waiting := [address for address in sorted(wanted) if not is_open.get(address)]:
            return f"{self.name} is not connected to {waiting}"
        if others := [address for address in is_open if address not in wanted and not is_open[address]]:
            return f"{self.name} still dials {others}, which are not listed"
        return ""
