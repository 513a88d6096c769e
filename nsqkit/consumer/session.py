"""A consumer's session: subscribed on one connection, holding what was delivered there.

        greeted ─▶ SUB ─▶ OK: open ─▶ messages … ─▶ CLS ─▶ CLOSE_WAIT ─▶ (all answered) ─▶ ended

The rule it guards: every message that came is in ``held`` until it is answered, so that it can be given back, and an
answer for a message that is not there is never sent. Answers gather in the outbox; what they mean for flow control
and backoff is worked out once per write, not once per message.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from nsqkit.client.session import ClientSession
from nsqkit.consumer.backoff import Result
from nsqkit.consumer.message import Message
from nsqkit.errors import BrokerError, MessageError, OptionError, ProtocolError
from nsqkit.wire.commands import CLS, encode_ready, encode_requeue, encode_subscribe, encode_touch
from nsqkit.wire.frames import CLOSE_WAIT, OK, Response

if TYPE_CHECKING:
    from nsqkit.consumer.core import ConsumerCore


class ConsumerSession(ClientSession[Message]):
    """The consumer's side of one connection.

    Args:
        core: the consumer that it belongs to.
        address: of the nsqd.
        now_ns: the time at which the connection was made.

    Attributes:
        held: messages that were delivered and not answered, by id.
        is_closing: True once CLS was sent.
        refused_count: answers that nsqd refused, mostly because the message had timed out.
    """

    def __init__(self, core: ConsumerCore, address: str, now_ns: int) -> None:
        super().__init__(
            core.identity,
            partial(Message, self),
            read_timeout_ns=core.read_timeout_ns,
            max_msg_size=core.options.max_msg_size,
            now_ns=now_ns,
        )
        self.address = address
        self.held: dict[bytes, Message] = {}
        self.is_closing = False
        self.refused_count = 0
        self._core = core
        self._answered_count = 0
        self._results: list[tuple[Message, Result | None]] = []
        self._output_noted = False
        self._dismissed = False

    # ---- answers: called for each message -------------------------------------------------------------------------

    def finish(self, message: Message) -> bool:
        """Answer with FIN; False if the message is not held."""
        held = self.held
        message_id = message.id
        if held.get(message_id) is not message:
            return False
        del held[message_id]
        self._outbox.append(b"FIN " + message_id + b"\n")
        self._answered_count += 1
        if self._core.is_probing:
            self._results.append((message, Result.SUCCESS))
        if not self._output_noted:
            self._note_output()
        return True

    def requeue(self, message: Message, delay: float | None, *, backoff: bool) -> bool:
        """Answer with REQ; False if the message is not held."""
        options = self._core.options
        if delay is None:
            delay = min(options.default_requeue_delay * message.attempts, options.max_requeue_delay)
        elif not isinstance(delay, int | float) or not 0 <= delay < math.inf:
            raise OptionError(f"delay is {delay!r}; allowed is 0 seconds or more")
        if self.held.get(message.id) is not message:
            return False
        del self.held[message.id]
        self._outbox.append(encode_requeue(message.id, round(delay * 1000)))
        self._answered_count += 1
        self._results.append((message, Result.FAILURE if backoff else None))
        self._note_output()
        return True

    def touch(self, message: Message) -> bool:
        """Ask for more time with TOUCH; False if the message is not held."""
        if self.held.get(message.id) is not message:
            return False
        self._outbox.append(encode_touch(message.id))
        self._note_output()
        return True

    def check_not_answered(self, message: Message) -> None:
        """Refuse a second answer; one for what nsqd has taken back, or the connection has lost, is let be."""
        if not self.ended and message.id not in self.held:
            raise MessageError(f"message {message.id.decode(errors='replace')} was answered before")

    # ---- for the core ----------------------------------------------------------------------------------------------

    def send_ready(self, rdy_count: int) -> None:
        """Send RDY."""
        self._outbox.append(encode_ready(rdy_count))
        self._note_output()

    def start_close(self) -> None:
        """Ask for no more, and end when nsqd has said CLOSE_WAIT and all that is held is answered."""
        if self.is_open and not self.is_closing:
            self.is_closing = True
            self._outbox.append(CLS)
            self._note_output()

    def give_back(self, messages: list[Message]) -> None:
        """Answer messages with a REQ that neither waits nor counts as a failure."""
        for message in messages:
            self.requeue(message, 0, backoff=False)

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent, after working out what the answers in it mean."""
        count, self._answered_count = self._answered_count, 0
        results, self._results = self._results, []
        if count:
            self._core.answered(self, count, results, now_ns)
        self._output_noted = False
        data = super().data_to_send(now_ns)
        if self._dismissed and not self.held:
            self.end(None)
        return data

    # ---- what comes in -----------------------------------------------------------------------------------------------

    def _on_greeted(self, now_ns: int) -> None:
        self.send(encode_subscribe(self._core.topic, self._core.channel))

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        if set(map(type, frames)) == {Message}:
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
        expected = len(held) + len(messages)
        before = dict(held) if self._core.is_probing else {}
        for message in messages:
            held[message.id] = message
        again_count = expected - len(held)
        self._core.received(self, messages, now_ns)
        if again_count:
            self._core.timed_out(self, again_count, now_ns)
            self._core.lost([before[message.id] for message in messages if message.id in before], now_ns)

    def _on_other(self, frame: Response | BrokerError, now_ns: int) -> None:
        if isinstance(frame, BrokerError):
            if frame.fatal:
                raise frame
            self.refused_count += 1
        elif self._answer_heartbeat(frame):
            pass
        elif frame.payload == OK and not self.is_open:
            self.is_open = True
            self._core.opened(self, now_ns)
        elif frame.payload == CLOSE_WAIT and self.is_closing:
            self._dismissed = True
            if not self.held:
                self.end(None)
        else:
            raise ProtocolError(f"the broker said {frame.payload[:100]!r} when nothing was asked")

    def _on_end(self) -> None:
        self._core.ended(self)

    def _note_output(self) -> None:
        self._output_noted = True
        self._core.on_output(self)
