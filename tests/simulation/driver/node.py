"""A broker of a driver world: the real ``Nsqd``, its lives, its disk and its clock."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import STOP_TIMEOUT, Nsqd
from nsqkit.clock import LoopClock
from tests.simulation.broken import Broken
from tests.simulation.by_hand import Disk
from tests.simulation.driver.announcing import Announcing
from tests.simulation.driver.auth_server import PORT
from tests.simulation.driver.network import HOST
from tests.simulation.driver.operations import OPERATIONS, Operator
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from nsqkit.broker.file_store import DirectoryFileStore
    from tests.simulation.driver.network import Connection
    from tests.simulation.driver.world import World
    from tests.simulation.plan import Step

MS: Final = 1_000_000
BASE_NS: Final = 1_700_000_000 * 10**9
CLOSING_TIME: Final = STOP_TIMEOUT / 2
SLACK: Final = 1.0
"""Seconds that a stop may take beside its timeout: for threads, and for writing the messages."""
OWN: Final = frozenset(("durability", "lookupds", "auth"))
TROUBLES: Final = ("kill", "power cut", "stop", "fill disk", "fail disk", "slow disk")


def make_clock(skew_ns: int = 0) -> LoopClock:
    """Return a clock of the present loop that shows the same time in each run."""
    clock = LoopClock()
    clock._anchor_ns = BASE_NS + skew_ns
    return clock


class Broker:
    """One broker.

    Attributes:
        nsqd: while it runs.
        disk: its data path; None if it keeps everything in memory.
        auth_servers: the names of those that it asks.
    """

    def __init__(self, world: World, name: str, options: dict[str, Any], number: int) -> None:
        self.name = name
        self.nsqd: Nsqd | None = None
        self.durability = options.get("durability", "memory")
        self.disk = None if self.durability == "memory" else Disk(note=world.disk_note(name), clock=self._now_ns)
        self._world = world
        self._options = options
        self._number = number
        self._life = 0
        self._skew_ns = 0
        self._end = anyio.Event()
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope()
        self._operator = Operator(world, self)
        self._disk_time = 0.0  # seconds that the operations of a slow disk may take in a stop
        self.is_wanted = False
        self._announcing = Announcing(world, self)
        self.auth_servers = [name for name in options.get("auth", ()) if name in world.plan.players]

    @property
    def address(self) -> str:
        return f"{self.name}:4150"

    @property
    def http_address(self) -> str:
        return f"{self.name}:4151"

    def _broker_options(self) -> BrokerOptions:
        values = {name: value for name, value in self._options.items() if name not in OWN}
        return BrokerOptions(
            node_id=values.pop("node_id", self._number),
            tcp_address=self.address,
            http_address=self.http_address,
            broadcast_address=self.name,
            durability="fsync" if self.durability == "fsync" else "nsqd",
            auth_http_addresses=tuple(f"{name}:{PORT}" for name in self.auth_servers),
            lookupd_tcp_addresses=tuple(f"{name}:4160" for name in self._options.get("lookupds", ())),
            **values,
        )

    # ---- lives ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life once the one before has ended, unless there is one."""
        self._world.network.on_attempt[self.name] = self._announcing.attempt
        self._world.batch_stops.cancel(self.name)
        if self.is_wanted:
            return
        self.is_wanted = True
        self._life += 1
        before = self._ended if self._life > 1 else None
        self._end, self._ended, self._scope = anyio.Event(), anyio.Event(), anyio.CancelScope()
        self._world.tasks.start_soon(self._live, before, self._end, self._ended, self._scope)

    async def _live(
        self, before: anyio.Event | None, end: anyio.Event, ended: anyio.Event, scope: anyio.CancelScope
    ) -> None:
        HOST.set(self.name)
        if before is not None:
            await before.wait()
        world = self._world
        random = Random(f"{world.plan.seed}/{self.name}/{self._life}")
        files = cast("DirectoryFileStore | None", self.disk)
        nsqd = Nsqd(self._broker_options(), clock=make_clock(self._skew_ns), random=random, data_path=files)
        try:
            with scope:
                async with nsqd:
                    self.nsqd = nsqd
                    self._make_channels(nsqd)
                    if world.healed.is_set():
                        self._unpause()
                    world.note("%s runs", self.name)
                    await end.wait()
            if not scope.cancel_called:
                self._check_told()
                if self.disk is not None:
                    self.disk.check_no_temporaries()
        except OSError as error:  # its disk has a fault
            world.note("%s cannot start: %s", self.name, error)
            world.reached.add("no broker")
            if self._scope is scope:
                self.is_wanted = False
        finally:
            if self._scope is scope:
                self.nsqd = None
            ended.set()
            world.note("%s has ended", self.name)

    def _make_channels(self, nsqd: Nsqd) -> None:
        now_ns = nsqd.clock.now_ns()
        for topic, channels in self._world.history.channels.items():
            if topic in self._world.late_topics:
                continue
            found = nsqd.broker.topics.get_or_create(topic.encode())
            for channel in channels:
                found.channel(channel.encode(), now_ns)
        nsqd.process_changes()

    def _check_told(self) -> None:
        """Check that a broker that has stopped has closed all connections."""
        if clients := self._world.network.clients_of(self.name):
            raise Broken(30, f"{self.name} has stopped, and has not closed the connections of {clients}")

    def stop(self) -> None:
        """End as after SIGTERM."""
        if self.is_wanted:
            self.is_wanted = False
            self._end.set()
            clients = self._world.network.clients_at(self.address)
            self._world.tasks.start_soon(self._check_closed, clients)
            self._world.tasks.start_soon(self._wait_ended, self._ended)

    async def _check_closed(self, clients: list[Connection]) -> None:
        """Check that a broker that stops closes a connection as soon as the kernel has taken all bytes."""
        await pass_time(CLOSING_TIME)
        if open_clients := [each.hosts[0] for each in clients if not (each.server.is_over or each.server.is_blocked)]:
            raise Broken(30, f"{self.name} stops, and keeps the connections of {open_clients}")

    async def wait_ended(self) -> None:
        """Return when a life that was stopped has ended.

        Raises:
            Broken: that takes too long.
        """
        await self._wait_ended(self._ended)

    async def _wait_ended(self, ended: anyio.Event) -> None:
        begun, waited = self._world.loop.time(), 0.0
        while not ended.is_set() and (limit := STOP_TIMEOUT + SLACK + self._disk_time) > waited:  # its disk became slow
            with anyio.move_on_after(limit - waited):
                await ended.wait()
            waited = limit
        if not ended.is_set():
            raise Broken(30, f"{self.name} did not stop within {self._world.loop.time() - begun:.3f} seconds")

    def _now_ns(self) -> int:
        return 0 if self.nsqd is None else self.nsqd.clock.now_ns()

    def kill(self, *, power: dict[str, bool] | None = None) -> None:
        """End without a word; with ``power`` the disk loses unsynced data, as ``MemoryFileStore.power_cut``."""
        if not self.is_wanted:
            return
        self.is_wanted = False
        if self.disk is not None:
            random = Random(f"{self._world.plan.seed}/{self.name}/{self._life}/power")
            files = self.disk.kill() if power is None else self.disk.power_cut(random, **power)
            self.disk = self.disk.after(files)
        self._world.network.drop_host(self.name)
        if self.nsqd is not None:
            self.nsqd.kill()
            self.nsqd = None
        self._scope.cancel()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def act(self, step: Step) -> None:
        """Do one step of the plan; one that does not apply does nothing."""
        world, values = self._world, step.values
        if values.get("in_batch"):
            world.batch_stops.add(step)
            return
        now = world.loop.time()
        if step.verb in TROUBLES:
            world.history.trouble([self.name], now)
            world.history.crash(self.name, now)
            world.harmed.add(self.name)
            if step.verb in {"kill", "power cut"}:
                world.history.kill(self.name, now)
        loses = self.is_wanted and self.durability != "fsync"
        match step.verb:
            case "kill":
                if loses:
                    world.history.lose(self.name, now)
                self.kill()
            case "power cut":
                if loses:
                    world.history.lose(self.name, now)
                self.kill(power={"in_order": values.get("in_order", False)})
            case "stop":
                if loses and (self.durability == "memory" or world.has_disk_faults):
                    world.history.lose(self.name, now)
                self.stop()
            case "start":
                self._skew_ns += values.get("skew_us", 0) * 1000
                self.start()
            case verb if verb in OPERATIONS:
                world.tasks.start_soon(self._operator.operate, step)
            case "fill disk" | "fail disk" | "slow disk" | "recover disk":
                self._change_disk(step)

    def _change_disk(self, step: Step) -> None:
        if self.disk is None:
            return
        values = step.values
        self._world.history.disk_fault(self.name, self._world.loop.time())
        if step.verb == "fill disk":
            self.disk.capacity = sum(map(len, self.disk.files.values())) + values.get("after", 0)
        elif step.verb == "fail disk" and "syncs" in values:
            self.disk.sync_failures = values["syncs"]
        elif step.verb == "fail disk":
            number = getattr(errno, values.get("error", "EIO"))
            self.disk.fail(number, after=values.get("after", 0), times=values.get("count", 1))
        elif step.verb == "slow disk":
            delay = values.get("for_us", 0) / 1e6
            self._world.threads.delays[self.name] = (0.0, 0.05, delay)
            self._disk_time = max(self._disk_time, 4 * delay)
        else:
            self._recover_disk()

    def heal(self) -> None:
        """End the faults of the disk, and the pauses of topics and channels."""
        self._unpause()
        self._recover_disk()
        if self.nsqd is not None:
            self._make_channels(self.nsqd)  # what an operator has deleted, and not created again

    def _recover_disk(self) -> None:
        if self.durability == "nsqd" and self._world.has_disk_faults:
            self._world.history.lose(self.name, self._world.loop.time())
        self._world.threads.delays.pop(self.name, None)
        if self.disk is not None:
            self.disk.recover()

    def _unpause(self) -> None:
        if self.nsqd is None:
            return
        now_ns = self.nsqd.clock.now_ns()
        is_paused = False
        for topic in self.nsqd.broker.topics.values():
            if topic.paused:
                topic.unpause(now_ns)
                is_paused = True
            for channel in topic.channels.values():
                if channel.paused:
                    channel.unpause()
                    is_paused = True
        if is_paused:
            self.nsqd.process_changes()

    # ---- a look at it --------------------------------------------------------------------------------------------

    def rest(self) -> list[str]:
        """Return a line for each of its queues that is not empty; end pauses that came late."""
        if self.nsqd is None:
            return [f"{self.name} does not run"]
        self._unpause()
        found = []
        for topic in self.nsqd.broker.topics.values():
            if topic.name.decode() not in self._world.history.channels:
                continue
            if len(topic.queue):
                found.append(f"{len(topic.queue)} in {topic.name.decode()}")
            for channel in topic.channels.values():
                waits, deferred, in_flight = len(channel.queue), len(channel.deferred), channel.in_flight_count
                if waits or deferred or in_flight:
                    name = f"{topic.name.decode()}:{channel.name.decode()} of {self.name}"
                    found.append(f"{waits} wait, {deferred} are deferred, {in_flight} in flight in {name}")
        return found

    def sessions(self) -> list[str]:
        """Return a line for each session of a client, and for each channel that ends with its last one.

        A session without heartbeats, whose end the client's host has not sent, stays for ever, as in nsqd.
        """
        if self.nsqd is None:
            return []
        broker, is_complete = self.nsqd.broker, not self._world.has_link_faults
        sessions = list(broker.sessions)
        timed = [session for session in sessions if is_complete or session._rules.has_heartbeats]
        left = [session.remote_address for session in timed]
        if timed == sessions:
            channels = [channel.name for topic in broker.topics.values() for channel in topic.channels.values()]
            left += [name.decode() for name in channels if name.endswith(b"#ephemeral")]
        return [f"{each} in {self.name}" for each in left]

    def held(self, topic: str, channel: str) -> int:
        """Return the number of messages of a channel that are in flight, without those that a scan will take back.

        A broker that stops takes back none.
        """
        if self.nsqd is None or not self.nsqd.is_running:
            return 0
        found = self.nsqd.broker.topics.get(topic.encode())
        held = None if found is None else found.channels.get(channel.encode())
        if held is None:
            return 0
        sets, now_ns = [each.in_flight for each in held.holders()], self.nsqd.clock.now_ns()
        return sum(due > now_ns for each in sets for _, _, due in (*each.untouched.values(), *each.touched.values()))
