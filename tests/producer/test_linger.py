from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqkit.producer.linger import Batch, Linger

A, B = b"a", b"b"


def make(linger_ns: int = 10, count_max: int = 3, size_max: int = 100) -> Linger:
    return Linger(linger_ns=linger_ns, count_max=count_max, size_max=size_max)


def join(linger: Linger, topic: bytes, *bodies: bytes, now_ns: int = 0) -> None:
    """Add messages, with their bodies as tokens."""
    for body in bodies:
        if linger.join(topic, body, body):
            linger.set_deadlines(now_ns)


def taken(linger: Linger) -> list[tuple[bytes, list[bytes]]]:
    return [(batch.lane.topic, [*batch.bodies.values()]) for batch in linger.take()]


def test_without_a_batch_in_flight_a_batch_is_ready_at_once_and_takes_more_until_it_is_sent():
    linger = make()
    join(linger, A, b"1", b"2")
    assert linger.has_ready
    assert linger.next_deadline() is None
    assert taken(linger) == [(A, [b"1", b"2"])]
    assert not linger.has_ready


def test_messages_gather_until_the_batch_in_flight_is_answered():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2", b"3")
    assert not linger.has_ready
    linger.answered(first)
    assert taken(linger) == [(A, [b"2", b"3"])]


def test_a_batch_with_enough_messages_is_ready():
    linger = make(count_max=3)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", b"3")
    assert not linger.has_ready
    join(linger, A, b"4", b"5")
    assert taken(linger) == [(A, [b"2", b"3", b"4"])]


def test_a_batch_with_enough_bytes_is_ready():
    linger = make(size_max=4 + 2 * (4 + 10))
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"x" * 10)
    assert not linger.has_ready
    join(linger, A, b"y" * 10)
    assert taken(linger) == [(A, [b"x" * 10, b"y" * 10])]


def test_a_message_that_does_not_fit_opens_the_next_batch():
    linger = make(size_max=40)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"x" * 20, b"y" * 20)
    assert taken(linger) == [(A, [b"x" * 20])]
    assert linger.next_deadline() == 10


def test_a_message_larger_than_a_batch_is_sent_alone():
    linger = make(size_max=40)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", b"x" * 100, b"3")
    assert taken(linger) == [(A, [b"2"]), (A, [b"x" * 100])]


def test_a_batch_is_ready_when_the_linger_time_of_its_first_message_has_passed():
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


def test_topics_are_independent():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2", now_ns=1)
    join(linger, B, b"3", now_ns=2)
    assert taken(linger) == [(B, [b"3"])]
    linger.answered(first)
    assert taken(linger) == [(A, [b"2"])]


def test_messages_gather_while_any_batch_of_the_topic_is_in_flight():
    linger = make(count_max=2)
    join(linger, A, b"1", b"2")
    join(linger, A, b"3", b"4")
    first, second = linger.take()
    join(linger, A, b"5")
    linger.answered(first)
    assert not linger.has_ready
    linger.answered(second)
    assert taken(linger) == [(A, [b"5"])]


def test_join_returns_true_when_a_batch_was_opened_or_is_ready():
    linger = make(count_max=3)
    assert [linger.join(A, b"x", token) for token in range(6)] == [True, False, True, True, False, True]


def test_a_publish_can_be_withdrawn_until_it_is_taken():
    linger = make(count_max=2)
    join(linger, A, b"1", b"2", b"3")
    assert linger.withdraw(b"1")
    assert linger.withdraw(b"3")
    assert taken(linger) == [(A, [b"2"])]
    assert not linger.withdraw(b"2")
    assert linger.count == 0


def test_a_batch_whose_messages_were_withdrawn_is_removed():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    join(linger, A, b"2")
    assert linger.withdraw(b"2")
    assert linger.next_deadline() is None
    linger.answered(first)
    assert not linger.has_ready


def test_a_topic_without_messages_is_forgotten():
    linger = make()
    join(linger, A, b"1")
    (first,) = linger.take()
    linger.answered(first)
    join(linger, B, b"2")
    linger.withdraw(b"2")
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


def test_flush_makes_all_batches_ready():
    linger = make()
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2")
    linger.flush()
    assert taken(linger) == [(A, [b"2"])]


def test_clear_returns_the_messages_that_were_not_sent():
    linger = make(count_max=2)
    join(linger, A, b"1")
    linger.take()
    join(linger, A, b"2", b"3", b"4")
    join(linger, B, b"5")
    assert {*linger.clear()} == {b"2", b"3", b"4", b"5"}
    assert not linger.has_ready
    assert linger.next_deadline() is None
    assert linger.count == 0


class Gathering(RuleBasedStateMachine):
    """Two topics, batches that are answered in order, messages that are withdrawn, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.linger = make(linger_ns=10, count_max=3, size_max=40)
        self.waiting: dict[object, tuple[bytes, bytes, int]] = {}
        self.in_flight: list[Batch] = []
        self.count = 0

    @rule(topic=st.sampled_from([A, B]), size=st.integers(1, 50))
    def join(self, topic, size):
        self.count += 1
        token, body = self.count, b"%0*d" % (size, self.count)
        self.waiting[token] = (topic, body, self.now_ns)
        if self.linger.join(topic, body, token):
            self.linger.set_deadlines(self.now_ns)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        token = data.draw(st.sampled_from([*self.waiting]))
        assert self.linger.withdraw(token)
        del self.waiting[token]

    @rule()
    def take(self):
        for batch in self.linger.take():
            assert 1 <= len(batch.bodies) <= 3
            assert len(batch.bodies) == 1 or batch.size <= 40
            assert batch.size == 4 + sum(4 + len(body) for body in batch.bodies.values())
            for token, body in batch.bodies.items():
                topic, published, _ = self.waiting.pop(token)
                assert (topic, published) == (batch.lane.topic, body)
            self.in_flight.append(batch)

    @precondition(lambda self: self.in_flight)
    @rule()
    def answer(self):
        self.linger.answered(self.in_flight.pop(0))

    @rule(passed=st.integers(1, 12))
    def time_passes(self, passed):
        self.now_ns += passed
        self.linger.handle_deadline(self.now_ns)

    @invariant()
    def the_count_is_that_of_the_messages(self):
        assert self.linger.count == len(self.waiting)

    @invariant()
    def a_message_waits_only_for_a_batch_in_flight_and_its_linger_time(self):
        ready = {token for batch in self.linger._ready for token in batch.bodies}
        busy = {batch.lane.topic for batch in self.in_flight}
        for token, (topic, _, since_ns) in self.waiting.items():
            if token not in ready:
                assert topic in busy
                assert self.now_ns < since_ns + 10
        assert self.linger.has_ready == bool(ready)


TestGathering = Gathering.TestCase
