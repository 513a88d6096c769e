"""The consumer without sockets: sessions, flow control, backoff, and the messages that wait for a handler.

The rule it guards: what to send follows from ``flow`` and ``backoff`` alone, and is sent here. Both see whole
buffers: what came by one read, what was answered by one write.

How to read it: the notes that sessions leave (``opened``, ``received``, ``answered``, ``ended``), then what the user
may ask (``pause``, ``close`` …), then the two deadlines.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nsqkit.consumer.backoff import Action, Backoff, ExponentialStrategy, Result, State
from nsqkit.consumer.flow import Flow
from nsqkit.consumer.session import ConsumerSession
from nsqkit.wire.identify import IdentifyRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from nsqkit.consumer.flow import SetRdy
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.options import ConsumerOptions

NS_PER_S = 1_000_000_000


class ConsumerCore:
    """All that a consumer knows and decides.

    Args:
        topic: the topic's name, as on the wire.
        channel: the channel's.
        options: see ``ConsumerOptions``.
        identity: what is told and asked in IDENTIFY.
        random: picks the connection of a test message.
        on_output: called with a session when it has something to send, has ended, or may have moved a deadline.

    Attributes:
        inbox: messages that nobody has begun with.
        is_probing: True while successes have to be reported: backoff awaits a test message's result.
        is_closing: True once no more messages are wanted.
        received_count, finished_count, requeued_count: messages so far.
    """

    def __init__(
        self,
        topic: bytes,
        channel: bytes,
        *,
        options: ConsumerOptions,
        identity: IdentifyRequest,
        random: Random,
        on_output: Callable[[ConsumerSession], None],
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.options = options
        self.identity = identity
        self.on_output = on_output
        self.read_timeout_ns = round(options.read_timeout * NS_PER_S)
        self.inbox: deque[Message] = deque()
        self.is_probing = False
        self.is_closing = False
        self.received_count = 0
        self.finished_count = 0
        self.requeued_count = 0
        self.sessions: dict[ConsumerSession, None] = {}
        self.flow: Flow[ConsumerSession] = Flow(
            max_in_flight=options.max_in_flight,
            low_rdy_idle_timeout_ns=round(options.low_rdy_idle_timeout * NS_PER_S),
            low_rdy_timeout_ns=round(options.low_rdy_timeout * NS_PER_S),
            rdy_redistribute_interval_ns=round(options.rdy_redistribute_interval * NS_PER_S),
            rng=random,
        )
        self.backoff = Backoff(
            strategy=ExponentialStrategy(round(options.backoff_multiplier * NS_PER_S)),
            max_backoff_duration_ns=round(options.max_backoff_duration * NS_PER_S),
        )
        self._now_ns = 0

    # ---- what sessions report ------------------------------------------------------------------------------------

    def opened(self, session: ConsumerSession, now_ns: int) -> None:
        """Take a session whose subscription stands."""
        self._now_ns = now_ns
        self.sessions[session] = None
        assert session.answer is not None
        self._send(self.flow.add(session, session.answer.max_rdy_count, now_ns))
        if self.is_closing:
            session.start_close()

    def received(self, session: ConsumerSession, messages: Sequence[Message], now_ns: int) -> None:
        """Take the messages of one buffer."""
        self._now_ns = now_ns
        self.received_count += len(messages)
        self._send(self.flow.received(session, len(messages), now_ns))
        if self.is_closing:
            session.give_back(list(messages))
            return
        if self.backoff.state is State.PROBING:
            self.backoff.received(messages)
        self.inbox.extend(messages)

    def answered(
        self,
        session: ConsumerSession,
        count: int,
        results: Sequence[tuple[Message, Result | None]],
        now_ns: int,
    ) -> None:
        """Take note of the answers that one write is about to send.

        Args:
            session: where they are sent.
            count: how many.
            results: those among them that backoff has to know of; None as result: it neither failed nor succeeded.
            now_ns: the time.
        """
        self._now_ns = now_ns
        requeued_count = 0
        if session in self.sessions:
            self._send(self.flow.answered(session, count, now_ns))
        for message, result in results:
            requeued_count += result is not Result.SUCCESS
            if result is Result.SUCCESS:
                self._act(self.backoff.success(message, now_ns), now_ns)
            elif result is Result.FAILURE:
                self._act(self.backoff.failure(message, now_ns), now_ns)
            else:
                self._act(self.backoff.lost(message), now_ns)
        self.requeued_count += requeued_count
        self.finished_count += count - requeued_count
        if results:
            self.on_output(session)  # backoff may have set a deadline

    def timed_out(self, session: ConsumerSession, count: int, now_ns: int) -> None:
        """Take note of messages that came again while they were held; their first delivery is in flight no more."""
        self._send(self.flow.answered(session, count, now_ns))

    def lost(self, messages: Iterable[Message], now_ns: int) -> None:
        """Take note of messages that will have no result here; one may have been the test message."""
        if self.is_probing:
            for message in messages:
                self._act(self.backoff.lost(message), now_ns)

    def ended(self, session: ConsumerSession) -> None:
        """Take note that a session has ended; its messages come again, from whoever gets them then."""
        if session in self.sessions:
            del self.sessions[session]
            self._send(self.flow.remove(session, self._now_ns))
            self.lost(session.held.values(), self._now_ns)
            session.held.clear()
            waiting = [message for message in self.inbox if not message.is_answered]
            self.inbox.clear()
            self.inbox.extend(waiting)
        self.on_output(session)

    # ---- what the user asks --------------------------------------------------------------------------------------

    def set_max_in_flight(self, max_in_flight: int, now_ns: int) -> None:
        """Change how many messages may be in flight."""
        self._send(self.flow.set_max_in_flight(max_in_flight, now_ns))

    def pause(self, now_ns: int) -> None:
        """Ask for no more messages."""
        self._send(self.flow.pause(now_ns))

    def resume(self, now_ns: int) -> None:
        """Ask for messages again."""
        self._send(self.flow.resume(now_ns))

    def close(self, now_ns: int) -> None:
        """Ask for no more messages, give back what nobody has begun with, and say good-bye to every nsqd."""
        if self.is_closing:
            return
        self.is_closing = True
        self.pause(now_ns)
        while self.inbox:
            self.inbox.popleft().requeue(0, backoff=False)
        for session in list(self.sessions):
            session.start_close()

    def give_back_all(self) -> None:
        """Give back what was begun with and not answered, too."""
        for session in list(self.sessions):
            session.give_back(list(session.held.values()))

    # ---- time ----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        deadlines = [
            due for due in (self.flow.next_deadline(), self.backoff.next_deadline()) if due is not None
        ]
        return min(deadlines, default=None)

    def handle_deadline(self, now_ns: int) -> None:
        """Redistribute RDY, or let the test message through."""
        self._now_ns = now_ns
        self._act(self.backoff.handle_deadline(now_ns), now_ns)
        self._send(self.flow.handle_deadline(now_ns))

    # ---- within --------------------------------------------------------------------------------------------------

    def _send(self, decisions: Sequence[SetRdy[ConsumerSession]]) -> None:
        for session, rdy_count in decisions:
            session.send_ready(rdy_count)

    def _act(self, action: Action | None, now_ns: int) -> None:
        match action:
            case Action.BLOCK:
                self._send(self.flow.block(now_ns))
            case Action.PROBE:
                self._send(self.flow.probe(now_ns))
            case Action.UNBLOCK:
                self._send(self.flow.unblock(now_ns))
        self.is_probing = self.backoff.state is State.PROBING
