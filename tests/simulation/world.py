"""A world: brokers, producers and consumers, the links between them, an admin, and one source of chance.

The rule it guards: a seed is a world. There is no event loop, no socket and no clock; the time is a number that moves
when a step says so, and all that is drawn comes from one ``random.Random``. The brokers and the clients are the real
machines; only links, handlers and people are played.

How to read it: a ``Node`` is a broker beside its oracle, a ``Link`` a connection to it; ``World.step`` picks who acts,
``World.run_until`` lets time go by, ``World.finish`` ends all misfortune and waits until every message is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.client.session import ClientSession
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.message import Message
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.session import ConsumerSession
from nsqkit.errors import NSQError
from nsqkit.producer.pipeline import ProducerSession
from nsqkit.wire.commands import (
    CommandDecoder,
    encode_deferred_publish,
    encode_multi_publish,
    encode_publish,
)
from nsqkit.wire.frames import FrameDecoder, MessageFrame
from nsqkit.wire.identify import IdentifyRequest
from tests.simulation.checkers import check, check_bodies
from tests.simulation.network import MS, Pipe
from tests.simulation.oracle import Oracle

START_NS = 1_704_067_200 * 1000 * MS
ROUNDS_MAX = 400  # of letting time go by, until every message has to be finished


@attrs.define(eq=False)
class Publish:
    """One publish on its way."""

    bodies: list[bytes]
    answers: list[NSQError | None] = attrs.field(factory=list)

    def answered(self, error: NSQError | None) -> None:
        self.answers.append(error)


class Link:
    """A client's machine and a broker's session, and the bytes between them."""

    def __init__(self, world: World, node: Node, machine: ClientSession) -> None:
        self.node, self.machine, self._world = node, machine, world
        self.up, self.down = (Pipe(world.random, world.delay_ns) for _ in range(2))
        self.session = node.broker.open_session(f"10.0.0.1:{len(world.links)}", world.now_ns)
        self.commands = CommandDecoder(lambda verb, params: None, max_msg_size=1 << 20, max_body_size=5 << 20)
        self.frames: FrameDecoder[MessageFrame] = FrameDecoder(MessageFrame)
        node.oracle.opened(self.session)
        node.links[self.session] = self
        world.links.append(self)

    def flush(self) -> None:
        """Send what the client has to say."""
        machine, now_ns = self.machine, self._world.now_ns
        while data := machine.data_to_send(now_ns):
            self.up.send(data, now_ns)
        if machine.ended:
            self.up.end(now_ns)

    def receive(self) -> None:
        """Hand over what has arrived at either side."""
        world, node, session, now_ns = self._world, self.node, self.session, self._world.now_ns
        for data in self.up.receive(now_ns):
            if session.ended:
                break
            if data:
                for command in self.commands.feed(data):
                    world.note("%s: %s %s", session.remote_address, command.verb, command.params)
                    node.oracle.command(session, command, now_ns)
                session.receive_data(data, now_ns)
            else:
                session.receive_eof(now_ns)
            node.settle()
        for data in self.down.receive(now_ns):
            if data:
                self.machine.receive_data(data, now_ns)
            else:
                self.machine.receive_eof(now_ns)

    def reset(self) -> None:
        """Break the connection: both sides lose some of what was under way to them."""
        self._world.note("%s: reset", self.session.remote_address)
        for pipe in (self.up, self.down):
            pipe.reset(self._world.now_ns)


class Node:
    """A broker, and what it has to be like."""

    def __init__(self, world: World, options: BrokerOptions) -> None:
        self._world = world
        self.broker = Broker(options, world.random)
        self.oracle = Oracle(options)
        self.links: dict[object, Link] = {}

    def settle(self) -> None:
        """Send what the broker has to say, and close what it has ended."""
        now_ns, broker = self._world.now_ns, self.broker
        broker.settle(now_ns)
        while sessions := broker.take_sessions():
            for session in sessions:
                link = self.links.get(session)
                if link is None:
                    continue
                while data := session.data_to_send(now_ns):
                    self.oracle.frames(session, link.frames.feed(data), now_ns)
                    link.down.send(data, now_ns)
                if session.ended:
                    self._world.note("%s: ended, %s", session.remote_address, session.end_reason)
                    link.down.end(now_ns)
                    del self.links[session]
                    self.oracle.closed(session)
                    broker.close_session(session, now_ns)

    def handle_deadline(self) -> None:
        self.broker.handle_deadline(self._world.now_ns)
        self.oracle.deadline(self._world.now_ns)
        self.settle()


class Producer:
    """Publishes to one node, again and again."""

    def __init__(self, world: World, node: Node) -> None:
        self._world, self.node = world, node
        self.link: Link | None = None
        self.publishes: list[Publish] = []

    def act(self) -> None:
        """Connect, or publish."""
        world = self._world
        if self.link is None or self.link.machine.ended:
            machine = ProducerSession(
                world.identity(), read_timeout_ns=world.read_timeout_ns, max_msg_size=1 << 20, now_ns=world.now_ns
            )
            self.link = Link(world, self.node, machine)
        elif self.link.machine.is_open:
            assert isinstance(self.link.machine, ProducerSession)
            publish = Publish([world.new_body() for _ in range(world.random.choice((1, 1, 5)))])
            self.publishes.append(publish)
            self.link.machine.publish(self._command(publish.bodies), publish)

    def _command(self, bodies: list[bytes]) -> bytes:
        topic, random = self._world.random.choice(self._world.topics), self._world.random
        if len(bodies) > 1:
            return encode_multi_publish(topic, bodies)
        if random.random() < 0.2:
            return encode_deferred_publish(topic, bodies[0], random.choice((0, 1, 500, 10_000)))
        return encode_publish(topic, bodies[0])


class Consumer:
    """Consumes one channel from every node, with a handler that is not always a good one."""

    def __init__(self, world: World, topic: bytes, channel: bytes) -> None:
        self._world = world
        self.links: dict[Node, Link] = {}
        self.kept: list[Message] = []
        self.core = ConsumerCore(
            topic,
            channel,
            options=world.consumer_options,
            identity=world.identity(),
            random=world.random,
            on_output=lambda session: None,
        )

    def act(self) -> None:
        """Connect where there is no connection; handle some messages; seldom leave."""
        world, random, inbox = self._world, self._world.random, self.core.inbox
        self.connect()
        for _ in range(random.randint(0, len(inbox))):
            self._handle(inbox.popleft())
        if self.kept and random.random() < 0.5:
            self._handle(self.kept.pop(random.randrange(len(self.kept))))
        if world.has_misfortune and random.random() < 0.01:
            world.note("a consumer of %s leaves", self.core.topic)
            self.core.close(world.now_ns)
            self.core.give_back_all()

    def connect(self) -> None:
        if self.core.is_closing:
            return
        for node in self._world.nodes:
            link = self.links.get(node)
            if link is None or link.machine.ended:
                session = ConsumerSession(self.core, "node", self._world.now_ns)
                self.links[node] = Link(self._world, node, session)

    def _handle(self, message: Message) -> None:
        if message.is_answered:
            return
        chance = self._world.random.random() if self._world.has_misfortune else 1
        if chance > 0.3:
            message.finish()
        elif chance > 0.2:
            self.kept.append(message)
        elif chance > 0.1:
            message.touch()
            self.kept.append(message)
        else:
            message.requeue(self._world.random.choice((None, 0, 0.3)), backoff=chance > 0.05)

    @property
    def is_gone(self) -> bool:
        return self.core.is_closing and all(link.machine.ended for link in self.links.values())


class World:
    """All of it. What kind of world it is, is drawn first."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None) -> None:
        self.random = random = Random(seed)
        self._trace = trace
        self.now_ns = START_NS
        self.has_misfortune = True
        self.delay_ns = random.choice((0, 1, 50)) * MS
        self.read_timeout_ns = random.choice((5, 60)) * 1000 * MS
        self._reset_rate = random.choice((0, 0.01, 0.05))
        mem_queue_size = random.choice((0, 3, 10_000))
        self.topics = [b"t", b"u"]
        channels = [b"a", b"b"]
        if mem_queue_size == 10_000:  # what an ephemeral queue drops is not for the oracle
            channels.append(b"c#ephemeral")
            self.topics.append(b"v#ephemeral")
        self.consumer_options = ConsumerOptions(
            max_in_flight=random.choice((1, 2, 10, 200)),
            msg_timeout=random.choice((1.0, 3.0)),
            heartbeat_interval=random.choice((1.0, 5.0)),
            read_timeout=self.read_timeout_ns / 1e9,
            default_requeue_delay=random.choice((0.0, 0.5)),
            backoff_multiplier=random.choice((0.01, 0.5)),
            max_backoff_duration=random.choice((0.0, 1.0)),
        )
        options = BrokerOptions(mem_queue_size=mem_queue_size, max_msg_timeout_ns=4000 * MS)
        self.links: list[Link] = []
        self.nodes = [Node(self, options) for _ in range(random.choice((1, 1, 2)))]
        self.producers = [Producer(self, random.choice(self.nodes)) for _ in range(random.randint(1, 2))]
        self.consumers = [
            Consumer(self, random.choice(self.topics), random.choice(channels)) for _ in range(random.randint(1, 4))
        ]
        self._channels = channels
        self._body_count = 0

    def note(self, text: str, *args: object) -> None:
        if self._trace is not None:
            self._trace(f"{(self.now_ns - START_NS) / 1e9:12.6f} {text % args}")

    def new_body(self) -> bytes:
        self._body_count += 1
        return b"%d" % self._body_count + b"." * self.random.choice((0, 0, 300))

    def identity(self) -> IdentifyRequest:
        options = self.consumer_options
        return IdentifyRequest(
            feature_negotiation=True,
            heartbeat_interval=round(options.heartbeat_interval * 1000),
            msg_timeout=round(options.msg_timeout * 1000),
        )

    # ---- who acts ------------------------------------------------------------------------------------------------

    def run(self, step_count: int) -> None:
        """Live through a world from beginning to end."""
        for _ in range(step_count):
            self.step()
        self.finish()

    def step(self) -> None:
        """Let one of the players act, and some time go by."""
        random = self.random
        player = random.choice((*self.producers, *self.consumers, *self.consumers))
        player.act()
        if random.random() < self._reset_rate and self.links:
            random.choice(self.links).reset()
        if random.random() < self._reset_rate and self.links:
            random.choice(random.choice(self.links).up, ) if False else None
        if random.random() < 0.05:
            self._administer(random.choice(self.nodes))
        self._pump()
        self.run_until(self.now_ns + int(random.expovariate(1) * random.choice((0, 1, 20, 500))) * MS)

    # ---- time ----------------------------------------------------------------------------------------------------
