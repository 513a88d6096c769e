"""A driver world: the real clients and daemons on a virtual loop, as a plan has it.

The plan says which loop it is, and in which order ready tasks run. After the last step all faults end, brokers
start again, and everything has to come to rest within ``REST_MAX`` seconds of virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from random import Random
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from nsqkit.loop_thread import PortalProvider
from tests.simulation.auth.leaks import checked, listening, secret_of
from tests.simulation.broken import Broken
from tests.simulation.driver import asyncio_loop, baton, trio_loop
from tests.simulation.driver.auth_server import AuthServer
from tests.simulation.driver.batch_stops import BatchStops
from tests.simulation.driver.baton_seams import batoned
from tests.simulation.driver.consumers import ConsumerPlayer
from tests.simulation.driver.dead_letters import SUFFIX
from tests.simulation.driver.grants import Grants
from tests.simulation.driver.history import History
from tests.simulation.driver.idle import Idle
from tests.simulation.driver.kept import unnamed
from tests.simulation.driver.limiting import limit
from tests.simulation.driver.lives import Lives
from tests.simulation.driver.lookupd import Lookupd
from tests.simulation.driver.network import HOST, LINK_FAULTS, Network
from tests.simulation.driver.node import Broker
from tests.simulation.driver.pace import pass_time
from tests.simulation.driver.partition_seams import seamed
from tests.simulation.driver.partitions import PartitionPlayer
from tests.simulation.driver.producers import HTTPPlayer, ProducerPlayer
from tests.simulation.driver.raw import RawPlayer
from tests.simulation.driver.reconfiguring import reconfigure
from tests.simulation.driver.relisting import relist
from tests.simulation.driver.seams import Threads, installed
from tests.simulation.driver.statsd import StatsdDaemons
from tests.simulation.driver.thread_consumers import ThreadConsumerPlayer
from tests.simulation.driver.thread_producers import ThreadProducerPlayer
from tests.simulation.knobs import turned
from tests.simulation.plan import Plan, Step

REST_MAX: Final = 90.0
SHARE_MAX: Final = 30.0
"""Seconds in which each connection of a consumer gets RDY, with backoff and handlers that hang."""
CONNECT_MAX: Final = 30.0
SILENCE_MAX: Final = 70.0
"""Seconds after which a broker drops a client that is silent, even before its IDENTIFY."""
NAMES_MAX: Final = 5.0
"""Seconds in which a broker writes the names of topics and channels, also after a failure."""
POLL: Final = 0.25
DISK_FAULTS: Final = frozenset(("fill disk", "fail disk"))

Player = ProducerPlayer | HTTPPlayer | ConsumerPlayer | PartitionPlayer | RawPlayer | AuthServer
KINDS: Final[dict[str, Callable[..., Player]]] = {
    "producer": ProducerPlayer,
    "http producer": HTTPPlayer,
    "consumer": ConsumerPlayer,
    "partition": PartitionPlayer,
    "thread producer": ThreadProducerPlayer,
    "thread consumer": ThreadConsumerPlayer,
    "raw": RawPlayer,
    "auth server": AuthServer,
}


class World:
    """One world.

    Args:
        plan: of it.
        trace: called with each line of what happens; None to make none.

    Attributes:
        late_topics: those that publishes and consumers alone create.
        keeps_topics_empty: no message waits in its topic, unless its channels are deleted.
        keeps_delays: none waits there at all: one that does not fit in memory loses its delay there, as in nsqd.
        has_auth_faults: auth servers fail, or grant less for a while.
        harmed: the nodes with a fault, now or earlier, of theirs or of a connection to them.
        reached: the states of ``sometimes.py`` that it has reached.
        user_threads: those that use clients without ``await``.
        providers: of the event loop of each host with such a client.
        healed: set once all faults have ended.
        ended: set once all is at rest.
    """

    tasks: TaskGroup
    network: Network
    threads: Threads
    user_threads: baton.Threads
    providers: dict[str, PortalProvider]
    healed: anyio.Event
    ended: anyio.Event
    _scope: anyio.CancelScope

    def __init__(self, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.loop: Any = None
        self.history = History({topic: list(channels) for topic, channels in plan.options["topics"].items()})
        self.nodes: dict[str, Broker] = {}
        self.lookupds: dict[str, Lookupd] = {}
        self.players: dict[str, Player] = {}
        self.has_disk_faults = any(step.verb in DISK_FAULTS for step in plan.steps)
        auth = {name for name, options in plan.players.items() if options["kind"] == "auth server"}
        self.has_auth_faults = any(step.who in auth for step in plan.steps)
        self.has_link_faults = self.has_auth_faults or any(step.verb in LINK_FAULTS for step in plan.steps)
        self.late_topics = frozenset(plan.options.get("late", ()))
        verbs = {step.verb for step in plan.steps}
        waits = plan.lookupds or self.late_topics or self.has_disk_faults or "pause topic" in verbs
        self.keeps_topics_empty = not waits
        self.keeps_delays = self.keeps_topics_empty and verbs.isdisjoint(("delete channel", "delete topic"))
        self.harmed: set[str] = set()
        self.reached: set[str] = set()
        self.is_over = False
        self.may_refuse = any("max_msg_size" in options for options in plan.nodes.values())
        self._trace = checked(trace) if auth else trace
        self._has_auth = bool(auth)
        self.grants = Grants(self)
        self.batch_stops = BatchStops(self.nodes)
        self._errors: list[BaseException] = []
        self._begun = 0.0

    def note(self, text: str, *values: object) -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.loop.time() - self._begun:.6f} {text % values}")

    def disk_note(self, node: str) -> Callable[[str], None] | None:
        """Return what writes the lines of a broker's disk; None without a trace."""
        return None if self._trace is None else partial(self.note, "%s: the disk %s", node)

    def watch_connection(self, address: str, error: Exception | None) -> None:
        """Record the end of a connection; with no fault in the world, none ends, but by a publish that is too large."""
        self.grants.watch_error(address, error)
        is_over = self.is_over or self.tasks.cancel_scope.cancel_called
        if error is not None and not self.may_refuse and not self.history.trouble_count and not is_over:
            self.failed(Broken(25, f"the connection to {address} has ended: {error}"))

    def failed(self, error: Broken) -> Broken:
        """Have the world fail with an error, and return it: nsqkit catches the errors of handlers."""
        self._errors.append(error)
        self._scope.cancel()
        return error

    # ---- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world.

        Raises:
            Broken: an invariant is broken.
        """
        options = self.plan.options
        random = Random(f"{self.plan.seed}/order") if options.get("order", "shuffled") == "shuffled" else None
        run: Any = asyncio_loop.run if options.get("backend", "asyncio") == "asyncio" else trio_loop.run
        errors = self._errors

        async def main(loop: Any) -> None:
            try:
                with anyio.CancelScope() as self._scope:
                    loop.pace.on_failure = self._scope.cancel
                    await self._main(loop)
            except BaseExceptionGroup as group:
                errors.append(_first(group))
            except Exception as error:
                errors.append(error)

        with turned(options.get("knobs", {})), listening() if self._has_auth else nullcontext():
            loop = run(main, random)
        for error in errors:
            raise error
        if loop.faults:
            raise Broken(25, f"the loop has caught {loop.faults[:3]}")
        if left := loop.leftovers():
            raise Broken(24, f"{len(left)} are left: {left[:3]}")
        self.note("turns: %d", loop.pace.turns)

    async def _main(self, loop: Any) -> None:
        self.loop, self._begun = loop, loop.time()
        self.history.time = loop.time
        plan = self.plan
        is_asyncio = isinstance(loop, asyncio_loop.VirtualLoop)
        self.network = Network(loop, plan.seed, self.note, is_asyncio=is_asyncio)
        self.threads = Threads(loop, plan.seed)
        self.healed, self.ended = anyio.Event(), anyio.Event()
        HOST.set("world")
        idle = Idle(self.nodes.values(), self.grants, loop)
        with ExitStack() as stack:
            stack.enter_context(installed(self.network, self.threads))
            for watcher in (idle, self.grants, self.batch_stops, StatsdDaemons(self)):
                stack.enter_context(watcher.watching())
            if any(options["kind"] == "partition" for options in plan.players.values()):
                stack.enter_context(seamed(self))
            loop.pace.on_idle = idle.check
            async with anyio.create_task_group() as self.tasks:
                self.user_threads = baton.Threads(self.tasks, plan.seed, plan.options.get("interrupted_lines", 0.0))
                if any("threads" in options for options in plan.players.values()):
                    self.providers = stack.enter_context(batoned(self.user_threads, self.network))
                for name, options in plan.lookupds.items():
                    self.lookupds[name] = Lookupd(self, name, options)
                for number, (name, options) in enumerate(plan.nodes.items()):
                    self.nodes[name] = Broker(self, name, options, number + 1)
                for lookupd in self.lookupds.values():
                    lookupd.start()
                for node in self.nodes.values():
                    node.start()
                for name, options in plan.players.items():
                    self.players[name] = KINDS[options["kind"]](self, name, options)
                    self.tasks.start_soon(self.players[name].run)
                for step in plan.steps:
                    await self._wait_until(self._begun + step.at_us / 1e6)
                    for hop_us in step.values.get("hops_us", ()):
                        await pass_time(hop_us / 1e6)
                    for _ in range(step.values.get("turns", 0)):
                        await anyio.lowlevel.checkpoint()
                    self._act(step)
                await self._finish()

    async def _wait_until(self, time: float) -> None:
        if (left := time - self.loop.time()) > 0:
            await pass_time(left)

    def _act(self, step: Step) -> None:
        self.note("── %s", step)
        first, _, node = step.who.partition("/")
        if node:
            self._disturb(first, node, step)
        elif first in self.nodes:
            if step.verb in LINK_FAULTS:
                self._disturb_node(first, step)
            else:
                self.nodes[first].act(step)
        elif first in self.lookupds:
            self.history.trouble(self.nodes, self.loop.time())
            if step.verb in LINK_FAULTS:
                self._disturb_node(first, step)
            else:
                self.lookupds[first].act(step)
        elif first in self.players:
            if isinstance(self.players[first], AuthServer):
                self.history.trouble(self.nodes, self.loop.time())
                self.harmed.update(self.nodes)
            self.players[first].act(step)

    # ---- faults --------------------------------------------------------------------------------------------------

    def _disturb(self, player: str, node: str, step: Step) -> None:
        network, values = self.network, step.values
        now = self.loop.time()
        until = now + values.get("for_us", 0) / 1e6
        self.history.trouble([node], now)
        self.harmed.add(node)
        if "dead_letters" in self.plan.players.get(player, {}) and not player.endswith(SUFFIX):
            self._disturb(player + SUFFIX, node, step)
        match step.verb:
            case "cut":
                network.cut(player, node)
            case "stall":
                network.stall(player, node, until)
            case "half-open":
                sender, other = (player, node) if values.get("sender", "player") == "player" else (node, player)
                network.half_open(sender, other, both=values.get("both", False), until=float("inf"))
            case "slow":
                network.slow(player, node, values.get("size", 1), values.get("pause_us", 1000) / 1e6)
            case "mute":
                network.mute(player, node, until)
            case "unanswered":
                network.unanswered(player, node, until)
                network.cut(player, node)

    def _disturb_node(self, node: str, step: Step) -> None:
        now = self.loop.time()
        until = now + step.values.get("for_us", 0) / 1e6
        self.history.trouble(self.nodes, now)
        self.harmed.add(node)
        if step.verb == "refuse":
            self.network.refuse(node, until)
        elif step.verb == "unanswered":
            self.network.unanswered("", node, until)
        elif step.verb == "partition":
            others = frozenset((*self.nodes, *self.players)) - {node} - frozenset(step.values.get("with", ()))
            self.network.partition(frozenset((node, *step.values.get("with", ()))), others, until)

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self.note("── all faults end")
        if self.history.trouble_count:
            self.history.trouble(self.nodes, self.loop.time())
        self.network.heal()
        for lookupd in self.lookupds.values():
            lookupd.start()
        for node in self.nodes.values():
            node.heal()
            node.start()
        self.healed.set()
        players = self.players.values()
        for player in players:
            if isinstance(player, ConsumerPlayer | PartitionPlayer | AuthServer):
                player.heal()
        self._add_sweepers()
        await self.until(28, CONNECT_MAX, self._unconnected)
        await self.until(11, CONNECT_MAX, self._unanswered)
        since = self.loop.time()
        await self.until(27, SHARE_MAX, lambda: self._without_rdy(since))
        await self.until(26, REST_MAX, self._unfinished)
        await self.until(17, NAMES_MAX, lambda: [line for node in self.nodes.values() for line in unnamed(node)])
        self.history.check(may_be_late=self.has_link_faults)
        if self.plan.options.get("reconfiguring"):
            await reconfigure(self)
        if self.plan.options.get("limiting") and not self._has_auth:
            await limit(self)
        if "relisting" in self.plan.options:
            await relist(self, self.plan.options["relisting"])
        self.note("── at rest")
        self.is_over = True
        for player in players:
            player.act(Step(0, "", "leave"))
        self.ended.set()
        await self.until(30, 3 * CONNECT_MAX, self._unended)
        await self.until(24, SILENCE_MAX, lambda: [line for node in self.nodes.values() for line in node.sessions()])
        for node in self.nodes.values():
            node.stop()
            await node.wait_ended()
        for server in (*self.lookupds.values(), *self.players.values()):
            if isinstance(server, Lives):
                server.end()

    def _add_sweepers(self) -> None:
        """Have a consumer on each channel without one."""
        served = {(options.get("topic"), options.get("channel")) for options in self.plan.players.values()}
        for topic, channels in self.history.channels.items():
            for channel in channels:
                if (topic, channel) not in served:
                    name = f"sweeper-{topic}-{channel}"
                    options = {"topic": topic, "channel": channel, "nodes": list(self.nodes), "max_in_flight": 10}
                    options |= {"auth_secret": secret_of("sweeper")} if self._has_auth else {}
                    self.players[name] = sweeper = ConsumerPlayer(self, name, options)
                    self.tasks.start_soon(sweeper.run)

    async def until(self, number: int, seconds: float, left: Callable[[], list[str]]) -> None:
        """Wait until nothing is left.

        Raises:
            Broken: something is left after so long.
        """
        end = self.loop.time() + seconds
        while found := left():
            if self.loop.time() >= end:
                raise Broken(number, f"after {seconds:g} seconds: {'; '.join(found[:5])}")
            await pass_time(POLL)

    def _unconnected(self) -> list[str]:
        return [f"{name} is not connected" for name, player in self.players.items() if not player.is_connected]

    def _unanswered(self) -> list[str]:
        publishers = [each for each in self.players.values() if isinstance(each, ProducerPlayer | HTTPPlayer)]
        lines = [f"{each.name} has publishes that have not begun" for each in publishers if each.waiting_count]
        lines += [f"{each.names} of {player.name} has no answer" for player in publishers for each in player.running]
        raws = [each for each in self.players.values() if isinstance(each, RawPlayer)]
        return lines + [line for raw in raws for line in raw.unanswered()]

    def _without_rdy(self, since: float) -> list[str]:
        consumers = [each for each in self.players.values() if isinstance(each, ConsumerPlayer)]
        return [line for consumer in consumers for line in consumer.without_rdy(since)]

    def _unfinished(self) -> list[str]:
        consumers = [each for each in self.players.values() if isinstance(each, ConsumerPlayer)]
        waiting = [f"{each.name} waits for a confirmation" for each in consumers if each.confirming_count]
        waiting += [line for each in consumers for line in each.in_flight()]
        partitions = [each for each in self.players.values() if isinstance(each, PartitionPlayer)]
        waiting += [line for each in partitions for line in each.unreturned()]
        return [line for node in self.nodes.values() for line in node.rest()] or waiting

    def _unended(self) -> list[str]:
        return [
            f"{name} has not closed"
            for name, player in self.players.items()
            if (player.consumer is not None if isinstance(player, ConsumerPlayer) else player.is_running)
        ]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return an error of a group, one of an invariant first."""
    errors: list[BaseException] = []
    groups: list[BaseExceptionGroup[BaseException]] = [group]
    while groups:
        for error in groups.pop().exceptions:
            if isinstance(error, BaseExceptionGroup):
                groups.append(error)
            else:
                errors.append(error)
    return next((error for error in errors if isinstance(error, Broken)), errors[0])
