from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nsqkit.errors import Closed
from nsqkit.producer.send_window import SendWindow
from tests.producer.fakes import FakeWaiter, answers, waiters


def test_there_is_room_until_the_limit():
    outstanding = SendWindow(10)
    assert outstanding.take(4)
    assert outstanding.take(6)
    assert not outstanding.take(1)
    assert outstanding.size == 10


def test_who_is_larger_than_the_limit_goes_alone():
    outstanding = SendWindow(10)
    assert outstanding.take(11)
    assert not outstanding.take(1)
    outstanding.give_back(11)
    assert outstanding.take(1)
    assert not outstanding.take(11)


def test_a_small_one_does_not_overtake_a_large_one_that_waits():
    outstanding = SendWindow(10)
    assert outstanding.take(5)
    large = FakeWaiter()
    outstanding.wait(8, large)
    assert not outstanding.take(1)
    outstanding.give_back(5)
    assert large.answer is None
    assert outstanding.size == 8


def test_all_who_fit_are_admitted_in_the_order_in_which_they_came():
    outstanding = SendWindow(10)
    assert outstanding.take(10)
    told = waiters(3)
    for waiter, size in zip(told, (4, 6, 1), strict=True):
        outstanding.wait(size, waiter)
    outstanding.give_back(10)
    assert [waiter.done() for waiter in told] == [True, True, False]
    assert outstanding.waiting_count == 1


def test_who_leaves_the_line_lets_the_next_one_go():
    outstanding = SendWindow(10)
    assert outstanding.take(5)
    large, small = waiters(2)
    outstanding.wait(8, large)
    outstanding.wait(5, small)
    outstanding.leave(large, 8)
    assert small.answer is None
    assert outstanding.size == 10


def test_who_leaves_after_having_been_admitted_gives_back():
    outstanding = SendWindow(10)
    assert outstanding.take(10)
    waiter = FakeWaiter()
    outstanding.wait(8, waiter)
    outstanding.give_back(10)
    outstanding.leave(waiter, 8)
    assert outstanding.size == 0


def test_at_the_end_those_in_line_are_told():
    outstanding = SendWindow(10)
    assert outstanding.take(10)
    told = waiters(3)
    for waiter in told:
        outstanding.wait(1, waiter)
    told[1].cancel()
    outstanding.refuse(Closed, "over")
    assert [str(answers(told)[n]) for n in (0, 2)] == ["over", "over"]
    for waiter in told:  # being told of an error, each leaves
        outstanding.leave(waiter, 1)
    assert (outstanding.size, outstanding.waiting_count) == (10, 0)


class Line(RuleBasedStateMachine):
    """Publishes that take room, wait for it, are cancelled, and come to their end."""

    publishes = Bundle("publishes")

    def __init__(self) -> None:
        super().__init__()
        self.outstanding = SendWindow(20)
        self.held: dict[FakeWaiter, int] = {}
        self.line: dict[FakeWaiter, int] = {}

    def _admit(self):
        for waiter in [waiter for waiter in self.line if waiter.answer is None]:
            self.held[waiter] = self.line.pop(waiter)

    @rule(target=publishes, size=st.integers(1, 30))
    def publish(self, size):
        waiter = FakeWaiter()
        if self.outstanding.take(size):
            waiter.set_result(None)
            self.held[waiter] = size
        else:
            self.outstanding.wait(size, waiter)
            self.line[waiter] = size
        return waiter

    @rule(waiter=publishes)
    def is_cancelled(self, waiter):
        """The event loop cancels; the task hears of it later, in ``end``."""
        if waiter in self.line:
            waiter.cancel()

    @rule(waiter=consumes(publishes))
    def end(self, waiter):
        if waiter in self.held:
            self.outstanding.give_back(self.held.pop(waiter))
        else:
            self.outstanding.leave(waiter, self.line.pop(waiter))
        self._admit()

    @invariant()
    def what_is_held_is_what_counts(self):
        assert self.outstanding.size == sum(self.held.values())
        assert self.outstanding.size <= 20 or len(self.held) == 1

    @invariant()
    def nobody_waits_in_vain(self):
        first = next((waiter for waiter in self.line if not waiter.is_cancelled), None)
        if first is not None:
            assert self.held
            if not any(waiter.is_cancelled for waiter in self.line):
                assert self.outstanding.size + self.line[first] > 20


TestLine = Line.TestCase
