"""A simulated world: brokers, their clients, the connections between them, and faults, as a plan describes them.

There is no event loop, no socket and no clock: the time is a number, and advances from deadline to deadline. Brokers,
clients, and the links with their faults are the real machines; the network, the disks, handlers and users are
simulated. ``World.run`` performs the steps of the plan, ends all faults, and runs until every message is finished. The
invariants are checked at each delivery, and at rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, Final, Protocol

from nsqkit.client.session import ClientSession
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.wire.identify import IdentifyRequest
from tests.simulation.agenda import Agenda
from tests.simulation.auth import leaks
from tests.simulation.auth.node import AuthNode
from tests.simulation.broken import Broken
from tests.simulation.connection import Connection, Owner
from tests.simulation.foreign import Foreign, ForeignRules
from tests.simulation.knobs import turned
from tests.simulation.lookup.announcer import LookupLink
from tests.simulation.lookup.discovery import LookupConsumer
from tests.simulation.lookup.lookups import Lookups
from tests.simulation.memory import check_idle, count_objects, count_parts, count_subscribers
from tests.simulation.network import MS
from tests.simulation.node import Node
from tests.simulation.partition import Partitions
from tests.simulation.plan import Plan, Step
from tests.simulation.watch import Watch
from tests.simulation.workload import Consumer, Producer, is_refused

START_NS = 1_704_067_200 * 1000 * MS
ROUND_NS = 200 * MS  # how long a good handler takes: less than any message timeout
IDLE_ROUNDS_MAX = 600  # without a message that is finished, when there are no faults any more
ROUNDS_MAX = 2_000  # without the idle ones: messages that are finished again and again never end
SYNC_SLACK_NS = 1_000 * MS
IDLE_ROUND_NS = 5_000 * MS
EVENTS_MAX = 50_000  # without time going by; a command of 20,000 bytes may come byte by byte

_SET: Final = re.compile(r"frozenset\(\{(MessageKey.*?)\}\)")
_KEY: Final = re.compile(r"MessageKey\(.*?\)")

_consumer_options = cache(ConsumerOptions)


class Part(Protocol):
    """A part of the world whose output is sent, and whose deadline is read, after anything has happened to it."""

    agenda_ns: int | None
    is_touched: bool

    def next_deadline(self) -> int | None: ...

    def handle_deadline(self, now_ns: int) -> None: ...

    def service(self) -> None: ...


class World:
    """A whole world.

    Args:
        plan: what happens.
        trace: called with each line of the trace; None to write none.
        watch: records the states that the world reaches; None to record nothing.
    """

    def __init__(self, plan: Plan, *, trace: Callable[[str], None] | None = None, watch: Watch | None = None) -> None:
        self.plan = plan
        self.watch = watch
        self._has_auth = any("auth" in options for options in plan.nodes.values())
        self._trace = leaks.checked(trace) if self._has_auth else trace
        self.is_traced = self._trace is not None
        self.now_ns = START_NS
        options = plan.options
        self.consumer_options = _consumer_options(**options.get("consumer", {}))
        self.identity = IdentifyRequest(
            feature_negotiation=True,
            heartbeat_interval=round(self.consumer_options.heartbeat_interval * 1000),
            msg_timeout=options.get("msg_timeout_ms", 1000),
            **options.get("identity", {}),
        )
        self._agenda = Agenda()
        self._touched: list[Part] = []
        self._links: dict[str, Connection | LookupLink] = {}  # the newest of each player to each node
        self._all_links: list[Connection | LookupLink] = []
        self._link_counts: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        for name, node_options in plan.nodes.items():
            self.nodes[name] = (AuthNode if "auth" in node_options else Node)(self, name, dict(node_options))
        self.lookups = Lookups(self, plan)
        self._producers: dict[str, Producer] = {}
        self._consumers: dict[str, Consumer] = {}
        self._foreigners: dict[str, Foreign] = {}
        for name, player in plan.players.items():
            if player["kind"] == "producer":
                self._producers[name] = Producer(self, name, player)
            elif player["kind"] == "consumer":
                kind = LookupConsumer if player.get("lookupds") else Consumer
                self._consumers[name] = kind(self, name, player)
            elif player["kind"] == "foreign":
                self._foreigners[name] = Foreign(self, name, player)
        self._partitions = Partitions(self, plan)

    def note(self, text: str, *values: object) -> None:
        """Write a line of the trace, if there is one."""
        if self._trace is not None:
            self._trace(f"{(self.now_ns - START_NS) / 1e9:11.6f}  {_SET.sub(_sorted_keys, text % values)}")

    def disk_note(self, node: str) -> Callable[[str], None] | None:
        """Return what writes the lines of a broker's disk; None without a trace."""
        return None if self._trace is None else partial(self.note, "%s: the disk %s", node)

    # ---- for the parts -----------------------------------------------------------------------------------------------

    def connect(
        self, player: str, owner: Owner, node: Node, machine: ClientSession[Any], rules: ForeignRules | None = None
    ) -> Connection:
        """Return a new connection to a node that accepts it."""
        if node.refuses_commands:
            rules = rules or ForeignRules(node.options)
        if self._has_auth and isinstance(machine, ClientSession):
            machine.secure(auth_secret=leaks.secret_of(self.plan.players.get(player, {}).get("secret", "all")))
        name = f"{player}/{node.name}"
        count = self._link_counts[name] = self._link_counts.get(name, 0) + 1
        link = Connection(self, owner, node, machine, f"{name}:{count}", rules)
        self.add_link(name, link)
        return link

    def add_link(self, name: str, link: Connection | LookupLink) -> None:
        """Add a connection, the newest of this name."""
        self._links[name] = link
        self._all_links.append(link)
        self.touch(link)

    def touch(self, part: Part) -> None:
        """Have the output of a part sent, and its deadline read."""
        if not part.is_touched:
            part.is_touched = True
            self._touched.append(part)

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world from its beginning to its end."""
        with turned(self.plan.options.get("knobs", {})), leaks.listening() if self._has_auth else nullcontext():
            try:
                self._run()
            except Exception:
                self.note("── the world fails")
                raise

    def _run(self) -> None:
        for step in self.plan.steps:
            self._run_until(START_NS + 1000 * step.at_us, is_late=bool(step.values.get("late")))
            self._perform(step)
        self._finish()

    def _perform(self, step: Step) -> None:
        self.note("── %s", step)
        if self.watch is not None:
            self.watch.step(step, self.nodes.values(), self._consumers.values(), self.now_ns)
        name, _, node = step.who.partition("/")
        if node:
            link = self._links.get(step.who)
            if link is not None:
                link.act(step.verb, step.values)
        elif name in self.plan.lookupds or step.verb == "move":
            self.lookups.act(name, step.verb, step.values)
        elif name in self.nodes:
            self.nodes[name].act(step.verb, step.values)
        elif name in self._producers:
            self._producers[name].act(step.verb, step.values)
        elif name in self._foreigners:
            self._foreigners[name].act(step.verb, step.values)
        elif name in self._consumers:
            self._consumers[name].act(step.verb, step.values)
        else:
            self._partitions.act(name, step.verb, step.values)
        self._pump()
        self._check()

    # ---- time --------------------------------------------------------------------------------------------------------

    def _run_until(self, end_ns: int, *, is_late: bool = False) -> None:
        """Let time go by; mostly all is done when it is due, and now and then all is late."""
        end_ns = max(end_ns, self.now_ns)
        if is_late:
            self.now_ns = end_ns
        event_count = 0
        agenda = self._agenda
        while (due_ns := agenda.next_deadline()) is not None and due_ns <= end_ns:
            event_count = 0 if due_ns > self.now_ns else event_count + 1
            if event_count > EVENTS_MAX:
                raise Broken(29, f"{event_count} events at one time")
            self.now_ns = max(self.now_ns, due_ns)
            for part in agenda.take_due(self.now_ns):
                part.handle_deadline(self.now_ns)
                self.touch(part)  # type: ignore[arg-type]
            self._pump()
        self.now_ns = end_ns
        self._check()

    def _pump(self) -> None:
        """Send the output of all parts to which anything has happened."""
        touched = self._touched
        update = self._agenda.update
        while touched:
            part = touched.pop()
            part.is_touched = False
            part.service()
            update(part)

    def _check(self) -> None:
        for node in self.nodes.values():
            if node.needs_check:
                node.check()
        for consumer in self._consumers.values():
            if consumer.needs_check:
                consumer.check()
        self.lookups.check()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Check that every message is finished after the last fault."""
        self.note("── all faults end")
        for node in self.nodes.values():
            node.heal()
            for topic in self.plan.options["topics"]:
                node.act("unpause topic", {"topic": topic, "channel": ""})
                for channel in node.channel_names(topic):
                    node.act("unpause channel", {"topic": topic, "channel": channel})
        self.lookups.heal()
        for foreigner in self._foreigners.values():
            foreigner.leave()
        for link in self._all_links:
            link.heal()
        self._pump()
        for node in self.nodes.values():
            node.check(whole=True)
        # A deferral of an earlier life ends by a clock that may have been set back.
        behind_ns = max((self.now_ns - node.now_ns for node in self.nodes.values()), default=0)
        idle_rounds_max = IDLE_ROUNDS_MAX + max(behind_ns, 0) // ROUND_NS
        idle_rounds = round_count = 0
        state: object = None
        while not ((is_settled := self._is_settled()) and self._is_done()):
            self._consume_all(by_lookup=not is_settled)
            self._pump()
            self._run_until(self.now_ns + ROUND_NS)
            before, state = state, [node.finished_count for node in self.nodes.values()]
            idle_rounds = idle_rounds + 1 if state == before and not self._is_done() else 0
            round_count += 1
            if idle_rounds > idle_rounds_max or round_count > ROUNDS_MAX + idle_rounds_max:
                raise Broken(26, self._what_is_left())
        self._conclude()

    def _consume_all(self, *, by_lookup: bool) -> None:
        """Have everything consumed: by a consumer for every channel, and by the partitions.

        A topic that was deleted in an nsqlookupd only is not listed there, so consumers that use nsqlookupds are not
        enough in the end.
        """
        enough = [each for each in self._consumers.values() if by_lookup or not isinstance(each, LookupConsumer)]
        wanted = {
            (topic, channel)
            for node in self.nodes.values()
            for topic in self.plan.options["topics"]
            for channel in node.channel_names(topic) or ["a"]
        } - self._partitions.channels
        for topic, channel in sorted(wanted - {(each.topic, each.channel) for each in enough}):
            name = f"drain-{topic}-{channel}"
            self._consumers[name] = Consumer(self, name, {"topic": topic, "channel": channel})
        for consumer in self._consumers.values():
            consumer.drain()
        # Batches without messages would never end.
        self._partitions.settle(goes_on=not self._are_drained)

    @property
    def _are_drained(self) -> bool:
        return all(node.is_drained for node in self.nodes.values())

    def _is_done(self) -> bool:
        publishers = {*self._producers.values(), *self._foreigners.values()}
        return (
            self._are_drained
            and all(publish.answers for producer in self._producers.values() for publish in producer.publishes)
            and self._partitions.are_done
            and not any(
                isinstance(link, Connection) and link.sends and link.owner in publishers for link in self._all_links
            )
        )

    def _is_settled(self) -> bool:
        by_lookup = [each for each in self._consumers.values() if isinstance(each, LookupConsumer)]
        return self.lookups.are_settled(by_lookup)

    def _what_is_left(self) -> str:
        nodes = [node.name for node in self.nodes.values() if not node.is_drained]
        publishes = [
            publish.bodies
            for producer in self._producers.values()
            for publish in producer.publishes
            if not publish.answers
        ]
        return f"messages of {nodes}, publishes without an answer {publishes}, {self._partitions.what_is_left()}"

    def _idle(self) -> None:
        """Let time go by without messages; no broker may need more memory after it."""
        rounds = self.plan.options.get("idle_rounds", 0)
        waits_ns = [
            node.options.sync_timeout_ns + SYNC_SLACK_NS for node in self.nodes.values() if node.disk is not None
        ]
        self._run_until(self.now_ns + max(waits_ns, default=0))
        self._run_until(self.now_ns + IDLE_ROUND_NS * bool(rounds))
        brokers = [node.broker for node in self.nodes.values() if rounds and node.broker is not None]
        counts = [(count_objects(broker), count_parts(broker), count_subscribers(broker)) for broker in brokers]
        for _ in range(rounds):
            self._run_until(self.now_ns + IDLE_ROUND_NS)
        for broker, before in zip(brokers, counts, strict=True):
            check_idle(broker, before)

    def _conclude(self) -> None:
        self._idle()
        self.lookups.conclude()
        for node in self.nodes.values():
            node.check(whole=True)
        for node in self.nodes.values():
            node.check_files()
            node.deliveries.check_samples()
        for node in self.nodes.values():
            if owed := node.history.owed:
                raise Broken(26, f"{node.name} has lost {owed}")
        for producer in self._producers.values():
            producer.check_kept()
            for publish in producer.publishes:
                if len(publish.answers) != 1:
                    raise Broken(11, f"the publish of {publish.bodies} has the answers {publish.answers}")
                if publish.answers[0] is None and not producer.node.accepted.issuperset(publish.bodies):
                    raise Broken(11, f"the publish of {publish.bodies} was confirmed and did not arrive")
                if is_refused(publish.answers[0]) and not producer.node.deliveries.bodies.isdisjoint(publish.bodies):
                    raise Broken(2, f"{publish.bodies} were refused and delivered: {publish.answers[0]!r}")
        self._partitions.conclude()


def _sorted_keys(found: re.Match[str]) -> str:
    """Return the keys of a set in order: that of the set itself depends on the process."""
    return f"{{{', '.join(sorted(_KEY.findall(found[1])))}}}"


def trace_hash(plan: Plan) -> str:
    """Run a plan; return the hash of its trace."""
    digest = hashlib.sha256()
    World(plan, trace=lambda line: digest.update(line.encode() + b"\n")).run()
    return digest.hexdigest()
