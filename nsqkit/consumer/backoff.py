"""The consumer's backoff: deliveries stop when handlers fail, and resume after a test message has succeeded.

The counter moves once per window, from one step to the next. A thousand handlers that fail together are one step, and
so are the thousand that succeed afterwards. In each state only some results count:

- while running, any failure counts, and the first one ends the window;
- while waiting, none does: these messages were delivered before the backoff began;
- while probing, only the result of *the test message* does, the one message that was requested from nsqd.

So messages need no marks: the caller passes the test message when it arrives (``Flow`` recognizes it), and it is
compared with those whose results arrive. go-nsq takes any result for the probe's.

A ``Backoff`` sends nothing. Each method returns the ``Action`` that the caller performs on its ``Flow``.
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
        RUNNING: messages are delivered; the counter is 0.
        WAITING: no message is delivered before the deadline.
        PROBING: one test message is delivered, and its result is awaited.
    """

    RUNNING = "running"
    WAITING = "waiting"
    PROBING = "probing"


class Result(enum.Enum):
    """The result of handling a message."""

    SUCCESS = "success"
    FAILURE = "failure"


class Action(enum.Enum):
    """The action for the caller; each value is the name of a method of ``Flow``."""

    BLOCK = "block"
    PROBE = "probe"
    UNBLOCK = "unblock"


# By how much a result moves the counter. Other pairs change nothing. After a step the next state is running if the
# counter is 0, else waiting.
COUNTER_STEPS = {
    (BackoffState.RUNNING, Result.FAILURE): +1,
    (BackoffState.PROBING, Result.FAILURE): +1,
    (BackoffState.PROBING, Result.SUCCESS): -1,
}

Strategy = Callable[[int], int]
"""From the counter (1, 2, 3, …) to the longest wait, in ns; a negative value counts as 0."""


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
    """The state of a consumer's backoff.

    After a failure it waits, then one test message is delivered. Its success decreases the counter by one, its failure
    increases it by one. At 0 deliveries resume; above 0 it waits for the duration of the strategy. These are go-nsq's
    rules (startStopContinueBackoff in consumer.go), but for two: only the test message counts while probing, and a
    ``max_backoff_duration_ns`` below the first step shortens that step; go-nsq then does not back off at all.

    Args:
        strategy: the wait for a counter of 1, 2, …, limited by the maximum.
        max_backoff_duration_ns: the longest wait, by default go-nsq's two minutes; 0 switches backoff off.
        jitter: draws each wait between 0 and the strategy's (*full jitter*), so that consumers that failed together do
            not resume together. None waits exactly as long as the strategy returns.

    Attributes:
        state: running, waiting or probing.
        counter: how many more test messages must succeed than fail before deliveries resume.
        wait_ns: the duration of the wait or, while probing, of the last one; 0 while running.
        test_message: the message whose result is awaited; None if there is none or it has not arrived.
        deadline_ns: when to call ``handle_deadline``: at the end of the wait; None while there is none.
    """

    strategy: Strategy = attrs.field(factory=ExponentialStrategy)
    max_backoff_duration_ns: int = attrs.field(default=120 * SECOND_NS, validator=attrs.validators.ge(0))
    jitter: random.Random | None = None
    state: BackoffState = attrs.field(default=BackoffState.RUNNING, init=False)
    counter: int = attrs.field(default=0, init=False)
    wait_ns: int = attrs.field(default=0, init=False)
    test_message: Hashable | None = attrs.field(default=None, init=False)
    deadline_ns: int | None = attrs.field(default=None, init=False)

    def received(self, test_message: Hashable) -> None:
        """Record the test message, which is the first one after ``Action.PROBE`` was performed."""
        assert self.state is BackoffState.PROBING, f"a test message arrived while {self.state.value}"
        assert self.test_message is None, "there is one test message at a time"
        self.test_message = test_message

    def success(self, message: Hashable, now_ns: int) -> Action | None:
        """Record that a message was handled; needed for the test message only."""
        return self._report(message, Result.SUCCESS, now_ns)

    def failure(self, message: Hashable, now_ns: int) -> Action | None:
        """Record that handling a message failed, except for a requeue with ``backoff=False``."""
        return self._report(message, Result.FAILURE, now_ns)

    def lost(self, message: Hashable) -> Action | None:
        """Record that a message has no result: requeued without backoff, timed out, or lost with its connection.

        If it was the test message, another one is needed.
        """
        if self.test_message is None or message != self.test_message:
            return None
        self.test_message = None
        return Action.PROBE

    def handle_deadline(self, now_ns: int) -> Action | None:
        if self.deadline_ns is None or now_ns < self.deadline_ns:
            return None
        self.deadline_ns = None
        self.state = BackoffState.PROBING
        return Action.PROBE

    def _report(self, message: Hashable, result: Result, now_ns: int) -> Action | None:
        step = COUNTER_STEPS.get((self.state, result))
        if step is None or not self.max_backoff_duration_ns:
            return None
        if self.state is BackoffState.PROBING and message != self.test_message:
            return None
        self.test_message = None
        # A step up that does not prolong the wait is left out: it would only require one more success later for each
        # failure of a long outage.
        counter, ceiling_ns = self.counter, self._ceiling_ns
        if step < 0 or not counter or ceiling_ns(counter + 1) > ceiling_ns(counter):
            self.counter += step
        return self._wait(now_ns) if self.counter else self._run()

    def _ceiling_ns(self, counter: int) -> int:
        return min(max(self.strategy(counter), 0), self.max_backoff_duration_ns)

    def _wait(self, now_ns: int) -> Action:
        ceiling_ns = self._ceiling_ns(self.counter)
        self.wait_ns = ceiling_ns if self.jitter is None else self.jitter.randrange(ceiling_ns + 1)
        self.deadline_ns = now_ns + self.wait_ns
        self.state = BackoffState.WAITING
        return Action.BLOCK

    def _run(self) -> Action:
        self.wait_ns = 0
        self.state = BackoffState.RUNNING
        return Action.UNBLOCK
