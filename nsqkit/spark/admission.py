"""The decision whether a trigger of a stream runs a batch, and how many rows it may have.

A trigger without messages runs no batch, so an idle query costs a look at the depths only. A run with
``availableNow`` ends when it has as many rows as there were messages when it began, when nothing is waiting or in
flight, or at its time limit. Messages in flight to other consumers may come back, so the run waits for them, for one
message timeout. For as long it goes on without rows while messages wait, since an nsqd may not deliver them: the
channel is paused, or no task reaches the nsqd. Depths are None where nsqds do not report them, and before the first
batch of a channel, which creates it: then a batch is the only way to find out, and an empty one ends a run with
``availableNow``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import attrs

from nsqkit.spark.batch_plan import SourceNode


class Backlog(Protocol):
    """The messages of a channel, over all nsqds."""

    @property
    def depth(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def deferred(self) -> int: ...
    @property
    def finished_count(self) -> int: ...


class Cluster(Protocol):
    """The nsqds of a subscription."""

    def nodes(self) -> Iterable[SourceNode]:
        """Return the topics of nsqds that are known now."""

    def backlog(self) -> Backlog | None:
        """Return the messages of the channel; None if they are not known."""


NowNs: TypeAlias = Callable[[], int]
"""Returns ns since the Unix epoch."""

Sleep: TypeAlias = Callable[[float], None]
"""Waits for a number of seconds."""


@attrs.frozen
class Run:
    """A batch is due, with at most ``records_max`` rows; None for no limit besides the options."""

    records_max: int | None = None


class Pause(enum.Enum):
    """No batch is due: WAIT to look again soon, SKIP to leave this trigger without a batch."""

    WAIT = "wait"
    SKIP = "skip"


Decision: TypeAlias = Run | Pause


def decide_continuous(backlog: Backlog | None) -> Decision:
    """Return the decision of a trigger that repeats."""
    return Run() if backlog is None or backlog.depth else Pause.SKIP


@attrs.frozen(kw_only=True)
class AvailableNow:
    """One run with ``availableNow``.

    Attributes:
        target: its ``row_count`` at its end; None while the depths have never been known.
        in_flight_until_ns: until when it waits for messages in flight, ns since the Unix epoch.
        deadline_ns: when it takes no more, ns since the Unix epoch; None for no limit.
        wait_deferred: whether it waits for deferred messages, as for those in flight.
        stall_ns: how long messages may wait without a row, ns; None for no limit besides the deadline.
        row_count: rows of the run at the last look.
        stalled_since_ns: since when messages have waited without a row, ns since the Unix epoch.
    """

    target: int | None
    in_flight_until_ns: int | None
    deadline_ns: int | None
    wait_deferred: bool
    stall_ns: int | None
    row_count: int = 0
    stalled_since_ns: int

    def with_progress(self, backlog: Backlog | None, row_count: int, now_ns: int) -> AvailableNow:
        """Return the run after a look at the depths and the rows; arguments as for ``decide``."""
        if backlog is not None and backlog.depth and row_count == self.row_count:
            return self
        return attrs.evolve(self, row_count=row_count, stalled_since_ns=now_ns)

    def is_stalled(self, backlog: Backlog | None, now_ns: int) -> bool:
        """Return whether messages wait, and none has become a row for too long."""
        if self.stall_ns is None or backlog is None or not backlog.depth:
            return False
        return now_ns >= self.stalled_since_ns + self.stall_ns

    def with_target(self, backlog: Backlog | None, row_count: int) -> AvailableNow:
        """Return the run with a target. A new channel has depths from its first consumer on.

        Args:
            backlog: the messages now.
            row_count: rows of the run so far.
        """
        if self.target is not None or backlog is None:
            return self
        wanted = backlog.depth + backlog.in_flight + self.wait_deferred * backlog.deferred
        return attrs.evolve(self, target=row_count + wanted)

    def decide(self, backlog: Backlog | None, row_count: int, last_row_count: int | None, now_ns: int) -> Decision:
        """Return the decision of one trigger of the run.

        Args:
            backlog: the messages now.
            row_count: rows of the run so far.
            last_row_count: rows of its last batch; None before the first.
            now_ns: ns since the Unix epoch.
        """
        left = None if self.target is None else self.target - row_count
        if (self.deadline_ns is not None and now_ns >= self.deadline_ns) or (left is not None and left <= 0):
            return Pause.SKIP
        if backlog is None:
            return Pause.SKIP if last_row_count == 0 else Run(left)
        if backlog.depth:
            return Pause.SKIP if self.is_stalled(backlog, now_ns) else Run(left)
        awaited = backlog.in_flight + (backlog.deferred if self.wait_deferred else 0)
        if awaited and (self.in_flight_until_ns is None or now_ns < self.in_flight_until_ns):
            return Pause.WAIT
        return Pause.SKIP


def begin_available_now(
    now_ns: int, msg_timeout_ns: int, timeout_ns: int | None, *, wait_in_flight: bool
) -> AvailableNow:
    """Return the run that begins now, without a target.

    Args:
        now_ns: ns since the Unix epoch.
        msg_timeout_ns: how long another consumer's messages may be in flight.
        timeout_ns: the time limit of the run; None for no limit.
        wait_in_flight: whether to wait for messages that are in flight or deferred until the time limit.
    """
    return AvailableNow(
        target=None,
        in_flight_until_ns=None if wait_in_flight else now_ns + msg_timeout_ns,
        deadline_ns=None if timeout_ns is None else now_ns + timeout_ns,
        wait_deferred=wait_in_flight,
        stall_ns=None if wait_in_flight else msg_timeout_ns,
        stalled_since_ns=now_ns,
    )
