"""Message ids: their form, their order, and that none comes twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.disk.guid import BLOCK_TICKS, EPOCH_TICKS, SEQUENCE_LENGTH, GuidFactory
from nsqkit.wire.messages import encode_message, id_of

NOW_NS = 1_704_067_200 * 10**9
TICK_NS = 1 << 20
FIRST_TICK = NOW_NS >> 20


def take(factory: GuidFactory, count: int, now_ns: int) -> list[bytes]:
    """Return ids in one piece each."""
    return [prefix + suffix for prefix, suffixes in factory.take(count, now_ns) for suffix in suffixes]


def test_id_consists_of_time_node_and_sequence():
    ids = take(GuidFactory(node_id=0x2A5), 2, NOW_NS)
    expected = ((NOW_NS >> 20) - EPOCH_TICKS) << 22 | 0x2A5 << 12
    assert ids == [b"%016x" % expected, b"%016x" % (expected + 1)]


def test_id_contains_time_and_node():
    (given_id,) = take(GuidFactory(node_id=1), 1, NOW_NS)
    ticks = (int(given_id, 16) >> 22) + EPOCH_TICKS
    assert 0 <= NOW_NS - ticks * TICK_NS < TICK_NS
    assert int(given_id, 16) >> 12 & 0x3FF == 1


def test_sequence_restarts_with_each_tick():
    factory = GuidFactory(0)
    take(factory, 7, NOW_NS)
    assert take(factory, 1, NOW_NS)[0].endswith(b"007")
    assert take(factory, 1, NOW_NS + TICK_NS)[0].endswith(b"000")


def test_used_up_tick_is_followed_by_the_next_one_early():
    factory = GuidFactory(0)
    ids = take(factory, SEQUENCE_LENGTH, NOW_NS)
    ids += take(factory, 1, NOW_NS)
    assert [message_id[13:] for message_id in ids[-2:]] == [b"fff", b"000"]
    assert int(ids[-1], 16) >> 22 == (int(ids[0], 16) >> 22) + 1
    # The tick that was taken early is not begun again when its time comes.
    assert take(factory, 1, NOW_NS + TICK_NS)[0].endswith(b"001")


def test_batch_may_need_many_ticks():
    ids = take(GuidFactory(0), 3 * SEQUENCE_LENGTH + 5, NOW_NS)
    assert ids == sorted(set(ids))
    assert len(ids) == 3 * SEQUENCE_LENGTH + 5


def test_ids_with_a_common_prefix_are_one_run():
    factory = GuidFactory(0)
    assert [len(suffixes) for _, suffixes in factory.take(5, NOW_NS)] == [5]
    runs = factory.take(SEQUENCE_LENGTH, NOW_NS)
    assert [len(suffixes) for _, suffixes in runs] == [SEQUENCE_LENGTH - 5, 5]


def test_count_zero_gives_no_ids():
    factory = GuidFactory(0)
    assert take(factory, 0, NOW_NS) == []
    assert take(factory, 1, NOW_NS)[0].endswith(b"000")


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-3 * TICK_NS, 3 * TICK_NS)), max_size=12))
def test_ids_ascend_with_any_clock(steps):
    factory, now_ns, ids = GuidFactory(1023), NOW_NS, []
    for count, ns in steps:
        now_ns += ns
        taken = take(factory, count, now_ns)
        assert len(taken) == count
        ids += taken
    assert ids == sorted(set(ids))
    assert all(len(message_id) == 16 for message_id in ids)


def test_ticks_are_reserved_half_a_block_before_they_are_needed():
    factory = GuidFactory(0)
    factory.used_tick = FIRST_TICK + 5
    (first,) = take(factory, 1, NOW_NS)
    assert (int(first, 16) >> 22) + EPOCH_TICKS == factory.tick == FIRST_TICK + 6
    assert factory.reserved_tick == FIRST_TICK + 6 + BLOCK_TICKS
    half_ns = BLOCK_TICKS // 2 * TICK_NS
    take(factory, 1, NOW_NS + 6 * TICK_NS + half_ns)
    assert factory.reserved_tick == FIRST_TICK + 6 + BLOCK_TICKS
    take(factory, 1, NOW_NS + 7 * TICK_NS + half_ns)
    assert factory.reserved_tick == FIRST_TICK + 7 + BLOCK_TICKS // 2 + BLOCK_TICKS


def test_renew_changes_the_id_alone():
    factory = GuidFactory(3)
    (before,) = take(factory, 1, NOW_NS)
    frame = encode_message(7, 2, before, b"body")
    renewed = factory.renew(frame)
    assert renewed == encode_message(7, 2, id_of(renewed), b"body")
    (after,) = take(factory, 1, NOW_NS)
    assert before < id_of(renewed) < after
    take(factory, SEQUENCE_LENGTH - 3, NOW_NS)
    assert id_of(factory.renew(frame)).endswith(b"000")


@pytest.mark.parametrize("now_ns", [0, 1, (EPOCH_TICKS - 1) * TICK_NS, (1 << 63) - 1])
def test_id_of_any_time_has_sixteen_digits(now_ns):
    ids = take(GuidFactory(5), SEQUENCE_LENGTH + 1, now_ns)
    assert {len(message_id) for message_id in ids} == {16}
    assert len(set(ids)) == SEQUENCE_LENGTH + 1
    assert int(ids[0], 16) >> 12 & 0x3FF == 5


def test_ids_after_a_skip_are_of_later_ticks():
    factory = GuidFactory(0)
    factory.skip(FIRST_TICK + 5)
    (first,) = take(factory, 1, NOW_NS)
    assert (int(first, 16) >> 22) + EPOCH_TICKS == FIRST_TICK + 6
    factory.skip(FIRST_TICK + 5)
    assert int(take(factory, 1, NOW_NS)[0], 16) == int(first, 16) + 1
