"""nsqd's own timing, for whoever depends on it: ``--timing=nsqd``.

The rule it guards: where this broker is exact by itself, it can be as late as nsqd is, for the same reasons. Message
timeouts and deferred messages are found by a scan every 100 ms that looks at some channels, chosen at random, and again
at once while a quarter of them had something due; a new channel is known to it only when its list is made anew, every
5 s (nsqd/nsqd.go, queueScanLoop). Messages stay in a client's output buffer until it is full, its time is over, the
client takes no more or is sent something else (nsqd/protocol_v2.go, messagePump).

How to read it: ``ScannedAgenda`` leaves message deadlines to ``QueueScan``; ``NsqdFrameBuffer`` is the output buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.session.frame_buffer import FrameBuffer
from nsqkit.broker.core.timers import Agenda
from nsqkit.wire.commands import CommandDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.timers import Timed
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.rules import Rules

SCAN_INTERVAL_NS: Final = 100_000_000
REFRESH_INTERVAL_NS: Final = 5_000_000_000
DIRTY_SHARE: Final = 0.25
"""nsqd has no flags for these three."""


class ScannedAgenda(Agenda):
    """An agenda that does not keep the deadlines of messages."""

    __slots__ = ()

    def schedule_messages(self, owner: Timed, due_ns: int) -> None:
        """Do nothing: the scan finds them."""


class QueueScan:
    """Looks for messages whose time has come, now and then.

    Args:
        channels: returns those that there are.
        selection_count: how many are looked at in one go.
        random: chooses them.

    Attributes:
        due_ns: kept by the agenda.
    """

    def __init__(
        self, channels: Callable[[], Iterable[Channel]], selection_count: int, random: Random
    ) -> None:
        self.due_ns: int | None = None
        self._channels = channels
        self._selection_count = selection_count
        self._random = random
        self._known: list[Channel] = []
        self._refresh_ns = 0

    def start(self, now_ns: int) -> int:
        """Return when to look first; the channels of this moment are known."""
        self._known = list(self._channels())
        self._refresh_ns = now_ns + REFRESH_INTERVAL_NS
        return now_ns + SCAN_INTERVAL_NS

    def handle_deadline(self, now_ns: int) -> int:
        """Look at some of the known channels; return when to do so again."""
        if now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + REFRESH_INTERVAL_NS
            self._known = list(self._channels())
        count = min(self._selection_count, len(self._known))
        while count:
            chosen = self._random.sample(self._known, count)
            if sum(channel.look_for_due(now_ns) for channel in chosen) <= count * DIRTY_SHARE:
                break
        return now_ns + SCAN_INTERVAL_NS


class NsqdFrameBuffer(FrameBuffer):
    """A buffer that holds messages back as nsqd's output buffer does."""

    __slots__ = ("_buffered", "_buffered_size", "_flush_ns", "_interval_ns")

    def __init__(self, decoder: CommandDecoder) -> None:
        super().__init__(decoder)
        self._buffered: list[bytes] = []
        self._buffered_size = 0
        self._interval_ns = 0
        self._flush_ns = 0

    def flush_every(self, interval_ns: int, now_ns: int) -> None:
        """Let messages wait for no longer than such an interval; 0 is for any time."""
        self._interval_ns = interval_ns
        self._flush_ns = now_ns

    @property
    def flush_ns(self) -> int | None:
        """When to call ``flush``: intervals begin with the client's, not with a message."""
        return self._flush_ns if self._buffered and self._interval_ns else None

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages, which wait until there are ``buffer_size`` bytes of them."""
        size = sum(map(len, frames))
        self._buffered += frames
        self._buffered_size += size
        self.size += size
        if self._buffered_size >= buffer_size:
            self.flush()
        elif self._interval_ns and now_ns >= self._flush_ns:
            self._flush_ns += self._interval_ns * (1 + (now_ns - self._flush_ns) // self._interval_ns)

    def send(self, frame: bytes) -> None:
        """Add one frame behind the messages, which wait no longer."""
        self.flush()
        super().send(frame)

    def flush(self) -> None:
        """Have no message wait any longer."""
        buffered, self._buffered = self._buffered, []
        self.size -= self._buffered_size  # it is counted again where it goes
        self._buffered_size = 0
        self.send_all(buffered)


def make_frame_buffer(rules: Rules, options: BrokerOptions) -> FrameBuffer:
    """Return the buffer of a session whose commands are checked by ``rules``."""
    decoder = CommandDecoder(rules, max_msg_size=options.max_msg_size, max_body_size=options.max_body_size)
    return NsqdFrameBuffer(decoder) if options.timing == "nsqd" else FrameBuffer(decoder)
