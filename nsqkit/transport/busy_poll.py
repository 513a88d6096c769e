"""Busy polling: between publishes that follow each other closely, the event loop polls its sockets without sleeping.

A client that publishes one message at a time and waits for each answer makes the event loop sleep and wake up once per
message. That takes longer than processing the message. docs/decisions/0016 has the measurements, and the cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from nsqkit.clock import Clock

WAKE_UP_NS: Final = 50_000
"""The time that a loop needs to wake up: it sees a publish so much later than it came."""

RETRY_NS: Final = 2_000_000
"""For so long after polling has ended, ``WAKE_UP_NS`` is not allowed for.

So polling that turns out useless takes at most a twentieth of a core.
"""


class BusyPoll:
    """Keeps one asyncio event loop from sleeping after a publish.

    Args:
        duration_ns: polling begins when a publish comes within this time after the answer to the last one, and ends
            this time after the last answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, duration_ns: int) -> None:
        self._loop = loop
        self._clock = clock
        self._duration_ns = duration_ns
        self._received_ns = 0
        self._answered_ns = 0
        self._end_ns = 0
        self._ended_ns = 0
        self._is_polling = False

    def record(self, received_ns: int) -> None:
        """Record the time of the publish that is answered now; the same time again has no effect."""
        if received_ns == self._received_ns:
            return
        self._received_ns = received_ns
        gap_ns = received_ns - self._answered_ns
        self._answered_ns = now_ns = self._clock.now_ns()
        if not self._is_polling:
            allowance_ns = WAKE_UP_NS if now_ns - self._ended_ns > RETRY_NS else 0
            if gap_ns >= self._duration_ns + allowance_ns:
                return
            self._is_polling = True
            self._loop.call_soon(self._poll)
        self._end_ns = now_ns + self._duration_ns

    def _poll(self) -> None:
        # A loop with a callback that is ready polls its sockets with a timeout of 0.
        now_ns = self._clock.now_ns()
        if now_ns < self._end_ns:
            self._loop.call_soon(self._poll)
        else:
            self._is_polling = False
            self._ended_ns = now_ns
