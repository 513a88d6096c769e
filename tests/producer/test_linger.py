from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqkit.producer.linger import Batch, Linger
from nsqkit.producer.waiter import Waiter
from tests.producer.fakes import FakeWaiter, waiters

A, B = b"a", b"b"


def make(linger_ns: int = 10, count_max: int = 3, size_max: int = 100) -> Linger:
    return Linger(linger_ns=linger_ns, count_max=count_max, size_max=size_max)


def join(linger: Linger, topic: bytes, *bodies: bytes, now_ns: int = 0) -> list[FakeWaiter]:
    told = waiters(len(bodies))
    for body, waiter in zip(bodies, told, strict=True):
        if linger.join(topic, body, waiter):
            linger.set_deadlines(now_ns)
    return told


def taken(linger: Linger) -> list[tuple[bytes, list[bytes]]]:
    return [(batch.lane.topic, [*batch.bodies.values()]) for batch in linger.take()]


def test_while_nothing_is_on_its_way_a_batch_is_ready_at_once_and_takes_more_until_it_goes():
    linger = make()
    join(linger, A, b"1", b"2")
    assert linger.has_ready
    assert linger.next_deadline() is None
    assert taken(linger) == [(A, [b"1", b"2"])]
    assert not linger.has_ready


def test_what_comes_while_an_answer_is_awaited_goes_with_that_answer():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2", b"3")
    assert not linger.has_ready
    linger.answered(first)
    assert taken(linger) == [(A, [b"2", b"3"])]


def test_or_when_there_is_enough_of_it():
    linger = make(count_max=3)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", b"3")
    assert not linger.has_ready
    join(linger, A, b"4", b"5")
    assert taken(linger) == [(A, [b"2", b"3", b"4"])]


def test_or_when_there_are_enough_bytes_of_it():
    linger = make(size_max=4 + 2 * (4 + 10))
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"x" * 10)
    assert not linger.has_ready
    join(linger, A, b"y" * 10)
    assert taken(linger) == [(A, [b"x" * 10, b"y" * 10])]


def test_what_would_be_too_much_together_opens_the_next_batch():
    linger = make(size_max=40)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"x" * 20, b"y" * 20)
    assert taken(linger) == [(A, [b"x" * 20])]
    assert linger.next_deadline() == 10


def test_a_message_that_is_larger_than_a_batch_goes_alone():
    linger = make(size_max=40)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", b"x" * 100, b"3")
    assert taken(linger) == [(A, [b"2"]), (A, [b"x" * 100])]


def test_or_when_the_linger_is_over_which_begins_with_the_first():
    linger = make(linger_ns=10)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", now_ns=5)
    join(linger, A, b"3", now_ns=9)
    assert linger.next_deadline() == 15
    linger.handle_deadline(14)
    assert not linger.has_ready
    linger.handle_deadline(15)
    assert taken(linger) == [(A, [b"2", b"3"])]
    assert linger.next_deadline() is None


def test_topics_do_not_wait_for_each_other():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2", now_ns=1)
    join(linger, B, b"3", now_ns=2)
    assert taken(linger) == [(B, [b"3"])]
    linger.answered(first)
    assert taken(linger) == [(A, [b"2"])]


def test_an_answer_is_not_enough_while_others_are_on_their_way():
    linger = make(count_max=2)
    join(linger, A, b"1", b"2")
    join(linger, A, b"3", b"4")
    first, second = linger.take()
    join(linger, A, b"5")
    linger.answered(first)
    assert not linger.has_ready
    linger.answered(second)
    assert taken(linger) == [(A, [b"5"])]


def test_join_asks_to_be_seen_to_only_when_there_is_something_to_see_to():
    linger = make(count_max=3)
    told = waiters(6)
    assert [linger.join(A, b"x", waiter) for waiter in told] == [True, False, True, True, False, True]


def test_a_publish_can_be_withdrawn_until_it_is_taken():
    linger = make(count_max=2)
    told = join(linger, A, b"1", b"2", b"3")
    assert linger.withdraw(told[0])
    assert linger.withdraw(told[2])
    assert taken(linger) == [(A, [b"2"])]
    assert not linger.withdraw(told[1])
    assert linger.count == 0


def test_a_batch_that_all_have_left_is_none():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    (waiter,) = join(linger, A, b"2")
    assert linger.withdraw(waiter)
    assert linger.next_deadline() is None
    linger.answered(first)
    assert not linger.has_ready


def test_nothing_is_kept_of_a_topic_of_which_there_is_nothing():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    linger.answered(first)
    (waiter,) = join(linger, B, b"2")
    linger.withdraw(waiter)
    assert not linger._lanes


def test_a_topic_is_not_forgotten_while_a_full_batch_of_it_is_ready():
    linger = make(count_max=1)
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2")
    linger.answered(first)
    join(linger, A, b"3")
    second, third = linger.take()
    assert second.lane is third.lane
    linger.answered(second)
    join(linger, A, b"4")
    assert linger.count == 1


def test_in_a_hurry_nothing_waits():
    linger = make()
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2")
    linger.hurry()
    assert taken(linger) == [(A, [b"2"])]


def test_at_the_end_all_are_named_who_are_not_on_their_way():
    linger = make(count_max=2)
    join(linger, A, b"1")
    linger.take()
    told = join(linger, A, b"2", b"3", b"4") + join(linger, B, b"5")
    assert {*linger.end()} == {*told}
    assert not linger.has_ready
    assert linger.next_deadline() is None
    assert linger.count == 0


class Gathering(RuleBasedStateMachine):
    """Two topics; batches that are taken and answered in order, publishers that leave, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.linger = make(linger_ns=10, count_max=3, size_max=40)
        self.waiting: dict[Waiter, tuple[bytes, bytes, int]] = {}
        self.on_their_way: list[Batch] = []
        self.count = 0

    @rule(topic=st.sampled_from([A, B]), size=st.integers(1, 50))
    def join(self, topic, size):
        self.count += 1
        waiter, body = FakeWaiter(), b"%0*d" % (size, self.count)
        self.waiting[waiter] = (topic, body, self.now_ns)
        if self.linger.join(topic, body, waiter):
            self.linger.set_deadlines(self.now_ns)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        waiter = data.draw(st.sampled_from([*self.waiting]))
        assert self.linger.withdraw(waiter)
        del self.waiting[waiter]

    @rule()
    def take(self):
        for batch in self.linger.take():
            assert 1 <= len(batch.bodies) <= 3
            assert len(batch.bodies) == 1 or batch.size <= 40
            assert batch.size == 4 + sum(4 + len(body) for body in batch.bodies.values())
            for waiter, body in batch.bodies.items():
                topic, published, _ = self.waiting.pop(waiter)
                assert (topic, published) == (batch.lane.topic, body)
            self.on_their_way.append(batch)

    @precondition(lambda self: self.on_their_way)
    @rule()
    def answer(self):
        self.linger.answered(self.on_their_way.pop(0))

    @rule(passed=st.integers(1, 12))
    def time_passes(self, passed):
        self.now_ns += passed
        self.linger.handle_deadline(self.now_ns)

    @invariant()
    def all_that_waits_is_there(self):
        assert self.linger.count == len(self.waiting)

    @invariant()
    def nobody_waits_without_need(self):
        ready = {waiter for batch in self.linger._ready for waiter in batch.bodies}
        busy = {batch.lane.topic for batch in self.on_their_way}
        for waiter, (topic, _, since_ns) in self.waiting.items():
            if waiter not in ready:
                assert topic in busy
                assert self.now_ns < since_ns + 10
        assert self.linger.has_ready == bool(ready)


TestGathering = Gathering.TestCase
