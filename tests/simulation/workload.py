"""The players of a world: producers and consumers, made of the real machines, with handlers that sometimes fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.clock import ManualClock
from nsqkit.consumer.confirmation import Confirming
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.message import Message
from nsqkit.consumer.session import ConsumerSession
from nsqkit.consumer.subscription import Subscription
from nsqkit.errors import (
    BrokerError,
    DeferredPublishFailed,
    MultiPublishFailed,
    NotConnected,
    NSQError,
    PublishFailed,
)
from nsqkit.producer.linger import Linger
from nsqkit.producer.session import Answers, ProducerSession
from nsqkit.wire.commands import Command, encode_deferred_publish, encode_multi_publish, encode_publish
from tests.kept import kept_count
from tests.simulation.broken import conclude
from tests.simulation.flow_rules import RdyRule, check_flow
from tests.simulation.invariants import check_later
from tests.simulation.network import MS

if TYPE_CHECKING:
    from tests.simulation.connection import Connection
    from tests.simulation.node import Node
    from tests.simulation.world import World


CLOSE_TIMEOUT_NS: Final = 2_000_000_000
"""How long a consumer that leaves waits for its connections to end."""


LINGER_SIZE_MAX: Final = 350


@attrs.define(eq=False)
class Publish:
    """One publish and its answers, of which there must be exactly one; None is OK."""

    bodies: list[bytes]
    answers: list[NSQError | None] = attrs.field(factory=list)


def is_refused(answer: NSQError | None) -> bool:
    """Return whether a publish with this answer was certainly not accepted.

    A broker puts publishes of one connection together. If its disk fails for one of them, it answers the first, and
    some channels may have those behind it.
    """
    error = answer.__cause__ if isinstance(answer, NotConnected) else answer
    if isinstance(error, (PublishFailed, MultiPublishFailed, DeferredPublishFailed)):
        return False
    return isinstance(answer, (BrokerError, NotConnected))


class Producer:
    """Publishes to one node repeatedly; with ``linger_ms`` it gathers single publishes."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world, self.name, self._options = world, name, options
        self.agenda_ns: int | None = None
        self.is_touched = False
        self.node: Node = world.nodes[options["node"]]
        self._link: Connection | None = None
        self._kept_count = 0  # elements of containers of the session before its first publish
        self.publishes: list[Publish] = []

    def before_command(self, connection: Connection, command: Command) -> None:
        """Check the limits of a batch of single publishes."""
        if command.verb == b"MPUB" and len({body.split(b".")[1] for body in command.bodies}) > 1:
            size = sum(4 + len(body) for body in command.bodies) + 4
            is_small = len(command.bodies) <= self._options["linger_count"] and size <= LINGER_SIZE_MAX
            conclude(23, is_small, f"{self.name} gathered {len(command.bodies)} messages of {size} bytes")

    def handle_events(self, connection: Connection, events: Sequence[object]) -> None:
        """Record the answers of the connection."""
        for event in events:
            assert isinstance(event, Answers)
            publish: Publish
            for publish in event.ok:
                publish.answers.append(None)
            for publish, error in event.failed:
                publish.answers.append(error)

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Connect if there is no connection; publish or cancel otherwise."""
        if self._link is None or self._link.machine.ended:
            if not self.node.accepts:
                self._link = None
                return
            options = self._world.consumer_options
            session = ProducerSession(
                self._world.identity,
                read_timeout_ns=round(options.read_timeout * 1e9),
                max_msg_size=options.max_msg_size,
                now_ns=self._world.now_ns,
                linger=self._make_linger(),
            )
            self._link = self._world.connect(self.name, self, self.node, session)
            self._kept_count = 0
        elif verb == "cancel":
            self._cancel()
        elif verb == "publish" and values["count"] and self._link.machine.is_open:
            bodies = [
                b"%s.%d.%d" % (self.name.encode(), values["id"], number) + b"." * values["size"]
                for number in range(values["count"])
            ]
            publish = Publish(bodies)
            self.publishes.append(publish)
            self._kept_count = self._kept_count or kept_count(self.session)
            topic = values["topic"].encode()
            if len(bodies) > 1:
                command = encode_multi_publish(topic, bodies)
            elif values["delay_ms"] is not None:
                command = encode_deferred_publish(topic, bodies[0], values["delay_ms"])
            else:
                command = encode_publish(topic, bodies[0])
            session = self.session
            if session.linger is None or len(bodies) > 1 or values["delay_ms"] is not None:
                session.publish(command, publish)
            elif session.linger.join(topic, bodies[0], publish):
                session.linger.set_deadlines(self._world.now_ns)
                session.check_linger()
            if values.get("is_cancelled"):
                self._cancel()
            self._world.touch(self._link)
            self._world.touch(self)

    @property
    def session(self) -> ProducerSession:
        """Its end of the connection."""
        assert self._link is not None
        assert isinstance(self._link.machine, ProducerSession)
        return self._link.machine

    def check_kept(self) -> None:
        """Check that the connection keeps nothing of the publishes that have their answers."""
        if self._link is None or not self._kept_count or not self.session.is_open:
            return
        if self._link.down.next_arrival is not None:  # a part of a frame may be there
            return
        count = kept_count(self.session) - self._kept_count
        conclude(24, count <= 0, f"{self._link.name} keeps {count} elements more than before its first publish")

    def _make_linger(self) -> Linger | None:
        if not (linger_ms := self._options.get("linger_ms")):
            return None
        return Linger(linger_ns=linger_ms * MS, count_max=self._options["linger_count"], size_max=LINGER_SIZE_MAX)

    def _cancel(self) -> None:
        """Cancel the last publish; one that was not sent must not be delivered."""
        publish = next((each for each in reversed(self.publishes) if not each.answers), None)
        if publish is not None and self.session.withdraw(publish):
            publish.answers.append(NotConnected("cancelled before it was sent"))

    def next_deadline(self) -> int | None:
        """Return when messages that linger are sent."""
        linger = None if self._link is None else self.session.linger
        return None if linger is None else linger.next_deadline()

    def handle_deadline(self, now_ns: int) -> None:
        """Send messages that have lingered."""
        if self._link is not None and self.session.linger is not None:
            self.session.linger.handle_deadline(now_ns)
            self.session.check_linger()
            self._world.touch(self._link)

    def service(self) -> None:
        """Do nothing: the connection sends its output."""


class WorldClock(ManualClock):
    """The time of a world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns


class Consumer:
    """Consumes one channel of every node; it holds some messages for too long."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world, self.name, self._options = world, name, options
        self.agenda_ns: int | None = None
        self.is_touched = False
        self._links: dict[Node | str, Connection] = {}
        self._kept: list[Message] = []
        self._confirming: list[tuple[list[Message], Confirming]] = []
        self.topic, self.channel = options["topic"], options["channel"]
        self._life = self._left_ns = 0
        self.needs_check = False
        self._begin()

    def _begin(self) -> None:
        world = self._world
        self._life += 1
        self._limit_ns: int | None = None
        self._rules: defaultdict[Connection, RdyRule] = defaultdict(RdyRule)
        self.core = ConsumerCore(world.consumer_options, Random(f"{world.plan.seed}/{self.name}/{self._life}"))
        self.subscription = Subscription(
            self.topic, self.channel, core=self.core, options=world.consumer_options, identity=world.identity
        )
        self.subscription.clock = WorldClock(world)

    def before_command(self, connection: Connection, command: Command) -> None:
        """Check the RDY of the connection; the double may drop a command, or repeat it."""
        if not self._world.plan.options.get("has_double"):
            self._rules[connection].command(command)

    def check(self) -> None:
        """Check the consumer at rest."""
        self.needs_check = False
        now_ns, limit_ns = self._world.now_ns, self._limit_ns
        is_in_time = limit_ns is None or now_ns <= limit_ns or self.core.is_over
        conclude(30, is_in_time, f"{self.name} still waits for handlers, {now_ns} is after {limit_ns}")
        check_flow(self.name, self.core, self._world.consumer_options, self._world.now_ns)

    def handle_events(self, connection: Connection, events: Iterable[object]) -> None:
        """Pass the events of a connection to the core."""
        assert isinstance(connection.machine, ConsumerSession)
        self.core.handle_events(connection.machine, events, self._world.now_ns)
        self._check_confirmed()
        self._world.touch(self)

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan; connect first where there is no connection."""
        if verb == "leave":
            self._leave(values.get("limit_ms", 0))
            return
        if not self._is_here():
            return
        self._connect()
        if verb == "max in flight":
            self.core.set_max_in_flight(values["count"], self._world.now_ns)
        elif verb in {"pause", "resume"}:
            getattr(self.core, verb)(self._world.now_ns)
        elif verb == "disconnect":
            for session in list(self.core.sessions)[:1]:
                self.core.leave(session, self._world.now_ns)
        elif verb == "confirm":
            self._confirm(values["count"])
        elif verb == "handle" and values["fates"]:  # a step without fates only connects
            fates = cycle(values["fates"])
            for _ in range(min(values["count"], len(self.core.inbox))):
                self._handle(self.core.inbox.popleft(), next(fates))
            for _ in range(min(values["kept"], len(self._kept))):
                self._handle(self._kept.pop(0), next(fates))
        self._world.touch(self)

    def _is_here(self) -> bool:
        """Return whether the consumer runs; one that has left begins again when all its connections have ended."""
        if self.core.is_closing:
            if self._world.now_ns >= self._left_ns + CLOSE_TIMEOUT_NS:
                self._end_links()
            if all(link.machine.ended for link in self._links.values()):
                self._begin()
        return not self.core.is_closing

    def _connect(self) -> None:
        for node in self._world.nodes.values():
            if node.accepts and (node not in self._links or self._links[node].machine.ended):
                session = self.subscription.make_session(node.name, self, self._world.now_ns)
                session.connection = self._links[node] = self._world.connect(self.name, self, node, session)

    def _handle(self, message: Message, fate: str) -> None:
        if message.is_answered:
            return
        if fate == "finish":
            message.finish()
        elif fate.startswith("requeue"):
            delay = fate.split()[1]
            message.requeue(None if delay == "default" else int(delay) / 1000, backoff=fate.endswith("backoff"))
        else:
            self._kept.append(message)
            if fate == "touch":
                message.touch()

    def _confirm(self, count: int) -> None:
        """Finish the first messages, and have the broker confirm it; those that were kept may have timed out."""
        inbox = self.core.inbox
        messages = [*self._kept, *(inbox.popleft() for _ in range(min(count, len(inbox))))]
        self._kept = []
        self._confirming.append((messages, self.subscription.finish_confirmed(messages)))
        self._check_confirmed()

    def _check_confirmed(self) -> None:
        """Check that a message whose FIN is confirmed is in no place of its channel, and that others were refused.

        Two things hide that: the double drops a FIN and not the one behind it, and a crash leaves a message twice.
        """
        drops_commands = self._world.plan.options.get("has_double")
        for messages, confirming in [pair for pair in self._confirming if pair[1].is_done]:
            self._confirming.remove((messages, confirming))
            confirmation = confirming.result()
            failed, unknown, not_sent = (
                set(map(id, found)) for found in (confirmation.failed, confirmation.unknown, confirming.not_sent)
            )
            for message in messages:
                link = next((each for each in self._links.values() if each.machine is message.session), None)
                if drops_commands or id(message) in unknown | not_sent or link is None:
                    continue
                if (oracle := link.node.oracle) is None:
                    continue
                if id(message) in failed:
                    if link.session is None:
                        continue
                    refused = oracle.clients[link.session].refused
                    conclude(9, refused[b"FIN", message.id] > 0, f"the FIN of {message.body!r} counts as refused")
                    refused[b"FIN", message.id] -= 1
                elif not link.node.deliveries.may_repeat:
                    topic = oracle.topics.get(self.topic.encode())
                    channel = None if topic is None else topic.channels.get(self.channel.encode())
                    is_there = channel is not None and channel.has(message.body)
                    conclude(9, not is_there, f"{message.body!r} is there after a confirmed FIN")

    def drain(self) -> None:
        """Finish everything that arrives."""
        if not self._is_here():
            return
        self._connect()
        if self.core.flow.max_in_flight != self._world.consumer_options.max_in_flight:
            self.core.set_max_in_flight(self._world.consumer_options.max_in_flight, self._world.now_ns)
        while self.core.inbox:
            self._handle(self.core.inbox.popleft(), "finish")
        while self._kept:
            self._handle(self._kept.pop(), "finish")
        if self.core.flow.paused:
            self.core.resume(self._world.now_ns)
        self._world.touch(self)

    def wake(self) -> None:
        """Do nothing: a session that is not connected has nothing to send."""

    flush = wake

    def _leave(self, limit_ms: int) -> None:
        """Close; what handlers have not answered after a limit is requeued. Of several limits the earliest counts."""
        now_ns = self._world.now_ns
        limit_ns = now_ns + limit_ms * MS
        self._limit_ns = limit_ns if self._limit_ns is None else min(limit_ns, self._limit_ns)
        self._left_ns = max(now_ns, self._limit_ns)
        self.core.close(now_ns, limit_ns)
        if not limit_ms:
            self._requeue_all()
        self._world.touch(self)

    def _requeue_all(self) -> None:
        self.core.requeue_all()
        for link in self._links.values():
            if not link.machine.is_open:
                link.machine.end(None)
            self._world.touch(link)

    def _end_links(self) -> None:
        """End the connections on which the answer to CLS does not come."""
        for link in self._links.values():
            link.machine.end(None)
            self._world.touch(link)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return self.core.next_deadline()

    def handle_deadline(self, now_ns: int) -> None:
        self.core.handle_deadline(now_ns)
        check_later(self.core, now_ns)
        if self.core.is_over:
            self._requeue_all()
        self._world.touch(self)

    def service(self) -> None:
        """Have the output of the core's sessions sent."""
        self.needs_check = True
        for session in self.core.take_output():
            assert isinstance(session, ConsumerSession)
            session.connection.wake()
