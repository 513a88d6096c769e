"""A simulated world: brokers, their clients, the connections between them, an admin, and one random generator.

A seed determines a world. There is no event loop, no socket and no clock: steps advance the time, which is a number,
and all random values come from the seed. Brokers, clients and the links with their faults are the real machines; the
network, handlers and users are simulated.

A ``Node`` is a broker with its oracle, a ``Connection`` leads to it. ``World.step`` selects and performs one action,
``World.run_until`` advances the time, ``World.finish`` ends all faults and runs until every message is finished. In a
third of the worlds the misfortunes of connections are the faults that ``nsqkit.testing`` has for the tests of users, in
the others those of the network alone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.client.session import ClientSession
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.session import ConsumerSession
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.link.link import Link
from nsqkit.wire.commands import MPUB_HEAD, CommandDecoder
from nsqkit.wire.frames import FrameDecoder
from nsqkit.wire.identify import IdentifyRequest
from tests.rules import AllowAll
from tests.simulation.checkers import check, check_bodies
from tests.simulation.faults import add_fault
from tests.simulation.network import END, MS, Pipe
from tests.simulation.oracle import Oracle
from tests.simulation.workload import Consumer, Producer
from tests.stepping import step

M = TypeVar("M", bound=ClientSession[Any])

_NO_JOURNAL = Journal(enabled=False)

START_NS = 1_704_067_200 * 1000 * MS
ROUND_NS = 200 * MS  # how long a good handler takes: less than any message timeout
IDLE_ROUNDS_MAX = 300  # without a message that is finished, when nothing goes wrong any more
EVENTS_MAX = 10_000  # without time going by
ADMIN_ACTIONS = (
    *("pause channel", "unpause channel", "pause topic", "unpause topic", "make channel") * 4,
    *("empty channel", "empty topic", "delete channel", "delete topic"),
)


class Node:
    """A broker and its required state."""

    def __init__(self, world: World, options: BrokerOptions) -> None:
        self._world = world
        self.broker = Broker(options, world.random)
        self.oracle = Oracle(options)
        self.faults = Faults()
        self.links: dict[Session, Connection[Any]] = {}
        self.next_deadline = self.broker.next_deadline

    def settle(self) -> None:
        """Send the broker's output, and close the sessions that it has ended."""
        broker, now_ns = self.broker, self._world.now_ns
        broker.settle(now_ns)
        while sessions := broker.take_sessions():
            for link in [self.links[session] for session in sessions if session in self.links]:
                session = link.session
                while (data := session.data_to_send()) or session.has_input:
                    self.oracle.frames(session, link.frames.feed(data), now_ns)
                    link.answer(data)
                    session.process_input(now_ns)
                if session.ended:
                    self._world.note("%s is ended: %s", session.remote_address, session.events())
                    link.answer(END)
                    del self.links[session]
                    self.oracle.closed(session)
                    broker.close_session(session, now_ns)

    def handle_deadline(self, now_ns: int) -> None:
        self.broker.handle_deadline(now_ns)
        self.oracle.deadline(now_ns)
        self.settle()

    def administer(self, action: str, topic_name: bytes, name: bytes) -> None:
        """Do as an admin does; a channel that is not there is made."""
        broker, oracle, now_ns = self.broker, self.oracle, self._world.now_ns
        self._world.note("admin: %s, %s:%s", action, topic_name, name)
        topic, topic_oracle = broker.topics.get_or_create(topic_name), oracle.topic(topic_name)
        if action.endswith("channel"):
            channel, channel_oracle = topic.channel(name, now_ns), oracle.channel(topic_name, name, now_ns)
        match action:
            case "pause channel" | "unpause channel":
                (channel.pause if action == "pause channel" else channel.unpause)()
                channel_oracle.paused = channel.paused
            case "empty channel":
                channel.empty()
                oracle.empty_channel(channel_oracle)
            case "delete channel":
                broker.delete_channel(topic_name, name)
                oracle.delete_channel(channel_oracle)
            case "pause topic":
                topic.pause()
                oracle.pause_topic(topic_oracle, now_ns, paused=True)
            case "unpause topic":
                topic.unpause(now_ns)
                oracle.pause_topic(topic_oracle, now_ns, paused=False)
            case "empty topic":
                topic.empty()
                topic_oracle.waiting = []
            case "delete topic":
                broker.delete_topic(topic_name)
                del oracle.topics[topic_name]
        self.settle()


class Connection(Generic[M]):
    """A client's machine and a broker's session, and the bytes between them.

    machine ──▶ up ──▶ ┐      ┌ ──▶ session
                       │ link │
    machine ◀── down ◀ ┘      └ ◀── session
    """

    def __init__(self, world: World, node: Node, machine: M, address: str, core: ConsumerCore | None) -> None:
        self._world, self.node, self.machine, self._core = world, node, machine, core
        self.up, self.down = (Pipe(world.random, world.delay_ns) for _ in range(2))
        self.link = Link(address, _NO_JOURNAL, node.faults)
        self._at_end = False
        self.session = node.broker.open_session(address, world.now_ns)
        self._commands = CommandDecoder(AllowAll(), max_msg_size=1 << 20, max_body_size=5 << 20)
        self.frames = FrameDecoder()
        self.events: list[object] = []  # of a producer's machine
        node.links[self.session] = self
        node.oracle.opened(self.session)

    @property
    def is_over(self) -> bool:
        return self.machine.ended and self.session not in self.node.links

    def flush(self) -> None:
        """Send the client's output."""
        while self._step(b""):
            pass
        if self.machine.ended:
            self.up.send(END, self._world.now_ns)

    def next_deadline(self) -> int | None:
        arrivals = self.up.next_arrival, self.down.next_arrival
        leaves_ns = self._world.now_ns if self.link.broker_end.has_output and not self._at_end else None
        return _earliest(*arrivals, leaves_ns, self.link.next_deadline(), self.machine.next_deadline())

    def handle_deadline(self, now_ns: int) -> None:
        """Deliver arrived bytes, on both sides."""
        self.link.handle_deadline(now_ns)
        self._pass_up(now_ns)
        for data in self.up.receive(now_ns):
            if data == END:
                self.link.client_end.receive_eof(now_ns)
            else:
                self.link.client_end.receive_data(data, now_ns)
            self._pass_up(now_ns)
        self._pass_down(now_ns)
        for data in self.down.receive(now_ns):
            if data == END:
                self.machine.receive_eof(now_ns)
            self._step(b"" if data == END else data)
        self._step(b"")

    def answer(self, data: bytes) -> None:
        """Send bytes of the broker, END for the end."""
        now_ns = self._world.now_ns
        if data == END:
            self.link.broker_end.receive_eof(now_ns)
        else:
            self.link.broker_end.receive_data(data, now_ns)
        self._pass_down(now_ns)

    def _pass_down(self, now_ns: int) -> None:
        end = self.link.client_end
        if data := end.data_to_send():
            self.down.send(data, now_ns)
        if end.ended:
            self.down.send(END, now_ns)

    def _pass_up(self, now_ns: int) -> None:
        end = self.link.broker_end
        if (data := end.data_to_send()) and not self.session.ended:
            self._receive(data, now_ns)
        if end.ended and not self._at_end:
            self._at_end = True
            if not self.session.ended:
                self._receive(END, now_ns)

    def _step(self, data: bytes) -> bool:
        """Drive the client's machine; return whether it had output or events."""
        output, events = step(self.machine, data, self._world.now_ns)
        if output:
            self.up.send(output, self._world.now_ns)
        if self._core is None:
            self.events += events
        elif events:
            assert isinstance(self.machine, ConsumerSession)
            self._core.handle_events(self.machine, events, self._world.now_ns)
            self._core.take_output()
        return bool(output or events)

    def _receive(self, data: bytes, now_ns: int) -> None:
        session, oracle = self.session, self.node.oracle
        if data != END:
            for command in self._commands.feed(data):
                self._world.note("%s: %s %s", session.remote_address, command.verb.decode(), command.params)
                if command.verb == MPUB_HEAD:
                    oracle.topic(command.params[0])
                else:
                    oracle.command(session, command, now_ns)
            session.receive_data(data, now_ns)
        else:
            oracle.end(session, self._commands.end())
            session.receive_eof(now_ns)
        self.node.settle()


class World:
    """A whole world; its kind is drawn first."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.random = random = Random(seed)
        self._fault_random = Random(seed) if seed % 3 == 0 else None
        self._trace = trace
        self.now_ns = START_NS
        self.has_misfortune = True
        self.delay_ns = random.choice((0, 1, 50)) * MS
        self._fault_rate = random.choice((0, 0.01, 0.05))
        mem_queue_size = random.choice((0, 3, 10_000))
        self.topics, channels = [b"t", b"u"], [b"a", b"b"]
        if mem_queue_size == 10_000:  # the oracle does not model which messages an ephemeral queue drops
            self.topics.append(b"v#ephemeral")
            channels.append(b"c#ephemeral")
        self.consumer_options = options = ConsumerOptions(
            max_in_flight=random.choice((1, 2, 10, 200)),
            heartbeat_interval=random.choice((1.0, 5.0)),
            read_timeout=random.choice((5.0, 60.0)),
            default_requeue_delay=random.choice((0.0, 0.5)),
            backoff_multiplier=random.choice((0.01, 0.5)),
            max_backoff_duration=random.choice((0.0, 1.0)),
        )
        self.identity = IdentifyRequest(
            feature_negotiation=True,
            heartbeat_interval=round(options.heartbeat_interval * 1000),
            msg_timeout=random.choice((1000, 3000)),
        )
        broker_options = BrokerOptions(mem_queue_size=mem_queue_size, max_msg_timeout_ns=4000 * MS)
        self._links: list[Connection[Any]] = []
        self.nodes = [Node(self, broker_options) for _ in range(random.choice((1, 1, 2)))]
        self._producers = [Producer(self, random.choice(self.nodes)) for _ in range(random.randint(1, 2))]
        self._consumers = [
            Consumer(self, random.choice(self.topics), random.choice(channels)) for _ in range(random.randint(1, 4))
        ]
        self._body_count = self._link_count = 0

    def note(self, text: str, *args: object) -> None:
        """Write a line of the trace, if there is one."""
        if self._trace is not None:
            self._trace(f"{(self.now_ns - START_NS) / 1e9:11.6f}  {text % args}")

    # ---- for the players -----------------------------------------------------------------------------------------

    def new_body(self) -> bytes:
        """Return a body that no other message has."""
        self._body_count += 1
        return b"%d" % self._body_count + b"." * self.random.choice((0, 0, 300))

    def connect(self, node: Node, machine: M, core: ConsumerCore | None = None) -> Connection[M]:
        """Return a new connection."""
        self._link_count += 1
        link = Connection(self, node, machine, f"10.0.0.1:{self._link_count}", core)
        self._links.append(link)
        return link

    # ---- actors --------------------------------------------------------------------------------------------------

    def run(self, step_count: int) -> None:
        """Run a world from its beginning to its end."""
        for _ in range(step_count):
            self.step()
        self.finish()

    def step(self) -> None:
        """Let one of the players act, and some time go by."""
        random = self.random
        players: list[Producer | Consumer] = [*self._producers, *self._consumers, *self._consumers]
        random.choice(players).act()
        for number, consumer in enumerate(self._consumers):
            if consumer.is_gone:
                self._consumers[number] = Consumer(self, consumer.topic, consumer.channel)
        if random.random() < self._fault_rate:
            self._misfortune()
        if random.random() < 0.05:
            node, topic_name = random.choice(self.nodes), random.choice(self.topics)
            topic = node.broker.topics.get(topic_name)
            name = random.choice([*(topic.channels if topic else ())] or [b"a"])
            node.administer(random.choice(ADMIN_ACTIONS), topic_name, name)
        self.run_until(self.now_ns + int(random.expovariate(1) * random.choice((0, 1, 20, 500)) * MS))

    def _misfortune(self) -> None:
        """Break or stall a connection, or take a consumer away."""
        random, what = self.random, self.random.choice(("reset", "stall", "leave"))
        if what == "leave" or not self._links:
            random.choice(self._consumers).leave()
            return
        link = random.choice(self._links)
        if self._fault_random is not None:
            fault = add_fault(self._fault_random, link.node.faults, link.session.remote_address)
            self.note("%s", fault)
            return
        self.note("%s: %s", link.session.remote_address, what)
        for pipe in (link.up, link.down):
            if what == "reset":
                pipe.reset(self.now_ns)
            else:
                pipe.stall(self.now_ns + random.choice((0, 1, 20)) * 1000 * MS)

    # ---- time ----------------------------------------------------------------------------------------------------

    def run_until(self, end_ns: int) -> None:
        """Let time go by; mostly all is done when it is due, and now and then all is late."""
        self._pump()
        if self.random.random() < 0.02:
            self.now_ns = end_ns
        event_count = 0
        while (due_ns := _earliest(*(each.next_deadline() for each in self._timed()))) is not None:
            if due_ns > end_ns:
                break
            event_count = 0 if due_ns > self.now_ns else event_count + 1
            assert event_count < EVENTS_MAX, "time stands still"
            self.now_ns = max(self.now_ns, due_ns)
            for each in self._timed():
                deadline_ns = each.next_deadline()
                if deadline_ns is not None and deadline_ns <= self.now_ns:
                    each.handle_deadline(self.now_ns)
            self._pump()
        self.now_ns = end_ns

    def _timed(self) -> list[Any]:
        return [*self.nodes, *(consumer.core for consumer in self._consumers), *self._links]

    def _pump(self) -> None:
        """Send the clients' output, and check all invariants."""
        for link in self._links:
            link.flush()
        self._links = [link for link in self._links if not link.is_over]
        for node in self.nodes:
            node.settle()
            check(node.broker, node.oracle)

    # ---- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check that every message is finished after the last fault."""
        self.note("misfortune ends")
        self.has_misfortune = False
        for node in self.nodes:
            node.faults.clear()
            check_bodies(node.broker, node.oracle)
            for channel in list(node.oracle.channels()):
                node.administer("unpause channel", channel.topic, channel.name)
            for topic_name in node.oracle.topics:
                node.administer("unpause topic", topic_name, b"")
        idle_rounds = finished_count = 0
        while not self._is_done():
            self._consume_all()
            self.run_until(self.now_ns + ROUND_NS)
            before, finished_count = finished_count, sum(map(_finished_count, self.nodes))
            idle_rounds = idle_rounds + 1 if finished_count == before else 0
            assert idle_rounds < IDLE_ROUNDS_MAX, "messages are left, or publishes without an answer"
        for producer in self._producers:
            for publish in producer.publishes:
                assert len(publish.answers) == 1
                assert publish.answers[0] or producer.node.oracle.accepted.issuperset(publish.bodies)

    def _consume_all(self) -> None:
        """Let consumers act, of which there is one for every channel."""
        self._consumers = [consumer for consumer in self._consumers if not consumer.core.is_closing]
        topics = [item for node in self.nodes for item in node.oracle.topics.items()]
        names = {(name, channel) for name, topic in topics for channel in topic.channels or (b"a",)}
        names -= {(consumer.topic, consumer.channel) for consumer in self._consumers}
        self._consumers += [Consumer(self, *name) for name in sorted(names)]
        for consumer in self._consumers:
            consumer.act()

    def _is_done(self) -> bool:
        topics = [topic for node in self.nodes for topic in node.oracle.topics.values()]
        channels = [channel for node in self.nodes for channel in node.oracle.channels()]
        for producer in self._producers:
            producer.process_events()
        publishes = [publish for producer in self._producers for publish in producer.publishes]
        return (
            not any(topic.waiting for topic in topics)
            and not any(channel.queued or channel.deferred or channel.in_flight for channel in channels)
            and all(publish.answers for publish in publishes)
        )


def _earliest(*times_ns: int | None) -> int | None:
    return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)


def _finished_count(node: Node) -> int:
    return sum(channel.finished_count for channel in node.oracle.channels())
