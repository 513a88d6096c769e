"""The deferred messages of a channel: never early, in order, all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.topics.deferred import Deferred


def deferred(*messages: tuple[bytes, int]) -> Deferred:
    made = Deferred()
    for frame, due_ns in messages:
        made.add(frame, due_ns)
    return made


def test_empty_set_has_no_deadline():
    messages = deferred()
    assert messages.remove_due(10) == []
    assert (messages.next_deadline(), len(messages)) == (None, 0)


def test_message_is_due_at_its_time_and_not_a_nanosecond_earlier():
    messages = deferred((b"m", 50))
    assert messages.remove_due(49) == []
    assert messages.next_deadline() == 50
    assert messages.remove_due(50) == [b"m"]
    assert messages.next_deadline() is None


def test_due_messages_are_removed_earliest_first_and_equal_times_in_order():
    messages = deferred((b"z", 30), (b"b", 20), (b"a", 20), (b"far", 90))
    assert messages.remove_due(40) == [b"b", b"a", b"z"]
    assert (messages.next_deadline(), len(messages)) == (90, 1)


def test_all_messages_can_be_removed_earliest_first():
    messages = deferred((b"z", 30), (b"b", 20), (b"a", 20))
    assert messages.remove_everything() == [b"b", b"a", b"z"]
    assert (len(messages), messages.remove_due(100), messages.next_deadline()) == (0, [], None)


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
)
def test_each_message_is_removed_by_the_first_call_after_its_time(delays, calls):
    messages = deferred(*((b"%d" % number, due_ns) for number, due_ns in enumerate(delays)))
    for now_ns in calls:
        due = messages.remove_due(now_ns)
        left = [due_ns for due_ns in delays if due_ns > now_ns]
        assert messages.next_deadline() == min(left, default=None)
        assert len(messages) == len(left)
        assert all(delays[int(frame)] <= now_ns for frame in due)
