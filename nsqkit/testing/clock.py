"""A clock for tests: it follows the real time until a test moves it, or stands still.

    test ── advance(60) ──▶ clock ──▶ deadline, deadline, … ──▶ every event loop that waits for the clock

One clock serves the brokers and the clients of a test, in any number of threads and event loops. ``advance`` goes from
deadline to deadline and waits at each until its effects are there. A jump would make a broker believe that its clients
were silent for the whole time.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import anyio

from nsqkit.clock import NS_PER_S
from nsqkit.errors import OptionError
from nsqkit.options.checks import take_seconds
from nsqkit.testing.blocking import wait
from nsqkit.testing.deadlines import LoopDeadlines, running_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nsqkit.options.durations import Seconds

Mode = Literal["running", "manual", "auto", "real"]

START_NS: Final = 1_704_067_200 * NS_PER_S
"""2024-01-01: the first time of a clock that stands still, so that runs are repeatable."""

WINDOW_NS: Final = 10_000_000
"""Deadlines that follow another one within this time are handled together."""

WINDOW_NS_MAX: Final = NS_PER_S
"""The time doubles up to this one, which is below all limits of heartbeats, after every ``WINDOW_STEPS`` steps."""

WINDOW_STEPS: Final = 200

ANSWER_LIMIT: Final = 1.0
"""Real seconds in which a client answers a heartbeat."""

TURN_LIMIT: Final = 1.0
"""Real seconds in which an event loop takes its turns; it takes none while a test blocks it."""

TURN_WAITS: Final = 10
"""Waits of equal length that make up ``TURN_LIMIT``; while the process is stopped, only one of them can end."""

QUIET: Final = 0.002
"""Real seconds without activity after which everything has reacted to a step."""

QUIET_LOOKS: Final = 4
"""Looks without activity that this takes as well: on a busy machine, a single one may take longer than ``QUIET``."""

QUIET_LIMIT: Final = 0.1
"""Real seconds for which a step waits for that, while clients are busy."""

LOOKS_LIMIT: Final = 50
"""Looks for which a step waits as well, for an answer or while clients are busy."""

POLL_INTERVAL: Final = 0.0005
"""Real seconds between two looks at the connections."""

IDLE: Final = 0.01
"""Real seconds without activity after which a clock in mode "auto" moves."""

ADVANCE_MAX: Final = 1e9
"""Seconds of one ``advance``; 30 years."""


class Participant(Protocol):
    """A connection whose traffic ``advance`` waits for; the clock reads it in other threads."""

    @property
    def traffic_count(self) -> int:
        """The number of reads in either direction."""

    @property
    def heartbeat_count(self) -> int:
        """The number of heartbeats that were passed to the client."""

    @property
    def owes_answer(self) -> bool:
        """True if the client has sent nothing since the last heartbeat."""


class ControlledClock:
    """A clock that a test controls, for brokers and clients (``nsqkit.clock.Clock``).

    Args:
        mode: "running": the real time; ``advance`` adds to it, and no real time counts meanwhile. "manual": it stands
            still but for ``advance``. "auto": it stands still, and when there is no traffic on any connection and no
            new deadline for 10 ms, it moves to the next deadline. "real": the real time; it cannot be moved.
        start_ns: the first time, ns since the Unix epoch; by default the present time, for "manual" and "auto"
            2024-01-01.

    Attributes:
        mode: the mode.
        stands: True while it does not follow the real time.

    Raises:
        OptionError: there is no such mode.
    """

    def __init__(self, mode: Mode = "running", start_ns: int | None = None) -> None:
        if mode not in get_args(Mode):
            raise OptionError(f'mode is {mode!r}; allowed are "running", "manual", "auto" and "real"')
        self.mode: Mode = mode
        self._lock = threading.Lock()
        self._stepping = threading.Lock()  # held by the thread that moves the clock
        self._loops: dict[object, LoopDeadlines] = {}
        self._participants: dict[Participant, None] = {}
        self._late: set[Participant] = set()  # did not answer in time, and have not answered since
        self._driver: threading.Thread | None = None
        if start_ns is None:
            start_ns = START_NS if mode in {"manual", "auto"} else time.time_ns()
        self.stands = mode in {"manual", "auto"}
        # The parts of the time: one attribute, since other threads read it while it changes.
        self._parts: tuple[int, Callable[[], int]] = (start_ns, _stand)
        if not self.stands:
            self._run()

    # ---- as a Clock ------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Return the time, ns since the Unix epoch."""
        base_ns, elapsed_ns = self._parts
        return base_ns + elapsed_ns()

    async def wait_until(self, deadline_ns: int) -> None:
        """Return at ``deadline_ns``, or a rounding error before it."""
        if deadline_ns <= self.now_ns():
            await anyio.lowlevel.checkpoint()
            return
        with anyio.CancelScope() as scope:
            self.cancel_at(scope, deadline_ns)
            try:
                await anyio.sleep_forever()
            finally:
                self.cancel_at(scope, None)

    def cancel_at(self, scope: anyio.CancelScope, deadline_ns: int | None) -> None:
        """Cancel ``scope`` at ``deadline_ns``; None for never. A later call for the same scope replaces the time."""
        deadlines = self._loops.get(running_loop()) or self.add_loop()
        if deadline_ns is None:
            deadlines.remove(scope)
            return
        deadlines.set(scope, deadline_ns)
        if self.mode == "auto":
            self._start_driver()

    # ---- for tests -------------------------------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """The time, in seconds since the Unix epoch."""
        return self.now_ns() / NS_PER_S

    def advance(self, seconds: Seconds) -> Awaitable[None]:
        """Move the clock forward; in an async test await the result.

        The clock stops at each deadline of a broker or a client on the way, until it was handled, and until the
        clients have answered their heartbeats, which may take a real second for a client that does not answer. A
        client has no other time to react: a handler that waits for anything but this clock misses later deadlines.

        Raises:
            OptionError: ``seconds`` is negative.
            RuntimeError: the mode is "real".
        """
        left_ns = round(take_seconds("seconds", seconds, ADVANCE_MAX) * NS_PER_S)
        self._check_control()
        return wait(partial(self._advance, left_ns))

    def advance_to_next(self) -> Awaitable[None]:
        """Move the clock to the next deadline of any broker or client; in an async test await the result.

        Raises:
            RuntimeError: nothing waits for the clock, or the mode is "real".
        """
        self._check_control()
        return wait(self._advance_to_next)

    def _check_control(self) -> None:
        if self.mode == "real":
            raise RuntimeError('the clock is in mode "real" and cannot be moved; allowed are the other modes')

    # ---- for servers -----------------------------------------------------------------------------------------------

    def add_loop(self) -> LoopDeadlines:
        """Have ``advance`` let the running event loop react, even while nothing in it waits for the clock."""
        loop = running_loop()
        with self._lock:
            for other, known in list(self._loops.items()):
                if known.has_ended:
                    del self._loops[other]
            return self._loops.setdefault(loop, LoopDeadlines(loop, self))

    def attach(self, participant: Participant) -> None:
        """Have ``advance`` wait for the traffic of a connection, until ``detach``."""
        with self._lock:
            self._participants[participant] = None

    def detach(self, participant: Participant) -> None:
        """Forget a connection."""
        with self._lock:
            self._participants.pop(participant, None)
            self._late.discard(participant)

    # ---- moving, in any thread without an event loop ---------------------------------------------------------------

    def _advance(self, left_ns: int) -> None:
        with self._still():
            answered = self._begin()
            next_ns: int | None = None
            step_count = 0
            while left_ns > 0:
                window_ns = min(WINDOW_NS << step_count // WINDOW_STEPS, WINDOW_NS_MAX)
                now_ns, handled_ns = self.now_ns(), next_ns
                next_ns = self._next_deadline(now_ns)
                if next_ns is None:
                    next_ns = now_ns + left_ns
                elif handled_ns is not None and next_ns <= handled_ns + window_ns:
                    next_ns = handled_ns + window_ns
                step_count += 1
                step_ns = max(min(next_ns - now_ns, left_ns), 0)
                left_ns -= step_ns
                self._step(step_ns, answered)

    def _advance_to_next(self) -> None:
        with self._still():
            answered = self._begin()
            now_ns = self.now_ns()
            next_ns = self._next_deadline(now_ns)
            if next_ns is None:
                raise RuntimeError("nothing waits for the clock, so there is no next deadline")
            self._step(next_ns - now_ns, answered)

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Stop a running clock: a deadline that passed by itself could come together with the next one."""
        with self._stepping:
            runs = not self.stands
            try:
                if runs:
                    self.stands = True
                    self._take_turns()  # no event loop waits for the real time from now on
                    self._parts = (self.now_ns(), _stand)
                yield
            finally:
                if runs:
                    self._run()
                    self.stands = False
                    self._take_turns()

    def _run(self) -> None:
        self._parts = (self.now_ns() - time.monotonic_ns(), time.monotonic_ns)

    def _begin(self) -> dict[Participant, int]:
        """Let the effects of earlier actions come; return the heartbeats that are not waited for."""
        self._settle(None)
        self._forget_answered()
        return {participant: participant.heartbeat_count for participant in self._all_participants()}

    def _step(self, step_ns: int, answered: dict[Participant, int]) -> None:
        self._parts = (self.now_ns() + step_ns, _stand)
        self._settle(answered)

    def _settle(self, answered: dict[Participant, int] | None) -> None:
        """Wait until all event loops have handled the present time and the clients have reacted.

        Args:
            answered: connections, each with the number of its heartbeats that are not waited for; None for all.
        """
        self._take_turns()
        start = now = changed = time.monotonic()
        activity = self._activity()
        look_count = quiet_count = 0
        while True:
            time.sleep(POLL_INTERVAL)
            self._take_turns()
            now = time.monotonic()
            look_count += 1
            quiet_count += 1
            if (count := self._activity()) != activity:
                activity, changed, quiet_count = count, now, 0
            owing = self._owing(answered) if answered is not None else []
            has_waited = look_count >= LOOKS_LIMIT and now - start >= (ANSWER_LIMIT if owing else QUIET_LIMIT)
            is_quiet = now - changed >= QUIET and quiet_count >= QUIET_LOOKS
            if has_waited or (is_quiet and not owing):
                self._late.update(owing)
                return

    def _owing(self, answered: dict[Participant, int]) -> list[Participant]:
        """Return the connections whose clients owe an answer and will probably give it."""
        self._forget_answered()
        return [
            participant
            for participant in self._all_participants()
            if participant.owes_answer
            and participant not in self._late
            and participant.heartbeat_count != answered.get(participant, 0)
        ]

    def _forget_answered(self) -> None:
        self._late = {participant for participant in self._late if participant.owes_answer}

    def _activity(self) -> int:
        """Return a number that grows with traffic, and with each deadline that is set or removed."""
        traffic_count = sum(participant.traffic_count for participant in self._all_participants())
        return traffic_count + sum(loop.change_count for loop in self._all_loops())

    def _all_participants(self) -> list[Participant]:
        with self._lock:
            return list(self._participants)

    def _all_loops(self) -> list[LoopDeadlines]:
        with self._lock:
            return list(self._loops.values())

    def _next_deadline(self, after_ns: int) -> int | None:
        deadlines = (loop.next_deadline(after_ns) for loop in self._all_loops())
        return min((deadline_ns for deadline_ns in deadlines if deadline_ns is not None), default=None)

    def _take_turns(self) -> None:
        """Have all event loops handle the present time, and wait for them; forget those that have ended."""
        with self._lock:
            loops = list(self._loops.items())
        turns = [(key, loop, loop.start_turns()) for key, loop in loops]
        waits = repeat(TURN_LIMIT / TURN_WAITS, TURN_WAITS)
        for key, loop, done in turns:
            if done is None:
                with self._lock:
                    self._loops.pop(key, None)
            elif loop.is_running and (loop.late_turns is None or loop.late_turns.is_set()):
                any(map(done.wait, waits))
                loop.late_turns = None if done.is_set() else done

    # ---- mode "auto" -----------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        with self._lock:
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="nsqkit clock", daemon=True)
                self._driver.start()

    def _drive(self) -> None:
        """Move the clock whenever everything is idle, while something waits for it."""
        seen = self._activity()
        while True:
            time.sleep(IDLE)
            if self._ends_driver():
                return
            if (activity := self._activity()) != seen:
                seen = activity
                continue
            try:
                self._advance_to_next()
            except RuntimeError:  # the last deadline was removed
                continue
            seen = self._activity()

    def _ends_driver(self) -> bool:
        """Return whether the driver has no work; a deadline that is set later starts another one."""
        with self._lock:
            if any(loop.next_deadline(-1) is not None for loop in self._loops.values() if not loop.has_ended):
                return False
            self._driver = None
            return True


def _stand() -> int:
    return 0
