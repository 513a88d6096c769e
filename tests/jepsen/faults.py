"""The faults of one broker in a history: which were when, and what a kill may have undone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from tests.jepsen.history import Event
from tests.jepsen.promises import DELAYS, DISK_FAULTS

if TYPE_CHECKING:
    from tests.jepsen.checker import Message


@attrs.define(eq=False)
class Interval:
    """One fault, from its beginning to its end."""

    fault: str
    begin: float
    end: float = math.inf


@attrs.frozen
class Kill:
    """The end of a process that could write nothing.

    Attributes:
        time: when.
        oldest: by channel, when the oldest message was published that might not be recorded as finished.
        unknown: messages without an answer, which count in a channel if they come there later.
    """

    time: float
    oldest: Mapping[str, float]
    unknown: Sequence[Message]

    def may_undo(self, channel: str, stored: float) -> bool:
        """Return whether the FIN of a message that was stored by then may be undone. Call it at the end."""
        later = [
            message.invoked
            for message in self.unknown
            if channel in message.copies and message.copies[channel].deliveries[0].time > self.time
        ]
        return stored >= min([self.oldest[channel], *later])


@attrs.define(eq=False)
class BrokerFaults:
    """The faults of one broker so far."""

    intervals: list[Interval] = attrs.field(factory=list)
    kills: list[Kill] = attrs.field(factory=list)

    def begin(self, event: Event) -> None:
        """Note the beginning of a fault."""
        self.intervals.append(Interval(event.fault, event.time))

    def was_late(self, event: Event) -> None:
        """Note that frames may have been received late."""
        self.intervals.append(Interval("late", event.time - event.count / 1000, event.time))

    def end(self, event: Event) -> None:
        """Note the end of the last fault of this name.

        Raises:
            KeyError: there is none.
        """
        for interval in reversed(self.intervals):
            if interval.fault == event.fault and interval.end == math.inf:
                interval.end = event.time
                return
        raise KeyError(f"a fault {event.fault!r} that has not ended")

    def had(self, faults: Collection[str], since: float = 0.0, until: float = math.inf) -> bool:
        """Return whether one of these faults was there at some time of that span."""
        for interval in reversed(self.intervals):
            if interval.fault in faults and interval.end >= since and interval.begin <= until:
                return True
        return False

    def delayed(self, since: float, until: float) -> bool:
        """Return whether frames may have been late."""
        return self.had(DELAYS, since, until)

    def recorded_until(self, time: float, sync_timeout: float) -> float:
        """Return the time of the last FINs that are recorded on disk for certain at ``time``.

        A disk that fails and a stopped process record nothing.
        """
        recorded = time - sync_timeout
        for interval in reversed(self.intervals):
            if interval.fault in DISK_FAULTS | {"stop"} and interval.begin <= time and interval.end > recorded:
                recorded = min(recorded, interval.begin - sync_timeout)
        return recorded
