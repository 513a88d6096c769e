from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nsqkit.producer.send_window import SendWindow


def test_bytes_are_taken_up_to_the_limit():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(4)
    assert window.take(6)
    assert not window.take(1)
    assert window.size == 10


def test_a_publish_larger_than_the_limit_goes_alone():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(11)
    assert not window.take(1)
    window.release(11)
    assert window.take(1)
    assert not window.take(11)


def test_a_small_publish_does_not_overtake_a_large_one():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(5)
    window.wait(8, "large")
    assert not window.take(1)
    assert window.release(5) == ["large"]
    assert window.size == 8


def test_waiters_that_fit_are_admitted_in_order_of_arrival():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(10)
    for waiter, size in {"first": 4, "second": 6, "third": 1}.items():
        window.wait(size, waiter)
    assert window.release(10) == ["first", "second"]
    assert window.waiting_count == 1


def test_a_waiter_that_leaves_admits_the_next():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(5)
    window.wait(8, "large")
    window.wait(5, "small")
    assert window.leave("large", 8) == ["small"]
    assert window.size == 10


def test_waiter_that_leaves_after_it_was_admitted_releases_its_bytes():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(10)
    window.wait(8, "waiter")
    assert window.release(10) == ["waiter"]
    assert window.leave("waiter", 8) == []
    assert window.size == 0


def test_clear_returns_the_waiters():
    window: SendWindow[str] = SendWindow(10)
    assert window.take(10)
    window.wait(1, "first")
    window.wait(1, "second")
    assert window.clear() == ["first", "second"]
    assert (window.size, window.waiting_count) == (10, 0)


class Publishes(RuleBasedStateMachine):
    """Publishes that take bytes or wait for them, and come to their end."""

    publishes = Bundle("publishes")

    def __init__(self) -> None:
        super().__init__()
        self.window: SendWindow[int] = SendWindow(20)
        self.count = 0
        self.holding: dict[int, int] = {}
        self.waiting: dict[int, int] = {}

    def _admit(self, admitted: list[int]) -> None:
        assert admitted == [*self.waiting][: len(admitted)]
        for number in admitted:
            self.holding[number] = self.waiting.pop(number)

    @rule(target=publishes, size=st.integers(1, 30))
    def publish(self, size):
        self.count += 1
        if self.window.take(size):
            assert not self.waiting
            self.holding[self.count] = size
        else:
            self.window.wait(size, self.count)
            self.waiting[self.count] = size
        return self.count

    @rule(number=consumes(publishes))
    def end(self, number):
        if number in self.holding:
            self._admit(self.window.release(self.holding.pop(number)))
        else:
            size = self.waiting.pop(number)
            self._admit(self.window.leave(number, size))

    @invariant()
    def the_size_is_that_of_the_publishes(self):
        assert self.window.size == sum(self.holding.values())
        assert self.window.size <= 20 or len(self.holding) == 1
        assert self.window.waiting_count == len(self.waiting)

    @invariant()
    def a_publish_waits_only_while_it_does_not_fit(self):
        if self.waiting:
            assert self.holding
            assert self.window.size + next(iter(self.waiting.values())) > 20


TestPublishes = Publishes.TestCase
