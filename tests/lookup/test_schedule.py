from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.lookup.schedule import GAP_NS, PollSchedule

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
NOW = 1_700_000_000 * SECOND


class Fixed(Random):
    """A random generator that always draws the same number, from 0 to just below 1."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value

    def randrange(self, stop: int) -> int:  # type: ignore[override]
        return int(self.value * stop)


def schedule(*, interval_ns: int = MINUTE, jitter: float = 0.3, random: Random | None = None) -> PollSchedule:
    return PollSchedule(interval_ns=interval_ns, jitter=jitter, random=random or Fixed(0.5), now_ns=NOW)


def asked(times: PollSchedule, now_ns: int, *, good: bool = True) -> int:
    """Record a request and its response; return the wait until the next request."""
    times.begin()
    (times.answered if good else times.failed)(now_ns)
    return times.next_poll_ns - now_ns


def test_first_request_is_sent_at_once():
    assert schedule().next_poll_ns == NOW


def test_every_wait_has_new_jitter():
    times = schedule(random=Random(1))
    waits = [asked(times, NOW) for _ in range(100)]
    assert len(set(waits)) == 100
    assert all(MINUTE <= wait < 1.3 * MINUTE for wait in waits)
    assert max(waits) - min(waits) > 0.25 * MINUTE


def test_wait_without_jitter_is_the_interval():
    assert asked(schedule(jitter=0.0, random=Random(1)), NOW) == MINUTE


@pytest.mark.parametrize(("value", "part"), [(0.0, 1.0), (0.999999, 0.5)])
def test_waits_after_failures_grow(value, part):
    times = schedule(random=Fixed(value))
    waits = [asked(times, NOW, good=False) / SECOND for _ in range(8)]
    assert waits == pytest.approx([part * ceiling for ceiling in (1, 2, 4, 8, 16, 32, 60, 60)], rel=1e-3)
    assert times.failure_count == 8


def test_response_resets_failures():
    times = schedule()
    asked(times, NOW, good=False)
    asked(times, NOW, good=False)
    assert asked(times, NOW) >= MINUTE
    assert times.failure_count == 0
    assert asked(times, NOW, good=False) <= SECOND


def test_many_failures_keep_waits_in_bounds():
    times = schedule()
    for _ in range(500):
        assert 0 < asked(times, NOW, good=False) <= MINUTE
    assert times.failure_count == 500


def test_wake_long_after_last_request_sends_at_once():
    times = schedule(random=Fixed(0.0))
    asked(times, NOW)
    times.wake(NOW + 10 * SECOND)
    assert times.next_poll_ns == NOW + 10 * SECOND


def test_wake_soon_after_last_request_waits_a_second():
    times = schedule(random=Fixed(0.0))
    asked(times, NOW)
    times.wake(NOW + 1)
    times.wake(NOW + 2)
    assert times.next_poll_ns == NOW + GAP_NS


def test_wake_adds_jitter():
    waits = set()
    for seed in range(50):
        times = schedule(random=Random(seed))
        asked(times, NOW)
        times.wake(NOW + 10 * SECOND)
        waits.add(times.next_poll_ns - NOW - 10 * SECOND)
    assert len(waits) == 50
    assert all(0 <= wait < 0.3 * GAP_NS for wait in waits)


def test_wake_never_postpones():
    times = schedule(random=Fixed(0.0))
    asked(times, NOW)
    due = times.next_poll_ns
    times.wake(due - 1)
    assert times.next_poll_ns == due - 1
    times.wake(due + MINUTE)
    assert times.next_poll_ns == due - 1


def test_wake_during_request_sends_another_after_it():
    times = schedule(random=Fixed(0.0))
    times.begin()
    times.wake(NOW + 1)
    assert times.next_poll_ns == NOW
    times.answered(NOW + 5 * SECOND)
    assert times.next_poll_ns == NOW + 5 * SECOND + GAP_NS
    assert asked(times, NOW + 6 * SECOND) == MINUTE


@given(
    st.integers(1, 300 * SECOND),
    st.floats(0, 1),
    st.integers(),
    st.lists(st.tuples(st.sampled_from(["answered", "failed", "wake"]), st.integers(0, 10 * MINUTE))),
)
def test_next_request_is_within_bounds(interval_ns, jitter, seed, events):
    times = schedule(interval_ns=interval_ns, jitter=jitter, random=Random(seed))
    gap_ns, now_ns, last_ns = min(GAP_NS, interval_ns), NOW, None
    for event, later_ns in events:
        now_ns += later_ns
        if event == "wake":
            times.wake(now_ns)
        else:
            times.begin()
            getattr(times, event)(now_ns)
            last_ns = now_ns
        assert times.next_poll_ns - now_ns <= interval_ns * (1 + jitter)
        if last_ns is not None:
            assert times.next_poll_ns - last_ns >= gap_ns // 2
