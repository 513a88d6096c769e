"""What the bytes of a client's connections say, compared with its statistics and its limits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import anyio

from tests.simulation.broken import Broken, conclude
from tests.simulation.driver.history import name_of
from tests.simulation.driver.wire import UNDER_WAY, Wire

if TYPE_CHECKING:
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.stats import ConsumerStats
    from nsqkit.producer.stats import ProducerStats
    from tests.simulation.driver.history import Publish
    from tests.simulation.driver.pipe import Endpoint
    from tests.simulation.driver.world import World

COUNTS: Final = ("received", "finished", "requeued", "touched", "refused")
REFUSED_COUNT: Final = 20
GROWN_COUNT: Final = 6
"""Refused attempts to connect after which the delays have grown from 0.1 s to 3 s, the longest that plans have."""
DELAY_MIN: Final = 0.1
"""Seconds: the default of ``reconnect_delay_min``."""
TURNS_MAX: Final = 0.01
"""Seconds that a client may take beside that."""
WRITE_MAX: Final = 1.5 + 0.1
"""Seconds in which a client ends a connection that takes nothing: ``write_timeout`` is 1, and it looks twice in it."""
DELAY_SHARE: Final = 0.15
"""The least share of the longest delay that the mean of ``REFUSED_COUNT`` has; it is lower once in a billion times."""
SENT_AGAIN: Final = (b"E_BAD_MESSAGE", b"E_BAD_BODY")
"""Answers after which the messages of a batch are sent again one by one."""


class _Tally:
    """The connections of one life of a client to nsqds.

    Attributes:
        delay_max: the longest delay before another attempt to connect; 0 if attempts are not counted.
    """

    def __init__(self, world: World, name: str, nodes: list[str]) -> None:
        self.wires: list[tuple[Endpoint, Wire]] = []
        self.world = world
        self.name = name
        self._nodes = nodes
        self._begun = world.loop.time()
        self.delay_max = 0.0
        self._refused: defaultdict[str, list[float]] = defaultdict(list)
        self._last: dict[str, tuple[Endpoint, Wire]] = {}  # of each nsqd that was not dialled again
        world.network.wires[name] = self._make
        world.network.on_dial[name] = self._on_dial
        world.network.on_refused[name] = self._on_refused

    def _make(self, end: Endpoint) -> Wire:
        wire = Wire(self.world.loop.time, self.on_messages, self.on_answer)
        self.wires.append((end, wire))
        self._refused.pop(end.remote_host, None)
        self._last[end.remote_host] = end, wire
        return wire

    def begin_anew(self) -> None:
        """Forget the attempts to connect: an nsqd was taken away, or is there again."""
        self._refused.clear()
        self._last.clear()

    def _on_dial(self, node: str) -> None:
        """Check that the first attempt after a useful connection comes soon."""
        if node in self._last and self.delay_max:
            end, wire = self._last.pop(node)
            waited = self.world.loop.time() - end.closed_at
            if wire.is_useful and waited > DELAY_MIN + TURNS_MAX:
                text = f"{self.name} dials {node} after {waited:.3f} seconds, and the connection before was useful"
                raise self.world.failed(Broken(36, text))

    def _on_refused(self, node: str) -> None:
        """Check that the delays between attempts to connect grow."""
        times = self._refused[node]
        times.append(self.world.loop.time())
        if self.delay_max and len(times) > GROWN_COUNT + REFUSED_COUNT:
            mean = (times[-1] - times[-1 - REFUSED_COUNT]) / REFUSED_COUNT
            if mean < DELAY_SHARE * self.delay_max:
                text = f"{self.name} dials {node} each {mean:.3f} seconds, and its longest delay is {self.delay_max:g}"
                raise self.world.failed(Broken(36, text))

    def on_messages(self) -> None:
        """Do nothing."""

    def on_answer(self, bodies: list[bytes]) -> None:
        """Do nothing."""

    def check_written(self) -> None:
        """Check that no connection was kept whose nsqd takes nothing.

        Raises:
            Broken: one was.
        """
        for end, _ in self.wires:
            text = f"{end.remote_host} took nothing from {self.name} for {end.blocked_for:.3f} seconds"
            conclude(28, end.blocked_for <= WRITE_MAX, text)

    @property
    def is_read(self) -> bool:
        """Whether all bytes were read."""
        return all(wire.is_read for _, wire in self.wires)

    @property
    def is_calm(self) -> bool:
        """Whether there was no fault."""
        return not self.world.has_link_faults and self.world.history.is_calm(self._nodes, self._begun)


class ConsumerTally(_Tally):
    """The connections of a consumer.

    Attributes:
        given_up: messages that were given up.
    """

    def __init__(self, world: World, name: str, nodes: list[str], limit: int) -> None:
        super().__init__(world, name, nodes)
        self.given_up = 0
        self._limit = limit
        self._lowered_at = -math.inf

    def limit(self, max_in_flight: int) -> None:
        """Record that the limit was changed."""
        if max_in_flight < self._limit:
            self._lowered_at = self.world.loop.time()
        self._limit = max_in_flight

    def on_messages(self) -> None:
        """Check that no more messages are in flight than allowed, but for those that were under way at a change."""
        if sum(len(wire.held) for _, wire in self.wires) <= self._limit:
            return
        if self.world.history.removals:
            return  # a broker does not count a message that was removed, and its client does
        now, wires = self.world.loop.time(), self._open()
        if all(wire.raised_at <= self._lowered_at for _, wire in wires):
            return  # the message replaces one that has timed out at the broker, by an RDY of before
        # The broker counts the time of a message that has arrived late from an earlier time than its client.
        count = sum(wire.held_count(now, end.late_since, end.late_at) for end, wire in wires)
        changed = max(self._lowered_at, *(max(wire.lowered_at, end.late_at) for end, wire in wires))
        if count > self._limit and now > changed + UNDER_WAY:
            text = f"{self.name} has {count} messages in flight, and max_in_flight is {self._limit}"
            raise self.world.failed(Broken(6, text))

    def find(self, message: Message) -> Wire | None:
        """Return the connection that has a message without an answer; None if it has timed out, or after a fault."""
        node, now = message.nsqd_address.partition(":")[0], self.world.loop.time()
        wires = (wire for end, wire in self._open() if end.remote_host == node and self.is_calm)
        return next((wire for wire in wires if wire.held.get(message.id, now) > now + UNDER_WAY), None)

    def _open(self) -> list[tuple[Endpoint, Wire]]:
        return [(end, wire) for end, wire in self.wires if not end.is_over]

    def without_rdy(self, since: float) -> list[str]:
        """Return a line for each connection that has had no RDY since a time."""
        return [
            f"{self.name} has no RDY at {end.remote_host}"
            for end, wire in self._open()
            if wire.is_read and wire.is_subscribed and wire.ready_at < since
        ]

    def check(self, stats: ConsumerStats) -> None:
        """Check the statistics of a consumer that has closed.

        Raises:
            Broken: they are not what the bytes say.
        """
        conclude(13, stats.given_up == self.given_up, f"{self.name} gave up {self.given_up} messages: {stats}")
        self.check_written()
        if not self.is_read:
            return
        total: Counter[str] = Counter()
        late: Counter[str] = Counter()
        for _, wire in self.wires:
            total.update(wire.counts)
            late.update(wire.late)
        was_reset = any(end.was_reset for end, _ in self.wires)  # what its last turn of the loop had to send is lost
        for name in COUNTS:
            found = getattr(stats, name)
            most = total[name] + (sum(late[each] for each in COUNTS) if name == "refused" else 0)
            is_right = total[name] - late[name] <= found and (found <= most or (was_reset and name != "received"))
            conclude(13, is_right, f"{self.name}: {total[name]} messages were {name}, not {found}")
        # Messages that a lost connection held have timed out or not.
        unanswered = total["received"] - total["answered"]
        lost = sum(len(wire.held) + wire.crossed for _, wire in self.wires)
        is_right = unanswered - lost <= stats.timed_out <= unanswered
        text = f"{self.name}: {unanswered} messages have no answer, {lost} of a lost connection: {stats}"
        conclude(13, is_right and (stats.timed_out == unanswered or not self.is_calm), text)


class ProducerTally(_Tally):
    """The connections of a producer.

    Attributes:
        has_cancelled: whether a publish was cancelled.
        cancel_at: the calls to cancel as soon as their answer arrives, by the name of a message.
    """

    def __init__(self, world: World, name: str, nodes: list[str]) -> None:
        super().__init__(world, name, nodes)
        self.has_cancelled = False
        self.cancel_at: dict[str, anyio.CancelScope] = {}

    def on_answer(self, bodies: list[bytes]) -> None:
        """Cancel a call before the client reads its answer."""
        for body in bodies if self.cancel_at else ():
            if (scope := self.cancel_at.pop(name_of(body), None)) is not None:
                scope.cancel()

    def check(self, stats: ProducerStats) -> None:
        """Check the statistics of a producer that has closed.

        Raises:
            Broken: they are not what the bytes say.
        """
        self.check_written()
        if not self.is_read:
            return
        acknowledged = refused = lost = 0
        for _, wire in self.wires:
            error = None
            for bodies, error in wire.answered:
                if error is None:
                    acknowledged += len(bodies)
                elif (count := self._publish_count(bodies)) == 1 or not error.startswith(SENT_AGAIN):
                    refused += count
            if error is None:  # a broker reads nothing after a refusal
                lost += sum(map(self._publish_count, wire.sent))
        counts = (stats.message_count, stats.refused_count, stats.lost_count)
        text = f"{self.name}: {counts} acknowledged, refused and lost, not {(acknowledged, refused, lost)}"
        if self.is_calm and not self.has_cancelled:
            conclude(13, counts == (acknowledged, refused, lost), text)
            return
        # An answer may arrive after the end of its connection: it is lost. Bytes that wait for space are not sent.
        is_right = counts[0] <= acknowledged and counts[1] <= refused and counts[2] >= lost
        conclude(13, is_right and (counts[2] > lost or counts[:2] == (acknowledged, refused)), text)

    def waits(self, publish: Publish) -> bool:
        """Return whether a publish was sent and has no answer."""
        sent = (name_of(body) for _, wire in self.wires for bodies in wire.sent for body in bodies)
        return not set(publish.names).isdisjoint(sent)

    def may_have_arrived(self, publish: Publish) -> bool:
        """Return whether a publish was sent on a connection that has ended without an answer, or an error before."""
        lost = (
            wire
            for end, wire in self.wires
            if wire.is_read and end.is_over and not (wire.answered and wire.answered[-1][1])
        )
        return any(name_of(body) in publish.names for wire in lost for bodies in wire.sent for body in bodies)

    def was_sent(self, publish: Publish) -> bool:
        """Return whether a publish, or a part of it, was given to a connection."""
        if any(wire.has_part or not wire.is_read for _, wire in self.wires):
            return True
        names = (name_of(body) for _, wire in self.wires for bodies in wire.published for body in bodies)
        return not set(publish.names).isdisjoint(names)

    @property
    def were_refused(self) -> bool:
        """Whether each connection that has ended has received an error just before."""
        ended = [wire for end, wire in self.wires if end.is_over or wire.is_lost or wire.is_over]
        return bool(ended) and all(wire.is_read and wire.answered and wire.answered[-1][1] for wire in ended)

    def _publish_count(self, bodies: list[bytes]) -> int:
        publishes = self.world.history.publishes
        return len({id(publishes[name_of(body)]) for body in bodies})
