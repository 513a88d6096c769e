"""Which triggers run a batch, and when a run with availableNow ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.spark.admission import AvailableNow, Pause, Run, begin_available_now, decide_continuous
from tests.spark.fake_cluster import Messages


def begin(backlog: Messages | None, timeout_ns: int | None = None, *, wait_in_flight: bool = False) -> AvailableNow:
    return begin_available_now(0, 100, timeout_ns, wait_in_flight=wait_in_flight).with_target(backlog, 0)


@pytest.mark.parametrize(
    ("backlog", "decision"),
    [
        (Messages(depth=1), Run()),
        (Messages(in_flight=3, deferred=3), Pause.SKIP),
        (None, Run()),
    ],
    ids=["waiting", "idle", "unknown"],
)
def test_a_trigger_runs_a_batch_if_messages_may_be_waiting(backlog: Messages | None, decision: object) -> None:
    assert decide_continuous(backlog) == decision


def test_a_run_takes_the_messages_that_were_there_when_it_began() -> None:
    run = begin(Messages(depth=10))
    assert run.decide(Messages(depth=10), 0, None, 1) == Run(10)
    # Others were published meanwhile.
    assert run.decide(Messages(depth=90), 7, 7, 2) == Run(3)
    assert run.decide(Messages(depth=90), 10, 3, 3) is Pause.SKIP


def test_a_run_waits_one_message_timeout_for_messages_in_flight() -> None:
    run = begin(Messages(depth=1, in_flight=5))
    assert run.decide(Messages(in_flight=5), 1, 1, 99) is Pause.WAIT
    assert run.decide(Messages(depth=5), 1, 1, 99) == Run(5)
    assert run.decide(Messages(in_flight=5), 1, 1, 100) is Pause.SKIP
    assert run.decide(Messages(), 1, 1, 50) is Pause.SKIP


def test_a_run_ends_if_no_message_that_waits_is_delivered_for_one_message_timeout() -> None:
    backlog = Messages(depth=9)
    run = begin(backlog).with_progress(backlog, 0, 10)
    assert run.decide(backlog, 0, 0, 99) == Run(9)
    assert run.decide(backlog, 0, 0, 100) is Pause.SKIP
    run = run.with_progress(backlog, 1, 110)  # a row
    assert run.with_progress(backlog, 1, 209).decide(backlog, 1, 0, 209) == Run(8)
    assert run.with_progress(backlog, 1, 210).decide(backlog, 1, 0, 210) is Pause.SKIP


def test_a_run_does_not_count_the_time_without_messages() -> None:
    run = begin(Messages(in_flight=5)).with_progress(Messages(in_flight=5), 0, 99)
    run = run.with_progress(Messages(depth=5), 0, 101)
    assert run.decide(Messages(depth=5), 0, None, 101) == Run(5)


def test_a_run_does_not_wait_for_deferred_messages() -> None:
    assert begin(Messages(deferred=5)).decide(Messages(deferred=5), 0, None, 1) is Pause.SKIP


def test_a_run_waits_for_all_messages_until_its_time_limit_if_asked() -> None:
    run = begin(Messages(in_flight=1, deferred=5), 1000, wait_in_flight=True)
    assert run.target == 6
    assert run.decide(Messages(deferred=5), 1, 1, 999) is Pause.WAIT
    assert run.decide(Messages(depth=5), 1, 1, 999) == Run(5)
    assert run.decide(Messages(depth=5), 1, 1, 1000) is Pause.SKIP


def test_a_run_without_depths_ends_at_an_empty_batch() -> None:
    run = begin(None)
    assert run.decide(None, 0, None, 1) == Run(None)
    assert run.decide(None, 5, 5, 1) == Run(None)
    assert run.decide(None, 5, 0, 1) is Pause.SKIP


def test_a_run_takes_the_messages_that_were_there_when_the_depths_became_known() -> None:
    run = begin(None).with_target(None, 5)
    assert run.decide(None, 5, 5, 1) == Run(None)
    run = run.with_target(Messages(depth=3, in_flight=1, deferred=9), 5).with_target(Messages(depth=90), 8)
    assert run.decide(Messages(depth=90), 8, 3, 2) == Run(1)
    assert run.decide(Messages(depth=90), 9, 1, 3) is Pause.SKIP


@given(st.integers(1, 10_000), st.lists(st.integers(1, 3000), min_size=1))
def test_a_run_never_exceeds_its_target(target: int, published: list[int]) -> None:
    run, rows, depth = begin(Messages(depth=target)), 0, target
    for count in published:
        decision = run.decide(Messages(depth=depth), rows, None, 1)
        if not isinstance(decision, Run):
            break
        assert decision.records_max is not None
        taken = min(depth, decision.records_max, 700)
        rows, depth = rows + taken, depth - taken + count
        assert rows <= target
