"""Draws the plan of a seed: commands of several connections to nsqd, and requests to its HTTP server.

Most commands are right for the state in which their connection should be. The drawing follows that state only roughly:
the programs decide which commands fail, and a connection that was closed is opened again.
"""

from __future__ import annotations

import json
import re
import struct
from random import Random
from typing import Any, Final

import attrs

from tests.differential.draw_http import quoted, request
from tests.differential.plan import Plan, Step
from tests.differential.words import BAD_DELAYS, BAD_NAMES, BAD_NUMBERS, CHANNELS, LONG_NS, TOPICS, channel_of

OPTIONS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"max-msg-size": "64", "max-body-size": "300", "max-rdy-count": "5", "max-req-timeout": "30m"},
    {"max-channel-consumers": "1", "max-heartbeat-interval": "10s", "max-output-buffer-size": "1024"}
    | {"max-output-buffer-timeout": "1s", "msg-timeout": "50s", "max-msg-timeout": "55s"},
    {"mem-queue-size": "2", "max-bytes-per-file": "200"},
    {"mem-queue-size": "0"},
)
"""The flags of the programs; each plan has one set."""

UNANSWERED: Final = frozenset(("RDY", "FIN", "REQ", "TOUCH", "NOP", ""))
"""Commands without an answer, unless they fail."""

CONNECTIONS: Final = "abcd"
STEPS_MAX: Final = 34
ALL: Final = 2500
"""A RDY count for all messages of a plan."""


@attrs.define
class _Client:
    """A connection as the drawing supposes it to be."""

    state: str = "closed"
    channel: str = ""
    ready: int = 0


def draw(seed: int) -> Plan:
    """Return the plan for nsqd with this number."""
    random = Random(f"nsqd/{seed}")
    options = random.choice(OPTIONS)
    return Plan("nsqd", dict(options), tuple(Drawing(random, options).steps(random.randint(3, STEPS_MAX))))


def framed(body: str) -> str:
    """Return a body behind its size."""
    return sized(len(body)) + body


def sized(size: int) -> str:
    """Return a size as it is on the wire, modulo 2^32."""
    return struct.pack(">I", size % 2**32).decode("latin-1")


class Drawing:
    """The drawing of one plan.

    Args:
        random: the source of all choices.
        options: the flags of the programs.
        mild: no bad commands, and each consumer takes all messages.
    """

    def __init__(self, random: Random, options: dict[str, str], *, mild: bool = False) -> None:
        self._random = random
        self._mild = mild
        # Beyond the memory limit, the order of messages is random in nsqd.
        self._takes_all = mild or "mem-queue-size" in options
        self._clients = {name: _Client() for name in CONNECTIONS}
        self._serial = 0
        # A small memory of an ephemeral queue drops messages, in nsqd those that come while a goroutine is busy.
        durable = 2 if "mem-queue-size" in options else 3
        self._topics = random.sample(TOPICS[:durable], random.randint(1, 2))
        self._channels = random.sample(CHANNELS[:durable], random.randint(1, 2))
        self._steps: list[Step] = []

    def steps(self, count: int) -> list[Step]:
        """Return some steps."""
        self._steps = []
        while len(self._steps) < count:
            if self._random.random() < 0.3:
                self._add_request()
            else:
                self._act(self._random.choice(CONNECTIONS))
        return self._steps

    def lose_connections(self) -> None:
        """Suppose that all connections are closed."""
        self._clients = {name: _Client() for name in CONNECTIONS}

    def drain(self) -> list[Step]:
        """Return steps that take all messages of each channel."""
        self._steps = []
        for topic in self._topics:
            for channel in self._channels:
                name = f"{topic}/{channel}"
                for action in ("topic/unpause", "channel/unpause"):
                    self._add("http", method="POST", path=f"/{action}?topic={quoted(topic)}&channel={quoted(channel)}")
                self._add("connect", on="a")
                self._send("a", "IDENTIFY\n" + framed('{"output_buffer_size":-1}'), 1)
                self._send("a", f"SUB {topic} {channel}\n", 1, sub=name)
                self._send("a", f"RDY {ALL}\n", 0, ready=ALL)
                self._add("settle")
                self._send("a", "FIN <a0>\nFIN <a2>\n", 0)
                self._add("settle")
        return self._steps

    def _add(self, verb: str, **values: Any) -> None:
        self._steps.append(Step(verb, values))

    def _send(self, on: str, data: str, answers: int, **values: Any) -> None:
        self._add("send", on=on, data=data, answers=answers, **values)

    def _add_request(self) -> None:
        values = request(self._random, self._topics, self._channels, self._body, mild=self._mild)
        self._add("http", **values)
        if values["method"] == "POST":
            self._add("settle")

    def _act(self, name: str) -> None:
        client = self._clients[name]
        if client.state == "closed":
            self._connect(name, client)
        elif self._random.random() < 0.03:
            client.state = "closed"
            self._add("close", on=name)
            self._add("settle")
        elif not self._mild and self._random.random() < 0.15:
            self._bad_command(name, client)
        elif client.state == "init":
            self._begin(name, client)
        else:
            self._consume(name, client)

    def _connect(self, name: str, client: _Client) -> None:
        if not self._mild and self._random.random() < 0.02:
            self._add("connect", on=name, magic=self._random.choice(("  V1", "GET ", "", "  V", "\n\n\n\n")))
            return
        self._add("connect", on=name)
        client.state, client.ready = "init", 0
        if self._random.random() < 0.8:
            self._send(name, "IDENTIFY\n" + framed('{"output_buffer_size":-1}'), 1)

    def _begin(self, name: str, client: _Client) -> None:
        choice = self._random.random()
        if choice < 0.5:
            self._publish(name)
        elif choice < 0.6:
            self._send(name, "IDENTIFY\n" + framed(identify(self._random)), 1)
        elif choice < 0.65:
            self._send(name, "NOP\n", 0)
        else:
            topic, channel = self._random.choice(self._topics), self._random.choice(self._channels)
            client.state, client.channel = "subscribed", f"{topic}/{channel}"
            self._send(name, f"SUB {topic} {channel}\n", 1, sub=client.channel)
            self._add("settle")

    def _body(self) -> str:
        self._serial += 1
        padding = "".join(self._random.choices("xyz\0\xff", k=self._random.choice((0, 0, 3, 20))))
        return f"m{self._serial}{padding}"

    def _publish(self, name: str) -> None:
        topic, choice = self._random.choice(self._topics), self._random.random()
        if choice < 0.5:
            data, answers = f"PUB {topic}\n" + framed(self._body()), 1
        elif choice < 0.7:
            bodies = "".join(framed(self._body()) for _ in range(self._random.randint(1, 5)))
            count = bodies.count("m")
            data, answers = f"MPUB {topic}\n" + framed(sized(count) + bodies), 1
        elif choice < 0.85:
            data = f"DPUB {topic} {self._random.choice(('0', '1800000', '1200000'))}\n" + framed(self._body())
            answers = 1
        else:
            answers = self._random.randint(2, 4)
            data = "".join(f"PUB {topic}\n" + framed(self._body()) for _ in range(answers))
        self._send(name, data, answers)
        self._add("settle")

    def _consume(self, name: str, client: _Client) -> None:
        number, choice = self._random.randint(0, 9), self._random.random()
        if choice < 0.3:
            client.ready = count = self._ready_count()
            self._send(name, f"RDY {count}\n", 0, ready=count)
        elif choice < 0.55:
            self._send(name, f"FIN <{name}{number}>\n", 0)
        elif choice < 0.7:
            delay = self._random.choice(("0", "0", "1500000", "3600000", "99999999999"))
            self._send(name, f"REQ <{name}{number}> {delay}\n", 0)
        elif choice < 0.76:
            self._send(name, f"TOUCH <{name}{number}>\n", 0)
        elif choice < 0.82:
            words = self._random.sample(("FIN", "TOUCH", "FIN", "NOP"), 3)
            self._send(name, "".join(f"{word} <{name}{number + place}>\n" for place, word in enumerate(words)), 0)
        elif choice < 0.86:
            other = self._random.choice(CONNECTIONS)
            self._send(name, f"{self._random.choice(('FIN', 'TOUCH'))} <{other}{number}>\n", 0)
        elif choice < 0.9 and client.state == "subscribed":
            client.state = "closing"
            self._send(name, "CLS\n", 1)
        else:
            self._publish(name)
            return
        self._add("settle")

    def _ready_count(self) -> int:
        return self._random.choice((0, ALL, ALL)) if self._takes_all else self._random.choice((0, 1, 1, 2, 3, 5, 100))

    def _bad_command(self, name: str, client: _Client) -> None:
        data, ends = bad_command(self._random, self._topics, self._body)
        verb = re.split("[ \r\n]", data)[0]
        answers = 0 if verb in UNANSWERED else 1
        if verb == "MPUB" and client.ready:
            return  # with bytes behind its messages it ends the connection; nsqd may deliver them to it all the same
        if ends:
            self._send(name, data, answers, ends=True)
            client.state = "closed"
        elif verb == "RDY":
            if self._takes_all:
                return
            client.ready = 1
            self._send(name, data, answers, ready=1)
        else:
            self._send(name, data, answers)
        self._add("settle")
        if self._random.random() < 0.7:
            client.state = "closed"


_IDENTIFY_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "client_id": ("me", "", 5, None, "é"),
    "hostname": ("here", "", None),
    "short_id": ("s", 1),
    "heartbeat_interval": (0, -1, 1000, 30000, 60000, 999, 60001, -2, "x", 10000.0, None, 2**63),
    "output_buffer_size": (0, -1, 64, 63, 1024, 16384, 65536, 65537, -2, None),
    "output_buffer_timeout": (0, -1, 25, 24, 250, 1000, 30000, 30001, -2),
    "feature_negotiation": (True, True, True, False, 1, "true", None),
    "tls_v1": (True, False),
    "deflate_level": (0, 6, 9, 10, -1),
    "sample_rate": (0, 1, 99, 100, -1, 1.5),
    "msg_timeout": (0, 60000, 55000, 900000, 900001, 999, -1, -5),
    "user_agent": ("test/1", "", None, 3),
    "topology_zone": ("zone",),
    "unknown": (1, {"a": []}),
}
_BAD_DOCUMENTS: Final = (
    *("", "{", "[]", "null", "1", '"x"', "{}x", "{} ", " {}", '{"client_id":"\\ud800"}', '{"client_id":"\xff"}'),
    *(
        '{"CLIENT_ID":"x"}',
        '{"heartbeat_interval":1e3}',
        '{"a":1,"a":2}',
        "{'a':1}",
        '{"client_id":"a","client_id":"b"}',
    ),
    *('{"deflate":true,"snappy":true,"feature_negotiation":true}', '{"deflate":true,"snappy":true}', "\0", "{}\n"),
)


def identify(random: Random) -> str:
    """Return a document for IDENTIFY, without an upgrade to another encoding."""
    if random.random() < 0.15:
        return random.choice(_BAD_DOCUMENTS)
    names = random.sample(list(_IDENTIFY_VALUES), random.randint(0, 4))
    document = {name: random.choice(_IDENTIFY_VALUES[name]) for name in names}
    if "sample_rate" in document:
        document["output_buffer_timeout"] = 99_999_999  # refused, so that no consumer gets a sample
    return json.dumps(document, separators=(",", ":"))


def bad_command(random: Random, topics: list[str], body: Any) -> tuple[str, bool]:
    """Return a command that is probably refused, and whether it has to be the last one of its connection."""
    topic, name, number = random.choice(topics), random.choice(BAD_NAMES), random.choice(BAD_NUMBERS)
    delay = random.choice(BAD_DELAYS)
    message = framed(body())
    complete = (
        *("FIN\n", "REQ\n", "TOUCH\n", "CLS\n", "RDY\n", "PUB\n", "SUB\n", "MPUB\n", "DPUB\n", "NOP\n", "\n", " \n"),
        *(
            "fin 0123456789abcdef\n",
            "PUBX t\n",
            "AUTH\n",
            "AUTH x\n",
            "CLS now\n",
            "NOP x\n",
            "NOP\r\n",
            "\r\n",
            "\xff\n",
        ),
        *(f"RDY {number}\n", f"REQ 0123456789abcdef {delay}\n", f"FIN {number}\n", f"TOUCH {number}\n"),
        *(
            "FIN 0123456789abcdef\n",
            "TOUCH 0123456789abcdef\n",
            "REQ 0123456789abcdef 0\n",
            "FIN 0123456789abcde\xff\n",
        ),
        *(f"SUB {name} {channel_of(random)}\n", f"SUB {topic} {name}\n", f"SUB {topic}\n", f"SUB {topic} c1 more\n"),
        *(f"PUB {name}\n{message}", f"MPUB {name}\n{message}", f"DPUB {name} 0\n{message}"),
        *(f"DPUB {topic} {delay}\n{message}", f"DPUB {topic}\n{message}", f"PUB {topic} more\n{message}"),
        *(f"PUB {topic}\n{sized(0)}", f"PUB {topic}\n{sized(-1)}", f"PUB {topic}\n{sized(2**30)}"),
        *(f"PUB {topic}\r\n{message}", f"PUB  {topic}\n{message}", f"pub {topic}\n{message}"),
        *(f"DPUB {topic} {random.choice((LONG_NS, 3600000, 3600001, 1800001))}\n{message}",),
        *(f"PUB {topic}\n" + framed("m" * size) for size in (63, 64, 65)),
        *("IDENTIFY\n" + framed(identify(random)), "IDENTIFY x\n" + framed("{}"), "AUTH\n" + framed("secret")),
        *("IDENTIFY\n" + sized(size) for size in (0, -1, 2**30)),
        *(f"MPUB {topic}\n" + framed(inner) for inner in _bad_batches(body)),
    )
    partial = (
        *("PUB", f"PUB {topic}", f"PUB {topic}\n", f"PUB {topic}\n\0\0", f"PUB {topic}\n{sized(9)}abc", "  V2", ""),
        *(f"MPUB {topic}\n{sized(20)}{sized(2)}", f"MPUB {topic}\n{sized(9)}{sized(1)}{sized(9)}ab", "NOP", "\n\n\n"),
        *(
            f"MPUB {topic}\n" + framed(sized(2) + message + sized(99) + "x"),
            f"MPUB {topic}\n",
            f"DPUB {topic} 0\n{sized(5)}",
            "IDENTIFY\n",
            f"IDENTIFY\n{sized(3)}",
            "x" * 16384,
        ),
        *(
            "x" * 16385,
            "x" * 16383 + "\n",
            "x" * 16384 + "\n",
            f"SUB {topic} c0\nNOP\nFIN",
            "AUTH\n",
            f"AUTH\n{sized(9)}a",
        ),
    )
    if random.random() < 0.15:
        return random.choice(partial), True
    return random.choice(complete), False


def _bad_batches(body: Any) -> list[str]:
    one = framed(body())
    return [
        *("", "\0", sized(0), sized(1), sized(-1), sized(2**31 - 1), sized(1) + sized(0)),
        *(sized(2) + one, sized(1) + one + one, sized(1) + one + "x", sized(0) + one),
        *(sized(1) + sized(-1) + "x", sized(2) + one + framed("y" * 65)),
    ]
