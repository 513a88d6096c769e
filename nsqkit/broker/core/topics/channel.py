"""A channel: a queue, and the consumers that share it.

    put ─▶ queue ─▶ deliver ─▶ in flight ─▶ finish
             ▲                    │
             ├──── time out ◀─────┤
             ├──── requeue ◀──────┤
             └──── deferred ◀─────┘ requeue with a delay; put with a delay also enters here

Each message is in exactly one of queue, deferred and one consumer's in-flight set, until it is finished or the channel
is emptied. Attempts rise with each delivery and only then: a frame in the queue carries the attempts of its next
delivery. The methods stand in the order of a message's life.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.queue import PartlyStored
from nsqkit.broker.core.topics.deferred import Deferred
from nsqkit.broker.core.topics.topology import PROXIMITIES
from nsqkit.wire.messages import for_redelivery, id_of
from nsqkit.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqkit.broker.core.changes import Changes
    from nsqkit.broker.core.disk.deferred_times import DeferredTimes
    from nsqkit.broker.core.disk.queue import MessageQueue
    from nsqkit.broker.core.timers import Timers
    from nsqkit.broker.core.topics.latency import Latency
    from nsqkit.broker.core.topics.subscription import Subscription

DELIVERY_SIZE_MAX: Final = 1 << 20
"""Bytes that one consumer is given at once; the writer has to send them before there is more."""

READ_PAUSE_NS: Final = 1_000_000_000
"""Time until a disk that could not be read is tried again."""


class TimeoutTimer:
    """The deadline of the messages that one subscription of a channel holds."""

    __slots__ = ("_channel", "due_ns", "subscription")

    def __init__(self, channel: Channel, subscription: Subscription) -> None:
        self.subscription = subscription
        self.due_ns: int | None = None
        self._channel = channel

    def handle_deadline(self, now_ns: int) -> int | None:
        """Have the channel take back messages that have timed out; return the next deadline."""
        self._channel.time_out(self.subscription, now_ns)
        return self.subscription.in_flight.next_deadline()


class Channel:
    """A channel of a topic.

    Args:
        name: its name, as on the wire.
        timers: its deadlines.
        changes: where it records that it may have to deliver.
        queue: the messages that wait in it.
        deferred_times: of messages that were deferred when the broker was stopped, and are in the queue.
        latency: measures the time until messages are finished; None to measure nothing.

    Attributes:
        paused: nothing is delivered.
        subscriptions: its consumers in the order in which they subscribed, each with its timer.
        message_count: messages put so far; requeue_count and timeout_count likewise.
        queue: the messages that wait; ``deferred`` has those that are not due.
        deferred_times: of messages in the queue that were deferred before the broker was stopped, by id.
        delivery_counts: messages delivered so far, for each proximity.
        needs_finished: True if ``finish`` has an effect, so that it has to be called.
        due_ns: the deadline of deferred messages, or of another attempt to read the disk.
    """

    def __init__(
        self,
        name: bytes,
        timers: Timers,
        changes: Changes[Channel],
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
        self.needs_finished = latency is not None or queue.finishes
        self.deferred = Deferred()
        self.due_ns: int | None = None
        self.subscriptions: dict[Subscription, TimeoutTimer] = {}
        self.deferred_times = deferred_times
        self._timers = timers
        self._changes = changes
        # The consumers that can take messages, and how many, for each proximity; the one that has waited longest first.
        self._ready: list[OrderedDict[Subscription, int]] = [OrderedDict() for _ in PROXIMITIES]
        self._abandoned: dict[Subscription, TimeoutTimer] = {}  # of lost connections, with messages in flight

    # ---- in ----------------------------------------------------------------------------------------------------

    def put(self, frames: Sequence[bytes]) -> None:
        """Add new messages.

        Raises:
            PartlyStored: not all of them could be stored.
        """
        self._changes.channels[self] = None
        self._make_room(len(frames))
        try:
            self.queue.put(frames)
        except PartlyStored as error:
            self.message_count += error.stored_count
            raise
        self.message_count += len(frames)

    def undo_put(self, frames: Sequence[bytes]) -> None:
        """Remove the last messages that were put."""
        self.message_count -= self.queue.undo_put(frames)

    def put_waiting(self, frames: Sequence[bytes]) -> bool:
        """Add messages that have waited in the topic; return whether they are as safe here as there."""
        self.message_count += len(frames)
        self._changes.channels[self] = None
        self._make_room(len(frames))
        return self.queue.keep(frames)

    def put_deferred(self, frames: Sequence[bytes], due_ns: int) -> None:
        """Add new messages that must not be delivered before ``due_ns``.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        for frame in self.queue.put_aside(frames):
            self.message_count += 1
            self._defer(frame, due_ns)

    def _make_room(self, count: int) -> None:
        """Keep messages of an ephemeral channel that consumers take at once, although they exceed its memory.

        nsqd passes them to waiting consumers through a Go channel (nsqd/channel.go), even if that has no buffer.
        """
        if self.ephemeral and self.queue.exceeds_memory(count):
            self.queue.taken_at_once = 0 if self.paused else sum(sum(ready.values()) for ready in self._ready)

    def _put_back(self, frames: Sequence[bytes]) -> None:
        self._make_room(len(frames))
        self.queue.put_back(frames)
        self._changes.channels[self] = None

    def _defer(self, frame: bytes, due_ns: int) -> None:
        self.deferred.add(frame, due_ns)
        self._timers.schedule_messages(self, due_ns)

    # ---- out ---------------------------------------------------------------------------------------------------

    def deliver(self, now_ns: int) -> list[Subscription]:
        """Give the queued messages to the consumers that can take them: the nearest first, in equal parts.

        Returns:
            Consumers that got messages. One may occur more than once.
        """
        delivered: list[Subscription] = []
        if any(self._ready):
            try:
                self._deliver(now_ns, delivered)
            except OSError:  # messages on disk cannot be read now
                self._timers.schedule(self, now_ns + READ_PAUSE_NS)
        return delivered

    def _deliver(self, now_ns: int, delivered: list[Subscription]) -> None:
        queue, counts = self.queue, self.delivery_counts
        waiting = 0 if self.paused else len(queue)
        for proximity, ready in enumerate(self._ready):
            turns = 0  # of consumers that have not had theirs in this round
            while waiting and ready:
                turns = turns or len(ready)
                subscription, capacity = next(iter(ready.items()))
                share = -(-waiting // turns)
                turns -= 1
                output = subscription.output
                if output is None or output.is_full:  # other frames may have filled it
                    del ready[subscription]
                    continue
                frames = queue.take(min(capacity, share), DELIVERY_SIZE_MAX)
                # After a power cut, a queue corrects its depth while messages are taken.
                waiting = (waiting - len(frames) if frames else 0) or len(queue)
                if self.deferred_times.by_id:
                    frames = self._defer_again(frames, now_ns)
                counts[proximity] += len(frames)
                if frames and subscription.grant.sample_rate:
                    frames, dropped = subscription.sample(frames)
                    queue.finish(dropped)
                if frames:
                    deadline_ns, timer = subscription.deliver(frames, now_ns), self.subscriptions[subscription]
                    if timer.due_ns is None or deadline_ns < timer.due_ns:
                        self._timers.schedule_messages(timer, deadline_ns)
                    delivered.append(subscription)
                    capacity -= len(frames)
                ready[subscription] = capacity
                ready.move_to_end(subscription)
                if capacity <= 0 or output.is_full:
                    del ready[subscription]

    def _defer_again(self, frames: list[bytes], now_ns: int) -> list[bytes]:
        """Defer messages that were deferred before the broker was stopped and are not due; return the others."""
        deferred_times = self.deferred_times.by_id
        rest = []
        for frame in frames:
            due_ns = deferred_times.pop(id_of(frame), now_ns)
            if due_ns > now_ns:
                self._defer(frame, due_ns)
            else:
                rest.append(frame)
        return rest

    def update_ready(self, subscription: Subscription) -> None:
        """Record how many messages ``subscription`` can take; to be called when that may have changed."""
        ready, capacity = self._ready[subscription.proximity], subscription.capacity
        if capacity <= 0:
            ready.pop(subscription, None)
            return
        was_ready = subscription in ready
        ready[subscription] = capacity
        if not was_ready and self.queue:
            self._changes.channels[self] = None

    # ---- in flight: the calls of the session that owns the messages ---------------------------------------------

    def finish(self, frames: Sequence[bytes], now_ns: int) -> None:
        """Record that messages are finished."""
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

    def schedule(self, subscription: Subscription, deadline_ns: int) -> None:
        """Set a deadline for messages that ``subscription`` holds."""
        self._timers.schedule_messages(self.subscriptions[subscription], deadline_ns)

    def time_out(self, subscription: Subscription, now_ns: int) -> bool:
        """Take back messages of ``subscription`` that have timed out; return whether there were any."""
        frames = subscription.in_flight.remove_due(now_ns)
        if frames:
            self.timeout_count += len(frames)
            self._put_back([for_redelivery(frame) for frame in frames])
            self.update_ready(subscription)
            if not subscription.in_flight:
                self._abandoned.pop(subscription, None)
        return bool(frames)

    def handle_deadline(self, now_ns: int) -> None:
        """Queue deferred messages that are due, and deliver again."""
        self._queue_due(now_ns)
        self._changes.channels[self] = None
        if (deadline_ns := self.deferred.next_deadline()) is not None:
            self._timers.schedule_messages(self, deadline_ns)

    def _queue_due(self, now_ns: int) -> bool:
        frames = self.deferred.remove_due(now_ns)
        if frames:
            self._put_back(frames)
        return bool(frames)

    def queue_all_due(self, now_ns: int) -> bool:
        """Queue all messages that have timed out, and deferred ones that are due; return whether there were any."""
        found = [self.time_out(subscription, now_ns) for subscription in self.holders()]
        return self._queue_due(now_ns) or any(found)

    def find_held(self, message_ids: Sequence[bytes]) -> set[bytes]:
        """Return those of the messages that are in flight to any consumer; each consumer is searched once."""
        wanted = set(message_ids)
        return set().union(*(subscription.in_flight.find(wanted) for subscription in self.holders()))

    @property
    def in_flight_count(self) -> int:
        """Messages in flight, those of lost connections included."""
        return sum(len(subscription.in_flight) for subscription in self.holders())

    def holders(self) -> list[Subscription]:
        """Return its consumers, and those of lost connections with messages in flight."""
        return [*self.subscriptions, *self._abandoned]

    # ---- consumers ---------------------------------------------------------------------------------------------

    def add(self, subscription: Subscription) -> None:
        """Add a consumer."""
        self.subscriptions[subscription] = TimeoutTimer(self, subscription)

    def remove(self, subscription: Subscription, *, requeue: bool = False) -> None:
        """Remove a consumer; its messages in flight wait for their timeouts, or are taken back at once."""
        if requeue:
            frames = subscription.in_flight.remove_everything()
            self.requeue_count += len(frames)
            self._put_back([for_redelivery(frame) for frame in frames])
        timer = self.subscriptions.pop(subscription)
        self._ready[subscription.proximity].pop(subscription, None)
        if subscription.in_flight:
            self._abandoned[subscription] = timer
        else:
            self._timers.cancel(timer)

    # ---- from outside ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing from now on."""
        self.paused = True
        self._changes.raise_revision()
        self._changes.channels[self] = None  # its consumers get the messages in their buffers

    def unpause(self) -> None:
        """Deliver again."""
        self.paused = False
        self._changes.raise_revision()
        self._changes.channels[self] = None

    def empty(self) -> None:
        """Remove all messages: queued, deferred and in flight."""
        self.queue.empty()
        self.deferred_times.by_id.clear()
        self._remove_held()

    def delete(self) -> None:
        """Remove all messages and all files."""
        self.queue.delete()
        self.deferred_times.delete()
        self._remove_held()

    def close(self) -> None:
        """Store all messages for the next start: those in flight as delivered, the deferred ones as not deferred.

        With ``--keep-deferred``, deferred messages keep their times.

        Raises:
            OSError: they could not be stored, or not all of them.
        """
        self.deferred_times.write({id_of(frame): due_ns for due_ns, frame in self.deferred.messages()})
        in_flight = [frame for subscription in self.holders() for frame in subscription.in_flight.remove_everything()]
        self.queue.close([for_redelivery(frame) for frame in in_flight], self.deferred.remove_everything())

    def _remove_held(self) -> None:
        self.deferred.remove_everything()
        self._timers.cancel(self)
        for held in (self.subscriptions, self._abandoned):
            for subscription, timer in held.items():
                subscription.in_flight.remove_everything()
                self._timers.cancel(timer)
        self._abandoned.clear()
        for subscription in self.subscriptions:
            self.update_ready(subscription)
