"""The consumer's backoff: slow everything down when handlers fail, and find out when to stop doing so.

The rule it guards: one step of the counter per window. A thousand handlers that fail together are one
piece of news, and so are the thousand that succeed afterwards. A window lasts from one step to the next,
and only what was learned in it counts:

- while running, any failure is news, and the first one ends the window;
- while waiting, nothing is: what ends now was delivered before the backoff began;
- while probing, only the result of *the test message* is: the one message that nsqd was asked for.

So nobody has to mark messages when all is well: the caller shows this object the test message when it arrives
(`nsqkit.consumer.flow` can tell), and it knows it again when its result comes. go-nsq takes any result as the
probe's.

How to read it: the table `COUNTER_STEPS`, then `Backoff`, whose method `_report` is the whole algorithm. Nothing
here sends anything: each verb returns the `Action` that the caller carries out on its `Flow`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import random

SECOND_NS = 1_000_000_000


class BackoffState(enum.Enum):
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
    (BackoffState.RUNNING, Result.FAILURE): +1,
    (BackoffState.PROBING, Result.FAILURE): +1,
    (BackoffState.PROBING, Result.SUCCESS): -1,
}

Strategy = Callable[[int], int]
"""From the counter (1, 2, 3, …) to the nanoseconds to wait at most; what is below 0 counts as 0."""


@attrs.frozen
class ExponentialStrategy:
    """Double the wait at every attempt: ``multiplier_ns * 2**attempt``.

    The first attempt is number 1, so go-nsq's default of one second gives 2 s, 4 s, 8 s, …
    """

    multiplier_ns: int = attrs.field(default=SECOND_NS, validator=attrs.validators.ge(0))

    def __call__(self, attempt: int) -> int:
        return self.multiplier_ns << attempt


@attrs.define(eq=False, kw_only=True)
class Backoff:
    """Decide when the consumer stops, tries one message, and goes on.

    A failure makes it wait; then one test message is let through, whose success takes the counter down by one
    and whose failure takes it up by one. At 0 everything flows again; above it waits as long as the strategy
    says for that counter. These are go-nsq's rules (startStopContinueBackoff in consumer.go), two of them
    mended: only the test message counts while probing, and a ``max_backoff_duration_ns`` below the first step
    shortens that step, where go-nsq then does not back off at all.

    Args:
        strategy: nanoseconds to wait for a counter of 1, 2, …; longer than the maximum counts as the maximum.
        max_backoff_duration_ns: the longest wait, by default go-nsq's two minutes; 0 switches backoff off.
        jitter: draws each wait anew, between 0 and what the strategy says (*full jitter*), so that consumers
            which failed together don't come back together. None waits exactly as long as the strategy says.

    Attributes:
        state: running, waiting or probing.
        counter: how many more test messages must succeed than fail before everything flows again.
        wait_ns: how long the wait is or, while probing, was; 0 while running.
        test_message: the message whose result is awaited; None if there is none, or it has not come yet.
    """

    strategy: Strategy = attrs.field(factory=ExponentialStrategy)
    max_backoff_duration_ns: int = attrs.field(default=120 * SECOND_NS, validator=attrs.validators.ge(0))
    jitter: random.Random | None = None
    state: BackoffState = attrs.field(default=BackoffState.RUNNING, init=False)
    counter: int = attrs.field(default=0, init=False)
    wait_ns: int = attrs.field(default=0, init=False)
    test_message: Hashable | None = attrs.field(default=None, init=False)
    _deadline_ns: int | None = attrs.field(default=None, init=False)

    def received(self, test_message: Hashable) -> None:
        """Take note that the test message has come: the first message since `Action.PROBE` was carried out.

        Args:
            test_message: the message, or whatever stands for it in `success`, `failure` and `lost`.
        """
        assert self.state is BackoffState.PROBING, f"a test message came while {self.state.value}"
        assert self.test_message is None, "there is one test message at a time"
        self.test_message = test_message

    def success(self, message: Hashable, now_ns: int) -> Action | None:
        """Report that a message was handled; needed for the test message only."""
        return self._report(message, Result.SUCCESS, now_ns)

    def failure(self, message: Hashable, now_ns: int) -> Action | None:
        """Report that handling a message failed, and the user did not ask to leave backoff out of it."""
        return self._report(message, Result.FAILURE, now_ns)

    def lost(self, message: Hashable) -> Action | None:
        """Report that a message will have no result: requeued without backoff, timed out, or lost with its connection.

        When it was the test message another one is needed.
        """
        if self.test_message is None or message != self.test_message:
            return None
        self.test_message = None
        return Action.PROBE

    def next_deadline(self) -> int | None:
        """Return when `handle_deadline` is to be called: at the end of the wait."""
        return self._deadline_ns

    def handle_deadline(self, now_ns: int) -> Action | None:
        """Begin to probe when the wait is over; too early is harmless."""
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return None
        self._deadline_ns = None
        self.state = BackoffState.PROBING
        return Action.PROBE

    def _report(self, message: Hashable, result: Result, now_ns: int) -> Action | None:
        step = COUNTER_STEPS.get((self.state, result))
        if step is None or not self.max_backoff_duration_ns:
            return None
        if self.state is BackoffState.PROBING and message != self.test_message:
            return None
        self.test_message = None
        # A step up that would not prolong the wait is not made: it would only demand more successes later, one
        # for each failure of a long outage.
        if (
            step < 0
            or not self.counter
            or self._ceiling_ns(self.counter + 1) > self._ceiling_ns(self.counter)
        ):
            self.counter += step
        return self._wait(now_ns) if self.counter else self._run()

    def _ceiling_ns(self, counter: int) -> int:
        return min(max(self.strategy(counter), 0), self.max_backoff_duration_ns)

    def _wait(self, now_ns: int) -> Action:
        ceiling_ns = self._ceiling_ns(self.counter)
        self.wait_ns = ceiling_ns if self.jitter is None else self.jitter.randrange(ceiling_ns + 1)
        self._deadline_ns = now_ns + self.wait_ns
        self.state = BackoffState.WAITING
        return Action.BLOCK

    def _run(self) -> Action:
        self.wait_ns = 0
        self.state = BackoffState.RUNNING
        return Action.UNBLOCK
