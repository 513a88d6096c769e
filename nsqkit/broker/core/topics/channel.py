"""A channel: a queue of its own, and the consumers that share it.

    put ─▶ queue ─▶ deliver ─▶ in flight ─▶ finish
             ▲                    │
             ├──── time out ◀─────┤
             ├──── requeue ◀──────┤
             └──── deferred ◀─────┘ requeue with a delay; put with a delay enters here, too

The rule it guards: each message that was put is in exactly one of queue, deferred and one consumer's in-flight
set, until it is finished or the channel is emptied. Attempts rise with each delivery and only then: the frame in
the queue always carries the attempts of its next delivery.

Follow a message's life from top to bottom.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqkit.broker.core.topics.deferred import Deferred
from nsqkit.broker.core.topics.in_flight import InFlight
from nsqkit.broker.core.topics.topology import PROXIMITIES
from nsqkit.wire.messages import for_redelivery, id_of
from nsqkit.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqkit.broker.core.disk.deferred_times import DeferredTimes
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.timers import Agenda
    from nsqkit.broker.core.topics.latency import Latency
    from nsqkit.broker.core.topics.queue import MessageQueue

DELIVERY_SIZE_MAX = 1 << 20
"""Bytes that one consumer is handed at once; the writer has to take them before there is more."""


READ_PAUSE_NS = 1_000_000_000
"""Time until a disk that could not be read is tried again."""


class Channel:
    """A channel of a topic.

    Args:
        name: its name, as on the wire.
        agenda: where it notes what follows.
        queue: what waits in it.
        deferred_times: of messages that were deferred when the broker was stopped, and are in the queue.
        latency: measures how long messages take until they are finished; None if that is not wanted.

    Attributes:
        paused: nothing is delivered while it is.
        sessions: its consumers, in the order in which they subscribed.
        message_count: messages put so far; requeue_count and timeout_count likewise.
        delivery_counts: messages delivered so far, for each proximity.
        latency: how long messages took until they were finished; None if that is not wanted.
    """

    def __init__(
        self,
        name: bytes,
        agenda: Agenda,
        queue: MessageQueue,
        deferred_times: DeferredTimes,
        latency: Latency | None = None,
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.delivery_counts = [0] * len(PROXIMITIES)
        self.latency = latency
        self.queue = queue
        self._deferred_times = deferred_times
        self.due_ns: int | None = None
        self.deferred = Deferred(self._put_back)
        self.sessions: dict[Session, None] = {}
        self._agenda = agenda
        # Who has room, for each proximity, longest waiting first.
        self._ready: list[OrderedDict[Session, None]] = [OrderedDict() for _ in PROXIMITIES]
        self._abandoned: dict[InFlight, None] = {}  # sets of consumers that are gone

    # ---- in ----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> None:
        """Take new messages.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        self._agenda.deliver(self)
        self.queue.put(frames)
        self.message_count += len(frames)

    def put_waiting(self, frames: Sequence[bytes]) -> bool:
        """Take messages that have waited in the topic; tell whether they are as safe here as there."""
        self.message_count += len(frames)
        self._agenda.deliver(self)
        return self.queue.keep(frames)

    def put_deferred(self, frames: Sequence[bytes], due_ns: int) -> None:
        """Take new messages that are not to be delivered before ``due_ns``.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        self.queue.put_aside(frames)
        for frame in frames:
            self.message_count += 1
            self._defer(frame, due_ns)

    def _put_back(self, frames: Sequence[bytes]) -> None:
        self.queue.put_back(frames)
        self._agenda.deliver(self)

    def _defer(self, frame: bytes, due_ns: int) -> None:
        self.deferred.add(frame, due_ns)
        self._agenda.schedule_messages(self.deferred, due_ns)

    # ---- out ---------------------------------------------------------------------------------------------------

    def deliver(self, now_ns: int) -> None:
        """Hand the waiting messages to the consumers that have room: the nearest first, in equal parts."""
        if not any(self._ready):
            return
        try:
            self._deliver(now_ns)
        except OSError:  # what waits on disk cannot be read now
            self._agenda.schedule(self, now_ns + READ_PAUSE_NS)

    def handle_deadline(self, now_ns: int) -> int | None:
        """Try again to deliver."""
        self._agenda.deliver(self)
        return None

    def _deliver(self, now_ns: int) -> None:
        queue, counts = self.queue, self.delivery_counts
        waiting = 0 if self.paused else len(queue)
        for proximity, ready in enumerate(self._ready):
            turns = 0  # of consumers that have not had theirs in this round
            while waiting and ready:
                turns = turns or len(ready)
                session = next(iter(ready))
                ready.move_to_end(session)
                share = -(-waiting // turns)
                turns -= 1
                frames = queue.take(min(session.room, share), DELIVERY_SIZE_MAX)
                if self._deferred_times.by_id:
                    frames = self._defer_again(frames, now_ns)
                if frames:
                    counts[proximity] += len(frames)
                    session.deliver(frames, now_ns)
                self.update_ready(session)
                waiting = len(queue)

    def _defer_again(self, frames: list[bytes], now_ns: int) -> list[bytes]:
        """Set aside what was deferred before the broker was stopped, and has not come to its time; return the rest."""
        deferred_times = self._deferred_times.by_id
        rest = []
        for frame in frames:
            due_ns = deferred_times.pop(id_of(frame), now_ns)
            if due_ns > now_ns:
                self._defer(frame, due_ns)
            else:
                rest.append(frame)
        return rest

    def update_ready(self, session: Session) -> None:
        """Look again whether ``session`` can be given messages."""
        ready = self._ready[session.proximity]
        if session.room <= 0:
            ready.pop(session, None)
        elif session not in ready:
            ready[session] = None
            self._agenda.deliver(self)

    def discard(self, frames: Sequence[bytes]) -> None:
        """Take note that nobody gets these messages, which were to be delivered."""
        self.queue.finish(frames)

    # ---- in flight: the calls of the session that owns the messages ---------------------------------------------

    @property
    def wants_finished(self) -> bool:
        """Whether ``finish`` means something to it, so that it has to be called."""
        return self.latency is not None or self.queue.finishes

    def finish(self, frames: Sequence[bytes], now_ns: int) -> None:
        """Take note that messages are finished."""
        self.queue.finish(frames)
        if self.latency is not None:
            self.latency.add_finished(frames, now_ns)

    def requeue(self, frame: bytes, due_ns: int | None) -> None:
        """Take back a message that its consumer requeues, to be delivered again now or at ``due_ns``."""
        self.requeue_count += 1
        frame = for_redelivery(frame)
        if due_ns is None:
            self._put_back((frame,))
        else:
            self._defer(frame, due_ns)

    def time_out(self, in_flight: InFlight, frames: Sequence[bytes]) -> None:
        """Take back messages whose consumer did not answer in time; they are in ``in_flight`` no longer."""
        self.timeout_count += len(frames)
        self._put_back([for_redelivery(frame) for frame in frames])
        if not in_flight:
            self._abandoned.pop(in_flight, None)

    def schedule(self, in_flight: InFlight, deadline_ns: int) -> None:
        """Have ``in_flight`` look for messages that timed out at ``deadline_ns``."""
        self._agenda.schedule_messages(in_flight, deadline_ns)

    def look_for_due(self, now_ns: int) -> bool:
        """Take back what has timed out and what was deferred until now; tell whether there was any."""
        before = self.timeout_count, len(self.deferred)
        for in_flight in self._in_flight_sets():
            in_flight.handle_deadline(now_ns)
        self.deferred.handle_deadline(now_ns)
        return before != (self.timeout_count, len(self.deferred))

    def holds(self, message_id: bytes) -> bool:
        """Tell whether the message is in flight to anybody."""
        return any(message_id in in_flight for in_flight in self._in_flight_sets())

    @property
    def in_flight_count(self) -> int:
        """Messages in flight, those of lost consumers included."""
        return sum(map(len, self._in_flight_sets()))

    def _in_flight_sets(self) -> list[InFlight]:
        return [*(session.in_flight for session in self.sessions), *self._abandoned]

    # ---- consumers ---------------------------------------------------------------------------------------------

    def add(self, session: Session) -> None:
        """Take a consumer."""
        self.sessions[session] = None

    def remove(self, session: Session, *, requeue: bool = False) -> None:
        """Let a consumer go; what it has in flight waits here for its timeout, or is taken back at once."""
        if requeue:
            frames = session.in_flight.take_all()
            self.requeue_count += len(frames)
            self._put_back([for_redelivery(frame) for frame in frames])
        self.sessions.pop(session, None)
        self._ready[session.proximity].pop(session, None)
        if session.in_flight:
            self._abandoned[session.in_flight] = None
        else:
            self._agenda.forget(session.in_flight)

    # ---- from outside ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing from now on."""
        self.paused = True
        self._agenda.note_names()

    def unpause(self) -> None:
        """Deliver again."""
        self.paused = False
        self._agenda.note_names()
        self._agenda.deliver(self)

    def empty(self) -> None:
        """Forget all messages: queued, deferred and in flight."""
        self.queue.empty()
        self._deferred_times.by_id.clear()
        self._forget_held()

    def delete(self) -> None:
        """Forget all messages, and leave no trace."""
        self.queue.delete()
        self._deferred_times.delete()
        self._forget_held()

    def close(self) -> None:
        """Keep all messages for the next start: those in flight count as delivered, the deferred ones as not deferred.

        With ``--keep-deferred`` they are due when they would have been.

        Raises:
            OSError: there is no place for them, or not for all.
        """
        self._deferred_times.write(self.deferred.times())
        in_flight = [frame for held in self._in_flight_sets() for frame in held.take_all()]
        self.queue.close([for_redelivery(frame) for frame in in_flight], self.deferred.take_all())

    def _forget_held(self) -> None:
        self.deferred.take_all()
        self._agenda.forget(self.deferred)
        for in_flight in self._in_flight_sets():
            in_flight.take_all()
            self._agenda.forget(in_flight)
        self._abandoned.clear()
        for session in self.sessions:
            self.update_ready(session)
