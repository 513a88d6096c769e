"""A producer's session: publishes on their way, and their answers.

    publish() ─▶ staged ───┐
                           ├─ data_to_send() ─▶ in flight ─▶ Answers: OK, refused or lost
    linger.join() ▶ batch ─┘
                 └── withdraw() removes from either

nsqd answers commands in the order in which they arrive, so an answer belongs to the oldest command in flight. Each
publish has a token, which is any object, and gets exactly one answer: the broker's, or the reason why there will be
none. That is ``NotConnected`` where the broker has certainly not acted on the publish, and ``ConnectionLost`` where it
may have. A publish that ``data_to_send`` has not returned was certainly not sent and can be withdrawn. One in flight
keeps its place, or all later answers would go to the wrong publishes.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from nsqkit.client.session import ClientSession
from nsqkit.errors import (
    BadBody,
    BadMessage,
    BrokerError,
    ConnectionLost,
    NotConnected,
    NSQError,
    ProtocolError,
)
from nsqkit.producer.linger import Batch, BatchRefused, Linger
from nsqkit.wire.commands import encode_multi_publish, encode_publish
from nsqkit.wire.frames import OK_RESPONSE
from nsqkit.wire.identify import IdentifyRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqkit.wire.frames import Row

OUTBOX_SIZE_MAX = 4 << 20
"""Bytes that may wait for a broker that does not read; above that, no publish is accepted."""


@attrs.define(eq=False)
class Answers:
    """An event: the answers that one buffer, or the end of the session, has brought.

    Attributes:
        ok: tokens of publishes that the broker has acknowledged.
        failed: tokens of all others, with their errors.
    """

    ok: list[Any]
    failed: list[tuple[Any, NSQError]]


class Urgency(Enum):
    """When to write a publish."""

    NOW = auto()
    SOON = auto()  # in this turn of the event loop, with others


class ProducerSession(ClientSession[NoReturn]):
    """The producer's side of one connection.

    Args:
        identity: as for ``ClientSession``; so are the arguments that are not listed here.
        linger: gathers single publishes; None if they are sent one by one.

    Attributes:
        is_ready: True while it accepts publishes: it is open, and less than ``OUTBOX_SIZE_MAX`` bytes wait.
        has_events: also True after it has become ready because its output was taken; ``events`` returns nothing then.
    """

    def __init__(
        self,
        identity: IdentifyRequest,
        *,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
        linger: Linger | None = None,
    ) -> None:
        super().__init__(
            identity,
            read_timeout_ns=read_timeout_ns,
            max_msg_size=max_msg_size,
            now_ns=now_ns,
        )
        self.linger = linger
        self.is_ready = False
        self._staged: dict[object, bytes] = {}  # in order
        self._staged_size = 0
        self._sent: deque[object] = deque()  # tokens and batches
        self._withdrawn: set[object] = set()  # of those in flight
        self._ok: list[object] = []
        self._failed: list[tuple[object, NSQError]] = []

    @property
    def outstanding_count(self) -> int:
        """Commands without an answer, and publishes that linger."""
        gathering = 0 if self.linger is None else self.linger.count
        return len(self._sent) + len(self._staged) + gathering

    @property
    def is_awaited(self) -> bool:
        """True while there is a publish that has no answer and was not withdrawn."""
        if self._staged or (self.linger is not None and self.linger.count):
            return True
        return any(token not in self._withdrawn for sent in self._sent for token in _tokens(sent))

    # ---- publishing ----------------------------------------------------------------------------------------------

    def publish(self, command: bytes, token: object) -> Urgency | None:
        """Stage a PUB, MPUB or DPUB, and return when to write it; None where an earlier one has said that.

        The first publish in a turn of the event loop requests a write for all of that turn; one that finds no other
        in flight need not wait for others.
        """
        staged = self._staged
        staged[token] = command
        self.has_output = True
        self._staged_size += len(command)
        if self._staged_size >= OUTBOX_SIZE_MAX:
            self.is_ready = False
        if len(staged) > 1:
            return None
        return Urgency.SOON if self._sent else Urgency.NOW

    def check_linger(self) -> None:
        """Send the batches of ``linger`` that are ready; if they have enough bytes, accept no more publishes."""
        if self.linger is not None and self.linger.has_ready:
            self.has_output = True
            if self.linger.ready_size >= OUTBOX_SIZE_MAX:
                self.is_ready = False

    def withdraw(self, token: object) -> bool:
        """Return True if a publish was not sent, and remove it; otherwise its answer will be an event as any other."""
        command = self._staged.pop(token, None)
        if command is not None:
            self._staged_size -= len(command)
            return True
        if self.linger is not None and self.linger.withdraw(token):
            return True
        self._withdrawn.add(token)
        return False

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them; the publishes among them are in flight from now on."""
        if self._staged:
            self._outbox += self._staged.values()
            self._sent.extend(self._staged)
            self._staged.clear()
            self._staged_size = 0
        if self.linger is not None and self.linger.has_ready:
            for batch in self.linger.take():
                topic, bodies = batch.lane.topic, [*batch.bodies.values()]
                single = len(bodies) == 1
                self.send(encode_publish(topic, bodies[0]) if single else encode_multi_publish(topic, bodies))
                self._sent.append(batch)
        if self.is_open and not self.is_ready:
            self.has_events = True
        self.is_ready = self.is_open
        return super().data_to_send()

    def _on_handshake_done(self, now_ns: int) -> None:
        super()._on_handshake_done(now_ns)
        self.is_ready = True

    # ---- answers -------------------------------------------------------------------------------------------------

    def events(self) -> list[object]:
        """Return one ``Answers`` with all answers since the last call; an empty list if there are none."""
        self.has_events = False
        ok, failed = self._ok, self._failed
        if not ok and not failed:
            return []
        self._ok, self._failed = [], []
        if self._withdrawn:
            self._withdrawn.difference_update(ok, [token for token, _ in failed])
        return [Answers(ok, failed)]

    def _make_messages(self, rows: Iterable[Row]) -> NoReturn:
        message_id = next(iter(rows))[2]
        raise ProtocolError(f"the broker sent message {message_id!r} to a producer")

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        sent, ok = self._sent, self._ok
        for frame in frames:
            if frame is OK_RESPONSE and sent:
                token = sent.popleft()
                if type(token) is Batch:
                    self._on_batch_answer(token, None)
                else:
                    ok.append(token)
            elif isinstance(frame, BrokerError):
                if sent:
                    self._on_answer(frame)
                if frame.fatal:
                    self.end(frame)
            elif not self._answer_heartbeat(frame):
                if not sent:
                    raise ProtocolError(f"the broker sent {frame.payload[:100]!r}, which answers no command")
                self._on_answer(None)
        self.has_events = bool(ok or self._failed)

    def _on_answer(self, error: NSQError | None) -> None:
        sent = self._sent.popleft()
        if isinstance(sent, Batch):
            self._on_batch_answer(sent, error)
        elif error is None:
            self._ok.append(sent)
        else:
            self._failed.append((sent, error))

    def _on_batch_answer(self, batch: Batch, error: NSQError | None) -> None:
        assert self.linger is not None
        self.linger.answered(batch)
        self.check_linger()
        if error is None:
            self._ok += batch.bodies
        else:
            self._fail(batch.bodies, _batch_error(batch, error))

    def _fail(self, tokens: Iterable[object], error: NSQError) -> None:
        """Answer with an error; each token gets a copy, since raising an error adds a traceback to it."""
        for token in tokens:
            own = copy(error)
            own.__cause__ = error.__cause__
            self._failed.append((token, own))

    def _on_end(self) -> None:
        self.is_ready = False
        lost: NSQError = ConnectionLost("the connection was lost before the broker answered")
        not_sent: NSQError = NotConnected("the connection was lost before the message was sent")
        lost_batch, unsent_batch = lost, not_sent
        if _stops_reading(self.error):
            unread = "the broker refused an earlier publish and did not read this one"
            lost, lost_batch = NotConnected(unread), BatchRefused(unread)
            unsent_batch = lost_batch
        for error in (lost, not_sent, lost_batch):
            error.__cause__ = self.error
        for sent in self._sent:
            self._fail(_tokens(sent), lost_batch if isinstance(sent, Batch) else lost)
        self._fail(self._staged, not_sent)
        self._fail([] if self.linger is None else self.linger.clear(), unsent_batch)
        self.has_events = bool(self._ok or self._failed)
        self._sent.clear()
        self._staged.clear()
        self._staged_size = 0


def _tokens(sent: object) -> Iterable[object]:
    return sent.bodies if isinstance(sent, Batch) else (sent,)


def _batch_error(batch: Batch, error: NSQError) -> NSQError:
    """Return the error for the messages of a batch that was refused.

    nsqd reads all of an MPUB before it keeps any of it, and BadMessage and BadBody are its errors for what it has read
    (nsqd/protocol_v2.go, MPUB and readMPUB). After E_MPUB_FAILED it may have kept some of the messages.
    """
    if len(batch.bodies) == 1 or not isinstance(error, BadMessage | BadBody):
        return error
    refused = BatchRefused(f"the broker refused {len(batch.bodies)} messages together: {error}")
    refused.__cause__ = error
    return refused


def _stops_reading(error: NSQError | None) -> bool:
    """Return whether the broker ignores all commands after the one that it answered with ``error``.

    nsqd leaves its loop at a fatal error (nsqd/protocol_v2.go, IOLoop). A code that this version does not have counts
    as fatal too, but what a broker with that code does afterwards is unknown.
    """
    return isinstance(error, BrokerError) and error.fatal and type(error) is not BrokerError
