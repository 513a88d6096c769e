"""Whether a client is still there: heartbeats to it, and how long it may be silent or take nothing.

    heard ──── two intervals without a command ────▶ gone
    a heartbeat waits ──── one interval in which nothing is taken ────▶ gone

The rule it guards: a connection that does not work any more ends, in either direction. nsqd gives each read two
heartbeat intervals, and each write one (nsqd/client_v2.go); a client without heartbeats is never left for its silence.

Heartbeats fall on ticks that all sessions share. Of ten thousand idle clients each would wake the broker by itself
otherwise, which is nearly all that they cost. None is late by that, but up to a tick early: a client may count a broker
as dead that is silent for an interval.

How to read it: ``why_gone`` and ``beats`` are asked when a deadline has come; ``next_deadline`` says when that is.
"""

from __future__ import annotations

from typing import Final

from nsqkit.wire.identify import NS_PER_MS

HANDSHAKE_TIMEOUT_NS: Final = 5 * 10**9
"""How long a client may take for the handshake of TLS; as in nsqd."""

TICK_NS: Final = 20_000_000
"""Between two moments at which heartbeats are made: a fiftieth of the shortest interval that a client may ask for."""


class Heartbeat:
    """The heartbeats of one session.

    Args:
        interval_ns: between two heartbeats.
        now_ns: the time at which the client connected.

    Attributes:
        heard_ns: when the client said something last.
        taken: whether anything was sent since the last heartbeat was made.
    """

    __slots__ = ("_beat_ns", "_handshake_end_ns", "_interval_ns", "_silence_ns", "heard_ns", "taken")

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self.heard_ns = now_ns
        self.taken = True
        self._handshake_end_ns = 0
        self.begin(interval_ns, now_ns)
        self.allow_silence(interval_ns)

    def begin(self, interval_ns: int, now_ns: int) -> None:
        """Make heartbeats from now on; 0 is none."""
        self._interval_ns = interval_ns
        self._beat_ns = _tick(now_ns + interval_ns)

    def allow_silence(self, interval_ns: int) -> None:
        """Let the client be silent for two such intervals; 0 is for ever."""
        self._silence_ns = 2 * interval_ns

    def shake_hands(self, now_ns: int) -> int:
        """Begin the handshake of TLS; return when it has to be over."""
        self._handshake_end_ns = now_ns + HANDSHAKE_TIMEOUT_NS
        return self._handshake_end_ns

    def handshake_is_over(self, now_ns: int) -> bool:
        """Take note that the handshake goes on; tell whether it takes too long."""
        self.heard_ns = now_ns  # the client can neither say nor take anything meanwhile
        self.taken = True
        return now_ns >= self._handshake_end_ns

    def why_gone(self, now_ns: int, *, has_output: bool) -> str | None:
        """Return why the client counts as gone; None if it does not.

        Args:
            now_ns: the time.
            has_output: whether anything waits to be sent.
        """
        if self._silence_ns and now_ns >= self.heard_ns + self._silence_ns:
            interval_ms = self._silence_ns // 2 // NS_PER_MS
            return f"no command for two heartbeat intervals of {interval_ms} ms"
        if self._interval_ns and now_ns >= self._beat_ns and has_output and not self.taken:
            return f"took nothing for a heartbeat interval of {self._interval_ns // NS_PER_MS} ms"
        return None

    def beats(self, now_ns: int) -> bool:
        """Tell whether a heartbeat is to be made now; the next one is due an interval later."""
        if not self._interval_ns or now_ns < self._beat_ns:
            return False
        self._beat_ns = _tick(now_ns + self._interval_ns)
        self.taken = False
        return True

    def next_deadline(self, now_ns: int) -> int | None:
        """Return when to ask again, in ns; None for never."""
        deadlines_ns = []
        if self._silence_ns:
            deadlines_ns.append(self.heard_ns + self._silence_ns)
        if self._interval_ns:
            deadlines_ns.append(self._beat_ns)
        if self._handshake_end_ns > now_ns:
            deadlines_ns.append(self._handshake_end_ns)
        return min(deadlines_ns, default=None)


def _tick(time_ns: int) -> int:
    """Return the last tick until then."""
    return time_ns // TICK_NS * TICK_NS
