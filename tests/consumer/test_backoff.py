"""Backoff alone: the counter, its windows, the wait, and the strategies. With Flow: see test_flow.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.consumer.backoff import (
    Action,
    Backoff,
    BackoffState,
    ExponentialStrategy,
)

SECOND_NS = 1_000_000_000


def end_of_wait(backoff: Backoff) -> int:
    """Let the wait end and receive the test message ``"test"``; return the time."""
    deadline_ns = backoff.deadline_ns
    assert deadline_ns is not None
    assert backoff.handle_deadline(deadline_ns) is Action.PROBE
    backoff.received("test")
    return deadline_ns


def failed_times(count: int, **options) -> Backoff:
    """Return a backoff that waits after ``count`` failures, each (but the first) of a test message."""
    backoff = Backoff(**options)
    assert backoff.failure("first", 0) is Action.BLOCK
    for _ in range(count - 1):
        assert backoff.failure("test", end_of_wait(backoff)) is Action.BLOCK
    return backoff


# The counter.


def test_successes_change_nothing():
    backoff = Backoff()
    assert backoff.success("m", 0) is None
    assert (backoff.state, backoff.counter, backoff.deadline_ns) == (BackoffState.RUNNING, 0, None)


def test_a_failure_blocks_waits_and_probes():
    backoff = Backoff()
    assert backoff.failure("m", 5) is Action.BLOCK
    assert (backoff.state, backoff.counter, backoff.wait_ns) == (BackoffState.WAITING, 1, 2 * SECOND_NS)
    assert backoff.deadline_ns == 5 + 2 * SECOND_NS
    assert backoff.handle_deadline(5 + 2 * SECOND_NS) is Action.PROBE
    assert (backoff.state, backoff.counter, backoff.deadline_ns) == (BackoffState.PROBING, 1, None)


def test_a_deadline_that_comes_early_or_twice_does_nothing():
    backoff = failed_times(1)
    assert backoff.handle_deadline(2 * SECOND_NS - 1) is None
    assert backoff.handle_deadline(2 * SECOND_NS) is Action.PROBE
    assert backoff.handle_deadline(2 * SECOND_NS) is None
    assert backoff.state is BackoffState.PROBING


def test_a_success_at_counter_one_unblocks():
    backoff = failed_times(1)
    assert backoff.success("test", end_of_wait(backoff)) is Action.UNBLOCK
    assert (backoff.state, backoff.counter, backoff.wait_ns) == (BackoffState.RUNNING, 0, 0)
    assert backoff.deadline_ns is None


def test_a_success_above_counter_one_waits_again_but_shorter():
    backoff = failed_times(3)
    waits = [backoff.wait_ns]
    while backoff.success("test", end_of_wait(backoff)) is Action.BLOCK:
        waits.append(backoff.wait_ns)
    assert waits == [8 * SECOND_NS, 4 * SECOND_NS, 2 * SECOND_NS]
    assert backoff.state is BackoffState.RUNNING


def test_the_wait_doubles_up_to_the_maximum_and_the_counter_stops_there():
    waits = [failed_times(count).wait_ns // SECOND_NS for count in range(1, 10)]
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120, 120]
    assert failed_times(50).counter == 7


def test_counter_is_bounded_in_a_long_outage():
    backoff = failed_times(50)
    successes = 1
    while backoff.success("test", end_of_wait(backoff)) is Action.BLOCK:
        successes += 1
    assert successes == 7


def test_a_maximum_below_the_first_step_shortens_that_step():
    # go-nsq does not back off at all then.
    backoff = failed_times(4, max_backoff_duration_ns=SECOND_NS)
    assert (backoff.counter, backoff.wait_ns) == (1, SECOND_NS)
    assert backoff.success("test", end_of_wait(backoff)) is Action.UNBLOCK


def test_a_maximum_of_zero_switches_backoff_off():
    backoff = Backoff(max_backoff_duration_ns=0)
    assert backoff.failure("m", 0) is None
    assert (backoff.state, backoff.counter) == (BackoffState.RUNNING, 0)


def test_a_negative_maximum_is_refused():
    with pytest.raises(ValueError, match="-1"):
        Backoff(max_backoff_duration_ns=-1)


# One step per window.


def test_many_failures_at_once_are_one_step():
    backoff = Backoff()
    actions = [backoff.failure(i, i) for i in range(100)]
    assert actions == [Action.BLOCK] + [None] * 99
    assert backoff.counter == 1
    assert backoff.deadline_ns == 2 * SECOND_NS  # counted from the first


def test_results_while_waiting_are_ignored():
    backoff = failed_times(2)
    assert backoff.success("old", 1) is None
    assert backoff.failure("old", 1) is None
    assert (backoff.state, backoff.counter) == (BackoffState.WAITING, 2)


def test_only_the_test_message_counts_while_probing():
    backoff = failed_times(1)
    now_ns = end_of_wait(backoff)
    assert backoff.success("old", now_ns) is None
    assert backoff.failure("older", now_ns) is None
    assert (backoff.state, backoff.counter) == (BackoffState.PROBING, 1)
    assert backoff.success("test", now_ns) is Action.UNBLOCK


def test_results_before_the_test_message_are_ignored():
    backoff = failed_times(1)
    backoff.handle_deadline(2 * SECOND_NS)
    assert backoff.failure("old", 2 * SECOND_NS) is None
    assert backoff.state is BackoffState.PROBING


def test_there_is_one_test_message_at_a_time_and_none_unless_probing():
    backoff = Backoff()
    for _ in (BackoffState.RUNNING, BackoffState.WAITING):
        with pytest.raises(AssertionError):
            backoff.received("m")
        backoff.failure("m", 0)
    end_of_wait(backoff)
    with pytest.raises(AssertionError):
        backoff.received("another")
    assert backoff.test_message == "test"


def test_a_test_message_is_none_in_the_next_window():
    backoff = failed_times(1)
    now_ns = end_of_wait(backoff)
    assert backoff.failure("test", now_ns) is Action.BLOCK
    assert backoff.test_message is None
    backoff.handle_deadline(now_ns + 4 * SECOND_NS)
    assert backoff.success("test", now_ns) is None
    assert backoff.counter == 2


# A test message without a result.


def test_a_lost_test_message_is_probed_for_again():
    backoff = failed_times(1)
    now_ns = end_of_wait(backoff)
    assert backoff.lost("test") is Action.PROBE
    assert (backoff.state, backoff.counter) == (BackoffState.PROBING, 1)
    assert backoff.success("test", now_ns) is None  # its result is too late
    backoff.received("second")
    assert backoff.success("second", now_ns) is Action.UNBLOCK


def test_losing_another_message_changes_nothing():
    backoff = Backoff()
    assert backoff.lost("m") is None
    backoff.failure("m", 0)
    assert backoff.lost("m") is None
    end_of_wait(backoff)
    assert backoff.lost("old") is None
    assert backoff.state is BackoffState.PROBING


# Strategies.


def test_exponential_starts_at_twice_the_multiplier():
    assert [ExponentialStrategy(10)(attempt) for attempt in (1, 2, 3, 6)] == [20, 40, 80, 640]


@given(attempt=st.integers(1, 80), multiplier_ns=st.integers(0, 10**12), seed=st.integers())
def test_full_jitter_stays_below_exponential_and_below_the_maximum(attempt, multiplier_ns, seed):
    strategy = ExponentialStrategy(multiplier_ns)
    plain = Backoff(strategy=strategy, max_backoff_duration_ns=10**11)
    jittery = Backoff(strategy=strategy, max_backoff_duration_ns=10**11, jitter=random.Random(seed))
    for _ in range(attempt):
        for backoff in (plain, jittery):
            backoff.failure("test", 0)
        assert jittery.counter == plain.counter
        assert 0 <= jittery.wait_ns <= plain.wait_ns <= 10**11
        for backoff in (plain, jittery):
            end_of_wait(backoff)


def test_full_jitter_spreads_at_the_maximum_too():
    waits = [failed_times(12, jitter=random.Random(seed)).wait_ns for seed in range(100)]
    assert min(waits) < 12 * SECOND_NS
    assert max(waits) > 108 * SECOND_NS


@pytest.mark.parametrize("jitter", [None, random.Random(0)])
def test_a_multiplier_of_zero_probes_at_once(jitter):
    backoff = Backoff(strategy=ExponentialStrategy(0), jitter=jitter)  # go-nsq panics where there is jitter
    assert backoff.failure("m", 7) is Action.BLOCK
    assert backoff.deadline_ns == 7
    assert backoff.handle_deadline(7) is Action.PROBE


def test_a_negative_multiplier_is_refused():
    with pytest.raises(ValueError, match="-3"):
        ExponentialStrategy(-3)


def test_a_strategy_may_be_any_callable():
    backoff = failed_times(3, strategy=lambda attempt: 10 * attempt)
    assert backoff.wait_ns == 30
    assert failed_times(1, strategy=lambda _: -5).wait_ns == 0


def test_counter_does_not_grow_without_longer_waits():
    backoff = failed_times(50, strategy=lambda _: 10)
    assert (backoff.counter, backoff.wait_ns) == (1, 10)


# For all histories.


@given(
    maximum_ns=st.integers(1, 200),
    steps=st.lists(st.tuples(st.sampled_from(["test", "old", "lost"]), st.booleans()), max_size=60),
)
def test_the_counter_follows_the_test_messages_and_nothing_else(maximum_ns, steps):
    backoff = Backoff(strategy=ExponentialStrategy(1), max_backoff_duration_ns=maximum_ns)
    backoff.failure("first", 0)
    counter = 1
    for kind, succeeded in steps:
        if counter == 0:
            break
        assert backoff.state is BackoffState.WAITING
        assert backoff.wait_ns == min(2**counter, maximum_ns)
        now_ns = end_of_wait(backoff)
        if kind == "lost":
            assert backoff.lost("test") is Action.PROBE
            backoff.received("test")
        if kind == "old":
            assert backoff.failure("old", now_ns) is backoff.success("old", now_ns) is None
        if succeeded:
            counter -= 1
            assert backoff.success("test", now_ns) is (Action.BLOCK if counter else Action.UNBLOCK)
        else:
            counter += 2**counter < maximum_ns
            assert backoff.failure("test", now_ns) is Action.BLOCK
        assert backoff.counter == counter
    assert (backoff.state is BackoffState.RUNNING) == (counter == 0)
