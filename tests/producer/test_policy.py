from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.producer.policy import POLICIES, Policy, rank
from tests.producer.fakes import FakeNsqd


def pool(count: int) -> list[FakeNsqd]:
    return [FakeNsqd(f"nsqd-{n}:4150") for n in range(count)]


def make(name: str) -> Policy:
    return POLICIES[name](Random(1))


def chosen(policy: Policy, nsqds: list[FakeNsqd], key: bytes | None = None) -> int:
    choice = policy.choose(nsqds, key)
    assert choice is not None
    return nsqds.index(choice)


every_policy = pytest.mark.parametrize("name", POLICIES)
keys = pytest.mark.parametrize("key", [None, b"key"])


@every_policy
@keys
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6))
def test_chosen_nsqd_is_ready_and_none_is_chosen_only_if_none_is_ready(name, key, states):
    nsqds = [FakeNsqd(str(n), ready, busy) for n, (ready, _, busy) in enumerate(states)]
    avoid = [nsqd for nsqd, (_, avoided, _) in zip(nsqds, states, strict=True) if avoided]
    possible = {nsqd for nsqd in nsqds if nsqd.is_ready and nsqd not in avoid}
    policy = make(name)
    for _ in range(3):
        choice = policy.choose(nsqds, key, avoid)
        assert choice in possible if possible else choice is None


@every_policy
def test_without_keys_every_nsqd_is_chosen(name):
    policy, nsqds = make(name), pool(4)
    counts = Counter(chosen(policy, nsqds) for _ in range(400))
    assert set(counts) == {0, 1, 2, 3}
    if name != "random":
        assert set(counts.values()) == {100}


@pytest.mark.parametrize("name", ["round-robin", "by-key"])
def test_turns_follow_the_order_of_the_pool_and_skip_nsqds_that_are_not_ready(name):
    policy, nsqds = make(name), pool(3)
    assert [chosen(policy, nsqds) for _ in range(4)] == [0, 1, 2, 0]
    nsqds[1].is_ready = False
    assert [chosen(policy, nsqds) for _ in range(4)] == [2, 0, 2, 0]


def test_random_choices_are_those_of_the_random_source():
    nsqds = pool(5)
    rows = [[chosen(policy, nsqds) for _ in range(20)] for policy in (make("random"), make("random"))]
    assert rows[0] == rows[1]
    assert len({*rows[0]}) > 1


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_the_least_busy_has_the_fewest_outstanding(counts):
    nsqds = pool(len(counts))
    for nsqd, count in zip(nsqds, counts, strict=True):
        nsqd.outstanding_count = count
    policy = make("least-busy")
    choices = [chosen(policy, nsqds) for _ in range(2 * len(counts))]
    assert {*choices} == {n for n, count in enumerate(counts) if count == min(counts)}


@given(st.binary(), st.integers(1, 6))
def test_key_keeps_its_nsqd_and_returns_to_it(key, count):
    policy, nsqds = make("by-key"), pool(count)
    home = chosen(policy, nsqds, key)
    assert [chosen(policy, nsqds, key) for _ in range(3)] == [home] * 3
    if count > 1:
        nsqds[home].is_ready = False
        assert chosen(policy, nsqds, key) != home
        nsqds[home].is_ready = True
    assert chosen(make("by-key"), nsqds, key) == home


def test_keys_of_a_missing_nsqd_are_spread_over_all_others():
    policy, nsqds = make("by-key"), pool(4)
    every_key = [b"%d" % n for n in range(400)]
    homes = {key: chosen(policy, nsqds, key) for key in every_key}
    assert min(Counter(homes.values()).values()) > 50
    nsqds[2].is_ready = False
    moved = {key: chosen(policy, nsqds, key) for key in every_key}
    assert all(moved[key] == home for key, home in homes.items() if home != 2)
    assert {moved[key] for key, home in homes.items() if home == 2} == {0, 1, 3}


def test_ranking_is_the_same_in_every_process_and_version():
    assert rank(b"user-1", ("a:4150", "b:4150", "c:4150")) == PINNED
    assert rank(b"user-1", ("c:4150", "b:4150", "a:4150")) == [2 - n for n in PINNED]


PINNED = [1, 2, 0]
