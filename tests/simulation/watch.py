"""The states, commands and faults that met in worlds: which combinations were reached, and which never.

A pair is a state and a verb, a triple a state, a verb, and the last fault of the 100 ms before, or ``none``. Worlds
have no watch by default, so it costs nothing; ``tests.simulation.table`` gives them one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from nsqkit.consumer.backoff import BackoffState
from nsqkit.wire.frames import MessageFrame
from tests.simulation.network import MS
from tests.simulation.sometimes import SOMETIMES, never

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.commands import Command
    from tests.simulation.auth.gate import Gate
    from tests.simulation.node import Node
    from tests.simulation.plan import Step
    from tests.simulation.workload import Consumer

NEAR_NS: Final = 100 * MS
VERBS: Final = ("IDENTIFY", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "NOP", "CLS", "deliver", "end")
CONSUMING: Final = frozenset(("RDY", "FIN", "REQ", "TOUCH", "CLS", "deliver", "end"))
SESSION: Final = ("init", "identified", "subscribed", "closing", "ended")
MOVES: Final = {"IDENTIFY": "identified", "SUB": "subscribed", "CLS": "closing"}
CHANNEL: Final = ("paused", "empty", "waiting", "deferred", "none", "fresh", "touched", "abandoned")
DISK: Final = ("clean", "dirty", "committing", "failing")
FAULTS: Final = (
    *("none", "cut", "stall", "half-open", "slow", "fault", "refuse", "suspend", "kill", "power cut", "stop"),
    *("end disk", "fill disk", "fail disk", "pause channel", "pause topic", "empty channel", "empty topic"),
    *("delete channel", "delete topic", "leave"),
)


def why_impossible(state: str, verb: str) -> str:
    """Return why a combination cannot occur; empty if it can."""
    part, _, name = state.partition(":")
    if part == "session" and (name == "ended") != (verb == "end"):
        return "a session has ended when its end is seen"
    if part == "session":
        if name in {"init", "identified"} and verb in CONSUMING:
            return "a broker refuses it without a subscription"
        if name in {"subscribed", "closing"} and verb in {"IDENTIFY", "SUB"}:
            return "a broker refuses it after SUB"
        if name == "closing" and verb in {"deliver", "CLS"}:
            return "nothing is delivered after CLS, and a second CLS is refused"
    if part == "channel":
        if verb in {"IDENTIFY", "SUB"}:
            return "a session with a channel has subscribed"
        if name == "paused" and verb == "deliver":
            return "a paused channel does not deliver"
        if name == "none" and verb in {"deliver"}:
            return "a delivery puts a message in flight"
    return ""


def possible() -> Iterator[tuple[str, str, str]]:
    """Yield all triples that can occur."""
    for part, names in (("session", SESSION), ("channel", CHANNEL), ("disk", DISK)):
        for name in names:
            for verb in VERBS:
                if not why_impossible(f"{part}:{name}", verb):
                    yield from ((f"{part}:{name}", verb, fault) for fault in FAULTS)


class Watch:
    """Records what worlds reach.

    Attributes:
        triples: how often each was reached.
        reached: how often each state of ``SOMETIMES`` was reached.
    """

    def __init__(self) -> None:
        self.triples: Counter[tuple[str, str, str]] = Counter()
        self.reached: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """Record that a world begins."""
        self._fault, self._fault_ns = "none", 0
        self._last_verbs: dict[str, str] = {}
        self._closing: set[Session] = set()
        self._states: dict[Session, str] = {}  # after the commands that were recorded

    def _reach(self, name: str, holds: object) -> None:
        if holds:
            assert name in SOMETIMES, name
            self.reached[name] += 1

    # ---- hooks of a world ----------------------------------------------------------------------------------------

    def step(self, step: Step, nodes: Iterable[Node], consumers: Iterable[Consumer], now_ns: int) -> None:
        """Record a step of the plan, before it is performed."""
        if step.verb in FAULTS:
            self._fault, self._fault_ns = step.verb, now_ns
        for node in nodes:
            if node.name == step.who and node.broker is not None:
                self._node_step(step, node)
            elif node.name == step.who and step.verb == "start":
                clock_us = step.values.get("clock_us", 0)
                self._reach("a life without a clock step", not clock_us)
                self._reach("a clock set back over a restart", clock_us < 0)
                self._reach("a clock set forward over a restart", clock_us > 0)
                self._reach("a second life on one disk", node.disk is not None)
                self._reach("a kill inside an operation of the disk", self._last_verbs.get(node.name) == "end disk")
            if node.name == step.who:
                self._last_verbs[node.name] = step.verb
        for consumer in consumers:
            core = consumer.core
            self._reach("backoff waits", core.backoff.state is BackoffState.WAITING)
            self._reach("backoff probes", core.backoff.state is BackoffState.PROBING)
            self._reach("more connections than max_in_flight", 0 < core.flow.max_in_flight < len(core.sessions))
            is_cut = step.verb == "cut" and step.who.startswith(f"{consumer.name}/")
            test = core.backoff.test_message
            self._reach("a test message is in flight at the end of a connection", is_cut and test is not None)

    def _node_step(self, step: Step, node: Node) -> None:
        assert node.broker is not None
        channels = list(node.broker.topics.channels())
        has_in_flight = any(channel.in_flight_count for channel in channels)
        waits = any(map(node.history.owes, node.broker.sessions))
        if step.verb in {"kill", "power cut"}:
            self._reach(f"a {step.verb} while a publish waits", waits)
        self._reach("a kill with messages in flight", step.verb == "kill" and has_in_flight)
        if step.verb == "stop":
            self._reach("a stop with messages in flight", has_in_flight)
            self._reach("a stop with deferred messages", any(len(channel.deferred) for channel in channels))
            self._reach("a stop with messages in a topic", any(map(_waits, node.broker.topics.values())))
            self._reach("a stop with a paused channel", any(channel.paused for channel in channels))
        topic = node.broker.topics.get(step.values.get("topic", "").encode())
        channel = topic and topic.channels.get(step.values.get("channel", "").encode())
        if topic and channel and step.verb in {"empty channel", "delete channel"}:
            verb = "emptied" if step.verb == "empty channel" else "deleted"
            self._reach(f"a channel is {verb} with messages in flight", channel.in_flight_count)
            has_lost = len(channel.holders()) > len(channel.subscriptions)
            self._reach(f"a channel is {verb} with messages of a lost connection", has_lost)
        if topic and step.verb == "delete topic":
            self._reach(
                "a topic is deleted with a consumer", any(each.subscriptions for each in topic.channels.values())
            )
        if topic and step.verb == "empty topic":
            self._reach("a topic is emptied with messages", _waits(topic))
        if channel and step.verb == "pause channel":
            held = [frame for each in channel.holders() for frame, _, _ in each.in_flight.untouched.values()]
            self._reach("a redelivery is in flight while paused", any(_attempts(frame) > 1 for frame in held))
        self._reach("a full disk with messages in flight", step.verb == "fill disk" and has_in_flight)

    def command(self, node: Node, session: Session, command: Command, now_ns: int) -> None:
        """Record a command that a broker receives, before it is processed."""
        verb = command.verb.decode()
        if verb == "CLS":
            self._closing.add(session)
        if verb in VERBS:
            # The commands of one read are recorded before any of them is processed.
            state = self._states.get(session, session.state.value)
            self._states[session] = MOVES.get(verb, state)
            self._count(node, session, verb, now_ns, state)
            channel, subscription = session.channel, session.subscription
            if channel is not None and subscription is not None:
                self._consuming(verb, command, session, channel)
            elif verb in {"PUB", "MPUB", "DPUB"}:
                self._publishing(verb, command, node)
            elif verb == "SUB":
                self._subscribing(command, node, session)
            self._reach("FIN while a commit runs", verb == "FIN" and node.is_committing)
            self._reach("PUB while a commit runs", verb == "PUB" and node.is_committing)

    def grant(self, gate: Gate) -> None:
        """Record that a command waits for an auth server, or was refused."""
        is_auth, is_sub = gate.verb == b"AUTH", gate.verb == b"SUB"
        self._reach("SUB waits for a grant", gate.is_waiting and is_sub)
        self._reach("a publish waits for a grant", gate.is_waiting and not is_auth and not is_sub)
        self._reach("a grant was taken away", gate.is_refused and not is_auth and gate.secret)

    def _consuming(self, verb: str, command: Command, session: Session, channel: Channel) -> None:
        subscription = session.subscription
        assert subscription is not None
        in_flight = subscription.in_flight
        if verb == "RDY" and command.params and session not in self._closing:
            count = int(command.params[0])
            self._reach("messages in flight at RDY 0", not count and len(in_flight))
            self._reach("RDY is raised while messages wait", count > subscription.rdy_count and channel.queue)
            self._reach("RDY is lowered below the messages in flight", 0 < count < len(in_flight))
        elif verb in {"FIN", "REQ", "TOUCH"}:
            is_held = command.params[0] in in_flight
            self._reach(f"{verb} of a message that timed out", not is_held)
            self._reach("FIN of a touched message", verb == "FIN" and command.params[0] in in_flight.touched)
            self._reach("FIN of a message of a paused channel", verb == "FIN" and is_held and channel.paused)
            self._reach("REQ while paused", verb == "REQ" and is_held and channel.paused)

    def _publishing(self, verb: str, command: Command, node: Node) -> None:
        topic = node.broker and node.broker.topics.get(command.params[0])
        if topic and verb in {"PUB", "DPUB"}:
            self._reach(f"{verb} to a paused topic", topic.paused)
            self._reach("PUB to a topic without channels", not topic.channels)

    def _subscribing(self, command: Command, node: Node, session: Session) -> None:
        topic = node.broker and node.broker.topics.get(command.params[0])
        channel = topic and topic.channels.get(command.params[1])
        self._reach("a session of a client without a handshake", session.state.value == "init")
        if channel:
            self._reach("SUB to a channel with messages", channel.queue)
            self._reach("SUB to a paused channel", channel.paused)
            self._reach("SUB while another holds messages", channel.in_flight_count)

    def frames(self, node: Node, session: Session, frames: Iterable[object], now_ns: int) -> None:
        """Record frames that a broker sends."""
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self._count(node, session, "deliver", now_ns, session.state.value)
                self._reach("a third delivery", frame.attempts >= 3)
                channel = session.channel
                if channel is not None:
                    holders = sum(bool(len(each.in_flight)) for each in channel.subscriptions)
                    self._reach("two consumers hold messages of a channel", holders > 1)
                    lost = len(channel.holders()) > len(channel.subscriptions)
                    self._reach("abandoned messages come back", frame.attempts > 1 and lost)
            else:
                self._reach("a refused publish", type(frame).__name__ in {"BadTopic", "BadMessage", "PublishFailed"})

    def ended(self, node: Node, session: Session, now_ns: int) -> None:
        """Record the end of a connection, before the broker acts on it."""
        self._states.pop(session, None)
        self._count(node, session, "end", now_ns, session.state.value)
        self._reach("a producer is lost with publishes unanswered", node.history.owes(session))
        subscription = session.subscription
        if subscription is not None:
            in_flight = subscription.in_flight
            untouched, touched = len(in_flight.untouched), len(in_flight.touched)
            self._reach("all in flight is touched at the end of a connection", touched and not untouched)
            self._reach("some in flight is touched at the end of a connection", touched and untouched)
            self._reach("fresh messages at the end of a connection", untouched)
            self._reach("a closing consumer holds messages at its end", session in self._closing and len(in_flight))

    def _count(self, node: Node, session: Session, verb: str, now_ns: int, state: str) -> None:
        fault = self._fault if now_ns - self._fault_ns <= NEAR_NS else "none"
        self.triples[f"session:{state}", verb, fault] += 1
        if node.disk is not None:
            self.triples[f"disk:{_disk_state(node)}", verb, fault] += 1
        if session.channel is not None:
            for name in _channel_states(session.channel):
                self.triples[f"channel:{name}", verb, fault] += 1

    # ---- the table -----------------------------------------------------------------------------------------------

    def table(self) -> list[str]:
        """Return the lines of the table."""
        wanted = set(possible())
        found = wanted & self.triples.keys()
        pairs, found_pairs = {each[:2] for each in wanted}, {each[:2] for each in found}
        return [
            f"pairs: {len(found_pairs)} of {len(pairs)}, {100 * len(found_pairs) / len(pairs):.1f} %",
            f"triples: {len(found)} of {len(wanted)}, {100 * len(found) / len(wanted):.1f} %",
            *(f"never: {state} × {verb}" for state, verb in sorted(pairs - found_pairs)),
            *(
                f"{count} never: × {fault}"
                for fault, count in Counter(each[2] for each in wanted - found).most_common()
            ),
            f"sometimes: {len(self.reached)} of {len(SOMETIMES)}",
            *(f"never: {sentence}" for sentence in never(self.reached)),
        ]


def _channel_states(channel: Channel) -> Iterator[str]:
    if channel.paused:
        yield "paused"
    yield "waiting" if channel.queue else "empty"
    if len(channel.deferred):
        yield "deferred"
    holders = channel.holders()
    if not any(len(each.in_flight) for each in holders):
        yield "none"
    if any(each.in_flight.untouched for each in holders):
        yield "fresh"
    if any(each.in_flight.touched for each in holders):
        yield "touched"
    if len(holders) > len(channel.subscriptions):
        yield "abandoned"


def _disk_state(node: Node) -> str:
    assert node.disk is not None
    if node.disk.is_failing:
        return "failing"
    unsynced = node.broker is not None and getattr(node.broker.storage, "unsynced", None)
    return "committing" if node.is_committing else "dirty" if unsynced else "clean"


def _waits(topic: object) -> bool:
    return bool(len(topic.queue))  # type: ignore[attr-defined]


def _attempts(frame: bytes) -> int:
    return int.from_bytes(frame[16:18], "big")
