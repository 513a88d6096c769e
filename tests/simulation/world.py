"""A world: brokers, their clients, the links between them, an admin, and one source of chance.

The rule it guards: a seed is a world. There is no event loop, no socket and no clock; the time is a number that moves
when a step says so, and all that is drawn comes from one ``random.Random``. Brokers and clients are the real machines;
only links, handlers and people are played.

How to read it: a ``Node`` is a broker beside its oracle, a ``Link`` a connection to it. ``World.step`` picks who acts,
``World.run_until`` lets time go by, ``World.finish`` ends all misfortune and waits until every message is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session import Session
from nsqkit.client.session import ClientSession
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.wire.commands import CommandDecoder
from nsqkit.wire.frames import FrameDecoder, MessageFrame
from nsqkit.wire.identify import IdentifyRequest
from tests.simulation.checkers import check, check_bodies
from tests.simulation.network import MS, Pipe
from tests.simulation.oracle import Oracle
from tests.simulation.workload import Consumer, Producer

START_NS = 1_704_067_200 * 1000 * MS
ROUND_NS = 200 * MS  # how long a good handler takes: less than any message timeout
IDLE_ROUNDS_MAX = 300  # without a message that is finished, when nothing goes wrong any more
EVENTS_MAX = 10_000  # without time going by
ADMIN_ACTIONS = (
    *("pause channel", "unpause channel", "pause topic", "unpause topic", "make channel") * 4,
    *("empty channel", "empty topic", "delete channel", "delete topic"),
)


class Node:
    """A broker, and what it has to be like."""

    def __init__(self, world: World, options: BrokerOptions) -> None:
        self._world = world
        self.broker = Broker(options, world.random)
        self.oracle = Oracle(options)
        self.links: dict[Session, Link] = {}

    def settle(self) -> None:
        """Send what the broker has to say, and close what it has ended."""
        broker, now_ns = self.broker, self._world.now_ns
        broker.settle(now_ns)
        while sessions := broker.take_sessions():
            for link in [self.links[session] for session in sessions if session in self.links]:
                session = link.session
                while data := session.data_to_send(now_ns):
                    self.oracle.frames(session, link.frames.feed(data), now_ns)
                    link.down.send(data, now_ns)
                if session.ended:
                    self._world.note("%s is ended: %s", session.remote_address, session.end_reason)
                    link.down.end(now_ns)
                    del self.links[session]
                    self.oracle.closed(session)
                    broker.close_session(session, now_ns)

    def handle_deadline(self) -> None:
        self.broker.handle_deadline(self._world.now_ns)
        self.oracle.deadline(self._world.now_ns)
        self.settle()

    def administer(self, action: str, random: Random) -> None:
        """Do as an admin does, with a topic and a channel of chance."""
        broker, oracle, now_ns = self.broker, self.oracle, self._world.now_ns
        topic_name = random.choice([*broker.topics] or [b"t"])
        topic = broker.topic(topic_name)
        oracle.make_topic(topic_name)
        name = random.choice([*topic.channels] or [b"a"])
        self._world.note("admin: %s %s:%s", action, topic_name, name)
        verb, _, kind = action.partition(" ")
        if kind == "channel" and (verb == "make" or name not in topic.channels):
            topic.channel(name, now_ns)
            oracle.make_channel(topic_name, name, now_ns)
        elif verb == "delete" and kind == "topic":
            broker.delete_topic(topic_name)
            oracle.delete_topic(topic_name)
        elif verb == "delete":
            broker.delete_channel(topic_name, name)
            oracle.delete_channel(topic_name, name)
        elif verb == "empty" and kind == "topic":
            topic.empty()
            oracle.topics[topic_name].waiting = []
        elif verb == "empty":
            topic.channels[name].empty()
            oracle.empty_channel(oracle.topics[topic_name].channels[name])
        elif kind == "topic":
            topic.pause() if verb == "pause" else topic.unpause(now_ns)
            oracle.pause_topic(topic_name, now_ns, paused=verb == "pause")
        else:
            getattr(topic.channels[name], verb)()
            oracle.topics[topic_name].channels[name].paused = verb == "pause"
        self.settle()


class Link:
    """A client's machine and a broker's session, and the bytes between them."""

    def __init__(self, world: World, node: Node, machine: ClientSession[Any], address: str) -> None:
        self._world, self.node, self.machine = world, node, machine
        self.up, self.down = (Pipe(world.random, world.delay_ns) for _ in range(2))
        self.session = node.broker.open_session(address, world.now_ns)
        self._commands = CommandDecoder(self._admit, max_msg_size=1 << 20, max_body_size=5 << 20)
        self.frames: FrameDecoder[MessageFrame] = FrameDecoder(MessageFrame)
        node.links[self.session] = self
        node.oracle.opened(self.session)

    def _admit(self, verb: bytes, params: list[bytes]) -> None:
        if verb == b"MPUB":  # makes its topic before its body is there
            self.node.oracle.make_topic(params[0])

    @property
    def is_over(self) -> bool:
        return self.machine.ended and self.session not in self.node.links

    def flush(self) -> None:
        """Send what the client has to say."""
        while data := self.machine.data_to_send(self._world.now_ns):
            self.up.send(data, self._world.now_ns)
        if self.machine.ended:
            self.up.end(self._world.now_ns)

    def receive(self) -> None:
        """Hand over what has arrived, on both sides."""
        now_ns = self._world.now_ns
        for data in self.up.receive(now_ns):
            if data and not self.session.ended:
                for command in self._commands.feed(data):
                    self._world.note("%s: %s %s", self.session.remote_address, command.verb, command.params)
                    self.node.oracle.command(self.session, command, now_ns)
                self.session.receive_data(data, now_ns)
            elif not self.session.ended:
                self.node.oracle.end(self.session, self._commands.end())
                self.session.receive_eof(now_ns)
            self.node.settle()
        for data in self.down.receive(now_ns):
            if data:
                self.machine.receive_data(data, now_ns)
            else:
                self.machine.receive_eof(now_ns)

    def next_due(self) -> int | None:
        return _earliest(self.up.next_arrival, self.down.next_arrival, self.machine.next_deadline())


class World:
    """All of it. What kind of world it is, is drawn first."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.random = random = Random(seed)
        self._trace = trace
        self.now_ns = START_NS
        self.has_misfortune = True
        self.delay_ns = random.choice((0, 1, 50)) * MS
        self._fault_rate = random.choice((0, 0.01, 0.05))
        mem_queue_size = random.choice((0, 3, 10_000))
        self.topics, channels = [b"t", b"u"], [b"a", b"b"]
        if mem_queue_size == 10_000:  # which messages an ephemeral queue drops is not for the oracle to say
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
        self.links: list[Link] = []
        self.nodes = [Node(self, broker_options) for _ in range(random.choice((1, 1, 2)))]
        self._producers = [Producer(self, random.choice(self.nodes)) for _ in range(random.randint(1, 2))]
        self._consumers = [
            Consumer(self, random.choice(self.topics), random.choice(channels))
            for _ in range(random.randint(1, 4))
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

    def connect(self, node: Node, machine: ClientSession[Any]) -> Link:
        """Return a new connection."""
        self._link_count += 1
        link = Link(self, node, machine, f"10.0.0.1:{self._link_count}")
        self.links.append(link)
        return link

    # ---- who acts ------------------------------------------------------------------------------------------------

    def run(self, step_count: int) -> None:
        """Live through a world from its beginning to its end."""
        for _ in range(step_count):
            self.step()
        self.finish()

    def step(self) -> None:
        """Let one of the players act, and some time go by."""
        random = self.random
        random.choice((*self._producers, *self._consumers, *self._consumers)).act()
        for number, consumer in enumerate(self._consumers):
            if consumer.is_gone:
                self._consumers[number] = Consumer(self, consumer.core.topic, consumer.core.channel)
        if random.random() < self._fault_rate:
            self._misfortune()
        if random.random() < 0.05:
            random.choice(self.nodes).administer(random.choice(ADMIN_ACTIONS), random)
        self.run_until(self.now_ns + int(random.expovariate(1) * random.choice((0, 1, 20, 500)) * MS))

    def _misfortune(self) -> None:
        """Break or stall a connection, or take a consumer away."""
        random = self.random
        link = random.choice(self.links) if self.links else None
        what = random.choice(("reset", "stall", "leave"))
        if what == "leave":
            random.choice(self._consumers).leave()
        elif link is not None and what == "reset":
            link.up.reset(self.now_ns)
            link.down.reset(self.now_ns)
        elif link is not None:
            random.choice((link.up, link.down)).stall(self.now_ns + random.choice((1, 20)) * 1000 * MS)
        self.note("misfortune: %s, maybe of %s", what, link.session.remote_address if link else None)

    # ---- time ----------------------------------------------------------------------------------------------------

    def run_until(self, end_ns: int) -> None:
        """Let time go by; mostly all is done when it is due, and now and then all is late."""
        self._pump()
        if self.random.random() < 0.02:
            self.now_ns = end_ns
        event_count = 0
        while (due_ns := self._next_due()) is not None and due_ns <= end_ns:
            event_count = 0 if due_ns > self.now_ns else event_count + 1
            assert event_count < EVENTS_MAX, "time stands still"
            self.now_ns = max(self.now_ns, due_ns)
            self._act_on_time()
            self._pump()
        self.now_ns = end_ns

    def _next_due(self) -> int | None:
        timed = [*(node.broker for node in self.nodes), *(consumer.core for consumer in self._consumers)]
        return _earliest(*(each.next_deadline() for each in timed), *(link.next_due() for link in self.links))

    def _act_on_time(self) -> None:
        now_ns = self.now_ns
        for node in self.nodes:
            if _is_due(node.broker.next_deadline(), now_ns):
                node.handle_deadline()
        for consumer in self._consumers:
            if _is_due(consumer.core.next_deadline(), now_ns):
                consumer.core.handle_deadline(now_ns)
        for link in [link for link in self.links if _is_due(link.next_due(), now_ns)]:
            link.receive()
            link.machine.handle_deadline(now_ns)

    def _pump(self) -> None:
        """Send what the clients have to say, and see that all is well."""
        for link in self.links:
            link.flush()
        self.links = [link for link in self.links if not link.is_over]
        for node in self.nodes:
            node.settle()
            check(node)

    # ---- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """See that every message is finished once nothing goes wrong any more."""
        self.note("misfortune ends")
        self.has_misfortune = False
        for node in self.nodes:
            for name, topic in node.broker.topics.items():
                for channel_name, channel in topic.channels.items():
                    channel.unpause()
                    node.oracle.topics[name].channels[channel_name].paused = False
                topic.unpause(self.now_ns)
                node.oracle.pause_topic(name, self.now_ns, paused=False)
            node.settle()
            check_bodies(node)
        idle_rounds = finished_count = 0
        while not self._is_done():
            self._consume_all()
            self.run_until(self.now_ns + ROUND_NS)
            before, finished_count = finished_count, self._finished_count()
            idle_rounds = idle_rounds + 1 if finished_count == before else 0
            assert idle_rounds < IDLE_ROUNDS_MAX, "messages are left, or publishes without an answer"
        for producer in self._producers:
            for publish in producer.publishes:
                assert len(publish.answers) == 1
                assert publish.answers[0] or producer.node.oracle.accepted.issuperset(publish.bodies)

    def _consume_all(self) -> None:
        """Let consumers act, of which there is one for every channel."""
        self._consumers = [consumer for consumer in self._consumers if not consumer.core.is_closing]
        topics = [item for node in self.nodes for item in node.broker.topics.items()]
        names = {(name, channel) for name, topic in topics for channel in topic.channels or (b"a",)}
        names -= {(consumer.core.topic, consumer.core.channel) for consumer in self._consumers}
        self._consumers += [Consumer(self, *name) for name in sorted(names)]
        for consumer in self._consumers:
            consumer.act()

    def _finished_count(self) -> int:
        return sum(channel.finished_count for node in self.nodes for channel in node.oracle.channels())

    def _is_done(self) -> bool:
        topics = [topic for node in self.nodes for topic in node.oracle.topics.values()]
        return not any(
            topic.waiting or not all(c.is_empty() for c in topic.channels.values()) for topic in topics
        ) and (all(publish.answers for producer in self._producers for publish in producer.publishes))


def _earliest(*times_ns: int | None) -> int | None:
    return min((time_ns for time_ns in times_ns if time_ns is not None), default=None)


def _is_due(deadline_ns: int | None, now_ns: int) -> bool:
    return deadline_ns is not None and deadline_ns <= now_ns
