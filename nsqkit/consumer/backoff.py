"""The consumer's backoff: slow everything down when handlers fail, and find out when to stop doing so.

The rule it guards: one step of the counter per window. A thousand handlers that fail together are one
piece of news, and so are the thousand that succeed afterwards. A window lasts from one step to the next,
and only what was learned in it counts:

- while running, any failure is news, and the first one ends the window;
- while waiting, nothing is: what ends now was delivered before the backoff began;
- while probing, only the result of a *test message* is. Every message received while probing is one (nsqd
  lets exactly one through, see `nsqkit.consumer.flow`), and the first result among them ends the window.

So nobody has to mark messages when all is well: the caller shows this object the messages that arrive while
it is probing, and it knows them again when their results come. go-nsq takes any result as the probe's.

How to read it: the table `COUNTER_STEPS`, the strategies (from a counter to nanoseconds), then `Backoff`,
whose method `_report` is the whole algorithm. Nothing here sends anything: each verb returns the `Action` that
the caller carries out on its `Flow`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import random

SECOND_NS = 1_000_000_000


class State(enum.Enum):
    """Where a `Backoff` is.

    Attributes:
        RUNNING: messages flow; the counter is 0.
        WAITING: nothing flows until the deadline.
        PROBING: one test message is let through, and its result is awaited.
    """

    RUNNING = "running"
    WAITING = "waiting"
    PROBING = "probing"


class Result(enum.Enum):
    """How handling a message ended, as far as backoff cares."""

    SUCCESS = "success"
    FAILURE = "failure"


class Action(enum.Enum):
    """What the caller has to do now; each value is the name of the `Flow` method that does it."""

    BLOCK = "block"
    PROBE = "probe"
    UNBLOCK = "unblock"


# By how much a result moves the counter. A pair that is not listed is no news and changes nothing. After a
# pair that is, the counter says what comes next: at 0 running, above it waiting.
COUNTER_STEPS = {
    (State.RUNNING, Result.FAILURE): +1,
    (State.PROBING, Result.FAILURE): +1,
    (State.PROBING, Result.SUCCESS): -1,
}

# From the counter (1, 2, 3, …) to the nanoseconds to wait. What is below 0 counts as 0.
Strategy = Callable[[int], int]


@attrs.frozen
class ExponentialStrategy:
    """Double the wait at every attempt: ``multiplier_ns * 2**attempt``.

    The first attempt is number 1, so go-nsq's default of one second gives 2 s, 4 s, 8 s, …
    """

    multiplier_ns: int = attrs.field(default=SECOND_NS, validator=attrs.validators.ge(0))

    def __call__(self, attempt: int) -> int:
        return self.multiplier_ns << attempt


@attrs.frozen
class FullJitterStrategy:
    """Wait for a random time below what `ExponentialStrategy` would wait.

    Consumers that failed together, because what they all depend on failed, then don't come back together.
    """

    rng: random.Random
    multiplier_ns: int = attrs.field(default=SECOND_NS, validator=attrs.validators.ge(0))

    def __call__(self, attempt: int) -> int:
        ceiling_ns = self.multiplier_ns << attempt
        # A multiplier of 0 leaves nothing to choose from, which `randrange` refuses (and go-nsq panics at).
        return self.rng.randrange(ceiling_ns) if ceiling_ns else 0


@attrs.define(eq=False, kw_only=True)
class Backoff:
    """Decide when the consumer stops, tries one message, and goes on.

    A failure makes it wait; then one test message is let through, whose success takes the counter down by one
    and whose failure takes it up by one. At 0 everything flows again; above it waits as long as the strategy
    says for that counter. These are go-nsq's rules (startStopContinueBackoff in consumer.go), two of them
    mended: only test messages count while probing, and a ``max_backoff_duration_ns`` below the first step
    shortens that step, where go-nsq then does not back off at all.

    Args:
        strategy: nanoseconds to wait for a counter of 1, 2, …; longer than the maximum counts as the maximum.
        max_backoff_duration_ns: the longest wait, by default go-nsq's two minutes; 0 switches backoff off.

    Attributes:
        state: running, waiting or probing.
        counter: how many more test messages must succeed than fail before everything flows again.
        wait_ns: how long the wait is or, while probing, was; 0 while running.
    """

    strategy: Strategy = attrs.field(factory=ExponentialStrategy)
    max_backoff_duration_ns: int = attrs.field(default=120 * SECOND_NS, validator=attrs.validators.ge(0))
    state: State = attrs.field(default=State.RUNNING, init=False)
    counter: int = attrs.field(default=0, init=False)
    wait_ns: int = attrs.field(default=0, init=False)
    _deadline_ns: int | None = attrs.field(default=None, init=False)
    _test_messages: set[Hashable] = attrs.field(factory=set, init=False)

    def received(self, messages: Iterable[Hashable]) -> None:
        """Take note of messages that have just arrived; only needed while the state is probing.

        Args:
            messages: the messages, or whatever stands for them in `success`, `failure` and `lost`.
        """
        if self.state is State.PROBING:
            self._test_messages.update(messages)

    def success(self, message: Hashable, now_ns: int) -> Action | None:
        """Report that a message was handled; while the state is running this may be left out."""
        return self._report(message, Result.SUCCESS, now_ns)

    def failure(self, message: Hashable, now_ns: int) -> Action | None:
        """Report that handling a message failed, and the user did not ask to leave backoff out of it."""
        return self._report(message, Result.FAILURE, now_ns)

    def lost(self, message: Hashable) -> Action | None:
        """Report that a message will have no result: requeued without backoff, timed out, or lost with its connection.

        When it was the last test message another one is needed.
        """
        if self.state is not State.PROBING or message not in self._test_messages:
            return None
        self._test_messages.remove(message)
        return None if self._test_messages else Action.PROBE

    def next_deadline(self) -> int | None:
        """Return when `handle_deadline` is to be called: at the end of the wait."""
        return self._deadline_ns

    def handle_deadline(self, now_ns: int) -> Action | None:
        """Begin to probe when the wait is over; too early is harmless."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        self._deadline_ns = None
        self.state = State.PROBING
        return Action.PROBE

    def _report(self, message: Hashable, result: Result, now_ns: int) -> Action | None:
        step = COUNTER_STEPS.get((self.state, result))
        if step is None or not self.max_backoff_duration_ns:
            return None
        if self.state is State.PROBING and message not in self._test_messages:
            return None
        self._test_messages.clear()
        self.counter += min(step, self._room_above())
        return self._wait(now_ns) if self.counter else self._run()

    def _room_above(self) -> int:
        # Once the wait is at its maximum a higher counter could not prolong it; it would only demand more
        # successes later, one for each failure of a long outage.
        return 0 if self.wait_ns >= self.max_backoff_duration_ns else 1

    def _wait(self, now_ns: int) -> Action:
        self.wait_ns = min(max(self.strategy(self.counter), 0), self.max_backoff_duration_ns)
        self._deadline_ns = now_ns + self.wait_ns
        self.state = State.WAITING
        return Action.BLOCK

    def _run(self) -> Action:
        self.wait_ns = 0
        self.state = State.RUNNING
        return Action.UNBLOCK
