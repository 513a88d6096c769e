from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.topics.latency import RANKS_ABOVE, Latency
from nsqkit.wire.messages import encode_messages

S = 10**9
WINDOW_NS = 600 * S
HALF_NS = WINDOW_NS // 2

latencies = st.lists(st.one_of(st.integers(0, 1000), st.integers(0, 1 << 62)), min_size=1)


def latency(*percentiles):
    return Latency(percentiles, WINDOW_NS, 0)


def values(result):
    return [percentile["value"] for percentile in result["percentiles"]]


def of_rank(sorted_values, percentile):
    """The value that a percentile stands for."""
    count = len(sorted_values)
    return sorted_values[min(math.ceil(percentile * count) + RANKS_ABOVE, count) - 1]


def test_percentiles_without_messages_are_0():
    assert latency(0.99, 1.0).result(S) == {
        "count": 0,
        "percentiles": [{"quantile": 0.99, "value": 0}, {"quantile": 1, "value": 0}],
    }


def test_quantile_1_is_written_without_a_fraction():
    percentiles = latency(1.0, 0.5).result(S)["percentiles"]
    assert percentiles
    assert [repr(percentile["quantile"]) for percentile in percentiles] == ["1", "0.5"]


def test_latency_is_the_age_of_finished_messages():
    measured = latency(0.5)
    frames = encode_messages(5 * S, [b"0123456789abcdef"] * 3, [b"x", b"yy", b""])
    measured.add_finished(frames, 5 * S + 200)
    assert measured.result(6 * S) == {"count": 3, "percentiles": [{"quantile": 0.5, "value": 200}]}


def test_clock_that_was_set_back_gives_no_negative_latency():
    measured = latency(1.0)
    measured.add([-1, -(10**12)], 0)
    assert measured.result(0) == {"count": 2, "percentiles": [{"quantile": 1, "value": 0}]}


def test_percentile_of_few_messages_is_the_greatest():
    measured = latency(0.5)
    for count, expected in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 5), (7, 6)):
        measured.add([count], 0)
        assert values(measured.result(0)) == [expected]


@given(latencies, st.lists(st.floats(0.001, 1), min_size=1, max_size=4))
def test_value_is_that_of_its_rank_within_one_part_in_256(given_ns, percentiles):
    measured = Latency(percentiles, WINDOW_NS, 0)
    measured.add(given_ns, 0)
    result = measured.result(0)
    assert result["count"] == len(given_ns)
    for percentile, value in zip(percentiles, values(result), strict=True):
        expected = of_rank(sorted(given_ns), percentile)
        assert abs(value - expected) * 256 <= expected


@given(st.lists(latencies, min_size=1, max_size=4))
def test_counts_of_channels_are_added(counted):
    whole = latency(0.99, 0.5)
    whole.add([value for each in counted for value in each], 0)
    parts = [latency(0.99, 0.5) for _ in counted]
    for part, each in zip(parts, counted, strict=True):
        part.add(each, 0)
    before = [part.result(0) for part in parts]
    assert Latency.merged(parts, 0).result(0) == whole.result(0)
    assert [part.result(0) for part in parts] == before


@given(st.lists(st.tuples(st.integers(0, WINDOW_NS), st.integers(0, 1 << 40))))
def test_message_counts_for_half_a_window_to_a_whole_one(steps):
    """Against a model that keeps every message and the half window in which it was finished."""
    measured, now_ns, kept = latency(1.0), 0, []
    for elapsed_ns, value in steps:
        now_ns += elapsed_ns
        measured.add([value], now_ns)
        kept.append((-(-now_ns // HALF_NS), value))
        turn = max(-(-now_ns // HALF_NS), 1)
        counted_values = [value for when, value in kept if max(when, 1) >= turn - 1]
        assert measured.result(now_ns)["count"] == len(counted_values)


def test_merge_ignores_values_older_than_the_window():
    old, new = latency(1.0), latency(1.0)
    old.add([7], 0)
    new.add([3], 2 * WINDOW_NS)
    assert Latency.merged([old, new], 2 * WINDOW_NS).result(2 * WINDOW_NS) == {
        "count": 1,
        "percentiles": [{"quantile": 1, "value": 3}],
    }
    assert old.result(2 * WINDOW_NS)["count"] == 0


def test_half_window_includes_its_last_nanosecond():
    measured = latency(1.0)
    measured.add([1], 0)
    measured.add([2], HALF_NS)
    assert measured.result(WINDOW_NS)["count"] == 2
    assert measured.result(WINDOW_NS + 1)["count"] == 0


def test_merge_keeps_the_halves_of_a_window_apart():
    first = latency(1.0)
    first.add([5], 0)
    first.add([6], HALF_NS + 1)
    merged = Latency.merged([first], HALF_NS + 1)
    assert merged.result(HALF_NS + 1)["count"] == 2
    assert merged.result(2 * HALF_NS + 2)["count"] == 1


def test_memory_does_not_grow_with_the_number_of_messages():
    measured = latency(0.5)
    for power in range(64):
        for part in range(1000):
            measured.add([(1 << power) + (part << power) // 1000], 0)
    assert measured.result(0)["count"] == 64_000
    assert len(measured._current) <= 256 + 56 * 128


def test_window_of_one_nanosecond_is_valid():
    measured = Latency((1.0,), 1, 0)
    measured.add([4], 10)
    assert measured.result(10)["count"] == 1
    assert measured.result(20)["count"] == 0
