"""Checks of a moment in which the event loop has nothing to do: nothing may be left that could be done now."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest import mock

from nsqkit.broker.persistence import SAVE_PAUSE_NS, Persistence
from nsqkit.client.connection import Connection
from nsqkit.client.session import ClientSession
from nsqkit.clock import NS_PER_S
from nsqkit.consumer.batches import Batches
from nsqkit.consumer.handling import Handling
from nsqkit.consumer.thread_receiver import ThreadReceiver
from nsqkit.lookup.poller import LookupdPoller
from nsqkit.lookup.schedule import PollSchedule
from nsqkit.producer.publisher import Publisher
from nsqkit.spark.reception import Reception
from nsqkit.transport.pump import Pump
from nsqkit.transport.timer import Timer
from tests.simulation.broken import Broken
from tests.simulation.driver.network import end_of

if TYPE_CHECKING:
    from tests.simulation.driver.grants import Grants
    from tests.simulation.driver.network import Loop
    from tests.simulation.driver.node import Broker

T = TypeVar("T")

CHECK_EACH: Final = 4
"""Idle moments between two checks."""
LATE_MAX: Final = 0.05
"""Seconds after its limit until a handshake or a pause has certainly ended."""
SAVE_PAUSE: Final = SAVE_PAUSE_NS / NS_PER_S
"""Seconds until a broker tries again to write its names."""


class Idle:
    """Checks the brokers, the pumps, the timers, the producers and the receivers of messages of a world.

    Args:
        nodes: the brokers.
        grants: those of the auth servers.
        loop: the time.
    """

    def __init__(self, nodes: Iterable[Broker], grants: Grants, loop: Loop) -> None:
        self._nodes = nodes
        self._grants = grants
        self._loop = loop
        self._pumps: dict[Any, None] = {}
        self._timers: dict[Any, None] = {}
        self._receivers: dict[Any, None] = {}
        self._batches: dict[Any, None] = {}  # those that wait for more messages
        self._workers: dict[Any, None] = {}  # handlers with a worker that waits
        self._partitions: dict[Any, None] = {}  # receptions that wait
        self._publishers: dict[Any, None] = {}
        self._pollers: dict[Any, None] = {}
        self._woken: dict[Any, float] = {}  # the schedules of early requests to nsqlookupds, and since when they can be
        self._syncs: dict[Any, None] = {}
        self._unsaved: dict[Any, float] = {}  # files without the names of a broker, and since when no save has begun
        self._count = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Know the objects of which these methods run."""
        with ExitStack() as stack:
            for owner, name, running in (
                (Pump, "run", self._pumps),
                (Timer, "run", self._timers),
                (ThreadReceiver, "_feed", self._receivers),
                (Batches, "_fill", self._batches),
                (Handling, "_wait_for_arrival", self._workers),
                (Publisher, "resend", self._publishers),
                (Reception, "_wait_for_change", self._partitions),
                (LookupdPoller, "run", self._pollers),
                (Persistence, "_sync", self._syncs),
            ):
                stack.enter_context(mock.patch.object(owner, name, _noted(getattr(owner, name), running)))
            for kind, name, see in (
                (PollSchedule, "wake", lambda schedule: self._woken.update({schedule: self._loop.time()})),
                (PollSchedule, "begin", lambda schedule: self._woken.pop(schedule, None)),
                (PollSchedule, "_end", self._end_poll),
                (Persistence, "save", lambda persistence: self._unsaved.pop(persistence, None)),
            ):
                stack.enter_context(mock.patch.object(kind, name, _seen(getattr(kind, name), see)))
            yield

    def check(self) -> None:
        """Check that no message, output or deadline waits for something else to happen.

        Raises:
            Broken: one does.
        """
        self._count += 1
        if self._count % CHECK_EACH:
            return
        for node in self._nodes:
            if node.nsqd is not None and node.nsqd.is_running:
                self._check_broker(node.name, node.nsqd)
        for pump in self._pumps:
            machine, end = pump._machine, end_of(pump._stream)
            is_blocked = end.is_blocked or end.is_detached
            if machine.has_output and not (machine.ended or end.is_over or is_blocked):
                raise Broken(11, f"{type(machine).__name__} has output for {end.remote_host}, and does not write it")
            if isinstance(machine, ClientSession) and pump._read_ended.is_set() and not machine.ended:
                raise Broken(24, f"{type(machine).__name__} has read all from {end.remote_host}, and has not ended")
        self._grants.check_waiting()
        self._check_clients()
        for timer in self._timers:
            if isinstance(timer._timed, Connection):
                self._check_handshake(timer._timed)
            due_ns = timer._timed.next_deadline()
            if due_ns is not None and due_ns < timer._armed_ns:
                raise Broken(12, f"{type(timer._timed).__name__} has a deadline before that of its timer")

    def _check_broker(self, name: str, nsqd: Any) -> None:
        broker, persistence = nsqd.broker, nsqd._persistence
        if broker.changes.channels or broker.sessions.to_write:
            raise Broken(27, f"{name} has messages to deliver, or output, and does nothing")
        if persistence is None or persistence._saved_revision == broker.changes.revision:
            return
        if persistence._saving.locked() or persistence in self._syncs:
            self._unsaved.pop(persistence, None)
        elif self._loop.time() - self._unsaved.setdefault(persistence, self._loop.time()) > SAVE_PAUSE + LATE_MAX:
            raise Broken(17, f"{name} has other names than nsqd.dat, and does not write them")

    def _check_clients(self) -> None:
        """Check what waits in producers, consumers and partitions."""
        for receiver in self._receivers:
            if receiver._waiting and any(not message.is_answered for message in receiver._taken):
                raise Broken(27, "a message was taken for a busy thread, and another thread waits for one")
        for batches in self._batches:
            if batches._inbox and batches._subscription.core.flow.is_starved:
                raise Broken(27, f"a batch waits for more than {len(batches._inbox)} messages, and no more can come")
        for handling in self._workers:
            if handling._core.inbox:
                raise Broken(27, "a message waits for a handler, and so does a worker for a message")
        for publisher in self._publishers:
            if publisher._waiting_count and publisher._is_ready():
                raise Broken(27, f"{publisher._waiting_count} publishes wait for a connection, and there is one")
            window = publisher.window
            if window is not None and window._waiting and window._has_space(next(iter(window._waiting.values()))):
                raise Broken(27, f"{window.waiting_count} publishes wait for space, and {window.size} bytes are taken")
        for poller in self._pollers:
            for schedule in (each.schedule for each in poller._lookupds.values()):
                if schedule is not None and not schedule._is_polling:
                    self._check_poll(schedule, poller._clock.now_ns())
        for reception in self._partitions:
            chunker, is_starved = reception.chunker, any(each.is_starved for each in reception.consumers.values())
            limits = [each.stats().max_in_flight for each in reception.consumers.values()]
            if not chunker.is_last_taken and min(limits, default=1) < 1:
                raise Broken(27, f"a partition waits for messages, and lets its nsqds deliver {limits}")
            is_due = chunker.pending and not chunker.is_last_taken and (chunker.is_full or is_starved)
            if is_due and not reception._unconnected():
                raise Broken(27, f"{len(chunker.pending)} messages wait to be a chunk, which is due")

    def _end_poll(self, schedule: Any) -> None:
        if schedule in self._woken:  # meanwhile
            self._woken[schedule] = self._loop.time()

    def _check_poll(self, schedule: Any, now_ns: int) -> None:
        """Check that the next request to an nsqlookupd comes in time."""
        part = 1 + schedule._jitter
        if schedule.next_poll_ns > now_ns + schedule._interval_ns * part:
            raise Broken(28, f"an nsqlookupd is asked again at {schedule.next_poll_ns}, and now it is {now_ns}")
        waited = self._loop.time() - self._woken.get(schedule, math.inf)
        if waited > schedule._gap_ns * part / NS_PER_S + LATE_MAX:
            raise Broken(28, f"a consumer has lost an nsqd, and asks no nsqlookupd for {waited:.3f} seconds")

    def _check_handshake(self, connection: Connection[Any]) -> None:
        """Check that a handshake does not last longer than its limit, with the time for the answer to AUTH."""
        session, pump = connection.session, connection._pump
        if session is None or pump is None or session.is_open or session.ended:
            return
        options = connection._dialler.options
        lasted, dial_max = self._loop.time() - end_of(pump._stream).dialled_at, connection._dial_timeout_ns / 1e9
        if lasted > dial_max + max(dial_max, options.read_timeout) + LATE_MAX:
            raise Broken(28, f"the handshake with {connection.address} has lasted {lasted:.3f} seconds")


def _seen(call: Callable[..., T], see: Callable[[Any], object]) -> Callable[..., T]:
    """Return a method that passes its object to ``see`` at each call."""

    def calling(self: Any, *args: Any) -> T:
        see(self)
        return call(self, *args)

    return calling


def _noted(run: Callable[..., Awaitable[T]], running: dict[Any, None]) -> Callable[..., Awaitable[T]]:
    """Return a method that notes the objects in which ``run`` runs."""

    async def noted(self: Any, *args: Any) -> T:
        running[self] = None
        try:
            return await run(self, *args)
        finally:
            running.pop(self, None)

    return noted
