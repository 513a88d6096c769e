"""The heartbeats of a session, and the limits for a client that is silent or reads nothing.

    two intervals without a command ────────────────────────────▶ timed out
    a heartbeat waits, and for one interval nothing is sent ────▶ timed out

nsqd gives each read two heartbeat intervals and each write one (nsqd/client_v2.go). A client without heartbeats is
never timed out for its silence.

Heartbeats fall on ticks that all sessions share. Otherwise each of ten thousand idle clients would wake the broker by
itself, which is nearly all that they cost. A heartbeat is never late by that, but up to a tick early: a client may
treat a broker as lost that is silent for an interval.
"""

from __future__ import annotations

from typing import Final

from nsqkit.wire.identify import NS_PER_MS

HANDSHAKE_TIMEOUT_NS: Final = 5 * 10**9
"""The limit for the handshake of TLS, as in nsqd."""

TICK_NS: Final = 20_000_000
"""Between two ticks: a fiftieth of the shortest interval that a client may request."""


class Heartbeat:
    """The heartbeats of one session.

    Attributes:
        received_ns: the time of the client's last command.
        has_sent: bytes were sent since the last heartbeat was made.
    """

    __slots__ = ("_due_ns", "_handshake_end_ns", "_interval_ns", "_silence_ns", "has_sent", "received_ns")

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self.received_ns = now_ns
        self.has_sent = True
        self._handshake_end_ns = 0
        self.start(interval_ns, now_ns)
        self.limit_silence(interval_ns)

    def start(self, interval_ns: int, now_ns: int) -> None:
        """Make heartbeats from now on; 0 is none."""
        self._interval_ns = interval_ns
        self._due_ns = _tick(now_ns + interval_ns)

    def limit_silence(self, interval_ns: int) -> None:
        """Let the client be silent for two such intervals; 0 is no limit."""
        self._silence_ns = 2 * interval_ns

    def start_handshake(self, now_ns: int) -> int:
        """Start the handshake of TLS; return its deadline."""
        self._handshake_end_ns = now_ns + HANDSHAKE_TIMEOUT_NS
        return self._handshake_end_ns

    def continue_handshake(self, now_ns: int) -> bool:
        """Record that the handshake is under way; return False if its deadline has passed."""
        self.received_ns = now_ns  # there are no commands and no heartbeats meanwhile
        self.has_sent = True
        return now_ns < self._handshake_end_ns

    def timeout_reason(self, now_ns: int, *, has_output: bool) -> str | None:
        """Return why the session ends, None if it does not; ``has_output`` means that bytes wait to be sent."""
        if self._silence_ns and now_ns >= self.received_ns + self._silence_ns:
            interval_ms = self._silence_ns // 2 // NS_PER_MS
            return f"no command for two heartbeat intervals of {interval_ms} ms"
        if self._interval_ns and now_ns >= self._due_ns and has_output and not self.has_sent:
            return f"took nothing for a heartbeat interval of {self._interval_ns // NS_PER_MS} ms"
        return None

    def advance(self, now_ns: int) -> bool:
        """Return whether a heartbeat has to be made now; the next one is due an interval later."""
        if not self._interval_ns or now_ns < self._due_ns:
            return False
        self._due_ns = _tick(now_ns + self._interval_ns)
        self.has_sent = False
        return True

    def next_deadline(self, now_ns: int) -> int | None:
        """Return the earliest deadline, None for none."""
        deadlines_ns = []
        if self._silence_ns:
            deadlines_ns.append(self.received_ns + self._silence_ns)
        if self._interval_ns:
            deadlines_ns.append(self._due_ns)
        if self._handshake_end_ns > now_ns:
            deadlines_ns.append(self._handshake_end_ns)
        return min(deadlines_ns, default=None)


def _tick(time_ns: int) -> int:
    """Return the last tick until then."""
    return time_ns // TICK_NS * TICK_NS
