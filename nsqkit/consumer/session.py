"""A consumer's session: subscribed on one connection, holding what was delivered there.

        greeted ─▶ SUB ─▶ OK: open ─▶ messages … ─▶ CLS ─▶ CLOSE_WAIT ─▶ (all answered) ─▶ ended

The rule it guards: every message that came is in ``held`` until it is answered or its time is over, so that it can
be given back, and an answer for a message that is not there is never sent. What is finished is only noted; one write
turns all of it into one run of FINs, and what the answers mean for flow control and backoff is worked out there, too,
once per write and not once per message.
"""

from __future__ import annotations

import math
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any

from nsqkit.client.session import ClientSession, State
from nsqkit.consumer.backoff import Result
from nsqkit.consumer.message import Message
from nsqkit.errors import BrokerError, FinishFailed, MessageError, ProtocolError, RequeueFailed
from nsqkit.options.checks import take_seconds
from nsqkit.options.durations import Seconds
from nsqkit.wire.commands import (
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

    from nsqkit.consumer.core import ConsumerCore
    from nsqkit.wire.frames import Row

NS_PER_MS = 1_000_000

MSG_TIMEOUT_NS = 60_000 * NS_PER_MS
"""nsqd's default, for a broker that does not say what it uses."""

MSG_TIMEOUT_MIN_MS = 1000
"""What to reckon with where the broker does not say: it may have been told less than its default."""

OVERSHOOT = 100
"""Messages without an answer that a broker may send beyond what its RDY explains, before the connection is ended."""

TIMED_OUT = -1
"""The ``deadline_ns`` of a message whose time is over, or that the consumer has given back by itself."""

TOUCH_PART = 2
"""A message that waits for a handler is touched once half of its timeout is left …"""

GIVE_BACK_PART = 4
"""… or, if nsqd's maximum allows less than a quarter of the timeout more, given back once a quarter is left."""


class ConsumerSession(ClientSession[Message]):
    """The consumer's side of one connection.

    Args:
        core: the consumer that it belongs to.
        address: of the nsqd.
        now_ns: the time at which the connection was made.

    Attributes:
        held: messages that were delivered and not answered, by id.
        is_closing: True once CLS was sent.
        msg_timeout_ns: after how long nsqd delivers an unanswered message again.
        received_count, finished_count, requeued_count, touched_count, timed_out_count: messages so far; those count
            as finished or requeued for which FIN or REQ was sent and not refused.
        refused_count: answers that nsqd refused, mostly because the message had timed out.
    """

    # ``finish`` is called for each message, and Python finds it, and what it needs, sooner where an object has few
    # attributes outside of slots.
    __slots__ = (
        "_core",
        "_deadline_ns",
        "_dismissed",
        "_finished",
        "_held_max",
        "_made_count",
        "_max_msg_timeout_ns",
        "_rdy_max",
        "_received_ns",
        "_requeued",
        "address",
        "finished_count",
        "held",
        "is_closing",
        "msg_timeout_ns",
        "received_count",
        "refused_count",
        "requeued_count",
        "tell_time",
        "timed_out_count",
        "touched_count",
    )

    def __init__(self, core: ConsumerCore, address: str, now_ns: int) -> None:
        super().__init__(
            core.identity,
            read_timeout_ns=core.read_timeout_ns,
            max_msg_size=core.options.max_msg_size,
            now_ns=now_ns,
        )
        self.address = address
        self.held: dict[bytes, Message] = {}
        self.is_closing = False
        self.msg_timeout_ns = MSG_TIMEOUT_NS
        self.received_count = 0
        self.finished_count = 0
        self.requeued_count = 0
        self.touched_count = 0
        self.timed_out_count = 0
        self.refused_count = 0
        self.tell_time = core.tell_time
        self._core = core
        self._max_msg_timeout_ns = MSG_TIMEOUT_NS
        self._received_ns = now_ns  # the buffer at hand …
        self._deadline_ns = now_ns  # … and until when its messages are to be answered
        self._rdy_max = 0  # the highest RDY that was sent …
        self._held_max = OVERSHOOT  # … and how many messages it explains
        self._made_count = 0  # messages among the frames of the buffer at hand
        self._finished: list[bytes] = []
        self._requeued: list[tuple[Message, Result | None]] = []
        self._dismissed = False

    # ---- answers: called for each message -------------------------------------------------------------------------

    def finish(self, message: Message) -> bool:
        """Answer with FIN; False if the message is not held."""
        message_id = message.id
        held = self.held.pop(message_id, None)
        if held is not message:
            if held is not None:  # it has come again since
                self.held[message_id] = held
            return False
        is_first = not self._finished
        self._finished.append(message_id)
        if is_first:
            self._core.on_output(self)
        return True

    def finish_all(self, messages: list[Message]) -> None:
        """Do as ``finish`` for each, together, and have it sent at once."""
        held = self.held
        if len(held) == len(messages) and list(held.values()) == messages:  # mostly it is all that came
            self._finished += held
            held.clear()
        else:
            ids = [message.id for message in messages]
            taken = list(map(held.pop, ids, repeat(None)))
            if taken != messages:  # some were answered before, and some of those have come again since
                held.update((message.id, message) for message in taken if message is not None)
                for message in messages:
                    self.finish(message)
                return
            self._finished += ids
        self._core.on_finished(self)

    def requeue(self, message: Message, delay: Seconds | None, *, backoff: bool) -> bool:
        """Answer with REQ; False if the message is not held."""
        if delay is None:
            delay = self._core.requeue_delay(message.attempts)
        else:
            delay = take_seconds("delay", delay)
        if self.held.get(message.id) is not message:
            return False
        del self.held[message.id]
        self._requeued.append((message, Result.FAILURE if backoff else None))
        self._say(encode_requeue(message.id, round(delay * 1000)))
        return True

    def touch(self, message: Message) -> bool:
        """Ask for more time with TOUCH; False if the message is not held."""
        if self.held.get(message.id) is not message:
            return False
        self.touched_count += 1
        self._core.touched_count += 1
        message.deadline_ns = min(
            self.tell_time() + self.msg_timeout_ns, message.received_ns + self._max_msg_timeout_ns
        )
        self._say(encode_touch(message.id))
        return True

    def check_not_answered(self, message: Message) -> None:
        """Refuse a second answer; one for a message that nsqd has back, or that was given back, does nothing."""
        taken_back = message.deadline_ns == TIMED_OUT or message.id in self.held
        if not self.ended and not taken_back:
            raise MessageError(f"message {message.id.decode(errors='replace')} was answered before")

    @property
    def topic(self) -> str:
        """The topic that it is subscribed to."""
        return self._core.topic_name

    @property
    def channel(self) -> str:
        """The channel that it is subscribed to."""
        return self._core.channel_name

    def decode(self, body: bytes) -> Any:
        """Return the value in a body, by the consumer's serializer."""
        serializer = self._core.serializer
        return body if serializer is None else serializer.decode(body)

    # ---- for the core ----------------------------------------------------------------------------------------------

    def send_ready(self, rdy_count: int) -> None:
        """Send RDY."""
        if rdy_count > self._rdy_max:
            self._rdy_max = rdy_count
            self._held_max = rdy_count * self._deliveries_max + OVERSHOOT
        self._say(encode_ready(rdy_count))

    @property
    def _deliveries_max(self) -> int:
        """How often nsqd can have delivered as many messages as RDY says without an answer to any of them.

        It delivers while fewer than RDY are in flight (nsqd/client_v2.go, IsReadyForMessages). What times out there is
        in flight no more, and others are delivered, which a client that is busy sees all at once. It ends a connection
        on which nothing came for two heartbeat intervals (nsqd/protocol_v2.go, IOLoop), so all can time out that often
        within them, beside those that this end holds already and those that have just been sent.
        """
        assert self.answer is not None
        msg_timeout_ms = self.answer.msg_timeout or MSG_TIMEOUT_MIN_MS
        return 2 + math.ceil(2 * self._core.identity.heartbeat_interval / msg_timeout_ms)

    def start_close(self) -> None:
        """Ask for no more, and end when nsqd has said CLOSE_WAIT and all that is held is answered."""
        if self.state is State.OPEN:
            self._move("CLS")
            self.is_closing = True
            self._say(CLS)

    def requeue_now(self, messages: Iterable[Message]) -> None:
        """Answer messages with a REQ that neither waits nor counts as a failure; a later answer does nothing."""
        for message in list(messages):
            if self.requeue(message, 0, backoff=False):
                message.deadline_ns = TIMED_OUT

    def extend(self, message: Message, now_ns: int) -> int | None:
        """Keep a message that waits for a handler from timing out.

        Returns:
            When to call again; None if it was touched or, where nsqd's maximum allows no more time, given back.
        """
        if self.held.get(message.id) is not message:
            return now_ns + self.msg_timeout_ns
        last_ns = message.received_ns + self._max_msg_timeout_ns
        can_touch = last_ns - message.deadline_ns >= self.msg_timeout_ns // GIVE_BACK_PART
        due_ns = message.deadline_ns - self.msg_timeout_ns // (TOUCH_PART if can_touch else GIVE_BACK_PART)
        if now_ns < due_ns:
            return due_ns
        if can_touch:
            self.touch(message)
        else:
            self.requeue_now([message])
        return None

    def expire(self, now_ns: int) -> list[Message]:
        """Let go of the messages whose time is over, and return them."""
        expired = [message for message in self.held.values() if message.deadline_ns <= now_ns]
        for message in expired:
            del self.held[message.id]
            message.deadline_ns = TIMED_OUT
        self.timed_out_count += len(expired)
        self._end_if_done()
        return expired

    def lose_all(self) -> None:
        """Let go of all messages: the connection is lost, so nsqd has them back, or soon will."""
        for message in self.held.values():
            message.deadline_ns = TIMED_OUT
        self.held.clear()

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or the end to be carried out."""
        return bool(self._finished) or super().has_output

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent, after working out what the answers in it mean."""
        if self._finished or self._requeued:
            self._settle(now_ns)
        data = super().data_to_send(now_ns)
        self._end_if_done()
        return data

    def _settle(self, now_ns: int) -> None:
        # FINs come after whatever else was said meanwhile: a TOUCH of the same message must come first.
        finished, self._finished = self._finished, []
        requeued, self._requeued = self._requeued, []
        if finished:
            self.send(encode_finishes(finished))
        if self.error is None:  # else the connection is lost, and nothing is sent any more
            self.finished_count += len(finished)
            self.requeued_count += len(requeued)
            self._core.finished_count += len(finished)
            self._core.requeued_count += len(requeued)
        self._core.answered(self, finished, requeued, now_ns)

    # ---- what comes in -----------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Work through what one read has returned."""
        self._received_ns = now_ns
        self._deadline_ns = now_ns + self.msg_timeout_ns
        super().receive_data(data, now_ns)

    def _make_messages(self, rows: Iterable[Row]) -> list[Message]:
        received_ns, deadline_ns = self._received_ns, self._deadline_ns
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
        self.send(encode_subscribe(self._core.topic, self._core.channel))

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        made_count, self._made_count = self._made_count, 0
        if made_count == len(frames):
            self._on_messages(frames, now_ns)
            return
        for kind, run in groupby(frames, type):
            if kind is Message:
                self._on_messages(list(run), now_ns)
            else:
                for frame in run:
                    self._on_other(frame, now_ns)
            if self.ended:
                return

    def _on_messages(self, messages: list[Message], now_ns: int) -> None:
        if not self.is_open:
            raise ProtocolError(f"the broker sent message {messages[0].id!r} before the subscription")
        held = self.held
        came = {message.id: message for message in messages}
        if len(held) + len(came) > self._held_max and len(held.keys() | came.keys()) > self._held_max:
            raise ProtocolError(
                f"the broker does not keep to RDY: more than {self._held_max} of its messages have no answer, "
                f"and the highest RDY was {self._rdy_max}"
            )
        superseded: list[Message] = []
        if len(came) < len(messages) or not held.keys().isdisjoint(came.keys()):
            superseded += (held[message_id] for message_id in came if message_id in held)
            superseded += (message for message in messages if came[message.id] is not message)
        if held:
            held.update(came)
        else:
            self.held = came
        self.received_count += len(messages)
        self._core.received(self, messages, now_ns)
        if superseded:
            self.timed_out_count += len(superseded)
            for message in superseded:
                message.deadline_ns = TIMED_OUT
            self._core.timed_out(self, superseded, now_ns)

    def _on_other(self, frame: Response | BrokerError, now_ns: int) -> None:
        if isinstance(frame, BrokerError):
            if frame.fatal:
                raise frame
            self.refused_count += 1
            self._core.refused_count += 1
            if isinstance(frame, FinishFailed):
                self.finished_count -= 1
                self._core.finished_count -= 1
            elif isinstance(frame, RequeueFailed):
                self.requeued_count -= 1
                self._core.requeued_count -= 1
        elif self._answer_heartbeat(frame):
            pass
        elif frame.payload == OK and self.state is State.SUBSCRIBING:
            self._move("open")
            self._core.opened(self, now_ns)
        elif frame.payload == CLOSE_WAIT and self.is_closing:
            self._dismissed = True
            self._end_if_done()
        else:
            raise ProtocolError(f"the broker said {frame.payload[:100]!r} when nothing was asked")

    def _on_end(self) -> None:
        # What was answered has had its result, even if nobody will hear of it: it may be the test message's.
        if self._finished or self._requeued:
            self._settle(self._core.now_ns)
        self._core.ended(self)

    # ---- within ------------------------------------------------------------------------------------------------------

    def _say(self, command: bytes) -> None:
        noted = self.has_output
        self.send(command)
        if not noted:
            self._core.on_output(self)

    def _end_if_done(self) -> None:
        if self._dismissed and not self.held:
            self.end(None)
