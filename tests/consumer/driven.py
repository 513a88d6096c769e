"""A consumer without sockets: its core, and sessions to brokers that a test plays.

A test reads the commands of a session as lines, and sends the broker's answers. The time is a number that the test
sets.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from nsqkit.client.serializers import Serializer
from nsqkit.clock import ManualClock
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.message import Holder, Message
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.stats import BackoffStats
from nsqkit.consumer.subscription import Subscription
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, OK_FRAME, encode_response
from nsqkit.wire.identify import IdentifyRequest
from tests.peers import encode_numbered, message_id

S = 1_000_000_000


class DrivenConsumer:
    """A consumer's core.

    Attributes:
        core: the core.
        subscription: the subscription.
        woken: the sessions that were woken by an answer, or that the core returned as having output, in order.
        backoff_changes: the events of the core.
    """

    def __init__(self, *, seed: int = 0, serializer: Serializer[Any, Any] | None = None, **options) -> None:
        self.woken: list[Holder] = []
        self.backoff_changes: list[BackoffStats] = []
        given = ConsumerOptions(**options)
        self.core = ConsumerCore(given, Random(seed))
        self._due_ns: int | None = None  # the deadline for which a timer would be set
        self.subscription = Subscription(
            "t",
            "c",
            core=self.core,
            options=given,
            identity=IdentifyRequest(
                feature_negotiation=True, heartbeat_interval=round(given.heartbeat_interval * 1000)
            ),
            serializer=serializer,
            after=self.after,
        )
        self._clock = self.subscription.clock = ManualClock(0)

    @property
    def now_ns(self) -> int:
        """The time; a test sets it."""
        return self._clock.now_ns()

    @now_ns.setter
    def now_ns(self, now_ns: int) -> None:
        self._clock._now_ns = now_ns

    def connect(self, address: str = "nsqd:4150", **answer: object) -> DrivenSession:
        """Return a session that has subscribed."""
        link = self.handshake(address, **answer)
        link.send(OK_FRAME)
        return link

    def handshake(self, address: str = "nsqd:4150", **answer: object) -> DrivenSession:
        """Return a session that waits for the answer to SUB."""
        link = DrivenSession(self, address)
        link.session.data_to_send()
        link.send(encode_response(json.dumps(answer).encode()))
        assert link.lines() == ["SUB t c"]
        return link

    def pass_time(self, seconds: float) -> None:
        """Move the time, and call the core if its deadline is due."""
        self.now_ns += round(seconds * S)
        due_ns = self.core.next_deadline()
        if due_ns is not None and due_ns <= self.now_ns:
            self.core.handle_deadline(self.now_ns)
            self._due_ns = self.core.next_deadline()
            self.after()

    def after(self) -> None:
        """Record what the core has left for its driver; check that ``has_changes`` announces all of it."""
        core, earlier_ns = self.core, self._due_ns
        woken, backoff_changes, due_ns = [*core.take_output()], core.events(), core.next_deadline()
        is_earlier = due_ns is not None and (earlier_ns is None or due_ns < earlier_ns)
        assert core.has_changes or not (woken or backoff_changes or is_earlier or core.has_lost)
        core.has_changes = core.has_lost = False
        self._due_ns = due_ns
        self.woken += woken
        self.backoff_changes += backoff_changes


class DrivenSession:
    """One session of a consumer, and its broker, which a test plays."""

    def __init__(self, consumer: DrivenConsumer, address: str = "nsqd:4150") -> None:
        self._consumer = consumer
        self.session = consumer.subscription.make_session(address, self, consumer.now_ns)

    def wake(self) -> None:
        self._consumer.woken.append(self.session)

    flush = wake

    def send(self, data: bytes) -> None:
        """Send bytes as the broker."""
        self.session.receive_data(data, self._consumer.now_ns)
        self.handle_events()

    def lose(self) -> None:
        """Close the connection as the broker."""
        self.session.receive_eof(self._consumer.now_ns)
        self.handle_events()

    def handle_events(self) -> None:
        """Hand the events of the session to the core."""
        while events := self.session.events():
            self._consumer.core.handle_events(self.session, events, self._consumer.now_ns)
        self._consumer.after()

    def deliver(self, *numbers: int, attempts: int = 1) -> list[Message]:
        """Deliver messages in one buffer as the broker; return the messages that the session made of them."""
        self.send(encode_numbered(*numbers, attempts=attempts))
        held = self.session.held
        return [held[message_id(number)] for number in numbers if message_id(number) in held]

    def dismiss(self) -> None:
        """Answer CLS as the broker."""
        self.send(CLOSE_WAIT_FRAME)

    def data_to_send(self) -> bytes:
        """Return the bytes to write now, with those that follow from the events of writing them."""
        data = b""
        while more := self.session.data_to_send():
            data += more
            self.handle_events()
        return data

    def lines(self) -> list[str]:
        """Return the commands to write now, with ids as plain numbers."""
        words = [line.split(" ") for line in self.data_to_send().decode().splitlines()]
        return [" ".join(str(int(word, 16)) if len(word) == 16 else word for word in line) for line in words]
