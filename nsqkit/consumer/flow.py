"""Flow control of a consumer: how many unanswered messages each of its nsqds may have in flight (RDY).

The sum over all connections never exceeds ``max_in_flight``, and every connection gets RDY in turn.

*RDY in nsqd.* RDY n is a window: nsqd delivers while fewer than n messages of the connection are unanswered. It does
not count down, so a value stays in force once it is sent, and a consumer in steady state sends no RDY. Clients that
renew RDY were written when it did count down.

*Claims.* The *claim* of a connection on max_in_flight is the larger of its RDY and its unanswered messages: the number
of messages that it may come to have, or still has although its RDY was lowered. No decision that raises RDY lets the
sum of claims pass max_in_flight; a connection below its share gets RDY as others answer. Messages that were on their
way when RDY was lowered count when they arrive, since a client cannot count them sooner. While the sum is above
max_in_flight, because of such messages or because max_in_flight was lowered, no connection has RDY: a connection that
answers its messages would get another one, although others still have too many.

*Shares.* The *budget* is max_in_flight, or the part of it that the gate below allows. If it is enough for all
connections, each gets an even share. If not, as many connections as the budget hold a *seat*, which is RDY 1. At each
redistribution a connection loses its seat if it was idle for ``low_rdy_idle_timeout_ns`` or has held it for
``low_rdy_timeout_ns``, and those that have waited longest get the free seats. (go-nsq gives free seats away at random,
which has no bound on the wait.) Backoff's test message is a budget of 1: if nothing arrives from the connection that
was picked, another one gets the seat.

The file has the gate and its table, two pure functions, ``Window`` (the numbers of one connection), then ``Flow``,
whose methods all lead to ``Flow._reshare``: compute shares, lower RDY, raise RDY. A ``Flow`` sends nothing: each method
returns what to send, in that order, as ``SetRdy`` values.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import attrs

from nsqkit.errors import OptionError

if TYPE_CHECKING:
    import random

K = TypeVar("K", bound=Hashable)

SECOND_NS = 1_000_000_000


class Gate(enum.Enum):
    """Which messages backoff allows.

    Attributes:
        OPEN: all.
        BLOCKED: none.
        PROBING: the one test message, which has not arrived.
        TESTING: no more; the test message has arrived and is not answered.
    """

    OPEN = "open"
    BLOCKED = "blocked"
    PROBING = "probing"
    TESTING = "testing"


# How the gate moves:
#
#     block()                                 any      → BLOCKED
#     probe()                                 any      → PROBING
#     unblock()                               any      → OPEN
#     a connection with RDY delivers          PROBING  → TESTING
#
# The step to TESTING sets RDY to 0 at once. With RDY 1, nsqd would deliver a second message when it reads the FIN or
# REQ of the first, before it reads the RDY that follows from that result.
#
# The budget in each position (None: all of max_in_flight):
GATE_BUDGETS: dict[Gate, int | None] = {Gate.OPEN: None, Gate.BLOCKED: 0, Gate.PROBING: 1, Gate.TESTING: 0}


class SetRdy(NamedTuple, Generic[K]):
    """A decision: send ``RDY rdy_count`` on the connection ``key``."""

    key: K
    rdy_count: int


# The result of nearly every call; a constant, so that steady state allocates nothing.
NOTHING: tuple[()] = ()


def deal(total: int, limits: Sequence[int]) -> list[int]:
    """Divide ``total`` as evenly as the limits allow; the remainder goes to the largest limits, the first of equals.

    Amounts differ by at most one, except at a limit. The sum is below ``total`` only if every limit is reached.

    >>> deal(10, [100, 100, 100])
    [4, 3, 3]
    >>> deal(10, [2, 100, 100])
    [2, 4, 4]
    """
    dealt = [0] * len(limits)
    # The smallest limit first, because a limit below the even part leaves more for the others. Division rounds down, so
    # the remainder goes to the largest limits, and among equal ones to the first.
    order = sorted(range(len(limits)), key=lambda i: (limits[i], -i))
    for place, i in enumerate(order):
        dealt[i] = min(limits[i], total // (len(limits) - place))
        total -= dealt[i]
    return dealt


def needs_rdy(remaining: int, last_rdy: int) -> bool:
    """Return whether a connection has so little RDY left that a RDY below its full share is worth a command.

    This is the rule by which older clients renewed RDY: at most 1 left, or less than a quarter of the RDY last sent.
    Here it saves commands while a large share moves from one connection to another, message by message. (Their third
    case, more left than the share, does not occur: ``Flow`` always lowers at once.)

    Args:
        remaining: how many messages nsqd may still deliver; negative if more are in flight than RDY allows.
        last_rdy: the RDY last sent.
    """
    return remaining <= 1 or remaining * 4 < last_rdy


@attrs.define(eq=False)
class Window(Generic[K]):
    """The numbers of one connection.

    Attributes:
        key: the caller's name for it.
        max_rdy_count: the largest RDY that its nsqd accepts.
        turn: when it last got or lost its share, as a running number; the lowest has held it, or waited, longest.
        share: the RDY that it should have.
        rdy_count: the RDY last sent.
        in_flight: messages received and not answered.
        granted_ns: when its RDY last rose from 0.
        active_ns: when its RDY last rose from 0 or a message was last received or answered.
    """

    key: K
    max_rdy_count: int
    turn: int
    share: int = 0
    rdy_count: int = 0
    in_flight: int = 0
    granted_ns: int = 0
    active_ns: int = 0

    @property
    def claim(self) -> int:
        return max(self.rdy_count, self.in_flight)

    @property
    def cost(self) -> int:
        """How much the full share would add to the claim."""
        return max(self.share - self.claim, 0)

    @property
    def starved(self) -> bool:
        """Whether at least 85 % of its RDY is in flight, the client guide's limit.

        go-nsq rounds the limit down, by which 1 of 2 is starved.
        """
        return self.in_flight > 0 and self.in_flight * 100 >= self.rdy_count * 85


# Options are checked by __init__ alone; a check at each assignment would cost as much as a decision.
@attrs.define(eq=False, kw_only=True, on_setattr=attrs.setters.NO_OP)
class Flow(Generic[K]):
    """Decide which connection of a consumer gets how much RDY.

    The caller names a connection by a key. Each connection needs its own, even to the same address, or answers to
    messages of a lost connection would count for the next one.

    Args:
        max_in_flight: how many messages may be unanswered over all connections; with 0 none is delivered.
        low_rdy_idle_timeout_ns: a seat is lost after this time without a message; 10 s as in go-nsq.
        low_rdy_timeout_ns: a seat is lost after this time in any case; 30 s as in go-nsq.
        rdy_redistribute_interval_ns: time between redistributions while seats are scarce; 5 s as in go-nsq.
        rng: picks the connection for a test message.

    Attributes:
        deadline_ns: when the next redistribution is due; None while no connection waits for a seat.
    """

    max_in_flight: int = attrs.field(validator=attrs.validators.ge(0))
    rng: random.Random
    low_rdy_idle_timeout_ns: int = attrs.field(default=10 * SECOND_NS, validator=attrs.validators.gt(0))
    low_rdy_timeout_ns: int = attrs.field(default=30 * SECOND_NS, validator=attrs.validators.gt(0))
    rdy_redistribute_interval_ns: int = attrs.field(default=5 * SECOND_NS, validator=attrs.validators.gt(0))
    paused: bool = attrs.field(default=False, init=False)
    gate: Gate = attrs.field(default=Gate.OPEN, init=False)
    _windows: dict[K, Window[K]] = attrs.field(factory=dict, init=False)
    _claimed: int = attrs.field(default=0, init=False)  # the sum of all claims, kept up to date
    _owing: bool = attrs.field(default=False, init=False)  # whether some RDY is still below its share
    _turn: int = attrs.field(default=0, init=False)
    deadline_ns: int | None = attrs.field(default=None, init=False)

    # Connections.

    def add(self, key: K, max_rdy_count: int, now_ns: int) -> Sequence[SetRdy[K]]:
        """Add a connection; it gets its share at once, as far as the claims of others allow.

        The key was not used before. With a ``max_rdy_count`` (from the answer to IDENTIFY) of 0 it never gets RDY.
        """
        assert key not in self._windows, f"connection {key!r} was added before"
        self._windows[key] = Window(key, max_rdy_count, self._next_turn())
        return self._reshare(now_ns)

    def remove(self, key: K, now_ns: int) -> Sequence[SetRdy[K]]:
        """Remove a closed connection, with its messages in flight."""
        window = self._windows.pop(key)
        self._claimed -= window.claim
        return self._reshare(now_ns)

    def retire(self, key: K, now_ns: int) -> Sequence[SetRdy[K]]:
        """Set RDY to 0 for good; its messages in flight count until they are answered or ``remove`` is called."""
        window = self._windows[key]
        window.max_rdy_count = 0
        self._set_share(window, 0)
        lowered = [self._send(window, 0, now_ns)] if window.rdy_count else []
        return [*lowered, *self._reshare(now_ns)]

    # Messages. These two are called for every read and every write.

    def received(self, key: K, count: int, now_ns: int) -> Sequence[SetRdy[K]]:
        """Count the messages of one receive buffer.

        While probing, the first message of a connection that has RDY is the test message. One from another connection
        was sent before the backoff began.
        """
        window = self._windows[key]
        self._book(window, count, now_ns)
        if self.gate is Gate.PROBING and window.rdy_count:
            self.gate = Gate.TESTING
            return self._reshare(now_ns)
        return self._repay(now_ns)

    def answered(self, key: K, count: int, now_ns: int) -> Sequence[SetRdy[K]]:
        """Count the messages that were finished or requeued by one write, and those that have timed out.

        A key that was removed is ignored.
        """
        window = self._windows.get(key)
        if window is None:
            return NOTHING
        self._book(window, -count, now_ns)
        assert window.in_flight >= 0, f"connection {key!r} answered {-window.in_flight} more than it received"
        return self._repay(now_ns)

    # For users.

    def set_max_in_flight(self, max_in_flight: int, now_ns: int) -> Sequence[SetRdy[K]]:
        if max_in_flight < 0:
            raise OptionError(f"max_in_flight is {max_in_flight}, it must be at least 0")
        self.max_in_flight = max_in_flight
        return self._reshare(now_ns)

    def pause(self, now_ns: int) -> Sequence[SetRdy[K]]:
        """Set RDY to 0 until ``resume``, in any state of the gate."""
        self.paused = True
        return self._reshare(now_ns)

    def resume(self, now_ns: int) -> Sequence[SetRdy[K]]:
        self.paused = False
        return self._reshare(now_ns)

    # For backoff.

    def block(self, now_ns: int) -> Sequence[SetRdy[K]]:
        self.gate = Gate.BLOCKED
        return self._reshare(now_ns)

    def probe(self, now_ns: int) -> Sequence[SetRdy[K]]:
        """Allow one message, from a connection chosen at random; without one, from the first to be added.

        On a connection with RDY 1, nsqd delivers nothing while an earlier message is unanswered, so a slow handler may
        delay the test message.
        """
        self.gate = Gate.PROBING
        takers = self._takers()
        for window in takers:
            self._set_share(window, 0)
        if takers:
            self._set_share(self.rng.choice(takers), 1)
        return self._reshare(now_ns)

    def unblock(self, now_ns: int) -> Sequence[SetRdy[K]]:
        self.gate = Gate.OPEN
        return self._reshare(now_ns)

    # Time.

    def handle_deadline(self, now_ns: int) -> Sequence[SetRdy[K]]:
        if self.deadline_ns is None or now_ns < self.deadline_ns:
            return NOTHING
        self.deadline_ns = now_ns + self.rdy_redistribute_interval_ns
        takers = self._takers()
        yielding = sorted((w for w in takers if self._must_yield(w, now_ns)), key=lambda w: w.turn)
        # No more seats are freed than there are connections that wait for one.
        waiting_count = sum(w.share == 0 for w in takers)
        for window in yielding[:waiting_count]:
            self._set_share(window, 0)
        return self._reshare(now_ns)

    # State.

    @property
    def is_starved(self) -> bool:
        """Whether some connection can deliver (almost) nothing until messages are answered.

        Code that gathers a batch should then process it.
        """
        return any(window.starved for window in self._windows.values())

    @property
    def in_flight(self) -> int:
        return sum(window.in_flight for window in self._windows.values())

    @property
    def total_rdy_count(self) -> int:
        return sum(window.rdy_count for window in self._windows.values())

    def rdy_count(self, key: K) -> int:
        return self._windows[key].rdy_count

    # The algorithm: shares, then the part of them that can be sent.

    def _reshare(self, now_ns: int) -> Sequence[SetRdy[K]]:
        budget, takers = self._budget(), self._takers()
        scarce = 0 < budget < len(takers)
        if scarce:
            seated = self._seated(takers, budget)
            shares = [int(window in seated) for window in takers]
        else:
            shares = deal(budget, [window.max_rdy_count for window in takers])
        for window, share in zip(takers, shares, strict=True):
            self._set_share(window, share)
        if not scarce:
            self.deadline_ns = None
        elif self.deadline_ns is None:
            self.deadline_ns = now_ns + self.rdy_redistribute_interval_ns
        claimed = sum(max(min(w.rdy_count, w.share), w.in_flight) for w in self._windows.values())
        if claimed > self.max_in_flight:
            return self._withdraw(now_ns)
        lowered = [self._send(w, w.share, now_ns) for w in takers if w.rdy_count > w.share]
        return [*lowered, *self._raise(now_ns)]

    def _budget(self) -> int:
        if self.paused:
            return 0
        allowed = GATE_BUDGETS[self.gate]
        return self.max_in_flight if allowed is None else min(allowed, self.max_in_flight)

    def _takers(self) -> list[Window[K]]:
        # To an nsqd started with --max-rdy-count=0 any RDY but 0 is a fatal error.
        return [window for window in self._windows.values() if window.max_rdy_count > 0]

    def _seated(self, takers: list[Window[K]], seat_count: int) -> set[Window[K]]:
        takers = sorted(takers, key=lambda w: w.turn)
        seated = [w for w in takers if w.share]
        waiting = [w for w in takers if not w.share]
        # When seats become fewer, those lose theirs that have held it longest.
        return set((seated[-seat_count:] + waiting)[:seat_count])

    def _must_yield(self, window: Window[K], now_ns: int) -> bool:
        if not window.rdy_count:
            return False  # its time begins with its first RDY
        # While a message is in flight, the handler may be slow; only the longer limit counts.
        idle_ns = 0 if window.in_flight else now_ns - window.active_ns
        return idle_ns >= self.low_rdy_idle_timeout_ns or now_ns - window.granted_ns >= self.low_rdy_timeout_ns

    def _repay(self, now_ns: int) -> Sequence[SetRdy[K]]:
        # In steady state no share is above its RDY, and a read or a write costs no more than this.
        if self._claimed > self.max_in_flight:
            return self._withdraw(now_ns)
        if not self._owing or self._claimed == self.max_in_flight:
            return NOTHING
        return self._raise(now_ns)

    def _withdraw(self, now_ns: int) -> Sequence[SetRdy[K]]:
        """Set RDY to 0, since more messages are unanswered than max_in_flight allows."""
        self._owing = any(w.share for w in self._windows.values())
        return [self._send(w, 0, now_ns) for w in self._windows.values() if w.rdy_count]

    def _raise(self, now_ns: int) -> Sequence[SetRdy[K]]:
        """Raise RDY to the shares, as far as the claims allow, which are at most max_in_flight."""
        owed = [w for w in self._windows.values() if w.rdy_count < w.share]
        free = self.max_in_flight - self._claimed
        if sum(w.cost for w in owed) > free:
            owed = [w for w in owed if needs_rdy(w.rdy_count - w.in_flight, w.rdy_count)]
        decisions = []
        for window, extra in zip(owed, deal(free, [w.cost for w in owed]), strict=True):
            rdy_count = min(window.claim + extra, window.share)
            if rdy_count > window.rdy_count:
                decisions.append(self._send(window, rdy_count, now_ns))
        self._owing = any(w.rdy_count < w.share for w in self._windows.values())
        assert self.total_rdy_count <= self.max_in_flight
        return decisions

    def _book(self, window: Window[K], change: int, now_ns: int) -> None:
        before, rdy_count = window.in_flight, window.rdy_count
        after = window.in_flight = before + change
        window.active_ns = now_ns
        if before > rdy_count or after > rdy_count:  # else the claim is RDY, before and after
            self._claimed += max(after, rdy_count) - max(before, rdy_count)

    def _send(self, window: Window[K], rdy_count: int, now_ns: int) -> SetRdy[K]:
        claim = window.claim
        if not window.rdy_count:
            window.granted_ns = window.active_ns = now_ns
        window.rdy_count = rdy_count
        self._claimed += window.claim - claim
        return SetRdy(window.key, rdy_count)

    def _set_share(self, window: Window[K], share: int) -> None:
        if bool(share) != bool(window.share):
            window.turn = self._next_turn()
        window.share = share

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn
