"""The timers alone: deadlines, and the cost of superseded ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.timers import Timers
from nsqkit.wire.commands import encode_finish
from tests.pairs import NS_PER_S, DrivenBroker


class Owner:
    """An owner of deadlines: it records its calls, and returns the given answers."""

    def __init__(self, name: str = "", *answers: int | None) -> None:
        self.name = name
        self.due_ns: int | None = None
        self.calls: list[int] = []
        self.answers = list(answers)
        self.when_called: Callable[[], None] = lambda: None

    def handle_deadline(self, now_ns: int) -> int | None:
        self.calls.append(now_ns)
        self.when_called()
        return self.answers.pop(0) if self.answers else None


def handle_due(timers: Timers, now_ns: int) -> None:
    """Call every owner whose deadline has come, as the broker does."""
    for owner in timers.take_due(now_ns):
        again_ns = owner.handle_deadline(now_ns)
        if again_ns is not None:
            timers.schedule(owner, again_ns)


def heap_length(timers: Timers) -> int:
    return len(timers._heap)


# Deadlines.


def test_empty_heap_has_no_deadline():
    timers = Timers()
    assert timers.next_deadline() is None
    handle_due(timers, 100)


def test_owner_is_called_once_when_due():
    timers, owner = Timers(), Owner()
    timers.schedule(owner, 50)
    handle_due(timers, 49)
    assert owner.calls == []
    handle_due(timers, 50)
    handle_due(timers, 51)
    assert owner.calls == [50]
    assert timers.next_deadline() is owner.due_ns is None


def test_earliest_scheduled_time_counts():
    timers, owner = Timers(), Owner()
    for due_ns in (50, 70, 30, 40):
        timers.schedule(owner, due_ns)
    assert timers.next_deadline() == owner.due_ns == 30
    handle_due(timers, 100)
    assert owner.calls == [100]


def test_owners_are_called_by_time_and_equal_times_in_order():
    called: list[str] = []
    timers = Timers()
    for name, due_ns in (("late", 30), ("first", 10), ("second", 10), ("third", 10)):
        owner = Owner(name)
        owner.when_called = partial(called.append, name)
        timers.schedule(owner, due_ns)
    handle_due(timers, 30)
    assert called == ["first", "second", "third", "late"]


def test_owner_can_return_its_next_deadline():
    timers, owner = Timers(), Owner("", 80, None)
    timers.schedule(owner, 50)
    handle_due(timers, 60)
    assert timers.next_deadline() == 80
    handle_due(timers, 80)
    assert owner.calls == [60, 80]
    assert timers.next_deadline() is None


def test_owner_due_again_at_once_is_called_by_the_next_call():
    timers, owner = Timers(), Owner("", 10, 60, None)
    timers.schedule(owner, 50)
    handle_due(timers, 60)
    assert owner.calls == [60]
    handle_due(timers, 60)
    handle_due(timers, 60)
    assert owner.calls == [60, 60, 60]


def test_owner_can_schedule_itself_during_its_call():
    timers, owner = Timers(), Owner("", 90)
    owner.when_called = lambda: timers.schedule(owner, 70)
    timers.schedule(owner, 50)
    handle_due(timers, 60)
    assert timers.next_deadline() == owner.due_ns == 70, "the earlier of the two counts"


def test_owner_can_schedule_another_during_its_call():
    timers, owner, other = Timers(), Owner(), Owner()
    owner.when_called = lambda: timers.schedule(other, 55)
    timers.schedule(owner, 50)
    handle_due(timers, 60)
    assert (other.calls, timers.next_deadline()) == ([], 55)


def test_time_scheduled_again_after_it_was_superseded_counts_once():
    timers, owner = Timers(), Owner("", 50)
    timers.schedule(owner, 50)
    timers.schedule(owner, 10)
    handle_due(timers, 10)
    handle_due(timers, 50)
    assert owner.calls == [10, 50]
    assert timers.next_deadline() is None


def test_owner_with_a_cancelled_deadline_is_not_called():
    timers, owner = Timers(), Owner()
    timers.schedule(owner, 50)
    timers.cancel(owner)
    assert timers.next_deadline() is None
    timers.schedule(owner, 70)
    handle_due(timers, 60)
    assert (owner.calls, timers.next_deadline()) == ([], 70)


@given(
    st.lists(
        st.tuples(st.sampled_from(["schedule", "forget", "handle"]), st.integers(0, 4), st.integers(0, 20)),
        max_size=300,
    )
)
def test_due_owners_are_called_and_no_others(steps):
    timers, owners, now_ns = Timers(), [Owner() for _ in range(5)], 0
    expected: dict[Owner, int] = {}
    for verb, number, ns in steps:
        owner = owners[number]
        match verb:
            case "schedule":
                timers.schedule(owner, now_ns + ns)
                expected[owner] = min(expected.get(owner, now_ns + ns), now_ns + ns)
            case "forget":
                timers.cancel(owner)
                expected.pop(owner, None)
            case "handle":
                now_ns += ns
                handle_due(timers, now_ns)
                due = {owner for owner in expected if expected[owner] <= now_ns}
                assert {owner for owner in owners if owner.calls} == due
                for owner in due:
                    assert owner.calls.pop() == now_ns
                    del expected[owner]
        assert timers.next_deadline() == min(expected.values(), default=None)
        assert heap_length(timers) <= 64


# Costs, counted and not measured.


def test_superseded_times_do_not_accumulate():
    timers, near, far = Timers(), Owner(), Owner()
    near.answers = [10**9] * 100_000
    timers.schedule(far, 10**9)
    for now_ns in range(100_000):
        timers.schedule(near, now_ns)
        handle_due(timers, now_ns)
        assert heap_length(timers) <= 64
    assert len(near.calls) == 100_000
    handle_due(timers, 10**9)
    assert near.calls.pop() == far.calls.pop() == 10**9


def test_valid_deadlines_are_kept_among_superseded_ones():
    timers, owners = Timers(), [Owner() for _ in range(1000)]
    for round_ in range(100, 0, -1):
        for owner in owners:
            timers.schedule(owner, round_)
    assert heap_length(timers) <= 2 * len(owners)
    handle_due(timers, 1)
    assert all(owner.calls == [1] for owner in owners)


def test_delivery_and_finish_schedule_nothing():
    driven = DrivenBroker()
    consumer = driven.consumer(rdy_count=100)
    scheduled_count = driven.broker.timers._count
    for _ in range(1000):
        driven.publish(*[b"x"] * 100)
        consumer.feed(*(encode_finish(message.id) for message in consumer.messages()))
        driven.now_ns += 1000
    assert consumer.subscription.finish_count == 100_000
    assert driven.broker.timers._count == scheduled_count + 1
    assert heap_length(driven.broker.timers) == 2


def test_closed_sessions_leave_no_times():
    driven = DrivenBroker()
    stays = driven.consumer()
    for _ in range(1000):
        driven.consumer().disconnect()
    assert heap_length(driven.broker.timers) <= 64
    assert len(driven.broker.sessions) == 1
    driven.advance(30)
    assert stays.answers() == [b"_heartbeat_"]


def test_late_deferred_message_leaves_no_superseded_times():
    driven = DrivenBroker()
    driven.topic().channel(b"c", driven.now_ns)
    driven.publish(b"later", delay=3600)
    for _ in range(1000):
        driven.publish(b"now", delay=0.001)
        driven.advance(0.001)
    assert heap_length(driven.broker.timers) <= 64
    assert driven.broker.next_deadline() == driven.now_ns + 3599 * NS_PER_S
