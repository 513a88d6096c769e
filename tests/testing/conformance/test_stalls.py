from __future__ import annotations

import threading

from nsqkit.testing.conformance.stalls import STALL_S, Stalls
from tests.threads import until


class Time:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read_count = 0

    def __call__(self) -> float:
        self.read_count += 1
        return self.now


def until_seen(time: Time) -> None:
    """Wait until the thread has seen the present time."""
    count = time.read_count
    until(lambda: time.read_count >= count + 2)


def test_time_that_goes_by_without_a_look_is_a_stall():
    time = Time()
    stalls = Stalls(time)
    assert not stalls.since(0.0)
    time.now = STALL_S
    assert not stalls.since(0.0)
    time.now += 0.01
    assert stalls.since(0.0)


def test_stall_counts_for_what_began_before_its_end():
    time = Time()
    with Stalls(time) as stalls:
        time.now = 1.0
        until_seen(time)
        assert stalls.since(0.0)
        assert stalls.since(1.0)
        assert not stalls.since(1.1)


def test_looks_in_time_are_no_stall():
    time = Time()
    with Stalls(time) as stalls:
        for _ in range(3):
            time.now += STALL_S
            until_seen(time)
        assert not stalls.since(0.0)


def test_thread_ends():
    with Stalls():
        assert any(thread.name == "nsqkit stalls" for thread in threading.enumerate())
    assert not any(thread.name == "nsqkit stalls" for thread in threading.enumerate())
