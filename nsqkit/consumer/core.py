"""The consumer's core: flow control, backoff, and the messages that wait for a handler.

The core is the machine above the sessions. Its driver hands it the events of each session, once per buffer
(``handle_events``), calls the methods that users need (``pause``, ``close`` …), and calls ``handle_deadline`` when a
deadline is due. The core calls methods of sessions, and leaves two things for its driver: the sessions that have new
output (``take_output``), and the changes of backoff (``events``).

``Flow`` and ``Backoff`` decide what to send. Both process whole buffers: the messages of one read, the answers of one
write.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, cast

import attrs

from nsqkit.clock import NS_PER_S
from nsqkit.consumer.backoff import Action, Backoff, BackoffState, Result
from nsqkit.consumer.callbacks import strategy_of
from nsqkit.consumer.dead_letter import LastAttempts
from nsqkit.consumer.flow import Flow, Gate
from nsqkit.consumer.message import Barrier
from nsqkit.consumer.session import (
    REQUEUE_PART,
    TOUCH_PART,
    Answered,
    ConsumerSession,
    Ended,
    Opened,
    Received,
    TimedOut,
)
from nsqkit.consumer.stats import BackoffStats, ConsumerStats, MessageCounts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from random import Random

    from nsqkit.consumer.flow import SetRdy
    from nsqkit.consumer.message import Holder, Message
    from nsqkit.consumer.options import ConsumerOptions
    from nsqkit.consumer.stats import ConnectionStats

EXPIRY_PAUSE_NS: Final = NS_PER_S // 10
"""The shortest time between two searches for messages that have timed out; nsqd's own is as long."""

REFRESHES: Final = 16
"""How often, at most, the waiting messages are checked within one message timeout."""


class ConsumerCore:
    """The state and the decisions of a consumer.

    Args:
        options: see ``ConsumerOptions``.
        random: picks the connection of a test message, and draws waits.

    Attributes:
        inbox: messages that no handler has begun.
        queues: all queues of such messages: the inbox, and those of a handler's workers. Threads may take messages from
            the latter at any time.
        sessions: those that are subscribed.
        last_attempts: the messages of which a handler has begun the last attempt.
        is_probing: True while backoff awaits a test message's result.
        is_closing: True after ``close``.
        is_over: True once the time limit of ``close`` has passed.
        has_changes: the owner has to act, and has to set it to False: there is output, an event or an earlier deadline,
            ``has_lost`` is True, or ``extended_count`` has risen.
        has_lost: a message has timed out or was requeued, or the time limit has passed, since the owner has set it to
            False; a handler may have to be cancelled.
        refresh_ns: before that time, no message that waits for a handler needs more time; None if none waits.
        extended_count: how often a message that waited for a handler was touched or requeued, to keep it from timing
            out.
        given_up_count: messages that were given up so far.
        now_ns: the time of the last call.
    """

    def __init__(self, options: ConsumerOptions, random: Random) -> None:
        self.inbox: deque[Message] = deque()
        self.queues: list[deque[Message]] = [self.inbox]
        self.last_attempts = LastAttempts()
        self.is_probing = False
        self.is_closing = False
        self.is_over = False
        self.extended_count = 0
        self.given_up_count = 0
        self.sessions: dict[ConsumerSession, None] = {}
        self.flow: Flow[ConsumerSession] = Flow(
            max_in_flight=options.max_in_flight,
            low_rdy_idle_timeout_ns=round(options.low_rdy_idle_timeout * NS_PER_S),
            low_rdy_timeout_ns=round(options.low_rdy_timeout * NS_PER_S),
            rdy_redistribute_interval_ns=round(options.rdy_redistribute_interval * NS_PER_S),
            rng=random,
        )
        self.backoff = Backoff(
            strategy=strategy_of(options),
            max_backoff_duration_ns=round(options.max_backoff_duration * NS_PER_S),
            jitter=random if options.backoff_strategy == "full-jitter" else None,
        )
        self.has_changes = False
        self.has_lost = False
        self._events: list[BackoffStats] = []
        self._output: dict[Holder, None] = {}
        self._ended_counts = MessageCounts()  # of the sessions that have ended
        self._expiry_ns: int | None = None  # no message times out before
        self.refresh_ns: int | None = None
        self._limit_ns: int | None = None  # the time limit of ``close``
        self.now_ns: int = 0

    def events(self) -> list[BackoffStats]:
        """Return every change of the backoff's state since the last call, in order, and forget it."""
        events, self._events = self._events, []
        return events

    def take_output(self) -> Iterable[Holder]:
        """Return the sessions that have something to send since the last call, or have ended, and forget them."""
        output, self._output = self._output, {}
        return output

    # ---- events of sessions --------------------------------------------------------------------------------------

    def handle_events(self, session: ConsumerSession, events: Iterable[object], now_ns: int) -> None:
        """Process the events of one session."""
        self.now_ns = now_ns
        for event in events:
            if isinstance(event, Received):  # the order is that of frequency; match takes twice as long
                self._on_received(session, event.messages, now_ns)
            elif isinstance(event, Answered):
                self._on_answered(session, event.finished, event.requeued, now_ns)
            elif isinstance(event, TimedOut):
                self._on_timed_out(session, event.messages, now_ns)
            elif isinstance(event, Opened):
                self._on_opened(session, now_ns)
            elif isinstance(event, Ended):
                self._on_ended(session, now_ns)
            elif isinstance(event, Barrier):
                self.has_changes = True  # wakes the tasks that wait for it

    def _on_opened(self, session: ConsumerSession, now_ns: int) -> None:
        self.sessions[session] = None
        assert session.answer is not None
        self._send(self.flow.add(session, session.answer.max_rdy_count, now_ns))
        if self.is_closing:
            session.start_close()

    def _on_received(self, session: ConsumerSession, messages: list[Message], now_ns: int) -> None:
        expiry_ns = now_ns + session.msg_timeout_ns
        if self._expiry_ns is None or expiry_ns < self._expiry_ns:
            self._expiry_ns = expiry_ns
            self.has_changes = True
        self._refresh_at(now_ns + session.msg_timeout_ns // TOUCH_PART)
        is_expected = self.flow.gate is Gate.PROBING
        if decisions := self.flow.received(session, len(messages), now_ns):
            self._send(decisions)
        if is_expected and self.flow.gate is Gate.TESTING:
            self.backoff.received(messages[0])
        if session.is_closing:
            self.requeue_now(messages)
        else:
            self.inbox.extend(messages)

    def _on_answered(
        self,
        session: ConsumerSession,
        finished: Collection[bytes],
        requeued: Collection[tuple[Message, Result | None]],
        now_ns: int,
    ) -> None:
        if session in self.sessions:
            decisions = self.flow.answered(session, len(finished) + len(requeued), now_ns)
            if decisions:
                self._send(decisions)
        for message, result in requeued:
            if result is None:
                self._act(self.backoff.lost(message), now_ns)
            else:
                self._act(self.backoff.failure(message, now_ns), now_ns)
        if self.backoff.test_message is not None:
            test = self._test_message
            if test is not None and test.session is session and test.id in finished:
                self._act(self.backoff.success(test, now_ns), now_ns)
        if session.is_closing:
            session.end_if_answered()

    def _on_timed_out(self, session: ConsumerSession, messages: list[Message], now_ns: int) -> None:
        self.has_lost = self.has_changes = True
        self._send(self.flow.answered(session, len(messages), now_ns))
        if self.is_probing:
            for message in messages:
                self._act(self.backoff.lost(message), now_ns)
        self._tidy_inbox()

    def _on_ended(self, session: ConsumerSession, now_ns: int) -> None:
        self.has_lost = self.has_changes = True
        self._ended_counts.add(session.counts)
        if session in self.sessions:
            del self.sessions[session]
            self._send(self.flow.remove(session, now_ns))
            test = self._test_message
            if test is not None and test.session is session:
                self._act(self.backoff.lost(test), now_ns)
            self._tidy_inbox()

    # ---- what users call ----------------------------------------------------------------------------------------

    def set_max_in_flight(self, max_in_flight: int, now_ns: int) -> None:
        """Change how many messages may be in flight."""
        self._send(self.flow.set_max_in_flight(max_in_flight, now_ns))

    def pause(self, now_ns: int) -> None:
        """Set RDY to 0 until ``resume``."""
        self._send(self.flow.pause(now_ns))

    def resume(self, now_ns: int) -> None:
        """End ``pause``."""
        if not self.is_closing:
            self._send(self.flow.resume(now_ns))

    def leave(self, session: ConsumerSession, now_ns: int) -> None:
        """Close one session: set its RDY to 0, requeue its messages that no handler has begun, and send CLS."""
        if session in self.sessions and not session.is_closing:
            self._send(self.flow.retire(session, now_ns))
            waiting = [message for queue in self.queues for message in queue.copy()]
            self.requeue_now([message for message in waiting if message.session is session])
            self._tidy_inbox()
            session.start_close()
            self._output[session] = None
            self.has_changes = True

    def close(self, now_ns: int, limit_ns: int) -> None:
        """Close all sessions: set RDY to 0, requeue the messages that no handler has begun, and send CLS.

        Args:
            now_ns: the time.
            limit_ns: when handlers that have begun are to end; of several limits the earliest counts.
        """
        self.has_changes = True
        if self._limit_ns is None or limit_ns < self._limit_ns:
            self._limit_ns = limit_ns
        if self.is_closing:
            return
        self.is_closing = True
        self.pause(now_ns)
        for queue in self.queues:
            self._requeue_queue(queue)
        for session in self.sessions:
            session.start_close()
            self._output[session] = None

    def remove_queues(self, queues: Collection[deque[Message]]) -> None:
        """Remove queues of workers that have ended; their messages go back into the inbox."""
        for queue in queues:
            self.queues = [other for other in self.queues if other is not queue]
            self.inbox.extendleft(reversed(queue))
            queue.clear()
        if self.is_closing:
            self._requeue_queue(self.inbox)

    def _requeue_queue(self, queue: deque[Message]) -> None:
        waiting = []
        while message := take(queue):
            waiting.append(message)
        self.requeue_now(waiting)

    def requeue_now(self, messages: Iterable[Message]) -> None:
        """Requeue those of the messages that are not answered; a later answer of a handler does nothing."""
        self.has_lost = self.has_changes = True
        for message in messages:
            message.session.requeue_now(message)
            self._output[message.session] = None

    def requeue_all(self) -> None:
        """Do as ``requeue_now`` for all messages that are not answered."""
        self.requeue_now([message for session in self.sessions for message in session.held.values()])

    @property
    def counts(self) -> MessageCounts:
        """The messages of all sessions so far, those that have ended included."""
        counts = MessageCounts()
        for part in (self._ended_counts, *(session.counts for session in self.sessions)):
            counts.add(part)
        return counts

    def backoff_stats(self, now_ns: int) -> BackoffStats:
        """Return the state of backoff."""
        deadline_ns = self.backoff.deadline_ns
        return BackoffStats(
            state=self.backoff.state,
            counter=self.backoff.counter,
            wait=self.backoff.wait_ns / NS_PER_S,
            seconds_left=0.0 if deadline_ns is None else max(deadline_ns - now_ns, 0) / NS_PER_S,
        )

    def stats(self, now_ns: int, connections: tuple[ConnectionStats, ...], left_out_count: int) -> ConsumerStats:
        """Return the statistics of the consumer, with those of its connections."""
        flow = self.flow
        return ConsumerStats(
            **attrs.asdict(self.counts),
            given_up=self.given_up_count,
            in_flight=flow.in_flight,
            waiting=sum(not message.is_answered for queue in self.queues for message in queue.copy()),
            max_in_flight=flow.max_in_flight,
            paused=flow.paused,
            starved=flow.is_starved,
            backoff=self.backoff_stats(now_ns),
            connections=connections,
            left_out=left_out_count,
        )

    # ---- time ----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        # It is called for every buffer, so the comparisons are spelled out: a tuple and min take three times as long.
        earliest = self.refresh_ns
        if (due := self._expiry_ns) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self.flow.deadline_ns) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self.backoff.deadline_ns) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self._limit_ns) is not None and not self.is_over and (earliest is None or due < earliest):
            earliest = due
        return earliest

    def handle_deadline(self, now_ns: int) -> None:
        """Redistribute RDY, let the test message through, remove messages that timed out, extend those that wait."""
        self.now_ns = now_ns
        self._act(self.backoff.handle_deadline(now_ns), now_ns)
        self._send(self.flow.handle_deadline(now_ns))
        if self._expiry_ns is not None and now_ns >= self._expiry_ns:
            self._expire(now_ns)
        if self.refresh_ns is not None and now_ns >= self.refresh_ns:
            self._refresh(now_ns)
        if self._limit_ns is not None and now_ns >= self._limit_ns:
            self.is_over = True
            self.has_lost = self.has_changes = True

    def _expire(self, now_ns: int) -> None:
        """Remove the messages that have timed out: they are in flight no more, and no handler may begin them."""
        for session in self.sessions:
            if expired := session.expire(now_ns):
                self._on_timed_out(session, expired, now_ns)
                self._output[session] = None  # it may have ended
        deadlines = [message.deadline_ns for session in self.sessions for message in session.held.values()]
        self._expiry_ns = max(min(deadlines), now_ns + EXPIRY_PAUSE_NS) if deadlines else None

    def _refresh(self, now_ns: int) -> None:
        """Touch messages that wait for a handler, and requeue those for which nsqd's maximum allows no more time.

        So a handler begins with at least a quarter of the message timeout left.
        """
        self.refresh_ns = None
        pause_ns = EXPIRY_PAUSE_NS
        for session in self.sessions:
            if session.held:
                pause_ns = min(pause_ns, session.msg_timeout_ns // REFRESHES)
                self._refresh_at(now_ns + session.msg_timeout_ns // REQUEUE_PART)
        for queue in self.queues:
            for message in queue.copy():
                while (due_ns := message.session.extend(message, now_ns)) is None:
                    self.has_changes = True
                    self.extended_count += 1
                    self._output[message.session] = None
                self._refresh_at(due_ns)
        if self.refresh_ns is not None:
            self.refresh_ns = max(self.refresh_ns, now_ns + pause_ns)
        self._tidy_inbox()

    def _refresh_at(self, due_ns: int) -> None:
        if self.refresh_ns is None or due_ns < self.refresh_ns:
            self.refresh_ns = due_ns
            self.has_changes = True

    # ---- within --------------------------------------------------------------------------------------------------

    @property
    def _test_message(self) -> Message | None:
        return cast("Message | None", self.backoff.test_message)

    def _tidy_inbox(self) -> None:
        waiting = [message for message in self.inbox if not message.is_answered]
        self.inbox.clear()
        self.inbox.extend(waiting)

    def _send(self, decisions: Sequence[SetRdy[ConsumerSession]]) -> None:
        self.has_changes = True
        for session, rdy_count in decisions:
            session.send_ready(rdy_count)
            self._output[session] = None

    def _act(self, action: Action | None, now_ns: int) -> None:
        if action is None:
            return
        self.has_changes = True
        was_probing = self.is_probing
        match action:
            case Action.BLOCK:
                self._send(self.flow.block(now_ns))
            case Action.PROBE:
                self._send(self.flow.probe(now_ns))
            case Action.UNBLOCK:
                self._send(self.flow.unblock(now_ns))
        self.is_probing = self.backoff.state is BackoffState.PROBING
        if not (was_probing and self.is_probing):  # another test message for a lost one is no change of the state
            self._events.append(self.backoff_stats(now_ns))


def take(queue: deque[Message]) -> Message | None:
    """Remove and return the first message of a queue that threads may share; None if it is empty."""
    try:
        return queue.popleft()
    except IndexError:
        return None
