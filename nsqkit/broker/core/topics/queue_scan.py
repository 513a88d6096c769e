"""nsqd's own timing of messages that time out or are deferred: ``--timing=nsqd``.

By default a broker is exact. With this option it can be as late as nsqd is, for the same reasons: a scan every 100 ms
examines some channels, chosen at random, and again at once while a quarter of them had something due. A new channel is
scanned only after the list of channels was rebuilt, every 5 s (nsqd/nsqd.go, queueScanLoop).

``session.nsqd_frame_buffer`` is the other half of that timing: nsqd's output buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.timers import Timers

if TYPE_CHECKING:
    from random import Random

    from nsqkit.broker.core.timers import Timed
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.registry import Topics

SCAN_INTERVAL_NS: Final = 100_000_000
REFRESH_INTERVAL_NS: Final = 5_000_000_000
DIRTY_SHARE: Final = 0.25
"""nsqd has no flags for these three."""


class ScannedTimers(Timers):
    """Timers without the deadlines of messages, which the scan finds."""

    __slots__ = ()

    def schedule_messages(self, owner: Timed, due_ns: int) -> None:
        """Do nothing."""


class QueueScan:
    """Looks for messages whose time has come, every 100 ms, in channels that ``random`` chooses.

    Attributes:
        due_ns: the time of the next scan.
    """

    def __init__(self, topics: Topics, random: Random) -> None:
        self.due_ns: int | None = None
        self._topics = topics
        self._selection_count = topics.options.queue_scan_selection_count
        self._random = random
        self._known: list[Channel] = []
        self._refresh_ns = 0

    def start(self, now_ns: int) -> int:
        """Make the list of channels; return the time of the first scan."""
        self._known = list(self._topics.channels())
        self._refresh_ns = now_ns + REFRESH_INTERVAL_NS
        return now_ns + SCAN_INTERVAL_NS

    def handle_deadline(self, now_ns: int) -> int:
        """Scan some of the channels; return the time of the next scan."""
        if now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + REFRESH_INTERVAL_NS
            self._known = list(self._topics.channels())
        count = min(self._selection_count, len(self._known))
        while count:
            chosen = self._random.sample(self._known, count)
            if sum(channel.queue_all_due(now_ns) for channel in chosen) <= count * DIRTY_SHARE:
                break
        return now_ns + SCAN_INTERVAL_NS
