"""A journal of a small conversation, for the tests of journals: one producer and one consumer."""

from __future__ import annotations

import attrs

from nsqkit.testing.link.entries import describe
from nsqkit.testing.link.items import Connection, Direction, Splitter
from nsqkit.testing.link.journal import Journal
from nsqkit.wire.commands import (
    MAGIC_V2,
    NOP,
    encode_finish,
    encode_identify,
    encode_multi_publish,
    encode_publish,
    encode_ready,
    encode_requeue,
    encode_subscribe,
    encode_touch,
)
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME
from nsqkit.wire.messages import encode_message

START_NS = 1_700_000_000 * 10**9
IDS = [b"%016x" % number for number in range(10)]


class Conversation:
    """Records what its clients send and receive."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = Journal() if journal is None else journal
        self.now_ns = START_NS
        self._clients: dict[str, tuple[Connection, dict[Direction, Splitter]]] = {}

    def send(self, client: str, *commands: bytes, fault: str = "") -> None:
        self._record(client, Direction.TO_BROKER, commands, fault)

    def receive(self, client: str, *frames: bytes, fault: str = "") -> None:
        self._record(client, Direction.TO_CLIENT, frames, fault)

    def subscribe(self, client: str, topic: bytes = b"orders", channel: bytes = b"billing") -> None:
        self.send(client, MAGIC_V2 + encode_identify(b'{"client_id": "%b"}' % client.encode()))
        self.receive(client, OK_FRAME)
        self.send(client, encode_subscribe(topic, channel))
        self.receive(client, OK_FRAME)

    def publish(self, client: str, topic: bytes, body: bytes, answer: bytes = OK_FRAME) -> None:
        self.send(client, encode_publish(topic, body))
        self.receive(client, answer)

    def deliver(self, client: str, number: int, body: bytes, attempts: int = 1, fault: str = "") -> None:
        self.receive(client, encode_message(START_NS, attempts, IDS[number], body), fault=fault)

    def _record(self, client: str, direction: Direction, parts: tuple[bytes, ...], fault: str) -> None:
        self.now_ns += 1_000_000
        if client not in self._clients:
            connection = Connection(f"127.0.0.1:{50_000 + len(self._clients)}")
            self._clients[client] = connection, {direction: Splitter(direction) for direction in Direction}
        connection, splitters = self._clients[client]
        items = [attrs.evolve(item, fault=fault) for item in splitters[direction].feed(b"".join(parts))]
        for item in items:
            describe(connection, item)
        if items:
            self.journal.record(self.now_ns, connection, direction, items)


def whole_conversation(journal: Journal | None = None) -> Conversation:
    """Two publishes, of which one message is finished at once, and one requeued, touched and finished."""
    talk = Conversation(journal)
    talk.send("web", MAGIC_V2)
    talk.subscribe("worker")
    talk.send("worker", encode_ready(1))
    talk.publish("web", b"orders", b"one")
    talk.send("web", encode_multi_publish(b"orders", [b"two", b"three"]))
    talk.receive("web", OK_FRAME, HEARTBEAT_FRAME)
    talk.send("web", NOP)
    talk.deliver("worker", 1, b"one")
    talk.send("worker", encode_finish(IDS[1]))
    talk.deliver("worker", 2, b"two")
    talk.send("worker", encode_requeue(IDS[2], 1500))
    talk.deliver("worker", 2, b"two", attempts=2)
    talk.send("worker", encode_touch(IDS[2]) + encode_finish(IDS[2]))
    return talk
