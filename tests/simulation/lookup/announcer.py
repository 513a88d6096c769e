"""How a broker uses nsqlookupds: its real session on each connection, when it dials, and the channels of new topics.

        LookupPeerSession ──▶ up ──▶ Session
                          ◀── down ◀

The times of dialling are those of ``nsqkit.broker.lookup_announcer``, whose driver needs an event loop: a lost
nsqlookupd is dialled 15 s after the last time, and at once when there is something to announce.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.lookup_peer import ANSWER_TIMEOUT_NS, LookupPeerSession
from nsqkit.broker.core.topics.topic import Topic
from nsqkit.broker.lookup_announcer import DIAL_INTERVAL_NS, lasting
from nsqkit.errors import ProtocolError
from nsqkit.lookupd.session import Session
from nsqkit.wire.lookup import AnswerDecoder, LookupCommandDecoder, Node
from tests.rules import AllowAll
from tests.simulation.broken import conclude
from tests.simulation.lookup.registry_oracle import EPHEMERAL
from tests.simulation.network import END, MS, Pipe, act_on_pipes

if TYPE_CHECKING:
    from tests.simulation import node
    from tests.simulation.lookup.lookupd import Lookupd
    from tests.simulation.world import World

TCP_PORT = 4150
ANSWERS_NS = (0, MS, 50 * MS, 2_000 * MS)  # until all nsqlookupds have answered, or are not waited for


class LookupLink:
    """A connection of a broker to an nsqlookupd.

    Attributes:
        machine: the broker's end; None once the broker is gone.
        session: the nsqlookupd's end; None once it has ended or the nsqlookupd is gone.
        needs_check: something has happened to it.
    """

    def __init__(self, world: World, owner: node.Node, lookupd: Lookupd, machine: LookupPeerSession, name: str) -> None:
        self._world, self._node, self._lookupd, self.name = world, owner, lookupd, name
        self.agenda_ns: int | None = None
        self.is_touched = self.needs_check = False
        seed, options = world.plan.seed, world.plan.options
        self._up, self._down = (
            Pipe(Random(f"{seed}/{name}/{way}"), 1000 * options.get("delay_us", 0), options.get("slice_max", 0))
            for way in ("up", "down")
        )
        self._commands = LookupCommandDecoder(AllowAll())
        self.machine: LookupPeerSession | None = machine
        self.session: Session | None = lookupd.open_session(self)
        self._answers = AnswerDecoder(answer_size_max=owner.options.max_body_size)
        self._asked_ns: int | None = None  # when the command was sent that has no answer, or a part of that came

    @property
    def is_quiet(self) -> bool:
        """Whether everything is announced, and nothing is under way."""
        if self.machine is None or self.machine.info is None or self.session is None:
            return False
        pipes = (self._up, self._down)
        return not any(pipe.is_lost or pipe.next_arrival is not None for pipe in pipes)

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Perform a step of the plan."""
        act_on_pipes(self._up, self._down, verb, values, self._world.now_ns)
        if verb == "inject" and self.machine is not None:
            self._down.send(bytes.fromhex(values["data"]), self._world.now_ns)
        self._world.touch(self)

    def heal(self) -> None:
        """End the faults of the network; a broker that is gone silently stays so for the nsqlookupd."""
        for pipe in (self._up, self._down):
            pipe.slow_down(0)
        if self.machine is not None and (self._up.is_lost or self._down.is_lost):
            for pipe in (self._up, self._down):
                pipe.reset(self._world.now_ns)
        self._world.touch(self)

    def lose_broker(self, *, is_silent: bool) -> None:
        """Lose the broker's end."""
        self.machine = None
        if is_silent:
            self._up.lose()
        else:
            self._up.reset(self._world.now_ns)
        self._world.touch(self)

    def lose_lookupd(self, how: str) -> None:
        """Lose the nsqlookupd's end."""
        self.session = None
        if how == "power cut":
            self._down.lose()
        elif how == "kill":
            self._down.reset(self._world.now_ns)
        else:
            self._down.send(END, self._world.now_ns)
        self._world.touch(self)

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        deadlines: list[int] = []
        if self.machine is not None:
            broker_ns = (self.machine.next_deadline(), self._down.next_arrival)
            deadlines += [max(due_ns, self._node.resume_ns) for due_ns in broker_ns if due_ns is not None]
        if self.session is not None and (arrival_ns := self._up.next_arrival) is not None:
            deadlines.append(max(arrival_ns, self._lookupd.resume_ns))
        return min(deadlines, default=None)

    def handle_deadline(self, now_ns: int) -> None:
        """Deliver the bytes that have arrived, on both sides."""
        if now_ns >= self._lookupd.resume_ns:
            for data in self._up.receive(now_ns) if self.session is not None else ():
                self._arrive(data)
        if self.machine is not None and now_ns >= self._node.resume_ns:
            for data in self._down.receive(now_ns):
                if data == END:
                    self.machine.receive_eof(now_ns)
                else:
                    self.machine.receive_data(data, now_ns)
                    self._record_answer(data, now_ns)
            if self.machine.info is not None and self._node.announcer is not None:
                self._node.announcer.names.add(self._lookupd.name)
            if (due_ns := self.machine.next_deadline()) is not None and due_ns <= now_ns:
                self.machine.handle_deadline(now_ns)

    def _record_answer(self, data: bytes, now_ns: int) -> None:
        with suppress(ProtocolError):  # the machine has ended, too
            is_whole = bool(self._answers.feed(data))
            self._asked_ns = None if is_whole or self._asked_ns is None else now_ns

    def check_answer(self, now_ns: int) -> None:
        """Check that the broker waits no longer than its limit for an answer."""
        if self.machine is not None and self._asked_ns is not None and now_ns >= self._node.resume_ns:
            waited_ns = now_ns - self._asked_ns
            conclude(28, waited_ns <= ANSWER_TIMEOUT_NS, f"{self.name} waits {waited_ns} ns for an answer")

    def _arrive(self, data: bytes) -> None:
        if self.session is None:
            return
        commands = [] if data == END else list(self._commands.feed(data))
        cut_off = self._commands.end() if data == END else None
        output = self._lookupd.receive(self, self.session, data, commands, cut_off)
        if output:
            self._world.note("%s ◀ %s: %s", self.name, self._lookupd.name, output)
            self._down.send(output, self._world.now_ns)
        if self.session.ended:
            self.session = None
            self._down.send(END, self._world.now_ns)

    def service(self) -> None:
        """Send the broker's output."""
        self.needs_check = True
        machine = self.machine
        if machine is None:
            return
        if data := machine.data_to_send():
            self._asked_ns = self._world.now_ns
            self._up.send(data, self._world.now_ns)
        if machine.ended:
            self._world.note("%s ends: %s", self.name, machine.error)
            self._up.send(END, self._world.now_ns)
            self.machine = None
            assert self._node.announcer is not None
            self._world.touch(self._node.announcer)


class Announcer:
    """Announces one broker to all nsqlookupds, in each of its lives.

    Attributes:
        host: its name for clients; tcp_port the port, and the next one that of HTTP.
        links: the present connections, by the name of the nsqlookupd.
        names: those that have answered IDENTIFY in this life.
    """

    def __init__(self, world: World, owner: node.Node) -> None:
        self._world, self._node = world, owner
        self.agenda_ns: int | None = None
        self.is_touched = False
        self.host, self.tcp_port = self._next_address = owner.name, TCP_PORT
        self.links: dict[str, LookupLink] = {}
        self.names: set[str] = set()
        self._new: list[tuple[int, Topic]] = []  # when the nsqlookupds have answered for a topic
        self._broker: Broker | None = None
        self._revision = 0
        self._dials_ns: dict[str, int] = {}  # when to dial next, without a connection
        self._dialled_ns: dict[str, int] = {}
        self._random = Random(f"{world.plan.seed}/{owner.name}/announcer")
        self._counts: dict[str, int] = {}
        world.touch(self)

    def move(self, host: str, tcp_port: int) -> None:
        """Have the next life begin at another address."""
        self._next_address = host, tcp_port

    @property
    def registrations(self) -> dict[bytes, list[bytes]]:
        """The topics and channels of the broker."""
        assert self._broker is not None
        return {name: list(topic.channels) for name, topic in self._broker.topics.items()}

    def service(self) -> None:
        """Follow the broker: its life, its topics and channels, and the connections that have ended."""
        now_ns, broker = self._world.now_ns, self._node.broker
        if broker is not self._broker:
            self._begin(broker)
        for name in [name for name, link in self.links.items() if link.machine is None]:
            del self.links[name]
            self._dials_ns[name] = max(now_ns, self._dialled_ns[name] + DIAL_INTERVAL_NS)
        if broker is not None and broker.changes.revision != self._revision:
            self._revision = broker.changes.revision
            registrations = self.registrations
            for link in self.links.values():
                assert link.machine is not None
                link.machine.update(registrations, now_ns)
                self._world.touch(link)
            self._dials_ns |= dict.fromkeys(self._dials_ns, now_ns)
            for topic in broker.topics.take_new():
                wait_ns = self._random.choice(ANSWERS_NS) if self.names else 0
                self._new.append((now_ns + wait_ns, topic))

    def _begin(self, broker: Broker | None) -> None:
        for link in self.links.values():
            link.lose_broker(is_silent=self._random.random() < 0.3)
        self.links.clear()
        self._dials_ns.clear()
        self.names.clear()
        self._new.clear()
        self._broker = broker
        if broker is not None:
            broker.topics.waits_for_channels = True
            if self._node.oracle is not None:
                self._node.oracle.waits_for_channels = True
            self.host, self.tcp_port = self._next_address
            self._revision = broker.changes.revision
            self._dials_ns = dict.fromkeys(self._world.plan.lookupds, self._world.now_ns)

    def wrong_registrations(self, lookupd: Lookupd) -> str:
        """Return in which way an nsqlookupd has not registered what the broker has; empty if it has."""
        link = self.links.get(lookupd.name)
        own = None if link is None else lookupd.oracle.peers.get(link)
        if own is None:
            return f"{lookupd.name} does not have {self.host}:{self.tcp_port}"
        have = {(topic, b"") for topic in self.registrations}
        have |= {(topic, name) for topic, names in self.registrations.items() for name in names}
        found = {(topic, b"") for topic in own.topics} | own.channels
        if found != (wanted := have - own.withdrawn):
            return f"{lookupd.name} has registered {sorted(found)} of {own.address}, not {sorted(wanted)}"
        return ""

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        due_ns = min((*self._dials_ns.values(), *(due_ns for due_ns, _ in self._new)), default=None)
        return None if due_ns is None else max(due_ns, self._node.resume_ns)

    def handle_deadline(self, now_ns: int) -> None:
        if now_ns >= self._node.resume_ns:
            for name in [name for name, due_ns in self._dials_ns.items() if due_ns <= now_ns]:
                self._dial(name, now_ns)
            due = [topic for due_ns, topic in self._new if due_ns <= now_ns]
            self._new = [(due_ns, topic) for due_ns, topic in self._new if due_ns > now_ns]
            for topic in due:
                self._start(topic)

    def _start(self, topic: Topic) -> None:
        """Start a new topic with the channels that the nsqlookupds list, but for ephemeral ones."""
        lookupds = self._world.lookups.lookupds
        found = {channel.encode() for name in self.names for channel in lookupds[name].channels(topic.name)}
        channels = lasting(found)
        wanted = sorted(channel for channel in found if not channel.endswith(EPHEMERAL))
        conclude(14, channels == wanted, f"{topic.name!r} starts with {channels}, not {wanted}")
        self._node.start_topic(topic, channels)

    def _dial(self, name: str, now_ns: int) -> None:
        lookupd = self._world.lookups.lookupds[name]
        self._dialled_ns[name] = now_ns
        if not lookupd.accepts:
            self._dials_ns[name] = now_ns + DIAL_INTERVAL_NS
            return
        del self._dials_ns[name]
        identity = Node(
            broadcast_address=self.host,
            hostname=self._node.name,
            tcp_port=self.tcp_port,
            http_port=self.tcp_port + 1,
            version="1.3.0",
        )
        session = LookupPeerSession(
            identity, self.registrations, now_ns, answer_size_max=self._node.options.max_body_size
        )
        count = self._counts[name] = self._counts.get(name, 0) + 1
        link = LookupLink(self._world, self._node, lookupd, session, f"{self._node.name}/{name}:{count}")
        self.links[name] = link
        self._world.add_link(f"{self._node.name}/{name}", link)
