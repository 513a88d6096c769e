"""A foreign client: it sends every command in every state, legal or not, and garbage (invariant 25).

``ForeignRules`` has nsqd's rules once more, without the broker's code: which command ends the session, and by which
code. So the oracle has the answers that the broker has to give, and other clients are checked as always.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import pack
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsqkit.errors import NSQError
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response
from tests.simulation.auth.leaks import secret_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.wire.commands import Command
    from tests.simulation.connection import Connection
    from tests.simulation.node import Node
    from tests.simulation.world import World

SIZE_MAX: Final = 1_000
DELAY_MAX_NS: Final = 10_000_000_000
"""Of the messages, and of the deferred publishes, of clients that make no mistake."""

UNKNOWN_ID: Final = b"f" * 16
CONSUMING: Final = frozenset((b"RDY", b"FIN", b"REQ", b"TOUCH"))
PUBLISHING: Final = frozenset((b"PUB", b"MPUB", b"DPUB", b"NOP"))
ALLOWED: Final = {
    "init": PUBLISHING | {b"IDENTIFY", b"AUTH", b"SUB"},
    "subscribed": PUBLISHING | CONSUMING | {b"CLS"},
    "closing": PUBLISHING | CONSUMING,
}
MOVES: Final = {b"SUB": "subscribed", b"CLS": "closing"}
WORDS_MIN: Final = {b"SUB": 2, b"PUB": 1, b"MPUB": 1, b"DPUB": 2, b"FIN": 1, b"REQ": 2, b"TOUCH": 1}
CODES: Final = frozenset(
    (
        *(b"E_INVALID", b"E_BAD_TOPIC", b"E_BAD_CHANNEL", b"E_BAD_BODY", b"E_SUB_FAILED"),
        *(b"E_AUTH_DISABLED", b"E_AUTH_FIRST", b"E_AUTH_FAILED", b"E_UNAUTHORIZED"),
    )
)
GRANT_CODES: Final = frozenset((b"E_AUTH_FIRST", b"E_AUTH_FAILED", b"E_UNAUTHORIZED"))
NAMED: Final = frozenset((b"PUB", b"MPUB", b"DPUB", b"SUB"))


class Refused(Exception):
    """The broker has to refuse a command by this code, and to end the session."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.required = code.encode()


Refusal: TypeAlias = NSQError | Refused


class ForeignRules:
    """The state of one session, as nsqd's protocol defines it.

    Attributes:
        state: init, subscribed or closing.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self.state = "init"
        self._options = options
        self._has_heartbeats = True

    def check(self, verb: bytes, params: list[bytes]) -> None:
        """Refuse a command by its line."""
        if verb not in ALLOWED[self.state] or len(params) < WORDS_MIN.get(verb, 0):
            raise Refused("E_INVALID")
        if verb == b"SUB" and not self._has_heartbeats:
            raise Refused("E_INVALID")
        if verb == b"AUTH" and params:
            raise Refused("E_INVALID")
        if verb in NAMED and b"!" in params[0]:
            raise Refused("E_BAD_TOPIC")
        if verb == b"SUB" and b"!" in params[1]:
            raise Refused("E_BAD_CHANNEL")
        if verb == b"DPUB" and not self._is_delay(params[1]):
            raise Refused("E_INVALID")
        if verb in {b"FIN", b"REQ", b"TOUCH"} and len(params[0]) != len(UNKNOWN_ID):
            raise Refused("E_INVALID")

    def _is_delay(self, word: bytes) -> bool:
        return word.isdigit() and int(word) * 1_000_000 <= self._options.max_req_timeout_ns

    def execute(self, command: Command, broker: Broker | None) -> None:
        """Move to the next state; refuse a command by its body, or because of the number of consumers."""
        verb, params = command.verb, command.params
        if verb == b"IDENTIFY":
            self._identify(bytes(command.bodies[0]))
        elif verb == b"AUTH" and not self._options.auth_http_addresses:
            raise Refused("E_AUTH_DISABLED")
        elif verb == b"SUB" and 0 < self._options.max_channel_consumers <= _consumer_count(broker, command):
            raise Refused("E_SUB_FAILED")
        elif verb == b"RDY" and self.state == "subscribed" and params:
            if not params[0].isdigit() or int(params[0]) > self._options.max_rdy_count:
                raise Refused("E_INVALID")
        elif verb == b"REQ" and not params[1].isdigit():
            raise Refused("E_INVALID")
        self.state = MOVES.get(verb, self.state)

    def _identify(self, body: bytes) -> None:
        try:
            document = json.loads(body)
        except ValueError:
            raise Refused("E_BAD_BODY") from None
        interval = document.get("heartbeat_interval", 0)
        if interval > self._options.max_heartbeat_interval_ns // 1_000_000:
            raise Refused("E_BAD_BODY")
        self._has_heartbeats = interval != -1


def _consumer_count(broker: Broker | None, command: Command) -> int:
    topic = broker and broker.topics.get(command.params[0])
    channel = topic and topic.channels.get(command.params[1])
    return len(channel.subscriptions) if channel else 0


def refuses_commands(options: BrokerOptions) -> bool:
    """Return whether a broker refuses commands of clients that make no mistake."""
    has_short_delays = options.max_req_timeout_ns < DELAY_MAX_NS
    return options.max_msg_size < SIZE_MAX or options.max_channel_consumers > 0 or has_short_delays


class RawMachine:
    """The client's end of a connection, without any state of the protocol: it sends the bytes that it is given."""

    has_input = has_events = False
    is_open = True

    def __init__(self) -> None:
        self.ended = False
        self.has_published = self.has_subscribed = self.is_cut_off = False
        self.answers_heartbeats = True
        self.ids: list[bytes] = []
        self._output = bytearray()
        self._frames = FrameDecoder()

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    def send(self, data: bytes) -> None:
        self._output += data

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Keep the ids of messages, and answer heartbeats."""
        try:
            frames = self._frames.feed(data)
        except Exception:  # the network, or the double, has sent garbage
            self.ended = True
            return
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self.ids.append(frame.id)
            elif self.answers_heartbeats and isinstance(frame, Response) and frame.payload == b"_heartbeat_":
                self.send(b"NOP\n")

    def receive_eof(self, now_ns: int) -> None:
        self.ended = True

    def end(self, error: object) -> None:
        self.ended = True

    def process_input(self, now_ns: int) -> None:
        """There is no input that waits."""

    def next_deadline(self) -> None:
        """There is none."""

    def handle_deadline(self, now_ns: int) -> None:
        """There is nothing to do."""

    def data_to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data

    def events(self) -> Sequence[object]:
        return ()


class Foreign:
    """A player that sends what it likes to one node."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self._world, self.name = world, name
        self.node: Node = world.nodes[options["node"]]
        self._secret: str | None = options.get("secret")
        self._link: Connection | None = None
        self._machine = RawMachine()
        self._is_over = False

    def before_command(self, connection: Connection, command: Command) -> None:
        """Nothing is to be checked."""

    def handle_events(self, connection: Connection, events: Sequence[object]) -> None:
        """There are none."""

    def act(self, verb: str, values: dict[str, Any]) -> None:
        """Connect if there is no connection; send, or go."""
        if self._is_over:
            return
        if self._link is None or self._machine.ended or self._link.session is None:
            if not self.node.accepts:
                return
            self._machine = RawMachine()
            self._link = self._world.connect(
                self.name,
                self,
                self.node,
                self._machine,  # type: ignore[arg-type]
                ForeignRules(self.node.options),
            )
            if values.get("what") != "wrong magic":
                self._machine.send(b"  V2")
                if self._secret is not None:
                    self._machine.send(_auth(self._secret))
        if verb == "send" and self._machine.is_cut_off and values["what"] == "AUTH by name":
            return  # it would be the rest of a body, which is no secret
        if verb == "send" and self._is_modelled(values["what"]):
            self._machine.is_cut_off |= values["what"] == "PUB in part"
            self._machine.answers_heartbeats = values["what"] != "silence" and self._machine.answers_heartbeats
            what = values["what"]
            self._machine.send(_auth(values["secret"]) if what == "AUTH by name" else ITEMS[what](self, values))
        elif verb == "close":
            self._machine.end(None)
        self._world.touch(self._link)

    def _is_modelled(self, what: str) -> bool:
        """With fsync, all that follows a publish waits for its commit, also messages: an oracle sees them too late."""
        if self.node.options.durability != "fsync":
            return True
        machine = self._machine
        if machine.has_published:
            return not what.startswith(("IDENTIFY", "SUB"))
        machine.has_published = "PUB" in what and not machine.has_subscribed
        machine.has_subscribed |= what.startswith("SUB")
        return "PUB" not in what or machine.has_published

    def leave(self) -> None:
        """Go for good."""
        self._is_over = True
        self._machine.end(None)
        if self._link is not None:
            self._world.touch(self._link)

    def own_id(self, number: int) -> bytes:
        """Return the id of a message that this client was sent."""
        ids = self._machine.ids
        return ids[number % len(ids)] if ids else UNKNOWN_ID

    def other_id(self, number: int) -> bytes:
        """Return the id of a message that the broker has sent to any client."""
        ids = [*self.node.deliveries.ids]
        return ids[number % len(ids)] if ids else UNKNOWN_ID

    def body(self, values: dict[str, Any]) -> bytes:
        return b"%s.%d.0" % (self.name.encode(), values["id"])


def _sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def _auth(name: str) -> bytes:
    return b"AUTH\n" + _sized(secret_of(name).encode())


def _identify(**document: Any) -> bytes:
    return b"IDENTIFY\n" + _sized(json.dumps({"feature_negotiation": True, **document}).encode())


def _mpub(count: int, *bodies: bytes) -> bytes:
    batch = pack(">i", count) + b"".join(map(_sized, bodies))
    return b"MPUB t\n" + _sized(batch)


def _consuming(verb: bytes, rest: bytes = b"") -> dict[str, Callable[[Foreign, dict[str, Any]], bytes]]:
    name = verb.decode()
    return {
        name: lambda player, values: b"%b %b%b\n" % (verb, player.own_id(values["number"]), rest),
        f"{name} of another": lambda player, values: b"%b %b%b\n" % (verb, player.other_id(values["number"]), rest),
        f"{name} of no message": lambda player, values: b"%b %b%b\n" % (verb, UNKNOWN_ID, rest),
        f"{name} without an id": lambda player, values: b"%b abc%b\n" % (verb, rest),
        f"{name} without words": lambda player, values: verb + b"\n",
    }


ITEMS: Final[dict[str, Callable[[Foreign, dict[str, Any]], bytes]]] = {
    "IDENTIFY": lambda player, values: _identify(
        msg_timeout=(1000, 1500)[values["number"] % 2], heartbeat_interval=2000
    ),
    "IDENTIFY without negotiation": lambda player, values: b"IDENTIFY\n" + _sized(b"{}"),
    "IDENTIFY without heartbeats": lambda player, values: _identify(heartbeat_interval=-1),
    "IDENTIFY out of range": lambda player, values: _identify(heartbeat_interval=10_000_000),
    "IDENTIFY garbage": lambda player, values: b"IDENTIFY\n" + _sized(b"{]"),
    "IDENTIFY negative": lambda player, values: b"IDENTIFY\n" + pack(">i", -1),
    "AUTH": lambda player, values: b"AUTH\n" + _sized(b"secret"),
    "AUTH with words": lambda player, values: b"AUTH now\n" + _sized(b"secret"),
    "SUB": lambda player, values: b"SUB %b %b\n" % (values["topic"].encode(), values["channel"].encode()),
    "SUB bad topic": lambda player, values: b"SUB t! a\n",
    "SUB bad channel": lambda player, values: b"SUB t a!\n",
    "SUB without words": lambda player, values: b"SUB t\n",
    "RDY": lambda player, values: b"RDY %d\n" % (values["number"] % 4),
    "RDY without words": lambda player, values: b"RDY\n",
    "RDY out of range": lambda player, values: b"RDY 10000000\n",
    "RDY garbage": lambda player, values: b"RDY many\n",
    **_consuming(b"FIN"),
    **_consuming(b"REQ", b" 0"),
    **_consuming(b"TOUCH"),
    "REQ later": lambda player, values: b"REQ %b 400\n" % player.own_id(values["number"]),
    "REQ garbage": lambda player, values: b"REQ %b soon\n" % player.own_id(values["number"]),
    "CLS": lambda player, values: b"CLS\n",
    "NOP": lambda player, values: b"NOP\n",
    "PUB": lambda player, values: b"PUB t\n" + _sized(player.body(values)),
    "PUB bad topic": lambda player, values: b"PUB t!\n" + _sized(player.body(values)),
    "PUB empty": lambda player, values: b"PUB t\n" + pack(">i", 0),
    "PUB too large": lambda player, values: b"PUB t\n" + pack(">i", 1 << 30),
    "PUB without words": lambda player, values: b"PUB\n",
    "PUB in part": lambda player, values: b"PUB t\n" + pack(">i", 20) + b"half",
    "DPUB": lambda player, values: b"DPUB t 300\n" + _sized(player.body(values)),
    "DPUB out of range": lambda player, values: b"DPUB t 100000000\n" + _sized(player.body(values)),
    "DPUB garbage": lambda player, values: b"DPUB t later\n" + _sized(player.body(values)),
    "MPUB": lambda player, values: _mpub(2, player.body(values), player.body(values) + b"b"),
    "MPUB bad topic": lambda player, values: b"MPUB t!\n" + _sized(b"0000"),
    "MPUB bad count": lambda player, values: _mpub(-1, player.body(values)),
    "MPUB empty body": lambda player, values: _mpub(1, b""),
    "MPUB short": lambda player, values: _mpub(2, player.body(values)),
    "wrong magic": lambda player, values: b"  V1",
    "unknown": lambda player, values: b"HELLO world\n",
    "long line": lambda player, values: b"x" * 20_000,
    "garbage": lambda player, values: bytes(range(256)),
    "silence": lambda player, values: b"",
}
"""The things that a foreign client sends."""
