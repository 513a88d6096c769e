"""The consumer's side of one connection: it holds the messages that were delivered on it.

        handshake ─▶ SUB ─▶ OK ─▶ messages … ─▶ CLS ─▶ CLOSE_WAIT ─▶ (all answered) ─▶ ended

A message is in ``held`` until it is answered or times out. So it can be requeued when the consumer stops, and an
answer to a message that is not held is never sent. ``finish`` only records an id, because it is called once for each
message: ``data_to_send`` encodes all recorded ids as one run of FINs and leaves one ``Answered`` event for it.

nsqd has no answer to FIN and TOUCH, but it processes the commands of a connection in order. So ``add_barrier`` queues a
FIN for an id that no message has: nsqd's refusal of it proves that all earlier commands were processed, and the
refusals before it name those that failed.

A session decides nothing about RDY or backoff. ``ConsumerCore`` does, from the events.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, Final

import attrs

from nsqkit.client.session import ClientSession, State
from nsqkit.consumer.backoff import Result
from nsqkit.consumer.message import FIRST, NOT_HELD, Barrier, Message
from nsqkit.consumer.stats import MessageCounts
from nsqkit.errors import BrokerError, FinishFailed, MessageError, ProtocolError, RequeueFailed
from nsqkit.wire.commands import (
    BARRIER_ID,
    CLS,
    encode_finishes,
    encode_ready,
    encode_requeue,
    encode_subscribe,
    encode_touch,
)
from nsqkit.wire.frames import CLOSE_WAIT, OK, Response

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqkit.consumer.message import Answering, Outcome, Wakeable
    from nsqkit.wire.frames import Row
    from nsqkit.wire.identify import IdentifyRequest

NS_PER_MS: Final = 1_000_000

MSG_TIMEOUT_NS: Final = 60_000 * NS_PER_MS
"""nsqd's default, for a broker that does not name its timeout."""

MSG_TIMEOUT_MIN_MS: Final = 1000
"""The shortest timeout to reckon with if the broker does not name one: it may run with less than the default."""

OVERSHOOT: Final = 100
"""Unanswered messages beyond those that RDY explains, before the connection is ended."""

TIMED_OUT: Final = -1
"""The ``deadline_ns`` of a message that has timed out, or that the consumer has requeued without a handler."""

TOUCH_PART: Final = 2
"""A message that waits for a handler is touched when half of its timeout is left …"""

REQUEUE_PART: Final = 4
"""… or requeued when a quarter is left, if nsqd's maximum allows less than a quarter of the timeout more."""


@attrs.define(eq=False)
class Opened:
    """Event: nsqd has accepted the subscription."""


@attrs.define(eq=False)
class Received:
    """Event: messages were received together."""

    messages: list[Message]


@attrs.define(eq=False)
class TimedOut:
    """Event: messages have timed out, since nsqd has delivered them again."""

    messages: list[Message]


@attrs.define(eq=False)
class Answered:
    """Event: answers were sent, or the end of the session has kept them from being sent.

    Attributes:
        finished: the ids of finished messages.
        requeued: the requeued messages, each with its result for backoff, if it has one.
    """

    finished: list[bytes]
    requeued: list[tuple[Message, Result | None]]


@attrs.define(eq=False)
class Ended:
    """Event: the session has ended."""


class ConsumerSession(ClientSession[Message]):
    """The consumer's side of one connection.

    Args:
        identity: the content of IDENTIFY.
        topic: the topic's name, as on the wire.
        channel: the channel's name, as on the wire.
        address: of the nsqd.
        read_timeout_ns: as for ``ClientSession``.
        max_msg_size: as for ``ClientSession``.
        now_ns: the time at which the connection was made.

    Attributes:
        held: the messages that were delivered and not answered, by id.
        counts: the messages so far. Those count as finished or requeued for which FIN or REQ was sent and not refused.
        msg_timeout_ns: after how long nsqd delivers an unanswered message again.
        connection: set by the driver, for ``Message``; the session does not use it.
        subscription: likewise.
    """

    # ``finish`` is called for each message, and slots make its attribute accesses faster.
    __slots__ = (
        "_barriers",
        "_finished",
        "_held_max",
        "_made_count",
        "_max_msg_timeout_ns",
        "_rdy_max",
        "_refused",
        "_requeued",
        "_subscribe",
        "address",
        "connection",
        "counts",
        "held",
        "msg_timeout_ns",
        "subscription",
    )

    def __init__(
        self,
        identity: IdentifyRequest,
        topic: bytes,
        channel: bytes,
        *,
        address: str,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
    ) -> None:
        super().__init__(
            identity,
            read_timeout_ns=read_timeout_ns,
            max_msg_size=max_msg_size,
            now_ns=now_ns,
        )
        self.connection: Wakeable
        self.subscription: Answering
        self.address = address
        self.held: dict[bytes, Message] = {}
        self.counts = MessageCounts()
        self.msg_timeout_ns = MSG_TIMEOUT_NS
        self._subscribe = encode_subscribe(topic, channel)
        self._max_msg_timeout_ns = MSG_TIMEOUT_NS
        self._rdy_max = 0  # the highest RDY that was sent …
        self._held_max = OVERSHOOT  # … and the number of messages that it explains
        self._made_count = 0  # messages among the frames of the current buffer
        self._finished: list[bytes] = []
        self._requeued: list[tuple[Message, Result | None]] = []
        self._barriers: deque[Barrier] = deque()  # without an answer
        self._refused: set[tuple[type[BrokerError], bytes]] = set()  # since the last answer to a barrier

    # ---- answers: called for each message -------------------------------------------------------------------------

    def finish(self, message: Message) -> Outcome | None:
        """Queue FIN."""
        message_id = message.id
        held = self.held.pop(message_id, None)
        if held is not message:
            if held is not None:  # a later delivery of the message
                self.held[message_id] = held
            return NOT_HELD
        if self._finished:
            self._finished.append(message_id)
            return None
        self._finished.append(message_id)
        self.has_output = True
        return FIRST

    def finish_all(self, messages: list[Message]) -> None:
        """Do as ``finish`` for each message."""
        self.has_output = True
        held = self.held
        if len(held) == len(messages) and list(held.values()) == messages:  # mostly these are all that it holds
            self._finished += held
            held.clear()
            return
        ids = [message.id for message in messages]
        taken = list(map(held.pop, ids, repeat(None)))
        if taken == messages:
            self._finished += ids
        else:  # some were answered before, and later deliveries of them may be held
            held.update((message.id, message) for message in taken if message is not None)
            for message in messages:
                self.finish(message)

    def requeue(self, message: Message, delay_ms: int, *, backoff: bool) -> Outcome | None:
        """Queue REQ."""
        if self.held.get(message.id) is not message:
            return NOT_HELD
        del self.held[message.id]
        self._requeued.append((message, Result.FAILURE if backoff else None))
        return self._queue(encode_requeue(message.id, delay_ms))

    def requeue_now(self, message: Message) -> Outcome | None:
        """Queue REQ without a delay, which is no failure; a later answer does nothing."""
        outcome = self.requeue(message, 0, backoff=False)
        if outcome is not NOT_HELD:
            message.deadline_ns = TIMED_OUT
        return outcome

    def touch(self, message: Message, now_ns: int) -> Outcome | None:
        """Queue TOUCH."""
        if self.held.get(message.id) is not message:
            return NOT_HELD
        self.counts.touched += 1
        message.deadline_ns = min(now_ns + self.msg_timeout_ns, message.received_ns + self._max_msg_timeout_ns)
        return self._queue(encode_touch(message.id))

    def add_barrier(self) -> Barrier:
        """Queue a barrier after all commands and answers so far."""
        barrier = Barrier()
        if self.ended:
            barrier.is_passed = True
            return barrier
        if self._finished or self._requeued:
            self._encode_answers()
        self.send(encode_finishes([BARRIER_ID]))
        self._barriers.append(barrier)
        return barrier

    def check_not_answered(self, message: Message) -> None:
        """Refuse a second answer by the user.

        Raises:
            MessageError: the message was answered, and has neither timed out nor was requeued by the consumer.
        """
        is_timed_out = message.deadline_ns == TIMED_OUT or message.id in self.held
        if not self.ended and not is_timed_out:
            raise MessageError(f"message {message.id.decode(errors='replace')} was answered before")

    # ---- for the core ----------------------------------------------------------------------------------------------

    def send_ready(self, rdy_count: int) -> None:
        """Queue RDY."""
        if self.ended:
            return
        if rdy_count > self._rdy_max:
            self._rdy_max = rdy_count
            self._held_max = rdy_count * self._deliveries_max + OVERSHOOT
        self.send(encode_ready(rdy_count))

    @property
    def _deliveries_max(self) -> int:
        """How often nsqd can deliver RDY messages before it gets an answer to any of them.

        It delivers while fewer than RDY are in flight (nsqd/client_v2.go, IsReadyForMessages). A message that times out
        there is no longer in flight, so others are delivered. A busy client receives all of them at once. nsqd ends a
        connection from which it has received nothing for two heartbeat intervals (nsqd/protocol_v2.go, IOLoop), so
        messages time out that often, in addition to those that are held here and those on their way.
        """
        assert self.answer is not None
        msg_timeout_ms = self.answer.msg_timeout or MSG_TIMEOUT_MIN_MS
        return 2 + math.ceil(2 * self._identity.heartbeat_interval / msg_timeout_ms)

    def start_close(self) -> None:
        """Queue CLS; the session ends after nsqd's CLOSE_WAIT and the last answer."""
        if self.state is State.OPEN:
            self._move("CLS")
            self.send(CLS)

    def end_if_answered(self) -> None:
        """End if nsqd has sent CLOSE_WAIT, no message is held, and no barrier waits."""
        if self.is_closing and self.state is State.DISMISSED and not self.held and not self._barriers:
            self.end(None)

    def extend(self, message: Message, now_ns: int) -> int | None:
        """Keep a message that waits for a handler from timing out.

        Returns:
            When to call again; None, for at once, if it was touched or, because nsqd's maximum allows no more time,
            requeued.
        """
        if self.held.get(message.id) is not message:
            return now_ns + self.msg_timeout_ns
        last_ns = message.received_ns + self._max_msg_timeout_ns
        can_touch = last_ns - message.deadline_ns >= self.msg_timeout_ns // REQUEUE_PART
        due_ns = message.deadline_ns - self.msg_timeout_ns // (TOUCH_PART if can_touch else REQUEUE_PART)
        if now_ns < due_ns:
            return due_ns
        if can_touch:
            self.touch(message, now_ns)
        else:
            self.requeue_now(message)
        return None

    def expire(self, now_ns: int) -> list[Message]:
        """Remove the messages that have timed out, and return them."""
        expired = [message for message in self.held.values() if message.deadline_ns <= now_ns]
        for message in expired:
            del self.held[message.id]
            message.deadline_ns = TIMED_OUT
        self.counts.timed_out += len(expired)
        self.end_if_answered()
        return expired

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them; leave an event for the answers among them."""
        if self._finished or self._requeued:
            self._encode_answers()
        return super().data_to_send()

    def _encode_answers(self) -> None:
        # FINs follow all other commands, since a TOUCH of the same message must come first.
        finished, self._finished = self._finished, []
        requeued, self._requeued = self._requeued, []
        if finished:
            self.send(encode_finishes(finished))
        if self.error is None:  # else the connection is lost, and nothing is sent
            self.counts.finished += len(finished)
            self.counts.requeued += len(requeued)
        self._events.append(Answered(finished, requeued))
        self.has_events = True

    # ---- input -------------------------------------------------------------------------------------------------------

    def _make_messages(self, rows: Iterable[Row]) -> list[Message]:
        received_ns = self._last_receive_ns
        deadline_ns = received_ns + self.msg_timeout_ns
        messages = []
        for timestamp_ns, attempts, message_id, body in rows:
            message = Message()
            message.session = self
            message.received_ns = received_ns
            message.deadline_ns = deadline_ns
            message.timestamp_ns = timestamp_ns
            message.attempts = attempts
            message.id = message_id
            message.body = body
            messages.append(message)
        self._made_count += len(messages)
        return messages

    def _on_handshake_done(self, now_ns: int) -> None:
        assert self.answer is not None
        self.msg_timeout_ns = self.answer.msg_timeout * NS_PER_MS or MSG_TIMEOUT_NS
        self._max_msg_timeout_ns = max(self.answer.max_msg_timeout * NS_PER_MS, self.msg_timeout_ns)
        self._move("SUB")
        self.send(self._subscribe)

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        made_count, self._made_count = self._made_count, 0
        if made_count == len(frames):
            self._on_messages(frames)
            return
        for kind, run in groupby(frames, type):
            if kind is Message:
                self._on_messages(list(run))
            else:
                for frame in run:
                    self._on_other(frame)
            if self.ended:
                return

    def _on_messages(self, messages: list[Message]) -> None:
        if not self.is_open:
            raise ProtocolError(f"the broker sent message {messages[0].id!r} before the subscription")
        held = self.held
        received = {message.id: message for message in messages}
        if len(held) + len(received) > self._held_max and len(held.keys() | received.keys()) > self._held_max:
            raise ProtocolError(
                f"the broker does not keep to RDY: more than {self._held_max} of its messages have no answer, "
                f"and the highest RDY was {self._rdy_max}"
            )
        if not held.keys().isdisjoint(received.keys()):  # before they count once more
            self._on_delivered_again([held[message_id] for message_id in received if message_id in held])
        if held:
            held.update(received)
        else:
            self.held = received
        self.counts.received += len(messages)
        self._events.append(Received(messages))
        self.has_events = True
        if len(received) < len(messages):
            self._on_delivered_again([message for message in messages if received[message.id] is not message])

    def _on_delivered_again(self, messages: list[Message]) -> None:
        """Take earlier deliveries for timed out."""
        self.counts.timed_out += len(messages)
        for message in messages:
            message.deadline_ns = TIMED_OUT
        self._events.append(TimedOut(messages))
        self.has_events = True

    def _on_other(self, frame: Response | BrokerError) -> None:
        if isinstance(frame, BrokerError):
            self._on_refused(frame)
        elif self._answer_heartbeat(frame):
            pass
        elif frame.payload == OK and self.state is State.SUBSCRIBING:
            self._move("open")
            self._events.append(Opened())
            self.has_events = True
        elif frame.payload == CLOSE_WAIT and self.state is State.CLOSING:
            self._move("CLOSE_WAIT")
            self.end_if_answered()
        else:
            raise ProtocolError(f"the broker sent {frame.payload[:100]!r}, which answers no command")

    def _on_refused(self, error: BrokerError) -> None:
        if error.fatal:
            raise error
        if self._barriers:
            message_id = _refused_id(error)
            if message_id == BARRIER_ID:
                self._pass_barrier()
                return
            self._refused.add((type(error), message_id))
        self.counts.refused += 1
        if isinstance(error, FinishFailed):
            self.counts.finished -= 1
        elif isinstance(error, RequeueFailed):
            self.counts.requeued -= 1

    def _pass_barrier(self) -> None:
        barrier = self._barriers.popleft()
        barrier.refused, barrier.is_passed = frozenset(self._refused), True
        self._refused.clear()
        self._events.append(barrier)
        self.has_events = True
        self.end_if_answered()

    def _on_end(self) -> None:
        if self._finished or self._requeued:
            self._encode_answers()  # the test message's result may be among them
        for message in self.held.values():
            message.deadline_ns = TIMED_OUT
        self.held.clear()
        while self._barriers:
            self._barriers.popleft().is_passed = True
        self._events.append(Ended())
        self.has_events = True

    # ---- within ------------------------------------------------------------------------------------------------------

    def _queue(self, command: bytes) -> Outcome | None:
        had_output = self.has_output
        self.send(command)
        return None if had_output else FIRST


def _refused_id(error: BrokerError) -> bytes:
    """Return the id in the text of E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED: its second word; empty for none."""
    return error.description.partition(" ")[2].partition(" ")[0].encode("utf-8", "surrogateescape")
