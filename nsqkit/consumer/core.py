"""The consumer without sockets: sessions, flow control, backoff, and the messages that wait for a handler.

The rule it guards: what to send follows from ``flow`` and ``backoff`` alone, and is sent here. Both see whole
buffers: what came by one read, what was answered by one write.

How to read it: the notes that sessions leave (``opened``, ``received``, ``answered``, ``ended``), then what the user
may ask (``pause``, ``close`` …), then the three deadlines: of flow control, of backoff, of the messages.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from nsqkit.consumer.backoff import Action, Backoff, BackoffState, ExponentialStrategy, Result
from nsqkit.consumer.dead_letter import LastAttempts
from nsqkit.consumer.flow import Flow, Gate
from nsqkit.consumer.session import GIVE_BACK_PART, TOUCH_PART, ConsumerSession
from nsqkit.consumer.stats import BackoffStats, ConsumerStats
from nsqkit.wire.identify import IdentifyRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from random import Random

    from nsqkit.client.serializers import Serializer
    from nsqkit.consumer.backoff import Strategy
    from nsqkit.consumer.flow import SetRdy
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.options import ConsumerOptions
    from nsqkit.consumer.stats import ConnectionStats

NS_PER_S = 1_000_000_000

EXPIRY_PAUSE_NS = NS_PER_S // 10
"""How often, at most, is looked for messages whose time is over; nsqd looks for them as often."""


REFRESHES = 16
"""How often, at most, the messages that wait are looked at in one message timeout."""


class ConsumerCore:
    """All that a consumer knows and decides.

    Args:
        topic: the topic's name, as on the wire.
        channel: the channel's.
        options: see ``ConsumerOptions``.
        identity: what is told and asked in IDENTIFY.
        random: picks the connection of a test message, and draws waits.
        on_output: called with a session when it has something to send, has ended, or may have moved a deadline.
        on_finished: called with a session when it has FINs to send that no others will join; by default ``on_output``.
        on_backoff: called when the backoff's state has changed.
        tell_time: what messages ask how much time they have left; by default the time of the last call.
        serializer: makes values of bodies; None leaves them as they are.

    Attributes:
        topic_name: the topic's name, as users write it.
        channel_name: the channel's.
        serializer: as given.
        inbox: messages that no handler has begun.
        queues: all queues of such messages: the inbox, and those of a handler's workers. Threads may take messages from
            the latter at any time.
        last_attempts: the messages of which a handler has begun the last attempt.
        is_probing: True while backoff awaits a test message's result.
        is_closing: True once no more messages are wanted.
        is_over: True once the time that handlers were given at the stop is over.
        refresh_ns: before that time, no message that waits for a handler needs more time; None if none waits.
        extended_count: how often a message that waited for a handler was touched or given back, so as not to time out.
        now_ns: the time of the last call.
        received_count, finished_count, requeued_count, touched_count, timed_out_count, given_up_count: messages so
            far. Those count as finished or requeued for which FIN or REQ was sent and not refused.
        refused_count: answers that nsqd has refused so far.
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
        on_finished: Callable[[ConsumerSession], None] | None = None,
        on_backoff: Callable[[], None] = lambda: None,
        tell_time: Callable[[], int] | None = None,
        serializer: Serializer[Any, Any] | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.topic_name = topic.decode("ascii")
        self.channel_name = channel.decode("ascii")
        self.serializer = serializer
        self.options = options
        self.identity = identity
        self.on_output = on_output
        self.on_finished = on_finished or on_output
        self.tell_time: Callable[[], int] = tell_time or (lambda: self.now_ns)
        self.read_timeout_ns: int = round(options.read_timeout * NS_PER_S)
        self.inbox: deque[Message] = deque()
        self.queues: list[deque[Message]] = [self.inbox]
        self.last_attempts = LastAttempts()
        self.is_probing = False
        self.is_closing = False
        self.is_over = False
        self.extended_count = 0
        self.received_count = 0
        self.finished_count = 0
        self.requeued_count = 0
        self.touched_count = 0
        self.timed_out_count = 0
        self.given_up_count = 0
        self.refused_count = 0
        self.sessions: dict[ConsumerSession, None] = {}
        self.flow: Flow[ConsumerSession] = Flow(
            max_in_flight=options.max_in_flight,
            low_rdy_idle_timeout_ns=round(options.low_rdy_idle_timeout * NS_PER_S),
            low_rdy_timeout_ns=round(options.low_rdy_timeout * NS_PER_S),
            rdy_redistribute_interval_ns=round(options.rdy_redistribute_interval * NS_PER_S),
            rng=random,
        )
        self.backoff = Backoff(
            strategy=_strategy(options),
            max_backoff_duration_ns=round(options.max_backoff_duration * NS_PER_S),
            jitter=random if options.backoff_strategy == "full-jitter" else None,
        )
        self._on_backoff = on_backoff
        self._expiry_ns: int | None = None  # no message's time is over before
        self.refresh_ns: int | None = None
        self._limit_ns: int | None = None  # when handlers that have begun are to end, after the stop
        self.now_ns: int = 0

    # ---- what sessions report ------------------------------------------------------------------------------------

    def opened(self, session: ConsumerSession, now_ns: int) -> None:
        """Take a session whose subscription stands."""
        self.now_ns = now_ns
        self.sessions[session] = None
        assert session.answer is not None
        self._send(self.flow.add(session, session.answer.max_rdy_count, now_ns))
        if self.is_closing:
            session.start_close()

    def received(self, session: ConsumerSession, messages: Sequence[Message], now_ns: int) -> None:
        """Take the messages of one buffer."""
        self.now_ns = now_ns
        self.received_count += len(messages)
        expiry_ns = now_ns + session.msg_timeout_ns
        if self._expiry_ns is None or expiry_ns < self._expiry_ns:
            self._expiry_ns = expiry_ns
        refresh_ns = now_ns + session.msg_timeout_ns // TOUCH_PART
        if self.refresh_ns is None or refresh_ns < self.refresh_ns:
            self.refresh_ns = refresh_ns
        is_expected = self.flow.gate is Gate.PROBING
        self._send(self.flow.received(session, len(messages), now_ns))
        if is_expected and self.flow.gate is Gate.TESTING:
            self.backoff.received(messages[0])
        if session.is_closing:
            session.requeue_now(messages)
        else:
            self.inbox.extend(messages)

    def answered(
        self,
        session: ConsumerSession,
        finished: Collection[bytes],
        requeued: Collection[tuple[Message, Result | None]],
        now_ns: int,
    ) -> None:
        """Book the answers that one write is about to send, or that the end of a session has kept from being sent.

        Args:
            session: where they are sent.
            finished: the ids of the messages that are done.
            requeued: the messages that are given back, each a failure or, for backoff, nothing.
            now_ns: the time.
        """
        self.now_ns = now_ns
        if session in self.sessions:
            self._send(self.flow.answered(session, len(finished) + len(requeued), now_ns))
        for message, result in requeued:
            if result is None:
                self._act(self.backoff.lost(message), now_ns)
            else:
                self._act(self.backoff.failure(message, now_ns), now_ns)
        test = self._test_message
        if test is not None and test.session is session and test.id in finished:
            self._act(self.backoff.success(test, now_ns), now_ns)
        if requeued or test is not None:
            self.on_output(session)  # backoff may have set a deadline

    def timed_out(self, session: ConsumerSession, messages: Sequence[Message], now_ns: int) -> None:
        """Take note of messages that will have no answer, because nsqd has taken them back.

        Nobody is to begin with them any more.
        """
        self.timed_out_count += len(messages)
        self._send(self.flow.answered(session, len(messages), now_ns))
        self._lost(messages, now_ns)
        self._tidy_inbox()

    def ended(self, session: ConsumerSession) -> None:
        """Take note that a session has ended; its messages come again, from whoever gets them then."""
        if session in self.sessions:
            del self.sessions[session]
            self._send(self.flow.remove(session, self.now_ns))
            self._lost(session.held.values(), self.now_ns)
            session.lose_all()
            self._tidy_inbox()
        self.on_output(session)

    def requeue_delay(self, attempts: int) -> float:
        """Return the seconds after which a message comes again that is requeued without a delay."""
        options = self.options
        if options.requeue_delay_policy is None:
            delay = options.default_requeue_delay * attempts
        else:
            delay = options.requeue_delay_policy(attempts)
        return _within(delay, options.max_requeue_delay)

    # ---- what the user asks --------------------------------------------------------------------------------------

    def set_max_in_flight(self, max_in_flight: int, now_ns: int) -> None:
        """Change how many messages may be in flight."""
        self._send(self.flow.set_max_in_flight(max_in_flight, now_ns))

    def pause(self, now_ns: int) -> None:
        """Ask for no more messages."""
        self._send(self.flow.pause(now_ns))

    def resume(self, now_ns: int) -> None:
        """Ask for messages again."""
        if not self.is_closing:
            self._send(self.flow.resume(now_ns))

    def leave(self, session: ConsumerSession, now_ns: int) -> None:
        """Ask one nsqd for no more messages, give back those that no handler has begun, and send CLS."""
        if session in self.sessions and not session.is_closing:
            self._send(self.flow.retire(session, now_ns))
            waiting = [message for queue in self.queues for message in queue.copy()]
            session.requeue_now(message for message in waiting if message.session is session)
            self._tidy_inbox()
            session.start_close()

    def close(self, now_ns: int, limit_ns: int) -> None:
        """Ask for no more messages, give back those that no handler has begun, and send CLS to every nsqd.

        Args:
            now_ns: the time.
            limit_ns: when handlers that have begun are to end; of several limits the earliest counts.
        """
        if self._limit_ns is None or limit_ns < self._limit_ns:
            self._limit_ns = limit_ns
        if self.is_closing:
            return
        self.is_closing = True
        self.pause(now_ns)
        for queue in self.queues:
            while message := take(queue):
                message.session.requeue(message, 0, backoff=False)
        for session in list(self.sessions):
            session.start_close()

    def remove_queues(self, queues: Collection[deque[Message]]) -> None:
        """Put the messages of queues that are not needed any more back into the inbox."""
        for queue in queues:
            self.queues = [other for other in self.queues if other is not queue]
            self.inbox.extendleft(reversed(queue))
            queue.clear()
        if self.is_closing:
            while message := take(self.inbox):
                message.session.requeue(message, 0, backoff=False)

    def finish_all(self, messages: list[Message]) -> None:
        """Finish messages, those of one connection that stand in a row together."""
        if len(self.sessions) == 1:  # it holds nothing of those that were lost
            (session,) = self.sessions
            session.finish_all(messages)
            return
        for session, run in groupby(messages, attrgetter("session")):
            session.finish_all(list(run))

    def requeue_all(self) -> None:
        """Give back all messages that are not answered. What a handler answers later does nothing."""
        for session in list(self.sessions):
            session.requeue_now(session.held.values())

    def backoff_stats(self, now_ns: int) -> BackoffStats:
        """Return where the backoff is."""
        deadline_ns = self.backoff.next_deadline()
        return BackoffStats(
            state=self.backoff.state,
            counter=self.backoff.counter,
            wait=self.backoff.wait_ns / NS_PER_S,
            seconds_left=0.0 if deadline_ns is None else max(deadline_ns - now_ns, 0) / NS_PER_S,
        )

    def stats(
        self, now_ns: int, connections: tuple[ConnectionStats, ...], left_out_count: int
    ) -> ConsumerStats:
        """Return the figures of the consumer.

        Args:
            now_ns: the time.
            connections: the figures of its connections.
            left_out_count: nsqds that are listed and have none, beyond ``max_connections``.
        """
        flow = self.flow.statistics()
        return ConsumerStats(
            received=self.received_count,
            finished=self.finished_count,
            requeued=self.requeued_count,
            touched=self.touched_count,
            timed_out=self.timed_out_count,
            given_up=self.given_up_count,
            refused=self.refused_count,
            in_flight=flow.in_flight,
            waiting=len(self.inbox),
            max_in_flight=flow.max_in_flight,
            paused=flow.paused,
            starved=flow.starved,
            backoff=self.backoff_stats(now_ns),
            connections=connections,
            left_out=left_out_count,
        )

    # ---- time ----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        # It is asked for every buffer, so the comparisons are spelled out: a tuple and min take three times as long.
        earliest = self.refresh_ns
        if (due := self._expiry_ns) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self.flow.next_deadline()) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self.backoff.next_deadline()) is not None and (earliest is None or due < earliest):
            earliest = due
        if (due := self._limit_ns) is not None and not self.is_over and (earliest is None or due < earliest):
            earliest = due
        return earliest

    def handle_deadline(self, now_ns: int) -> None:
        """Redistribute RDY, let the test message through, drop messages that timed out, or keep those that wait."""
        self.now_ns = now_ns
        self._act(self.backoff.handle_deadline(now_ns), now_ns)
        self._send(self.flow.handle_deadline(now_ns))
        if self._expiry_ns is not None and now_ns >= self._expiry_ns:
            self._expire(now_ns)
        if self.refresh_ns is not None and now_ns >= self.refresh_ns:
            self._refresh(now_ns)
        if self._limit_ns is not None and now_ns >= self._limit_ns:
            self.is_over = True

    def _expire(self, now_ns: int) -> None:
        """Let go of what nsqd has taken back: it is in flight no more, and nobody is to begin with it."""
        for session in list(self.sessions):
            if expired := session.expire(now_ns):
                self.timed_out(session, expired, now_ns)
        deadlines = [message.deadline_ns for session in self.sessions for message in session.held.values()]
        self._expiry_ns = max(min(deadlines), now_ns + EXPIRY_PAUSE_NS) if deadlines else None

    def _refresh(self, now_ns: int) -> None:
        """Touch messages that wait for a handler, and give back those that nsqd's maximum keeps from more time.

        So a handler begins with at least a quarter of the message timeout, and no message that waits here comes again
        because of that.
        """
        self.refresh_ns = None
        pause_ns = EXPIRY_PAUSE_NS
        for session in self.sessions:
            if session.held:
                pause_ns = min(pause_ns, session.msg_timeout_ns // REFRESHES)
                self._refresh_at(now_ns + session.msg_timeout_ns // GIVE_BACK_PART)
        for queue in self.queues:
            for message in queue.copy():
                due_ns = message.session.extend(message, now_ns)
                if due_ns is None:
                    self.extended_count += 1
                else:
                    self._refresh_at(due_ns)
        if self.refresh_ns is not None:
            self.refresh_ns = max(self.refresh_ns, now_ns + pause_ns)
        self._tidy_inbox()

    def _refresh_at(self, due_ns: int) -> None:
        if self.refresh_ns is None or due_ns < self.refresh_ns:
            self.refresh_ns = due_ns

    # ---- within --------------------------------------------------------------------------------------------------

    @property
    def _test_message(self) -> Message | None:
        return cast("Message | None", self.backoff.test_message)

    def _lost(self, messages: Iterable[Message], now_ns: int) -> None:
        if self.is_probing:
            for message in messages:
                self._act(self.backoff.lost(message), now_ns)

    def _tidy_inbox(self) -> None:
        waiting = [message for message in self.inbox if not message.is_answered]
        self.inbox.clear()
        self.inbox.extend(waiting)

    def _send(self, decisions: Sequence[SetRdy[ConsumerSession]]) -> None:
        for session, rdy_count in decisions:
            session.send_ready(rdy_count)

    def _act(self, action: Action | None, now_ns: int) -> None:
        if action is None:
            return
        was_probing = self.is_probing
        match action:
            case Action.BLOCK:
                self._send(self.flow.block(now_ns))
            case Action.PROBE:
                self._send(self.flow.probe(now_ns))
            case Action.UNBLOCK:
                self._send(self.flow.unblock(now_ns))
        self.is_probing = self.backoff.state is BackoffState.PROBING
        if not (was_probing and self.is_probing):  # another test message instead of a lost one is no news
            self._on_backoff()


def take(queue: deque[Message]) -> Message | None:
    """Return the first message of a queue from which threads take, too; None if it is empty."""
    try:
        return queue.popleft()
    except IndexError:
        return None


def _strategy(options: ConsumerOptions) -> Strategy:
    strategy = options.backoff_strategy
    if isinstance(strategy, str):
        return ExponentialStrategy(round(options.backoff_multiplier * NS_PER_S))
    return lambda attempt: round(_within(strategy(attempt), options.max_backoff_duration) * NS_PER_S)


def _within(seconds: float, most: float) -> float:
    """Return ``seconds``, but at least 0 and at most ``most``; what is no number counts as the most."""
    return most if math.isnan(seconds) else min(max(seconds, 0.0), most)
