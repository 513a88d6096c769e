"""A producer's session: publishes on their way, and their answers.

The rule it guards: nsqd answers commands in the order in which they came, so the oldest publish without an answer
is the one that the next answer is for. Each publish gets exactly one: the broker's, or the reason why there will be
none. A publish whose caller has gone away keeps its place, or all later answers would be for the wrong ones.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn, Protocol

from nsqkit.client.session import ClientSession
from nsqkit.errors import BrokerError, ConnectionLost, NSQError, ProtocolError
from nsqkit.wire.frames import OK_RESPONSE, Response
from nsqkit.wire.identify import IdentifyRequest

OUTBOX_SIZE_MAX = 4 << 20
"""Bytes that wait for a broker that does not read before more is refused room."""


class Waiter(Protocol):
    """Whoever awaits the answer to one publish."""

    def answered(self, error: NSQError | None) -> None:
        """Take the answer: None for OK."""
        ...


class ProducerSession(ClientSession[NoReturn]):
    """The producer's side of one connection."""

    def __init__(
        self, identity: IdentifyRequest, *, read_timeout_ns: int, max_msg_size: int, now_ns: int
    ) -> None:
        super().__init__(
            identity,
            _refuse_message,
            read_timeout_ns=read_timeout_ns,
            max_msg_size=max_msg_size,
            now_ns=now_ns,
        )
        self._waiting: deque[Waiter] = deque()

    @property
    def has_room(self) -> bool:
        """False while the broker does not take what it is sent."""
        return self._outbox_size < OUTBOX_SIZE_MAX

    @property
    def waiting_count(self) -> int:
        """Publishes without an answer."""
        return len(self._waiting)

    def publish(self, command: bytes, waiter: Waiter) -> None:
        """Send a PUB, MPUB or DPUB; ``waiter`` gets its answer."""
        self.send(command)
        self._waiting.append(waiter)

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        waiting = self._waiting
        for frame in frames:
            if frame is OK_RESPONSE and waiting:
                waiting.popleft().answered(None)
            elif isinstance(frame, BrokerError):
                self._on_error(frame)
            elif not self._answer_heartbeat(frame):
                self._on_response(frame)

    def _on_response(self, response: Response) -> None:
        if not self._waiting:
            raise ProtocolError(f"the broker said {response.payload[:100]!r} when nothing was asked")
        self._waiting.popleft().answered(None)

    def _on_error(self, error: BrokerError) -> None:
        if self._waiting:
            self._waiting.popleft().answered(error)
        if error.fatal:
            self.end(error)

    def _on_end(self) -> None:
        while self._waiting:
            lost = ConnectionLost("the connection was lost before the broker answered")
            lost.__cause__ = self.error
            self._waiting.popleft().answered(lost)


def _refuse_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> NoReturn:
    raise ProtocolError(f"the broker sent message {message_id!r} to a producer")
