"""The checker: a pure function from a history to a report.

It extends the total-queue checker of Jepsen, which compares the published messages with the taken ones, by NSQ's
channels, attempts, timeouts and RDY. The end of a publish decides where its message has to be:

    ok        finished in each channel, unless the promise of the broker excuses a later fault
    fail      never delivered
    info      delivered or not

A second delivery needs a reason: the first one timed out, was requeued, or was before a restart, or a fault
delayed frames. A delivery after a confirmed FIN has one reason only: a kill before the FIN was recorded, or one that
left the message twice on the disk.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tests.jepsen.faults import BrokerFaults, Kill
from tests.jepsen.history import Event, HistoryError, Setup
from tests.jepsen.promises import KILLS, PROMISES
from tests.jepsen.report import Report

SETTLED_S = 10.0
"""Seconds after which a message that was not delivered again is taken for finished, or for never stored."""

OPEN_MAX = 10_000
"""Messages of a broker among which the settled ones are searched."""


@attrs.define(eq=False)
class Delivery:
    """One delivery of a copy."""

    copy: Copy
    id: str
    time: float
    life: int
    attempt: int
    is_requeued: bool = False

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.id} in life {self.life} at {self.time:.3f}"


@attrs.define(eq=False)
class Copy:
    """A message in one channel.

    Attributes:
        finishes: FINs that were sent, and not refused.
        finished: when the last one was sent.
        confirmed: the delivery whose FIN was confirmed, and when; None if it was delivered once more since then.
    """

    message: Message
    channel: str
    deliveries: list[Delivery] = attrs.field(factory=list)
    finishes: int = 0
    finished: float = 0.0
    confirmed: tuple[Delivery, float] | None = None

    def __str__(self) -> str:
        return f"{self.message.body} of broker {self.message.broker} in channel {self.channel}"

    def is_settled(self, time: float) -> bool:
        """Return whether it was finished at ``time``, as far as the history shows."""
        if self.confirmed is not None:
            return self.confirmed[1] <= time
        is_last = self.finishes > 0 and self.deliveries[-1].time <= self.finished
        return is_last and self.finished + SETTLED_S <= time


@attrs.define(eq=False)
class Message:
    """A published message; its state is the kind of its last event."""

    body: str
    broker: int
    invoked: float
    state: str = "invoke"
    ended: float = 0.0
    copies: dict[str, Copy] = attrs.field(factory=dict)

    @property
    def is_unknown(self) -> bool:
        """Whether its publish has no answer."""
        return self.state in {"invoke", "info"}

    def is_settled(self, channel: str, time: float) -> bool:
        """Return whether it needed no place in a channel at ``time``."""
        if channel in self.copies:
            return self.copies[channel].is_settled(time)
        return self.state == "fail" or (self.state != "ok" and self.invoked + SETTLED_S <= time)


@attrs.define(eq=False)
class Connection:
    """A consumer's connection.

    Attributes:
        held: by id, the last delivery that was not answered.
        unanswered: by id, when it came; without those that have timed out.
        finishes: deliveries whose FIN was sent and not confirmed, in order; None where it was refused.
        confirmed: the number of FINs before those.
    """

    broker: int
    channel: str
    life: int
    rdy: int
    held: dict[str, Delivery] = attrs.field(factory=dict)
    unanswered: dict[str, float] = attrs.field(factory=dict)
    finishes: list[Delivery | None] = attrs.field(factory=list)
    confirmed: int = 0


def check(setup: Setup, events: Iterable[Event]) -> Report:
    """Return what a history shows.

    Raises:
        HistoryError: the events contradict each other, or the end is missing.
    """
    if setup.promise not in PROMISES:
        raise HistoryError(f"a promise is one of {', '.join(PROMISES)}, not {setup.promise!r}")
    return _Checker(setup).check(events)


class _Checker:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._promise = PROMISES[setup.promise]
        self._report = Report()
        self._messages: dict[str, Message] = {}
        self._connections: dict[int, Connection] = {}
        self._bodies: dict[tuple[int, str], str] = {}
        self._faults = {number: BrokerFaults() for number in range(setup.brokers)}
        self._open: dict[int, dict[str, Message]] = {number: {} for number in range(setup.brokers)}
        self._left: dict[tuple[int, str], int] = {}
        self._revived: list[tuple[list[Kill], str, float, str]] = []
        self._calm = 0.0

    def check(self, events: Iterable[Event]) -> Report:
        last = ""
        for event in events:
            last = event.kind
            try:
                getattr(self, f"_on_{last}")(event)
            except KeyError as error:
                raise HistoryError(f"{event}: there is no {error} before it") from error
        if last != "end":
            raise HistoryError("the history has no end: the run was interrupted")
        for message in self._messages.values():
            self._settle(message)
        self._check_left()
        self._judge_revived()
        return self._report

    # ---- publishes -------------------------------------------------------------------------------------------------

    def _on_invoke(self, event: Event) -> None:
        if event.body in self._messages:
            raise HistoryError(f"{event}: the body was published before")
        message = Message(event.body, event.broker, event.time)
        self._messages[event.body] = self._open[event.broker][event.body] = message
        if len(self._open[event.broker]) > OPEN_MAX:
            self._forget_settled(event.broker, event.time)
        self._report.counts["attempted"] += 1

    def _on_answer(self, event: Event) -> None:
        message = self._messages[event.body]
        if message.state != "invoke":
            raise HistoryError(f"{event}: the publish had ended before")
        message.state, message.ended = event.kind, event.time

    _on_ok = _on_fail = _on_info = _on_answer

    # ---- consumers -------------------------------------------------------------------------------------------------

    def _on_subscribe(self, event: Event) -> None:
        if event.connection in self._connections:
            raise HistoryError(f"{event}: the connection was subscribed before")
        if event.broker not in self._faults or event.channel not in self._setup.channels:
            raise HistoryError(f"{event}: there is no such broker or channel")
        self._connections[event.connection] = Connection(event.broker, event.channel, event.life, event.count)

    def _on_deliver(self, event: Event) -> None:
        connection = self._connections[event.connection]
        self._report.counts["delivered"] += 1
        message = self._published(event, connection)
        copy = message.copies.setdefault(connection.channel, Copy(message, connection.channel))
        delivery = Delivery(copy, event.id, event.time, connection.life, event.attempt)
        self._check_id(delivery)
        self._check_repeated(delivery)
        copy.deliveries.append(delivery)
        connection.held[event.id] = delivery
        self._check_rdy(event, connection)

    def _published(self, event: Event, connection: Connection) -> Message:
        message = self._messages.get(event.body)
        if message is not None and message.broker == connection.broker:
            return message
        reason = "was never published" if message is None else f"was published to broker {message.broker}"
        where = f"broker {connection.broker}, channel {connection.channel}"
        excused = message is None and self._faults[connection.broker].had(self._promise.garbles_at)
        name = "garbled" if excused else "unexpected"
        self._report.add(name, f"{event.time:.3f}, {where}: {event.body!r} {reason}")
        return Message(event.body, connection.broker, event.time)

    def _check_id(self, delivery: Delivery) -> None:
        message = delivery.copy.message
        if message.body not in self._messages:  # the rest of a damaged one, which is reported already
            return
        other = self._bodies.setdefault((message.broker, delivery.id), message.body)
        if other != message.body:
            faults, published = self._faults[message.broker], self._messages[other].invoked
            excused = faults.had(self._promise.repeats_ids_at, since=published) or faults.had(
                self._promise.repeats_ids_of,
                until=published,
                since=published - 2 * self._setup.sync_timeout - self._setup.slack,
            )
            name = "shared ids, explained" if excused else "shared ids"
            self._report.add(name, f"{message.body} and {other} of broker {message.broker} have the id {delivery.id}")

    def _check_repeated(self, delivery: Delivery) -> None:
        copy = delivery.copy
        if copy.confirmed is not None and self._is_after(delivery, copy.confirmed[0]):
            reason = f"though its FIN was confirmed at {copy.confirmed[1]:.3f}"
            stored = copy.confirmed[0].time + self._setup.slack  # or earlier: a stop may have written it once more
            kills = self._undoing_kills(copy, delivery)
            self._revived.append((kills, copy.channel, stored, f"{copy}: {delivery}, {reason}"))
            copy.confirmed = None
            self._open[copy.message.broker][copy.message.body] = copy.message
        elif copy.deliveries:
            name = "duplicated, explained" if self._is_due_again(copy, delivery) else "duplicated"
            self._report.add(name, f"{copy}: {delivery}, after {copy.deliveries[-1]}")

    @staticmethod
    def _is_after(delivery: Delivery, other: Delivery) -> bool:
        """Return whether the broker made ``delivery`` later; a frame of an earlier attempt may be late."""
        return (delivery.life, delivery.attempt) > (other.life, other.attempt)

    def _undoing_kills(self, copy: Copy, delivery: Delivery) -> list[Kill]:
        """Return the kills that may have undone a FIN, as far as their times allow it."""
        assert copy.confirmed is not None
        finished = copy.confirmed[0]
        if self._promise.doubles_waiting_at:
            since = copy.message.invoked
        elif delivery.life > finished.life:
            since = finished.time  # its FIN came before the end of that life
        elif self._promise.doubles_at:
            since = copy.deliveries[0].time
        else:
            return []
        return [kill for kill in self._faults[copy.message.broker].kills if kill.time >= since]

    def _judge_revived(self) -> None:
        for kills, channel, stored, sentence in self._revived:
            explained = any(kill.may_undo(channel, stored) for kill in kills)
            self._report.add("revived, explained" if explained else "revived", sentence)

    def _is_due_again(self, copy: Copy, delivery: Delivery) -> bool:
        last, timeout = copy.deliveries[-1], self._setup.msg_timeout
        faults = self._faults[copy.message.broker]
        if faults.had(self._promise.doubles_at, since=copy.message.invoked):
            return True
        if any((other.life, other.attempt) == (delivery.life, delivery.attempt) for other in copy.deliveries):
            return False
        return (
            last.life != delivery.life
            or last.attempt > delivery.attempt
            or last.is_requeued
            or delivery.time - last.time >= timeout - self._setup.slack
            or faults.delayed(last.time - timeout, delivery.time)
        )

    def _check_rdy(self, event: Event, connection: Connection) -> None:
        timeout, unanswered = self._setup.msg_timeout, connection.unanswered
        unanswered.pop(event.id, None)
        unanswered[event.id] = event.time
        while unanswered[oldest := next(iter(unanswered))] <= event.time - timeout + self._setup.slack:
            del unanswered[oldest]
        if len(unanswered) > connection.rdy and not self._faults[connection.broker].delayed(
            event.time - 2 * timeout, event.time
        ):
            sentence = f"{event.time:.3f}: connection {event.connection} has {len(unanswered)}, RDY {connection.rdy}"
            self._report.add("beyond RDY", sentence)

    def _on_finish(self, event: Event) -> None:
        connection = self._connections[event.connection]
        delivery = connection.held.pop(event.id)
        connection.unanswered.pop(event.id, None)
        connection.finishes.append(delivery)
        delivery.copy.finishes += 1
        delivery.copy.finished = event.time
        self._report.counts["finished"] += 1

    def _on_requeue(self, event: Event) -> None:
        connection = self._connections[event.connection]
        connection.held.pop(event.id).is_requeued = True
        connection.unanswered.pop(event.id, None)

    def _on_refuse(self, event: Event) -> None:
        """Take back a FIN; a REQ that is refused has no effect to take back."""
        finishes = self._connections[event.connection].finishes
        for number, delivery in enumerate(finishes):
            if delivery is not None and delivery.id == event.id:
                finishes[number] = None
                delivery.copy.finishes -= 1
                self._report.counts["finished"] -= 1
                return

    def _on_confirm(self, event: Event) -> None:
        connection = self._connections[event.connection]
        count = event.count - connection.confirmed
        if not 0 <= count <= len(connection.finishes):
            raise HistoryError(f"{event}: {connection.confirmed + len(connection.finishes)} FINs were sent")
        for delivery in connection.finishes[:count]:
            if delivery is not None:
                delivery.copy.confirmed = (delivery, event.time)
                self._report.counts["confirmed"] += 1
        del connection.finishes[:count]
        connection.confirmed = event.count

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _on_fault(self, event: Event) -> None:
        faults = self._faults[event.broker]
        if event.fault in KILLS:
            recorded = faults.recorded_until(event.time, self._setup.sync_timeout + self._setup.slack)
            unknown = [message for message in self._open[event.broker].values() if message.is_unknown]
            faults.kills.append(Kill(event.time, self._oldest(event.broker, recorded), unknown))
        faults.begin(event)
        self._report.faults[event.fault] += 1

    def _on_heal(self, event: Event) -> None:
        self._faults[event.broker].end(event)

    def _on_late(self, event: Event) -> None:
        for faults in self._faults.values():
            faults.was_late(event)

    def _on_died(self, event: Event) -> None:
        self._report.add("died", f"{event.time:.3f}: broker {event.broker} {event.text}")
        self._on_fault(attrs.evolve(event, kind="fault", fault="kill"))

    def _oldest(self, broker: int, recorded: float) -> dict[str, float]:
        """Return for each channel when the oldest message was published that was not settled at ``recorded``."""
        self._forget_settled(broker, recorded)
        lost_before = max(
            (interval.end for interval in self._faults[broker].intervals if interval.fault in self._promise.loses_at),
            default=0.0,
        )
        if recorded < lost_before + SETTLED_S:
            lost_before = 0.0
        unsettled = [message for message in self._open[broker].values() if message.invoked >= lost_before]
        return {
            channel: min(
                (message.invoked for message in unsettled if not message.is_settled(channel, recorded)),
                default=recorded,
            )
            for channel in self._setup.channels
        }

    def _forget_settled(self, broker: int, time: float) -> None:
        self._open[broker] = {
            body: message
            for body, message in self._open[broker].items()
            if not all(message.is_settled(channel, time - SETTLED_S) for channel in self._setup.channels)
        }

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _on_calm(self, event: Event) -> None:
        self._calm = event.time

    def _on_left(self, event: Event) -> None:
        self._left[event.broker, event.channel] = event.count

    def _on_end(self, event: Event) -> None:
        self._report.calm = event.time - self._calm

    def _settle(self, message: Message) -> None:
        """Count a message, and what it is owed."""
        counts = self._report.counts
        if message.state == "fail":
            counts["refused"] += 1
            excused = self._faults[message.broker].had(
                self._promise.stores_refused_at, since=message.invoked, until=message.ended
            )
            name = "refused, and stored" if excused else "unexpected"
            for channel in message.copies:
                self._report.add(name, f"{message.body} was refused, and delivered in channel {channel}")
        elif message.state == "ok":
            counts["acknowledged"] += 1
            for channel in self._setup.channels:
                if channel not in message.copies or not message.copies[channel].finishes:
                    self._miss(message, channel)
        else:
            counts["unknown"] += 1
            counts["recovered"] += bool(message.copies)

    def _miss(self, message: Message, channel: str) -> None:
        copy = message.copies.get(channel)
        last = f"the last delivery was {copy.deliveries[-1]}" if copy else "it was never delivered"
        sentence = (
            f"{message.body} of broker {message.broker}, published at {message.invoked:.3f}, in {channel}: {last}"
        )
        if self._left.get((message.broker, channel)):
            name = "stuck"
        elif self._faults[message.broker].had(self._promise.loses_at, since=message.invoked):
            name = "lost, as promised"
        else:
            name = "lost"
        self._report.add(name, sentence)

    def _check_left(self) -> None:
        """Report messages that are left though nothing that was acknowledged is missing: those without an answer."""
        for (broker, channel), count in self._left.items():
            if count and not self._report.counts["stuck"] and not self._faults[broker].had(self._promise.loses_at):
                self._report.add("stuck", f"broker {broker} reports {count} more in channel {channel}")
