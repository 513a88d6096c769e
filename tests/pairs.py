"""A broker and its clients without sockets, for tests of ``nsqkit.broker.core``.

A test sends and reads bytes, as a client does. ``DrivenBroker`` has the time. A ``DrivenClient`` reads when the test
calls ``answers`` or ``read``, and when the time advances; with ``reads = False`` only when the test calls. Its answers
are a list: the payload of each response or error, and a ``MessageFrame`` for each message.
"""

from __future__ import annotations

import json
from random import Random
from typing import TypeAlias

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.storage import Storage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.broker.core.session.sessions import SessionEnded
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.core.topics.topic import Topic
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import MAGIC_V2, encode_identify, encode_publish, encode_ready, encode_subscribe
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import FrameDecoder, MessageFrame, Response

NS_PER_S = 1_000_000_000
START_NS = 1_704_067_200 * NS_PER_S

Answer: TypeAlias = bytes | MessageFrame


class DrivenBroker:
    """A broker whose time the test controls.

    Args:
        seed: the seed of its random numbers.
        storage: of its queues; by default memory.
        options: nsqd's flags, as in ``BrokerOptions``.
    """

    def __init__(self, *, seed: int = 0, storage: Storage | None = None, **options) -> None:
        self.broker = Broker(BrokerOptions(**options), Random(seed), storage)
        self.now_ns = START_NS
        self._clients: list[DrivenClient] = []

    def client(self, **identify: object) -> DrivenClient:
        """Return a new client; with arguments, after IDENTIFY."""
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
        assert client.exchange(encode_subscribe(topic, channel)) == [b"OK"]
        client.feed(encode_ready(rdy_count))
        return client

    def publish(self, *bodies: bytes, topic: bytes = b"t", delay: float = 0) -> None:
        """Publish from outside a connection, as HTTP does."""
        self.topic(topic).put(bodies, self.now_ns, delay_ns=round(delay * NS_PER_S))
        self.settle()

    def topic(self, name: bytes = b"t") -> Topic:
        """Return a topic; it is created if necessary."""
        return self.broker.topics.get_or_create(name)

    def settle(self) -> None:
        """Deliver messages after an action outside of a connection."""
        self.broker.settle(self.now_ns)

    def advance(self, seconds: float) -> None:
        """Advance the time; each deadline is handled in time."""
        end_ns = self.now_ns + round(seconds * NS_PER_S)
        while (deadline_ns := self.broker.next_deadline()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.broker.handle_deadline(self.now_ns)
            for client in self._clients:
                if client.reads:
                    client.read()
        self.now_ns = end_ns

    def jump(self, seconds: float) -> None:
        """Advance the time at once; deadlines are handled late."""
        self.now_ns += round(seconds * NS_PER_S)
        self.broker.handle_deadline(self.now_ns)


class DrivenClient:
    """One client of a ``DrivenBroker``.

    Attributes:
        reads: whether it reads while the time advances.
    """

    def __init__(self, driven: DrivenBroker, address: str) -> None:
        self.reads = True
        self._answers: list[Answer] = []
        self._end_reason: str | None = None
        self.session: Session = driven.broker.open_session(address, driven.now_ns)
        self._driven = driven
        self._decoder = FrameDecoder()

    def feed(self, *commands: bytes) -> None:
        """Send, and read nothing."""
        self.session.receive_data(b"".join(commands), self._driven.now_ns)
        self._driven.settle()

    def work(self) -> None:
        """Process all input, turn by turn, without reading."""
        while self.session.has_input:
            self.session.process_input(self._driven.now_ns)
            self._driven.settle()

    def answers(self) -> list[Answer]:
        """Return the broker's answers since the last call."""
        self.read()
        answers, self._answers = self._answers, []
        return answers

    def read(self) -> None:
        """Read the broker's answers."""
        session = self.session
        while True:
            had_ended = session.ended
            data = session.data_to_send()
            self._answers += map(_answer, self._decoder.feed(data))
            session.process_input(self._driven.now_ns)
            self._driven.settle()
            if not data and (had_ended or not (session.has_output or session.has_input)):
                break

    def exchange(self, *commands: bytes) -> list[Answer]:
        """Send, and return the answers."""
        self.feed(*commands)
        return self.answers()

    def messages(self) -> list[MessageFrame]:
        """Return the answers, which must be messages."""
        answers = self.answers()
        messages = [answer for answer in answers if isinstance(answer, MessageFrame)]
        assert messages == answers
        return messages

    def bodies(self) -> list[bytes]:
        """Return the bodies of the answers, which must be messages."""
        return [message.body for message in self.messages()]

    def message(self) -> MessageFrame:
        """Return the answer, which must be one message."""
        (message,) = self.messages()
        return message

    def identify(self, **fields: object) -> dict[str, object]:
        """Send IDENTIFY with feature negotiation; return the answer."""
        (answer,) = self.exchange(encode_identify(json.dumps({"feature_negotiation": True, **fields}).encode()))
        assert isinstance(answer, bytes)
        granted: dict[str, object] = json.loads(answer)
        return granted

    def publish(self, *bodies: bytes, topic: bytes = b"t") -> None:
        """Publish each body with a PUB, which must succeed."""
        assert self.exchange(*(encode_publish(topic, body) for body in bodies)) == [b"OK"] * len(bodies)

    def disconnect(self) -> None:
        """Send the end of the stream, read the answers, and close the connection."""
        self.session.receive_eof(self._driven.now_ns)
        self._driven.settle()
        self.read()
        self._driven.broker.close_session(self.session, self._driven.now_ns)
        self._driven.settle()

    @property
    def subscription(self) -> Subscription:
        """Its place in the channel that it consumes."""
        assert self.session.subscription is not None
        return self.session.subscription

    @property
    def end_reason(self) -> str | None:
        """Why its session has ended; None if it has not, or without a reason."""
        self._end_reason = end_reason(self.session) or self._end_reason
        return self._end_reason

    @property
    def is_alive(self) -> bool:
        """True until the broker ends the session."""
        return not self.session.ended


def end_reason(session: Session) -> str | None:
    """Take the events of a session; return the reason why it has ended, None without one."""
    for event in session.events():
        if isinstance(event, SessionEnded):
            return event.reason
    return None


def _answer(frame: Response | BrokerError | MessageFrame) -> Answer:
    if isinstance(frame, Response):
        return frame.payload
    if isinstance(frame, BrokerError):
        return encode_error_text(frame)
    return frame
