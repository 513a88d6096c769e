"""A consumer without sockets: its core, and sessions to brokers that a test plays.

The rule it guards: a test reads what a session would send as lines, and says what the broker answers; nothing else
happens. Time is a number that the test passes on.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from nsqkit.client.serializers import Serializer
from nsqkit.consumer.core import ConsumerCore
from nsqkit.consumer.message import Message
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.session import ConsumerSession
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, OK_FRAME, encode_response
from nsqkit.wire.identify import IdentifyRequest
from tests.peers import encode_numbered, message_id

S = 1_000_000_000


class DrivenConsumer:
    """A consumer's core.

    Attributes:
        core: the core.
        outputs: the sessions of which the core said that they have something to send, in order.
        now_ns: the time; a test sets it.
    """

    def __init__(self, *, seed: int = 0, serializer: Serializer[Any, Any] | None = None, **options) -> None:
        self.outputs: list[ConsumerSession] = []
        self.now_ns = 0
        given = ConsumerOptions(**options)
        self.core = ConsumerCore(
            b"t",
            b"c",
            options=given,
            identity=IdentifyRequest(
                feature_negotiation=True, heartbeat_interval=round(given.heartbeat_interval * 1000)
            ),
            random=Random(seed),
            on_output=self.outputs.append,
            tell_time=lambda: self.now_ns,
            serializer=serializer,
        )

    def connect(self, address: str = "nsqd:4150", **answer: object) -> DrivenSession:
        """Return a session that has subscribed."""
        link = self.handshake(address, **answer)
        link.say(OK_FRAME)
        return link

    def handshake(self, address: str = "nsqd:4150", **answer: object) -> DrivenSession:
        """Return a session that waits for the answer to SUB."""
        link = DrivenSession(self, ConsumerSession(self.core, address, self.now_ns))
        link.session.data_to_send(self.now_ns)
        link.say(encode_response(json.dumps(answer).encode()))
        assert link.lines() == ["SUB t c"]
        return link

    def pass_time(self, seconds: float) -> None:
        """Move the time, and keep the core's deadline if it has come."""
        self.now_ns += round(seconds * S)
        due_ns = self.core.next_deadline()
        if due_ns is not None and due_ns <= self.now_ns:
            self.core.handle_deadline(self.now_ns)


class DrivenSession:
    """One session of a consumer, seen from the broker."""

    def __init__(self, consumer: DrivenConsumer, session: ConsumerSession) -> None:
        self.session = session
        self._consumer = consumer

    def say(self, data: bytes) -> None:
        """Be the broker: send bytes."""
        self.session.receive_data(data, self._consumer.now_ns)

    def deliver(self, *numbers: int, attempts: int = 1) -> list[Message]:
        """Be the broker: deliver messages in one buffer; return what the session made of them."""
        self.say(encode_numbered(*numbers, attempts=attempts))
        held = self.session.held
        return [held[message_id(number)] for number in numbers if message_id(number) in held]

    def dismiss(self) -> None:
        """Be the broker: answer CLS."""
        self.say(CLOSE_WAIT_FRAME)

    def lines(self) -> list[str]:
        """Return the commands that would be sent now, with ids as plain numbers."""
        data = self.session.data_to_send(self._consumer.now_ns).decode()
        words = [line.split(" ") for line in data.splitlines()]
        return [" ".join(str(int(word, 16)) if len(word) == 16 else word for word in line) for line in words]
