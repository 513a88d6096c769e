"""A link: the connection between one client and one broker, with two ends, as a machine without I/O.

    client ◀──▶ client_end │ link │ broker_end ◀──▶ broker

Each end is a machine, driven by its own pump: bytes that one end receives are divided into items, recorded, changed by
the faults that apply, and left at the other end. A proxy joins the ends to sockets, and the simulation to machines.

While no fault can apply, bytes pass as they come. Otherwise a rule selects an item as soon as its first line or its
type has come. The bytes of an item to which no action applies still pass as they come, since a broker may answer
before the end of a command; others are kept until the item is complete.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.testing.link import actions
from nsqkit.testing.link.entries import describe
from nsqkit.testing.link.items import Connection, Direction, Item, Scan, Splitter
from nsqkit.testing.link.rules import has_answer, is_answer
from nsqkit.testing.link.transit import FREE, Flow, Transit
from nsqkit.wire.frames import encode_error
from nsqkit.wire.messages import for_redelivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqkit.testing.link.faults import Fault, Faults
    from nsqkit.testing.link.journal import Journal

OUTBOX_SIZE_MAX: Final = 1 << 20
"""With so many unsent bytes in a direction, nothing is read from its sender."""


@attrs.frozen
class _Decision:
    """The faults that apply to an item."""

    fault: Fault | None = None
    flow: Flow = FREE


_PASS: Final = _Decision()

_PERHAPS_HEARTBEATS: Final = {"HEARTBEAT", "BYTES"}


@attrs.frozen
class _Due:
    """What follows a number of the broker's answers: an error, or with None an answer that is dropped."""

    answer_count: int
    error: bytes | None = None
    is_fatal: bool = False


@attrs.define(eq=False)
class _Lane:
    """One direction."""

    end: LinkEnd
    splitter: Splitter
    transit: Transit = attrs.field(factory=Transit)
    recorded: list[Item] = attrs.field(factory=list)  # for the journal
    passed_size: int = 0  # bytes of the incomplete item that were passed on
    decision: _Decision | None = None  # for the incomplete item
    inserted: list[Item] = attrs.field(factory=list)  # they follow the incomplete item
    later: list[tuple[int, Item]] = attrs.field(factory=list)  # inserted at their time, in ns
    lost_by: str = ""  # the fault for which nothing is passed on any more
    is_ending: bool = False  # the receiver's end is closed after the bytes in transit

    @property
    def is_plain(self) -> bool:
        """True if bytes pass as they come when no rule applies: none wait, and nothing was decided."""
        has_passed = self.passed_size == self.splitter.rest_size
        return has_passed and not (self.transit.size or self.inserted or self.lost_by) and self.decision is None


class Link:
    """One connection.

    Args:
        client: the address of the client, or another name for it.
        journal: where its items are recorded.
        faults: the rules that apply.

    Attributes:
        connection: the client, as its items describe it.
        client_end: the machine that faces the client.
        broker_end: the machine that faces the broker.
        is_reset: both connections are to be reset at once.
        is_silent: a fault lets nothing pass from the beginning, so no connection to the broker is needed.
        traffic_count: reads in either direction.
        heartbeat_count: reads passed to the client with a heartbeat, or with bytes that may be one.
        owes_answer: the client has sent nothing since the last of these.
    """

    def __init__(self, client: str, journal: Journal, faults: Faults) -> None:
        self.connection = Connection(client)
        self.broker_end = LinkEnd(self, Direction.TO_BROKER)
        self.client_end = LinkEnd(self, Direction.TO_CLIENT)
        self.is_reset = self.is_silent = False
        self.traffic_count = 0
        self.heartbeat_count = 0
        self.owes_answer = False
        self._journal = journal
        self._faults = faults
        self._lanes = {
            Direction.TO_BROKER: _Lane(self.broker_end, Splitter(Direction.TO_BROKER)),
            Direction.TO_CLIENT: _Lane(self.client_end, Splitter(Direction.TO_CLIENT)),
        }
        self._hole: Fault | None = None  # it loses the bytes of a direction
        self._asked_count = self._answer_count = 0  # commands with an answer that the broker has, and their answers
        self._due: deque[_Due] = deque()
        for fault in self._rules():
            if fault.rule.action.slot == "accept" and fault.applies_to_new(self.connection):
                self._accept(fault)
                break

    def _accept(self, fault: Fault) -> None:
        self.is_silent = True
        if isinstance(fault.rule.action, actions.CloseOnAccept):
            self._close(fault.rule.fault, 0)
        else:
            self._lose(fault, None)

    def _rules(self) -> list[Fault]:
        return [*self._faults.active.values()]

    # ---- for the ends ------------------------------------------------------------------------------------------------

    def receive(self, direction: Direction, data: bytes, now_ns: int) -> None:
        """Process the bytes of one read from the sender of ``direction``."""
        lane = self._lanes[direction]
        if self._hole is not None and self._hole.is_removed:
            self._reset()
        if lane.end.ended or lane.is_ending:
            return
        splitter = lane.splitter
        if lane.is_plain and not self._faults.active and not self._due:
            lane.end.send(data)
            if (scan := splitter.scan(data)) is not None:
                self._pass_scan(direction, scan, now_ns)
            else:
                lane.recorded = splitter.feed(data)
                self._note(direction, lane.recorded)
            lane.passed_size = splitter.rest_size
            if not lane.recorded:
                return
        else:
            for item in splitter.feed(data):
                self._process(lane, direction, item, now_ns)
            self._pass_rest(lane, direction, now_ns)
        if splitter.is_upgraded and not (other := self._lanes[direction.opposite]).splitter.is_opaque:
            self._pass_all(other, now_ns)
        self._settle(now_ns)

    def receive_eof(self, direction: Direction, now_ns: int) -> None:
        """Process the end of the bytes in ``direction``: the other end is closed after the bytes that wait."""
        lane, answers = self._lanes[direction], self._lanes[direction.opposite]
        if answers.end.peer_has_ended:
            return
        answers.end.peer_has_ended = True
        if self._hole is not None and self._hole.is_removed:
            self._reset()
        elif lane.lost_by:
            answers.end.end()
        else:
            self._pass_all(lane, now_ns)
            lane.is_ending = True
            # A client may close its direction only, and wait for answers; a broker closes both.
            answers.is_ending = answers.is_ending or direction is Direction.TO_CLIENT
        self._settle(now_ns)

    def waiting_size(self, direction: Direction) -> int:
        """Return the bytes that wait for their time."""
        return self._lanes[direction].transit.size

    # ---- deadlines ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return the time, in ns, at which to call ``handle_deadline``; None for never."""
        times_ns = []
        for lane in self._lanes.values():
            if lane.later:
                times_ns += [due_ns for due_ns, _ in lane.later]
            if not lane.transit.size:
                continue
            due_ns = lane.transit.next_due
            # A slice is a write of its own, so it waits until the bytes before it were taken.
            if due_ns is not None and not (lane.transit.is_sliced and lane.end.has_output):
                times_ns.append(due_ns)
        return min(times_ns, default=None)

    def handle_deadline(self, now_ns: int) -> None:
        """Pass on the bytes that are due."""
        for lane in self._lanes.values():
            due = [item for due_ns, item in lane.later if due_ns <= now_ns]
            lane.later = [(due_ns, item) for due_ns, item in lane.later if due_ns > now_ns]
            for item in due:
                self._insert(lane, item, now_ns)
        self._settle(now_ns)

    # ---- items -------------------------------------------------------------------------------------------------------

    def _process(self, lane: _Lane, direction: Direction, item: Item, now_ns: int) -> None:
        decision, passed_size = lane.decision, lane.passed_size
        lane.decision, lane.passed_size = None, 0
        if not lane.lost_by:
            describe(self.connection, item)
            decision = decision or (_PASS if passed_size else self._decide(direction, item))
        if lane.lost_by or decision is None:
            lane.recorded.append(attrs.evolve(item, fault=lane.lost_by))
            return
        if direction is Direction.TO_CLIENT and is_answer(item) and self._take_answer() and not passed_size:
            lane.recorded.append(attrs.evolve(item, fault="drop_answer"))
        elif decision.fault is not None:
            self._act(lane, item, decision.fault, decision.flow, now_ns)
        else:
            self._send(lane, item.data[passed_size:], decision.flow, now_ns)
            lane.recorded.append(item)
            self._asked_count += direction is Direction.TO_BROKER and has_answer(item)
        inserted, lane.inserted = lane.inserted, []
        for each in inserted:
            self._insert(lane, each, now_ns)
        self._answer(now_ns)

    def _pass_rest(self, lane: _Lane, direction: Direction, now_ns: int) -> None:
        """Pass on the bytes of the incomplete item that have come, unless all of them are needed first."""
        splitter = lane.splitter
        name = splitter.rest_name
        # A rule for a client id needs the whole IDENTIFY.
        is_needed = name == "IDENTIFY" and any(fault.rule.client for fault in self._rules())
        if name and not (is_needed or lane.decision or lane.passed_size or lane.lost_by):
            lane.decision = self._decide(direction, Item(name, splitter.rest()))
        if lane.lost_by:
            lane.passed_size = splitter.rest_size
        elif lane.passed_size or (lane.decision is not None and lane.decision.fault is None):
            decision = lane.decision or _PASS
            self._send(lane, splitter.rest(lane.passed_size), decision.flow, now_ns)
            lane.passed_size = splitter.rest_size

    def _pass_all(self, lane: _Lane, now_ns: int) -> None:
        """Pass on the bytes of the incomplete item, and divide no further ones."""
        rest = lane.splitter.make_opaque()
        if rest and not lane.lost_by:
            self._send(lane, rest[lane.passed_size :], FREE, now_ns)
            lane.recorded.append(Item("BYTES", rest))
        lane.passed_size, lane.decision = 0, None

    def _decide(self, direction: Direction, item: Item) -> _Decision:
        chosen: dict[str, Fault] = {}
        for fault in self._rules():
            slot = fault.rule.action.slot
            if slot in chosen or slot in ("accept", "refuse") or (slot == "half_open" and self._hole is not None):
                continue
            if fault.applies(direction, item, self.connection):
                chosen[slot] = fault
        if not chosen:
            return _PASS
        half_open = chosen.get("half_open")
        if half_open is not None and isinstance(half_open.rule.action, actions.HalfOpen):
            self._lose(half_open, half_open.rule.action.direction)
        return _Decision(chosen.get("item"), _flow_of(fault.rule.action for fault in chosen.values()))

    def _act(self, lane: _Lane, item: Item, fault: Fault, flow: Flow, now_ns: int) -> None:
        """Do with an item what its fault does."""
        name = fault.rule.fault
        sent: list[Item] = []
        match fault.rule.action:
            case actions.DropAnswer():
                sent = [item]
                self._due.append(_Due(self._asked_count + 1))
            case actions.Refusal(error):
                self._due.append(_Due(self._asked_count, encode_error(error), error.fatal))
                lane.lost_by = name if error.fatal else ""
            case actions.Duplicate():
                sent = [item, attrs.evolve(item, fault=name)]
            case actions.Redeliver(delay_ns):
                sent = [item]
                lane.later.append((now_ns + delay_ns, Item(item.name, for_redelivery(item.data), name)))
            case actions.Garbage(data):
                sent = [Item("BYTES", data, name)]
            case actions.Change() as change:
                sent = [Item(item.name, change.change(item), name)]
            case actions.CloseAt(byte):
                sent = [attrs.evolve(item, data=item.data[:byte], fault=name)]
        for each in sent:
            self._send(lane, each.data, flow, now_ns)
        lane.recorded += sent or [attrs.evolve(item, fault=name)]
        self._asked_count += bool(sent) and has_answer(item)
        match fault.rule.action:
            case actions.Reset():
                self._reset()
            case actions.CloseAt():
                self._close(name, now_ns)

    def _pass_scan(self, direction: Direction, scan: Scan, now_ns: int) -> None:
        """Count and record items that have passed."""
        counts = scan.counts
        if not counts:
            return
        self._journal.record_bytes(now_ns, self.connection, direction, scan.data)
        if direction is Direction.TO_CLIENT:
            self._answer_count += counts.get("OK", 0) + counts.get("CLOSE_WAIT", 0)
        else:
            self._asked_count += sum([count for name, count in counts.items() if name in actions.ANSWERED])
        self._note_traffic(direction, counts)

    def _note(self, direction: Direction, items: list[Item]) -> None:
        """Count commands and answers that pass, and describe the client."""
        if direction is Direction.TO_CLIENT:
            self._answer_count += sum(map(is_answer, items))
            return
        for item in items:
            if has_answer(item):
                self._asked_count += 1
                describe(self.connection, item)

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _take_answer(self) -> bool:
        """Count an answer of the broker; return whether it is to be dropped."""
        self._answer_count += 1
        if not self._due or self._due[0] != _Due(self._answer_count):
            return False
        self._due.popleft()
        return True

    def _answer(self, now_ns: int) -> None:
        """Pass on the errors that follow the answers that have come."""
        lane = self._lanes[Direction.TO_CLIENT]
        while self._due and (error := self._due[0].error) is not None and not lane.is_ending:
            if lane.passed_size or self._due[0].answer_count > self._answer_count:
                break  # a frame has begun, or an answer is missing
            due = self._due.popleft()
            self._insert(lane, Item("ERROR", error, "error"), now_ns)
            if due.is_fatal:
                self._close("error", now_ns)

    def _insert(self, lane: _Lane, item: Item, now_ns: int) -> None:
        """Pass on an item that was not received, after the incomplete one if that has begun to pass."""
        if lane.lost_by or lane.is_ending:
            return
        if lane.passed_size:
            lane.inserted.append(item)
        else:
            self._send(lane, item.data, FREE, now_ns)
            lane.recorded.append(item)

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def _send(self, lane: _Lane, data: bytes, flow: Flow, now_ns: int) -> None:
        if lane.transit.size or flow is not FREE:
            lane.transit.push(data, flow, now_ns)
        else:
            lane.end.send(data)

    def _settle(self, now_ns: int) -> None:
        """Leave the bytes that are due, and the ends that are, at the ends; record the items."""
        for direction, lane in self._lanes.items():
            if lane.recorded:
                self._record(direction, lane.recorded, now_ns)
                lane.recorded = []
            if not (lane.transit.is_sliced and lane.end.has_output):
                lane.end.send(lane.transit.pull(now_ns))
            if lane.is_ending and not lane.transit.size:
                lane.end.end()

    def _record(self, direction: Direction, items: list[Item], now_ns: int) -> None:
        self._journal.record(now_ns, self.connection, direction, items)
        self._note_traffic(direction, {item.name for item in items if not item.fault})

    def _note_traffic(self, direction: Direction, names: Iterable[str]) -> None:
        self.traffic_count += 1
        if direction is Direction.TO_BROKER:
            self.owes_answer = False
        elif not _PERHAPS_HEARTBEATS.isdisjoint(names):
            self.heartbeat_count += 1
            self.owes_answer = True

    def _lose(self, fault: Fault, direction: Direction | None) -> None:
        self._hole = fault
        for each, lane in self._lanes.items():
            if direction in (None, each):
                lane.lost_by = fault.rule.fault

    def _close(self, name: str, now_ns: int) -> None:
        """Close both ends after the bytes that wait."""
        for lane in self._lanes.values():
            lane.lost_by = name
            lane.is_ending = True
        self._settle(now_ns)

    def _reset(self) -> None:
        self.is_reset = True
        for lane in self._lanes.values():
            lane.transit.clear()
            lane.later.clear()
            lane.lost_by = lane.lost_by or "reset"
            lane.end.discard()


def _flow_of(chosen: Iterable[actions.Action]) -> Flow:
    flow = FREE
    for action in chosen:
        match action:
            case actions.Delay(delay_ns):
                flow = attrs.evolve(flow, delay_ns=delay_ns)
            case actions.Bandwidth(rate):
                flow = attrs.evolve(flow, rate=rate)
            case actions.Slices(size):
                flow = attrs.evolve(flow, slice_size=size)
    return flow


class LinkEnd:
    """One end of a link, as a machine.

    Attributes:
        ended: the connection is to be closed after the bytes that wait are sent.
        peer_has_ended: the peer has closed the connection, or its direction of it.
        has_events: bytes that waited here were taken, so that the link can pass on more.
    """

    has_input = False

    def __init__(self, link: Link, direction: Direction) -> None:
        self.ended = self.peer_has_ended = False
        self.has_events = False
        self._link = link
        self._direction = direction  # of the bytes that leave here
        self._output: list[bytes] = []
        self._size = 0

    def send(self, data: bytes) -> None:
        """Have the driver send bytes."""
        if data and not self.ended:
            self._output.append(data)
            self._size += len(data)

    def end(self) -> None:
        """Have the driver close the connection after the bytes that wait."""
        self.ended = True

    def discard(self) -> None:
        """Discard the bytes that wait, and accept no more."""
        self.ended = True
        self._output.clear()
        self._size = 0

    def close(self, now_ns: int) -> None:
        """Record that the driver has closed the connection."""
        self.discard()
        self.receive_eof(now_ns)

    # ---- as a machine --------------------------------------------------------------------------------------------

    @property
    def outbox_full(self) -> bool:
        """True while the other end has too many bytes to send."""
        sender = self._link.broker_end if self._direction is Direction.TO_CLIENT else self._link.client_end
        return sender.is_full

    @property
    def is_full(self) -> bool:
        """True while too many bytes wait here, or on their way."""
        return self._size + self._link.waiting_size(self._direction) >= OUTBOX_SIZE_MAX

    @property
    def has_output(self) -> bool:
        """True while there are bytes to send, or the connection is to be closed."""
        return bool(self._output) or self.ended

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Pass the bytes of one read to the other end."""
        self._link.receive(self._direction.opposite, data, now_ns)

    def process_input(self, now_ns: int) -> None:
        """Do nothing: no input is left."""

    def receive_eof(self, now_ns: int) -> None:
        """Close the other end after the bytes that it has."""
        self._link.receive_eof(self._direction.opposite, now_ns)

    def events(self) -> tuple[()]:
        """Return nothing: ``has_events`` alone is the event."""
        self.has_events = False
        return ()

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them."""
        data = b"".join(self._output)
        self.has_events = self.is_full or (bool(data) and self._link.waiting_size(self._direction) > 0)
        self._output.clear()
        self._size = 0
        return data
