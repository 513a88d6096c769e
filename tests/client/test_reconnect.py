from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.client.reconnect import Reconnect

MS = 1_000_000


class Highest(Random):
    """Always draws the highest number."""

    def randrange(self, start, stop=None, step=1):
        return start - 1


def test_ceiling_doubles_up_to_maximum():
    reconnect = Reconnect(delay_min_ns=100 * MS, delay_max_ns=1500 * MS, random=Highest())
    delays_ms = [reconnect.next_delay_ns() // MS for _ in range(7)]
    assert delays_ms == [100, 200, 400, 800, 1500, 1500, 1500]
    assert reconnect.failure_count == 7


def test_useful_connection_resets_delay():
    reconnect = Reconnect(delay_min_ns=100 * MS, delay_max_ns=1500 * MS, random=Highest())
    for _ in range(3):
        reconnect.next_delay_ns()
    reconnect.connected()
    assert reconnect.failure_count == 0
    assert reconnect.next_delay_ns() == 100 * MS


def test_many_failures_keep_delay_at_maximum():
    reconnect = Reconnect(delay_min_ns=1, delay_max_ns=1500 * MS, random=Highest())
    reconnect.failure_count = 10**18
    assert reconnect.next_delay_ns() == 1500 * MS


@given(st.integers(0, 2**64), st.integers(1, 10**12), st.integers(1, 10**12), st.integers(0, 100))
def test_delay_is_below_ceiling(seed, one_ns, other_ns, failure_count):
    least_ns, most_ns = sorted((one_ns, other_ns))
    reconnect = Reconnect(delay_min_ns=least_ns, delay_max_ns=most_ns, random=Random(seed))
    reconnect.failure_count = failure_count
    assert 0 <= reconnect.next_delay_ns() <= min(most_ns, least_ns * 2**failure_count)


def test_delays_of_many_clients_are_spread():
    delays_ms = sorted(
        Reconnect(delay_min_ns=1000 * MS, delay_max_ns=1000 * MS, random=Random(seed)).next_delay_ns() // MS
        for seed in range(1000)
    )
    assert delays_ms[0] < 20
    assert delays_ms[-1] > 980
    assert delays_ms[500] == pytest.approx(500, abs=60)


def test_same_seed_gives_same_delays():
    one, other = (Reconnect(delay_min_ns=MS, delay_max_ns=10**9, random=Random(3)) for _ in range(2))
    assert [one.next_delay_ns() for _ in range(20)] == [other.next_delay_ns() for _ in range(20)]
