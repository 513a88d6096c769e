"""One consumer of a channel, and the messages that it holds; last a state machine against a plain dict."""

from __future__ import annotations

from random import Random

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.topics.subscription import InFlight, Subscription
from nsqkit.broker.core.topics.topology import GLOBAL
from nsqkit.wire.identify import Grant
from nsqkit.wire.messages import ID, encode_message, id_of

MAX_NS = 900

GRANT = Grant(heartbeat_interval_ns=0, msg_timeout_ns=60, output_buffer_size=99, output_buffer_timeout_ns=0)


def an_id(number: int) -> bytes:
    return b"%016d" % number


def a_frame(number: int) -> bytes:
    return encode_message(0, 1, an_id(number), b"body")


class Output:
    """Keeps the frames and buffer sizes that it gets."""

    def __init__(self) -> None:
        self.is_full = False
        self.sent: list[tuple[list[bytes], int]] = []

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        self.sent.append((frames, buffer_size))


@pytest.fixture
def output() -> Output:
    return Output()


def subscription(output: Output, rdy_count: int = 2, sample_rate: int = 0) -> Subscription:
    grant = attrs.evolve(GRANT, sample_rate=sample_rate)
    made = Subscription(output, grant, GLOBAL, GuidFactory(1), Random(1))
    made.rdy_count = rdy_count
    return made


def test_capacity_is_rdy_count_without_messages_in_flight(output):
    consumer = subscription(output)
    assert consumer.deliver([a_frame(1)], 7) == 67
    assert (consumer.capacity, consumer.message_count) == (1, 1)
    consumer.deliver([a_frame(2)], 7)
    assert consumer.capacity == 0
    assert output.sent == [([a_frame(1)], 99), ([a_frame(2)], 0)], "the last one does not wait in the buffer"


def test_full_output_takes_nothing(output):
    consumer = subscription(output)
    output.is_full = True
    assert consumer.capacity == 0
    output.is_full = False
    assert consumer.capacity == 2


def test_closed_subscription_takes_nothing(output):
    consumer = subscription(output)
    consumer.close()
    assert (consumer.capacity, consumer.rdy_count) == (0, 0)


def test_sample_rate_divides_messages(output):
    frames = [a_frame(number) for number in range(1000)]
    chosen, dropped = subscription(output, sample_rate=30).sample(frames)
    assert sorted(chosen + dropped) == frames
    assert 260 < len(chosen) < 360


# Messages in flight.


class Held(InFlight):
    """In-flight messages, with a list of those that have timed out."""

    def __init__(self) -> None:
        self.timed_out: list[bytes] = []
        self.guids = GuidFactory(1)
        super().__init__(self.guids)

    def handle_deadline(self, now_ns: int) -> int | None:
        self.timed_out += self.remove_due(now_ns)
        return self.next_deadline()

    def deliver(self, *numbers: int, now_ns: int = 0, timeout_ns: int = 60) -> None:
        self.add([*map(an_id, numbers)], [*map(a_frame, numbers)], now_ns, now_ns + timeout_ns)


# Taking and giving.


@pytest.mark.parametrize("touched", [False, True])
def test_message_with_the_id_of_another_in_flight_gets_a_new_id(touched: bool):
    held = Held()
    held.guids.gave_all = False
    held.deliver(1, 2)
    if touched:
        held.touch(an_id(1), 0, 60, MAX_NS)
    frames = [encode_message(5, 1, an_id(number), b"other") for number in (1, 3)]
    sent = held.add([an_id(1), an_id(3)], frames, 0, 60)
    assert sent[1] == frames[1]
    assert sent[0] != frames[0]
    assert [without_id(frame) for frame in sent] == [without_id(frame) for frame in frames]
    assert len(held) == 4
    assert held.remove(an_id(1)) == a_frame(1)
    assert held.remove(id_of(sent[0])) == sent[0]
    assert held.remove(an_id(2)) == a_frame(2)


def test_messages_of_one_delivery_with_one_id_get_different_ids():
    held = Held()
    held.guids.gave_all = False
    held.deliver(1)
    frames = [encode_message(0, 1, an_id(2), body) for body in (b"one", b"two", b"three")]
    sent = held.add([an_id(2)] * 3, frames, 0, 60)
    assert len(held) == 4
    assert len(set(map(id_of, sent))) == 3
    assert [without_id(frame) for frame in sent] == [without_id(frame) for frame in frames]
    assert held.remove_all(list(map(id_of, sent))) == []
    assert held.remove(an_id(1)) == a_frame(1)


def without_id(frame: bytes) -> bytes:
    return frame[: ID.start] + frame[ID.stop :]


def test_delivered_messages_are_held_until_they_are_removed():
    held = Held()
    held.deliver(1, 2)
    assert (len(held), an_id(1) in held, an_id(3) in held) == (2, True, False)
    assert held.remove(an_id(1)) == a_frame(1)
    assert held.remove(an_id(1)) is None
    assert (len(held), an_id(1) in held) == (1, False)


def test_remove_all_returns_missing_ids_in_order():
    held = Held()
    held.deliver(1, 2, 3)
    held.touch(an_id(2), 10, 60, MAX_NS)
    ids = [an_id(number) for number in (9, 1, 2, 1, 8)]
    assert held.remove_all(ids) == [an_id(9), an_id(1), an_id(8)]
    assert held.remove_all([an_id(3)]) == []
    assert not held


def test_find_all_returns_a_message_once_that_is_named_twice():
    held = Held()
    held.deliver(1, 2, 3)
    held.touch(an_id(2), 10, 60, MAX_NS)
    assert held.find_all([an_id(number) for number in (2, 1, 9, 2, 1)]) == [a_frame(2), a_frame(1)]


def test_remove_all_returns_missing_ids_without_touched_messages():
    held = Held()
    held.deliver(1)
    assert held.remove_all([an_id(1), an_id(2)]) == [an_id(2)]


def test_remove_everything_returns_all_messages():
    held = Held()
    held.deliver(1, 2)
    held.touch(an_id(1), 0, 60, MAX_NS)
    assert sorted(held.remove_everything()) == [a_frame(1), a_frame(2)]
    assert (len(held), held.handle_deadline(1000), held.timed_out) == (0, None, [])


# Timing out.


def test_messages_time_out_at_their_deadline_and_not_a_nanosecond_earlier():
    held = Held()
    held.deliver(1, 2, now_ns=0)
    held.deliver(3, now_ns=5)
    assert held.handle_deadline(59) == 60
    assert held.timed_out == []
    assert held.handle_deadline(60) == 65
    assert held.timed_out == [a_frame(1), a_frame(2)]
    assert held.handle_deadline(65) is None
    assert held.timed_out == [a_frame(1), a_frame(2), a_frame(3)]


def test_finished_message_does_not_time_out():
    held = Held()
    held.deliver(1, 2)
    held.remove(an_id(1))
    held.handle_deadline(60)
    assert held.timed_out == [a_frame(2)]


def test_empty_set_has_no_deadline():
    held = Held()
    held.deliver(1)
    held.remove(an_id(1))
    assert held.handle_deadline(60) is None


# Touching.


def test_touched_message_has_a_whole_timeout_again():
    held = Held()
    held.deliver(1, 2)
    assert held.touch(an_id(1), 40, 60, MAX_NS) == 100
    assert held.handle_deadline(60) == 100
    assert held.timed_out == [a_frame(2)]
    assert an_id(1) in held
    held.handle_deadline(100)
    assert held.timed_out == [a_frame(2), a_frame(1)]


def test_touches_extend_the_time_up_to_a_maximum_after_delivery():
    held = Held()
    held.deliver(1, now_ns=7)
    now_ns = 7
    while now_ns < 7 + MAX_NS - 60:
        assert held.touch(an_id(1), now_ns, 60, MAX_NS) == now_ns + 60
        now_ns += 20
    assert held.touch(an_id(1), now_ns, 60, MAX_NS) == 7 + MAX_NS
    held.handle_deadline(7 + MAX_NS)
    assert held.timed_out == [a_frame(1)]


def test_touch_can_shorten_the_time():
    held = Held()
    held.deliver(1, timeout_ns=2000)
    assert held.touch(an_id(1), 10, 2000, MAX_NS) == MAX_NS
    assert held.handle_deadline(10) == MAX_NS


def test_shortened_timeout_is_kept_behind_earlier_deliveries():
    held = Held()
    held.deliver(1, 2, timeout_ns=2000)
    held.touch(an_id(2), 10, 2000, MAX_NS)
    assert held.handle_deadline(MAX_NS) == 2000
    assert held.timed_out == [a_frame(2)]


def test_message_that_is_not_held_cannot_be_touched():
    assert Held().touch(an_id(1), 0, 60, MAX_NS) is None


def test_touched_message_can_be_removed():
    held = Held()
    held.deliver(1)
    held.touch(an_id(1), 0, 60, MAX_NS)
    assert held.remove(an_id(1)) == a_frame(1)
    assert not held


# Costs, counted and not measured.


def test_deadline_examines_no_more_untouched_messages_than_are_due():
    looked_at = 0

    class Counted(int):
        def __gt__(self, other: int) -> bool:
            nonlocal looked_at
            looked_at += 1
            return int(self) > other

    held = Held()
    for now_ns in range(1000):
        number = now_ns
        held.add([an_id(number)], [a_frame(number)], now_ns, Counted(now_ns + 60))
    assert held.handle_deadline(60) == 61
    assert looked_at == 2


def test_million_finished_messages_leave_no_memory():
    held = Held()
    sizes = set()
    for batch in range(1000):
        numbers = range(batch * 1000, batch * 1000 + 1000)
        ids = [*map(an_id, numbers)]
        held.add(ids, ids, batch, batch + 60)
        assert held.remove_all(ids) == []
        sizes.add(held.untouched.__sizeof__())
    assert len(held) == len(held.touched) == 0
    assert max(sizes) < 250_000, "as much as a thousand messages need"


class InFlightMachine(RuleBasedStateMachine):
    """Two consumers' sets, compared with one dict: message -> owner, time of delivery, deadline."""

    TIMEOUT_NS = (60, 25)

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.number = 0
        self.sets = (Held(), Held())
        self.expected: dict[int, tuple[int, int, int]] = {}

    def recent(self) -> st.SearchStrategy[int]:
        """Draw the number of a recent message, which is probably in flight, or of none."""
        return st.integers(max(self.number - 8, 0), self.number)

    @rule(owner=st.integers(0, 1), count=st.integers(1, 4))
    def deliver(self, owner, count):
        numbers = range(self.number, self.number + count)
        self.number += count
        timeout_ns = self.TIMEOUT_NS[owner]
        self.sets[owner].deliver(*numbers, now_ns=self.now_ns, timeout_ns=timeout_ns)
        self.expected |= dict.fromkeys(numbers, (owner, self.now_ns, self.now_ns + timeout_ns))

    @rule(owner=st.integers(0, 1), data=st.data())
    def finish(self, owner, data):
        numbers = data.draw(st.lists(self.recent(), max_size=5, unique=True))
        owned = [number for number in numbers if self.expected.get(number, (None,))[0] == owner]
        missing = self.sets[owner].remove_all([*map(an_id, numbers)])
        assert missing == [an_id(number) for number in numbers if number not in owned]
        for number in owned:
            del self.expected[number]

    @rule(owner=st.integers(0, 1), data=st.data(), remove=st.booleans())
    def requeue_or_touch(self, owner, data, remove):
        number = data.draw(self.recent())
        its_owner, delivered_ns, _ = self.expected.get(number, (None, 0, 0))
        held, timeout_ns = self.sets[owner], self.TIMEOUT_NS[owner]
        if remove:
            frame = held.remove(an_id(number))
            assert frame == (a_frame(number) if its_owner == owner else None)
            if frame:
                del self.expected[number]
        else:
            deadline_ns = held.touch(an_id(number), self.now_ns, timeout_ns, 100)
            if its_owner == owner:
                assert deadline_ns == min(self.now_ns + timeout_ns, delivered_ns + 100)
                self.expected[number] = (owner, delivered_ns, deadline_ns)
            else:
                assert deadline_ns is None

    @rule(ns=st.sampled_from([0, 1, 10, 24, 25, 35, 70]))
    def let_time_go_by(self, ns):
        self.now_ns += ns
        for owner, held in enumerate(self.sets):
            mine = {number: state[2] for number, state in self.expected.items() if state[0] == owner}
            due = {number for number, deadline_ns in mine.items() if deadline_ns <= self.now_ns}
            held.timed_out.clear()
            again_ns = held.handle_deadline(self.now_ns)
            assert sorted(held.timed_out) == sorted(map(a_frame, due))
            assert again_ns == min((mine[number] for number in mine.keys() - due), default=None)
            for number in due:
                del self.expected[number]

    @invariant()
    def each_has_what_it_should(self):
        for owner, held in enumerate(self.sets):
            mine = {an_id(number) for number, state in self.expected.items() if state[0] == owner}
            assert len(held) == len(mine)
            assert all(message_id in held for message_id in mine)


TestInFlight = InFlightMachine.TestCase
TestInFlight.settings = settings(stateful_step_count=30)
