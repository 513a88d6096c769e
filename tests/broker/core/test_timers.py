"""The agenda alone: deadlines, notes, and what they cost when superseded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.timers import Agenda
from nsqkit.wire.commands import encode_finish
from tests.pairs import NS_PER_S, DrivenBroker


class Owner:
    """Something that keeps time: it notes when it was called, and says what it was told to say."""

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


def heap_length(agenda: Agenda) -> int:
    return len(agenda._heap)


# Deadlines.


def test_an_empty_agenda_has_no_deadline():
    agenda = Agenda()
    assert agenda.next_deadline() is None
    agenda.handle_deadline(100)


def test_an_owner_is_called_once_when_its_time_has_come():
    agenda, owner = Agenda(), Owner()
    agenda.schedule(owner, 50)
    agenda.handle_deadline(49)
    assert owner.calls == []
    agenda.handle_deadline(50)
    agenda.handle_deadline(51)
    assert owner.calls == [50]
    assert agenda.next_deadline() is owner.due_ns is None


def test_an_earlier_time_replaces_a_later_one_and_never_the_other_way_round():
    agenda, owner = Agenda(), Owner()
    for due_ns in (50, 70, 30, 40):
        agenda.schedule(owner, due_ns)
    assert agenda.next_deadline() == owner.due_ns == 30
    agenda.handle_deadline(100)
    assert owner.calls == [100]


def test_owners_are_called_by_time_and_for_one_time_as_they_were_noted():
    called: list[str] = []
    agenda = Agenda()
    for name, due_ns in (("late", 30), ("first", 10), ("second", 10), ("third", 10)):
        owner = Owner(name)
        owner.when_called = partial(called.append, name)
        agenda.schedule(owner, due_ns)
    agenda.handle_deadline(30)
    assert called == ["first", "second", "third", "late"]


def test_an_owner_says_when_to_come_again():
    agenda, owner = Agenda(), Owner("", 80, None)
    agenda.schedule(owner, 50)
    agenda.handle_deadline(60)
    assert agenda.next_deadline() == 80
    agenda.handle_deadline(80)
    assert owner.calls == [60, 80]
    assert agenda.next_deadline() is None


def test_an_owner_that_is_due_again_at_once_has_to_wait_for_the_next_call():
    agenda, owner = Agenda(), Owner("", 10, 60, None)
    agenda.schedule(owner, 50)
    agenda.handle_deadline(60)
    assert owner.calls == [60]
    agenda.handle_deadline(60)
    agenda.handle_deadline(60)
    assert owner.calls == [60, 60, 60]


def test_an_owner_may_schedule_itself_while_it_is_called():
    agenda, owner = Agenda(), Owner("", 90)
    owner.when_called = lambda: agenda.schedule(owner, 70)
    agenda.schedule(owner, 50)
    agenda.handle_deadline(60)
    assert agenda.next_deadline() == owner.due_ns == 70, "the earlier of the two counts"


def test_an_owner_may_schedule_another_while_it_is_called():
    agenda, owner, other = Agenda(), Owner(), Owner()
    owner.when_called = lambda: agenda.schedule(other, 55)
    agenda.schedule(owner, 50)
    agenda.handle_deadline(60)
    assert (other.calls, agenda.next_deadline()) == ([], 55)


def test_a_time_that_stands_again_after_it_was_superseded_counts_once():
    agenda, owner = Agenda(), Owner("", 50)
    agenda.schedule(owner, 50)
    agenda.schedule(owner, 10)
    agenda.handle_deadline(10)
    agenda.handle_deadline(50)
    assert owner.calls == [10, 50]
    assert agenda.next_deadline() is None


def test_who_is_forgotten_is_not_called():
    agenda, owner = Agenda(), Owner()
    agenda.schedule(owner, 50)
    agenda.forget(owner)
    assert agenda.next_deadline() is None
    agenda.schedule(owner, 70)
    agenda.handle_deadline(60)
    assert (owner.calls, agenda.next_deadline()) == ([], 70)


@given(
    st.lists(
        st.tuples(st.sampled_from(["schedule", "forget", "handle"]), st.integers(0, 4), st.integers(0, 20)),
        max_size=300,
    )
)
def test_who_is_due_is_called_and_nobody_else(steps):
    agenda, owners, now_ns = Agenda(), [Owner() for _ in range(5)], 0
    expected: dict[Owner, int] = {}
    for verb, number, ns in steps:
        owner = owners[number]
        match verb:
            case "schedule":
                agenda.schedule(owner, now_ns + ns)
                expected[owner] = min(expected.get(owner, now_ns + ns), now_ns + ns)
            case "forget":
                agenda.forget(owner)
                expected.pop(owner, None)
            case "handle":
                now_ns += ns
                agenda.handle_deadline(now_ns)
                due = {owner for owner in expected if expected[owner] <= now_ns}
                assert {owner for owner in owners if owner.calls} == due
                for owner in due:
                    assert owner.calls.pop() == now_ns
                    del expected[owner]
        assert agenda.next_deadline() == min(expected.values(), default=None)
        assert heap_length(agenda) <= 64


# What it costs: counted, not measured.


def test_superseded_times_do_not_pile_up():
    agenda, near, far = Agenda(), Owner(), Owner()
    near.answers = [10**9] * 100_000
    agenda.schedule(far, 10**9)
    for now_ns in range(100_000):
        agenda.schedule(near, now_ns)
        agenda.handle_deadline(now_ns)
        assert heap_length(agenda) <= 64
    assert len(near.calls) == 100_000
    agenda.handle_deadline(10**9)
    assert near.calls.pop() == far.calls.pop() == 10**9


def test_what_is_valid_is_kept_however_much_is_superseded():
    agenda, owners = Agenda(), [Owner() for _ in range(1000)]
    for round_ in range(100, 0, -1):
        for owner in owners:
            agenda.schedule(owner, round_)
    assert heap_length(agenda) <= 2 * len(owners)
    agenda.handle_deadline(1)
    assert all(owner.calls == [1] for owner in owners)


def test_delivering_and_finishing_schedules_nothing():
    driven = DrivenBroker()
    consumer = driven.consumer(rdy_count=100)
    scheduled_count = driven.broker.agenda._count
    for _ in range(1000):
        driven.publish(*[b"x"] * 100)
        consumer.feed(*(encode_finish(message.id) for message in consumer.messages()))
        driven.now_ns += 1000
    assert consumer.session.finish_count == 100_000
    assert driven.broker.agenda._count == scheduled_count + 1
    assert heap_length(driven.broker.agenda) == 2


def test_sessions_that_are_gone_leave_nothing():
    driven = DrivenBroker()
    stays = driven.consumer()
    for _ in range(1000):
        driven.consumer().disconnect()
    assert heap_length(driven.broker.agenda) <= 64
    assert len(driven.broker.sessions) == 1
    driven.advance(30)
    assert stays.answers() == [b"_heartbeat_"]


def test_a_deferred_message_for_later_does_not_add_up_with_those_for_now():
    driven = DrivenBroker()
    driven.topic().channel(b"c", driven.now_ns)
    driven.publish(b"later", delay=3600)
    for _ in range(1000):
        driven.publish(b"now", delay=0.001)
        driven.advance(0.001)
    assert heap_length(driven.broker.agenda) <= 64
    assert driven.broker.next_deadline() == driven.now_ns + 3599 * NS_PER_S


# Notes.


def test_notes_are_taken_once_in_the_order_in_which_they_were_made():
    agenda = Agenda()
    for take, note in ((agenda.take_channels, agenda.deliver), (agenda.take_sessions, agenda.write)):
        note_any = cast("Callable[[Any], None]", note)
        for name in ("b", "a", "b", "c"):
            note_any(name)
        assert list(cast("dict[Any, None]", take())) == ["b", "a", "c"]
        assert not take()


def test_an_error_in_one_owner_keeps_nobody_else_from_being_called():
    def fail() -> None:
        raise KeyError("an error of ours")

    agenda, first, bad, last = Agenda(), Owner(), Owner(), Owner()
    bad.when_called = fail
    for each in (first, bad, last):
        agenda.schedule(each, 50)
    ((owner, error),) = agenda.handle_deadline(60)
    assert owner is bad
    assert isinstance(error, KeyError)
    assert first.calls == last.calls == [60]
    assert agenda.handle_deadline(70) == []
