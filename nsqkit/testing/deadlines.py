"""The deadlines of one event loop: the cancel scopes that a controlled clock cancels.

A clock that is used by several event loops has one ``LoopDeadlines`` for each. Scopes are added and cancelled in their
event loop only; other threads read the earliest deadline, and start turns of the event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import anyio

TURN_COUNT: Final = 12
"""Turns of an event loop in which everything that was woken runs: a cancelled wait, a timer, a writer, two streams in
memory and a socket take one or two each."""


class Time(Protocol):
    """The part of a clock that deadlines depend on."""

    stands: bool
    """True while the clock does not follow the real time."""

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""


def running_loop() -> object:
    """Return the running event loop of asyncio, or the token of trio's.

    Raises:
        RuntimeError: none runs in this thread.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        import trio

        return trio.lowlevel.current_trio_token()


class LoopDeadlines:
    """The cancel scopes of the running event loop, each with its deadline.

    Args:
        loop: the result of ``running_loop``.
        time: the clock.

    Attributes:
        change_count: the number of deadlines that were set or removed.
        late_turns: turns that did not end in time; the clock sets it, and waits for no others before their end.
    """

    def __init__(self, loop: object, time: Time) -> None:
        self.change_count = 0
        self.late_turns: threading.Event | None = None
        self._time = time
        self._lock = threading.Lock()
        self._deadlines: WeakKeyDictionary[anyio.CancelScope, int] = WeakKeyDictionary()
        self._turns = threading.Event()  # set when no turns are left
        self._turns.set()
        self._turns_left = 0
        self._post: Callable[[Callable[[], object]], object]
        self._loop_time: Callable[[], float]
        self._loop = loop if isinstance(loop, asyncio.AbstractEventLoop) else None
        if self._loop is not None:
            self._post = self._loop.call_soon_threadsafe
            self._loop_time = self._loop.time
        else:
            import trio

            self._post = trio.lowlevel.current_trio_token().run_sync_soon
            self._loop_time = trio.lowlevel.current_clock().current_time

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def set(self, scope: anyio.CancelScope, deadline_ns: int) -> None:
        """Cancel ``scope`` at ``deadline_ns``."""
        with self._lock:
            self._deadlines[scope] = deadline_ns
            self.change_count += 1
        # The clock moves first and then wakes this event loop. So a move that this does not see wakes it later.
        self._apply(scope, deadline_ns)

    def remove(self, scope: anyio.CancelScope) -> None:
        """Do not cancel ``scope``."""
        with self._lock:
            is_known = self._deadlines.pop(scope, None) is not None
        if is_known:
            self.change_count += 1
            scope.deadline = math.inf

    def apply(self) -> None:
        """Cancel the scopes whose deadlines have come, and those of a clock that runs at the right real time."""
        for scope, deadline_ns in self._items():
            self._apply(scope, deadline_ns)

    def _apply(self, scope: anyio.CancelScope, deadline_ns: int) -> None:
        left_ns = deadline_ns - self._time.now_ns()
        if left_ns <= 0:
            with self._lock:
                self._deadlines.pop(scope, None)
            scope.cancel()
        elif self._time.stands:
            scope.deadline = math.inf
        else:
            # Event loops wait for whole milliseconds. Rounded up, a wait is seldom too short.
            scope.deadline = self._loop_time() + math.ceil(left_ns / 1e6) / 1e3

    # ---- in any thread ---------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """False while the event loop is between two runs, as a test framework leaves it between two tests."""
        return self._loop is None or self._loop.is_running()

    @property
    def has_ended(self) -> bool:
        """True once the event loop will never run again."""
        return not self._try_post(lambda: None)

    def next_deadline(self, after_ns: int) -> int | None:
        """Return the earliest deadline later than ``after_ns``, None without one."""
        return min((deadline_ns for _, deadline_ns in self._items() if deadline_ns > after_ns), default=None)

    def start_turns(self) -> threading.Event | None:
        """Apply the deadlines in the event loop; the event is set when everything that they wake has run.

        Turns that have not ended begin again, so an event loop that does not run has only one call to make later.

        Returns:
            None if the event loop has ended.
        """
        with self._lock:
            self._turns_left = TURN_COUNT
            if not self._turns.is_set():
                return self._turns
            done = self._turns = threading.Event()
        if self._try_post(self._take_turn):
            return done
        done.set()
        return None

    def _take_turn(self) -> None:
        with self._lock:
            left = self._turns_left
            self._turns_left -= 1
            if not left:
                self._turns.set()
                return
        if left == TURN_COUNT:
            self.apply()
        if not self._try_post(self._take_turn):
            self._turns.set()

    def _try_post(self, function: Callable[[], object]) -> bool:
        try:
            self._post(function)
        except RuntimeError:  # the event loop has ended; trio's RunFinishedError is one, too
            return False
        return True

    def _items(self) -> list[tuple[anyio.CancelScope, int]]:
        with self._lock:
            return list(self._deadlines.items())
