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


def test_the_ceiling_doubles_with_each_failure_up_to_the_maximum():
    reconnect = Reconnect(delay_min_ns=100 * MS, delay_max_ns=1500 * MS, random=Highest())
    delays_ms = [reconnect.next_delay_ns() // MS for _ in range(7)]
    assert delays_ms == [100, 200, 400, 800, 1500, 1500, 1500]
    assert reconnect.failure_count == 7


def test_a_greeted_connection_starts_it_anew():
    reconnect = Reconnect(delay_min_ns=100 * MS, delay_max_ns=1500 * MS, random=Highest())
    for _ in range(3):
        reconnect.next_delay_ns()
    reconnect.connected()
    assert reconnect.failure_count == 0
    assert reconnect.next_delay_ns() == 100 * MS


def test_an_address_may_be_dead_for_ever():
    reconnect = Reconnect(delay_min_ns=1, delay_max_ns=1500 * MS, random=Highest())
    reconnect.failure_count = 10**18
    assert reconnect.next_delay_ns() == 1500 * MS


@given(st.integers(0, 2**64), st.integers(1, 10**12), st.integers(1, 10**12), st.integers(0, 100))
def test_any_delay_is_within_its_ceiling(seed, one_ns, other_ns, failure_count):
    least_ns, most_ns = sorted((one_ns, other_ns))
    reconnect = Reconnect(delay_min_ns=least_ns, delay_max_ns=most_ns, random=Random(seed))
    reconnect.failure_count = failure_count
    assert 0 <= reconnect.next_delay_ns() <= min(most_ns, least_ns * 2**failure_count)


def test_clients_that_failed_together_do_not_come_back_together():
    delays_ms = sorted(
        Reconnect(delay_min_ns=1000 * MS, delay_max_ns=1000 * MS, random=Random(seed)).next_delay_ns() // MS
        for seed in range(1000)
    )
    assert delays_ms[0] < 20
    assert delays_ms[-1] > 980
    assert delays_ms[500] == pytest.approx(500, abs=60)


def test_the_same_chance_gives_the_same_delays():
    one, other = (Reconnect(delay_min_ns=MS, delay_max_ns=10**9, random=Random(3)) for _ in range(2))
    assert [one.next_delay_ns() for _ in range(20)] == [other.next_delay_ns() for _ in range(20)]
