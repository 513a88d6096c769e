"""The players of a world: producers and consumers, made of the real machines, and a handler that sometimes fails.

``act`` is one action of a player; its output is sent when the world pumps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from nsqkit.clock import ManualClock
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.message import Message
from nsqkit.consumer.session import ConsumerSession
from nsqkit.consumer.subscription import Subscription
from nsqkit.errors import NSQError
from nsqkit.producer.session import Answers, ProducerSession
from nsqkit.wire.commands import encode_deferred_publish, encode_multi_publish, encode_publish

if TYPE_CHECKING:
    from tests.simulation.world import Connection, Node, World


@attrs.define(eq=False)
class Publish:
    """One publish and its answers, of which there must be exactly one; None is OK."""

    bodies: list[bytes]
    answers: list[NSQError | None] = attrs.field(factory=list)


class Producer:
    """Publishes to one node repeatedly."""

    def __init__(self, world: World, node: Node) -> None:
        self._world, self.node = world, node
        self._link: Connection[ProducerSession] | None = None
        self.publishes: list[Publish] = []

    def process_events(self) -> None:
        """Record the answers of the connection."""
        if self._link is None:
            return
        events, self._link.events = self._link.events, []
        for event in events:
            assert isinstance(event, Answers)
            publish: Publish
            for publish in event.ok:
                publish.answers.append(None)
            for publish, error in event.failed:
                publish.answers.append(error)

    def act(self) -> None:
        """Connect if there is no connection, publish otherwise."""
        self.process_events()
        world, options = self._world, self._world.consumer_options
        if self._link is None or self._link.machine.ended:
            session = ProducerSession(
                world.identity,
                read_timeout_ns=round(options.read_timeout * 1e9),
                max_msg_size=options.max_msg_size,
                now_ns=world.now_ns,
            )
            self._link = world.connect(self.node, session)
        elif self._link.machine.is_open:
            publish = Publish([world.new_body() for _ in range(world.random.choice((1, 1, 5)))])
            self.publishes.append(publish)
            self._link.machine.publish(self._command(publish.bodies), publish)

    def _command(self, bodies: list[bytes]) -> bytes:
        random = self._world.random
        topic = random.choice(self._world.topics)
        if len(bodies) > 1:
            return encode_multi_publish(topic, bodies)
        if random.random() < 0.2:
            return encode_deferred_publish(topic, bodies[0], random.choice((0, 1, 500, 10_000)))
        return encode_publish(topic, bodies[0])


class WorldClock(ManualClock):
    """The time of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns


class Consumer:
    """Consumes one channel of every node; it holds some messages for too long."""

    def __init__(self, world: World, topic: bytes, channel: bytes) -> None:
        self._world = world
        self._links: dict[Node, Connection[ConsumerSession]] = {}
        self._kept: list[Message] = []
        self.topic, self.channel = topic, channel
        self.core = ConsumerCore(world.consumer_options, world.random)
        self.subscription = Subscription(
            topic.decode(),
            channel.decode(),
            core=self.core,
            options=world.consumer_options,
            identity=world.identity,
        )
        self.subscription.clock = WorldClock(world)

    def act(self) -> None:
        """Connect where there is no connection, handle some messages, and sometimes change settings."""
        world, random, core = self._world, self._world.random, self.core
        for node in world.nodes if not core.is_closing else ():
            if node not in self._links or self._links[node].machine.ended:
                session = self.subscription.make_session("node", self, world.now_ns)
                self._links[node] = world.connect(node, session, core)
        for _ in range(random.randint(0, len(core.inbox)) if world.has_misfortune else len(core.inbox)):
            self._handle(core.inbox.popleft())
        while self._kept and (not world.has_misfortune or random.random() < 0.5):
            self._handle(self._kept.pop(random.randrange(len(self._kept))))
        if not world.has_misfortune or random.random() < 0.1:
            core.set_max_in_flight(world.consumer_options.max_in_flight, world.now_ns)
        elif random.random() < 0.02:
            core.set_max_in_flight(random.choice((0, 1, 5)), world.now_ns)

    def _handle(self, message: Message) -> None:
        chance = self._world.random.random() if self._world.has_misfortune else 1
        if message.is_answered:
            return
        if chance > 0.3:
            message.finish()
        elif chance > 0.2:
            message.requeue(self._world.random.choice((None, 0, 0.3)), backoff=chance > 0.25)
        else:
            self._kept.append(message)
            if chance > 0.1:
                message.touch()

    def wake(self) -> None:
        """Do nothing: the world sends the output of all sessions."""

    flush = wake

    def leave(self) -> None:
        """Requeue everything and close."""
        self.core.close(self._world.now_ns, self._world.now_ns)
        self.core.requeue_all()
        for link in self._links.values():
            if not link.machine.is_open:
                link.machine.end(None)

    @property
    def is_gone(self) -> bool:
        return self.core.is_closing and all(link.machine.ended for link in self._links.values())
