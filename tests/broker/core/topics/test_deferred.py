"""The deferred messages of a channel: never early, in order, all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.topics.deferred import Deferred


def make() -> tuple[Deferred, list[list[bytes]]]:
    came: list[list[bytes]] = []
    return Deferred(came.append), came


def test_without_messages_there_is_nothing_to_come_for():
    deferred, came = make()
    assert deferred.handle_deadline(10) is None
    assert (came, len(deferred)) == ([], 0)


def test_a_message_comes_at_its_time_and_not_a_nanosecond_earlier():
    deferred, came = make()
    deferred.add(b"m", 50)
    assert deferred.handle_deadline(49) == 50
    assert came == []
    assert deferred.handle_deadline(50) is None
    assert came == [[b"m"]]


def test_what_is_due_comes_at_once_earliest_first_and_equal_times_as_they_were_deferred():
    deferred, came = make()
    for frame, due_ns in ((b"z", 30), (b"b", 20), (b"a", 20), (b"far", 90)):
        deferred.add(frame, due_ns)
    assert deferred.handle_deadline(40) == 90
    assert came == [[b"b", b"a", b"z"]]
    assert len(deferred) == 1


def test_all_can_be_taken_earliest_first():
    deferred, came = make()
    for frame, due_ns in ((b"z", 30), (b"b", 20), (b"a", 20)):
        deferred.add(frame, due_ns)
    assert deferred.take_all() == [b"b", b"a", b"z"]
    assert (len(deferred), deferred.handle_deadline(100), came) == (0, None, [])


def test_a_message_may_be_deferred_again_while_others_come():
    again: list[bytes] = []

    def put_back(frames: list[bytes]) -> None:
        again.extend(frames)
        deferred.add(b"again", 60)

    deferred = Deferred(put_back)
    deferred.add(b"m", 50)
    assert deferred.handle_deadline(50) == 60
    assert again == [b"m"]


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
)
def test_each_comes_with_the_first_call_after_its_time(delays, calls):
    deferred, came = make()
    for number, due_ns in enumerate(delays):
        deferred.add(b"%d" % number, due_ns)
    for now_ns in calls:
        came.clear()
        left = [due_ns for due_ns in delays if due_ns > now_ns]
        assert deferred.handle_deadline(now_ns) == min(left, default=None)
        assert len(deferred) == len(left)
        assert all(delays[int(frame)] <= now_ns for frames in came for frame in frames)
