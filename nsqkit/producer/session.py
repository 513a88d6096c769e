"""A producer's session: publishes on their way, and their answers.

    publish() ─▶ staged ───┐
                           ├─ data_to_send() ─▶ on its way ─▶ answered | refused | lost
    join() ───▶ lingering ─┘
                 └── withdraw() takes out of either

The rule it guards: nsqd answers commands in the order in which they came, so the oldest command without an answer is
the one that the next answer is for. Each publish gets exactly one: the broker's, or the reason why there will be
none. What was not taken by ``data_to_send`` was certainly not sent and can be withdrawn; what was taken keeps its
place even when nobody waits for it any more, or all later answers would be for the wrong ones.

How to read it: from the top of the picture to the bottom; then why there may be no answer. That is ``NotConnected``
where the broker has certainly not acted on the publish, and ``ConnectionLost`` where it may have.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

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
from nsqkit.wire.frames import OK_RESPONSE, Response
from nsqkit.wire.identify import IdentifyRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqkit.producer.send_window import SendWindow
    from nsqkit.producer.waiter import Waiter

OUTBOX_SIZE_MAX = 4 << 20
"""Bytes that wait for a broker that does not read before more is refused room."""


class Urgency(Enum):
    """When to write what was published."""

    NOW = auto()
    SOON = auto()
    ASKED_FOR = auto()


_SETTLED = -1
"""Instead of a size: there is nothing to wait for any more, but who was cancelled has not said so yet."""

Sent: TypeAlias = "Waiter | Batch"
"""A command on its way: whoever waits for its answer."""


class ProducerSession(ClientSession[NoReturn]):
    """The producer's side of one connection.

    Args:
        identity: as for ``ClientSession``; so are the other ones that are not named here.
        linger: gathers what is given to ``join``; None where nothing is.
        outstanding: gets back the bytes of publishes that nobody waits for any more.

    Attributes:
        has_room: True while it takes publishes: it is open, and the broker takes what it is sent.
    """

    def __init__(
        self,
        identity: IdentifyRequest,
        *,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
        linger: Linger | None = None,
        outstanding: SendWindow | None = None,
    ) -> None:
        super().__init__(
            identity,
            _refuse_message,
            read_timeout_ns=read_timeout_ns,
            max_msg_size=max_msg_size,
            now_ns=now_ns,
        )
        self.linger = linger
        self.has_room = False
        self._outstanding = outstanding
        self._staged: dict[Waiter, bytes] = {}  # in order
        self._staged_size = 0
        self._sent: deque[Sent] = deque()
        self._abandoned: dict[Waiter, int] = {}  # with nobody waiting: bytes to give back, or _SETTLED

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or the end to be carried out."""
        return bool(self._staged) or (self.linger is not None and self.linger.has_ready) or super().has_output

    @property
    def outstanding_count(self) -> int:
        """Commands without an answer, and publishes that linger."""
        gathering = 0 if self.linger is None else self.linger.count
        return len(self._sent) + len(self._staged) + gathering

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for an answer."""
        if self._staged or (self.linger is not None and self.linger.count):
            return True
        return any(not waiter.done() for sent in self._sent for waiter in _waiters(sent))

    # ---- on the way ----------------------------------------------------------------------------------------------

    def publish(self, command: bytes, waiter: Waiter) -> Urgency:
        """Send a PUB, MPUB or DPUB; ``waiter`` gets its answer.

        Returns:
            When to write. The first of those that are published in a turn of the event loop asks for a write for all
            of them; one that finds nothing else on its way need not wait for others.
        """
        staged = self._staged
        staged[waiter] = command
        self._staged_size += len(command)
        if self._staged_size >= OUTBOX_SIZE_MAX:
            self.has_room = False
        if len(staged) > 1:
            return Urgency.ASKED_FOR
        return Urgency.SOON if self._sent else Urgency.NOW

    def check_room(self) -> None:
        """Take note that a batch of what was given to ``linger`` is ready."""
        if self.linger is not None and self.linger.size >= OUTBOX_SIZE_MAX:
            self.has_room = False

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent; publishes among it are on their way from now on."""
        if self._staged:
            self._send_staged()
        if self.linger is not None and self.linger.has_ready:
            self._send_batches(self.linger)
        self.has_room = self.is_open
        return super().data_to_send(now_ns)

    def _send_staged(self) -> None:
        staged = self._staged
        self._drop_cancelled(staged)
        self._outbox += staged.values()
        self._sent.extend(staged)
        staged.clear()
        self._staged_size = 0

    def _send_batches(self, linger: Linger) -> None:
        for batch in linger.take():
            self._drop_cancelled(batch.bodies)
            topic, bodies = batch.lane.topic, [*batch.bodies.values()]
            if not bodies:
                linger.answered(batch)
                continue
            self.send(
                encode_publish(topic, bodies[0]) if len(bodies) == 1 else encode_multi_publish(topic, bodies)
            )
            self._sent.append(batch)

    def _drop_cancelled(self, waiters: dict[Waiter, bytes]) -> None:
        """Drop those that were cancelled and have not been able to withdraw yet."""
        for waiter in [waiter for waiter in waiters if waiter.done()]:
            del waiters[waiter]
            self._give_back(waiter)

    def withdraw(self, waiter: Waiter, size: int = 0) -> bool:
        """Take note that nobody waits for a publish any more.

        Args:
            waiter: the one that was given with it, and cancelled since.
            size: bytes to give back to ``outstanding`` when the broker has answered, if it was sent.

        Returns:
            Whether that is the end of it: it was not sent, or it was answered already.
        """
        command = self._staged.pop(waiter, None)
        if command is not None:
            self._staged_size -= len(command)
            return True
        if not waiter.cancelled() or self.ended or self._abandoned.pop(waiter, None) is not None:
            return True
        if self.linger is not None and self.linger.withdraw(waiter):
            return True
        self._abandoned[waiter] = size
        return False

    def _on_handshake_done(self, now_ns: int) -> None:
        super()._on_handshake_done(now_ns)
        self.has_room = True

    # ---- answers -------------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        sent = self._sent
        for frame in frames:
            if frame is OK_RESPONSE and sent:
                self._on_answer(None)
            elif isinstance(frame, BrokerError):
                self._on_error(frame)
            elif not self._answer_heartbeat(frame):
                self._on_response(frame)

    def _on_response(self, response: Response) -> None:
        if not self._sent:
            raise ProtocolError(f"the broker said {response.payload[:100]!r} when nothing was asked")
        self._on_answer(None)

    def _on_error(self, error: BrokerError) -> None:
        if self._sent:
            self._on_answer(error)
        if error.fatal:
            self.end(error)

    def _on_answer(self, error: NSQError | None) -> None:
        """Tell those who wait for the oldest command."""
        sent = self._sent.popleft()
        if isinstance(sent, Batch):
            assert self.linger is not None
            self.linger.answered(sent)
            if error is not None:
                self._tell_each(sent.bodies, _for_each(sent, error))
                return
            for waiter in sent.bodies:
                if waiter.done():
                    self._give_back(waiter)
                else:
                    waiter.set_result(None)
        elif sent.done():
            self._give_back(sent)
        else:
            sent.set_result(error)

    def _tell_each(self, waiters: Iterable[Waiter], error: NSQError) -> None:
        """Tell waiters an error; a traceback belongs to whoever raises, so each gets a copy."""
        for waiter in waiters:
            if waiter.done():
                self._give_back(waiter)
            else:
                own = copy(error)
                own.__cause__ = error.__cause__
                waiter.set_result(own)

    def _give_back(self, waiter: Waiter) -> None:
        """Take note that a publish is over for which nobody waits."""
        size = self._abandoned.pop(waiter, None)
        if size is None:
            self._abandoned[waiter] = _SETTLED
        elif size and self._outstanding is not None:
            self._outstanding.give_back(size)

    # ---- no answer -----------------------------------------------------------------------------------------------

    def _on_end(self) -> None:
        self.has_room = False
        gathering = [] if self.linger is None else self.linger.end()
        unsent = [*self._staged]
        self._staged.clear()
        self._staged_size = 0
        sent: list[Waiter] = []
        lingering: list[Waiter] = []
        for one in self._sent:
            (lingering if isinstance(one, Batch) else sent).extend(_waiters(one))
        self._sent.clear()
        lost: NSQError = ConnectionLost("the connection was lost before the broker answered")
        not_sent: NSQError = NotConnected("the connection was lost before the message was sent")
        lost_batch, unsent_batch = lost, not_sent
        if _reads_no_further(self.error):
            unread = "the broker refused an earlier publish and did not read this one"
            lost, lost_batch = NotConnected(unread), BatchRefused(unread)
            unsent_batch = BatchRefused(unread)
        for error in (lost, not_sent, lost_batch, unsent_batch):
            error.__cause__ = self.error
        self._tell_each(sent, lost)
        self._tell_each(lingering, lost_batch)
        self._tell_each(unsent, not_sent)
        self._tell_each(gathering, unsent_batch)


def _waiters(sent: Sent) -> Iterable[Waiter]:
    return sent.bodies if isinstance(sent, Batch) else (sent,)


def _for_each(batch: Batch, error: NSQError) -> NSQError:
    """Return what to tell those in a batch that was refused.

    nsqd reads all of an MPUB before it keeps any of it, and these are its errors for what it has read
    (nsqd/protocol_v2.go, MPUB and readMPUB). After E_MPUB_FAILED some of the messages may be there.
    """
    if len(batch.bodies) == 1 or not isinstance(error, BadMessage | BadBody):
        return error
    refused = BatchRefused(f"the broker refused {len(batch.bodies)} messages together: {error}")
    refused.__cause__ = error
    return refused


def _reads_no_further(error: NSQError | None) -> bool:
    """Tell whether the broker acts on no command behind the one that it answered with ``error``.

    nsqd leaves its loop at a fatal error (nsqd/protocol_v2.go, IOLoop). Codes that this version does not know count
    as fatal too, but what their broker does then is not known.
    """
    return isinstance(error, BrokerError) and error.fatal and type(error) is not BrokerError


def _refuse_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> NoReturn:
    raise ProtocolError(f"the broker sent message {message_id!r} to a producer")
