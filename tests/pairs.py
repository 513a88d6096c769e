"""A broker and its clients without sockets: what the tests of the engine drive.

The rule it guards: a test says bytes and reads bytes, as a client would. ``DrivenBroker`` owns the time; a
``DrivenClient`` hands its commands to its session and takes what that has to send when it is asked, and when time goes
by; so until then it is one that does not read, and with ``reads = False`` it stays one.

How to read it: ``answers`` of a client are a list in which a response or an error is its payload, and a message is a
``MessageFrame``.
"""

from __future__ import annotations

import json
from random import Random
from typing import TypeAlias

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import Storage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.core.topics.topic import Topic
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import MAGIC_V2, encode_identify, encode_publish, encode_ready, encode_subscribe
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response

NS_PER_S = 1_000_000_000
START_NS = 1_704_067_200 * NS_PER_S

Answer: TypeAlias = bytes | MessageFrame


class DrivenBroker:
    """A broker whose time a test moves.

    Args:
        seed: of its random numbers.
        storage: where its queues are; by default in memory.
        options: nsqd's flags, as in ``BrokerOptions``.
    """

    def __init__(self, *, seed: int = 0, storage: Storage | None = None, **options) -> None:
        self.broker = Broker(BrokerOptions(**options), Random(seed), storage)
        self.now_ns = START_NS
        self._clients: list[DrivenClient] = []

    def client(self, **identify: object) -> DrivenClient:
        """Return a new client; with arguments it identifies itself with them."""
        client = DrivenClient(self, f"10.0.0.1:{len(self._clients) + 1}")
        self._clients.append(client)
        client.feed(MAGIC_V2)
        if identify:
            client.identify(**identify)
        return client

    def consumer(
        self, rdy_count: int = 1, *, topic: bytes = b"t", channel: bytes = b"c", **identify: object
    ) -> DrivenClient:
        """Return a new client that has subscribed and sent RDY."""
        client = self.client(**identify)
        assert client.say(encode_subscribe(topic, channel)) == [b"OK"]
        client.feed(encode_ready(rdy_count))
        return client

    def publish(self, *bodies: bytes, topic: bytes = b"t", delay: float = 0) -> None:
        """Publish from outside a connection, as HTTP does."""
        self.topic(topic).put(bodies, self.now_ns, delay_ns=round(delay * NS_PER_S))
        self.settle()

    def topic(self, name: bytes = b"t") -> Topic:
        """Return a topic, made if it is new."""
        return self.broker.topic(name)

    def settle(self) -> None:
        """Deliver after something was done from outside a connection."""
        self.broker.settle(self.now_ns)

    def advance(self, seconds: float) -> None:
        """Let time go by; everything is done when it is due."""
        end_ns = self.now_ns + round(seconds * NS_PER_S)
        while (deadline_ns := self.broker.next_deadline()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.broker.handle_deadline(self.now_ns)
            for client in self._clients:
                if client.reads:
                    client.read()
        self.now_ns = end_ns

    def jump(self, seconds: float) -> None:
        """Move the time at once; what was due meanwhile is done late."""
        self.now_ns += round(seconds * NS_PER_S)
        self.broker.handle_deadline(self.now_ns)


class DrivenClient:
    """One client of a ``DrivenBroker``.

    Attributes:
        reads: whether it takes what it is sent while time goes by.
    """

    def __init__(self, driven: DrivenBroker, address: str) -> None:
        self.reads = True
        self._said: list[Answer] = []
        self.session: Session = driven.broker.open_session(address, driven.now_ns)
        self._driven = driven
        self._decoder = FrameDecoder()

    def feed(self, *commands: bytes) -> None:
        """Send, and read nothing."""
        self.session.receive_data(b"".join(commands), self._driven.now_ns)

    def work(self) -> None:
        """Have all of it acted on, turn by turn, while nothing is read."""
        while self.session.has_input:
            self.session.process_input(self._driven.now_ns)

    def answers(self) -> list[Answer]:
        """Return what the broker has said since the last call."""
        self.read()
        said, self._said = self._said, []
        return said

    def read(self) -> None:
        """Read what the broker has said until now."""
        session = self.session
        while True:
            had_ended = session.ended
            data = session.data_to_send(self._driven.now_ns)
            self._said += map(_answer, self._decoder.feed(data))
            session.process_input(self._driven.now_ns)
            if not data and (had_ended or not (session.has_output or session.has_input)):
                break

    def say(self, *commands: bytes) -> list[Answer]:
        """Send, and read."""
        self.feed(*commands)
        return self.answers()

    def messages(self) -> list[MessageFrame]:
        """Read, and expect nothing but messages."""
        said = self.answers()
        messages = [answer for answer in said if isinstance(answer, MessageFrame)]
        assert messages == said
        return messages

    def bodies(self) -> list[bytes]:
        """Read, expect nothing but messages, and return their bodies."""
        return [message.body for message in self.messages()]

    def message(self) -> MessageFrame:
        """Read, and expect one message."""
        (message,) = self.messages()
        return message

    def identify(self, **fields: object) -> dict[str, object]:
        """Identify with feature negotiation; return what the broker grants."""
        (said,) = self.say(encode_identify(json.dumps({"feature_negotiation": True, **fields}).encode()))
        assert isinstance(said, bytes)
        granted: dict[str, object] = json.loads(said)
        return granted

    def publish(self, *bodies: bytes, topic: bytes = b"t") -> None:
        """Publish each body with a PUB, and expect that each is taken."""
        assert self.say(*(encode_publish(topic, body) for body in bodies)) == [b"OK"] * len(bodies)

    def disconnect(self) -> None:
        """Say that nothing more is sent, read what the broker answers to that, and close the connection."""
        self.session.receive_eof(self._driven.now_ns)
        self.read()
        self._driven.broker.close_session(self.session, self._driven.now_ns)

    @property
    def is_alive(self) -> bool:
        """Tell whether the broker has not ended the session."""
        return not self.session.ended


def _answer(frame: Response | BrokerError | MessageFrame) -> Answer:
    if isinstance(frame, Response):
        return frame.payload
    if isinstance(frame, BrokerError):
        return encode_error_text(frame)
    return frame
