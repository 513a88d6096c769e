"""Flow: rule by rule, then against model nsqds in all orders of events, alone and together with Backoff."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqkit.consumer.backoff import Action, Backoff, BackoffState, ExponentialStrategy
from nsqkit.consumer.flow import NOTHING, Flow, Gate, SetRdy, deal, needs_rdy
from nsqkit.errors import OptionError

SECOND_NS = 1_000_000_000
NSQD_MAX_RDY_COUNT = 2500


def flow_of(max_in_flight: int, keys: Iterable[str] = (), **options) -> Flow[str]:
    flow: Flow[str] = Flow(max_in_flight=max_in_flight, rng=random.Random(0), **options)
    for key in keys:
        flow.add(key, NSQD_MAX_RDY_COUNT, 0)
    return flow


def rdy_counts(flow: Flow[str], keys: Iterable[str]) -> list[int]:
    return [flow.rdy_count(key) for key in keys]


def ready(flow: Flow[str], keys: Iterable[str]) -> str:
    """Return the connections that have RDY, as one word."""
    return "".join(key for key in keys if flow.rdy_count(key))


# The pure functions.


def test_deal_gives_the_remainder_to_the_first():
    assert deal(10, [100, 100, 100]) == [4, 3, 3]
    assert deal(11, [100, 100, 100]) == [4, 4, 3]
    assert deal(0, [5, 5]) == [0, 0]
    assert deal(7, []) == []


def test_deal_gives_the_excess_of_a_limit_to_others():
    assert deal(10, [2, 100, 100]) == [2, 4, 4]
    assert deal(10, [100, 1, 2]) == [7, 1, 2]
    assert deal(10, [1, 2, 3]) == [1, 2, 3]


@given(total=st.integers(0, 300), limits=st.lists(st.integers(0, 60), max_size=12))
def test_deal_is_complete_and_even(total, limits):
    dealt = deal(total, limits)
    assert all(0 <= amount <= limit for amount, limit in zip(dealt, limits, strict=True))
    assert sum(dealt) == min(total, sum(limits))
    most = max(dealt, default=0)
    assert all(amount in {limit, most, most - 1} for amount, limit in zip(dealt, limits, strict=True))


@pytest.mark.parametrize(
    ("remaining", "last_rdy", "needed"),
    [
        (0, 0, True),
        (1, 1, True),
        (1, 100, True),
        (2, 8, False),
        (2, 9, True),
        (25, 100, False),
        (-3, 5, True),
    ],
)
def test_needs_rdy(remaining, last_rdy, needed):
    assert needs_rdy(remaining, last_rdy) is needed


# Shares.


def test_the_first_connection_gets_everything_at_once():
    assert flow_of(10).add("a", NSQD_MAX_RDY_COUNT, 0) == [SetRdy("a", 10)]


def test_ten_over_three_is_four_three_three():
    flow = flow_of(10, "abc")
    assert rdy_counts(flow, "abc") == [4, 3, 3]
    assert flow.total_rdy_count == 10


def test_adding_lowers_first_then_raises():
    flow = flow_of(10, "ab")
    assert flow.add("c", NSQD_MAX_RDY_COUNT, 0) == [SetRdy("a", 4), SetRdy("b", 3), SetRdy("c", 3)]


def test_removing_gives_its_share_to_the_others():
    flow = flow_of(10, "abc")
    assert flow.remove("a", 0) == [SetRdy("b", 5), SetRdy("c", 5)]


def test_share_above_max_rdy_count_goes_to_others():
    flow = flow_of(100)
    flow.add("small", 10, 0)
    flow.add("large", NSQD_MAX_RDY_COUNT, 0)
    assert rdy_counts(flow, ["small", "large"]) == [10, 90]


def test_an_nsqd_that_allows_no_rdy_is_left_out():
    flow = flow_of(1)
    assert flow.add("none", 0, 0) == []
    assert flow.add("a", NSQD_MAX_RDY_COUNT, 0) == [SetRdy("a", 1)]
    assert flow.deadline_ns is None
    flow.block(0)
    assert flow.probe(0) == [SetRdy("a", 1)]


def test_max_in_flight_changes_at_runtime():
    flow = flow_of(10, "ab")
    assert flow.set_max_in_flight(5, 0) == [SetRdy("a", 3), SetRdy("b", 2)]
    assert flow.set_max_in_flight(12, 0) == [SetRdy("a", 6), SetRdy("b", 6)]
    assert flow.set_max_in_flight(12, 0) == []
    with pytest.raises(OptionError, match="max_in_flight is -1, it must be at least 0"):
        flow.set_max_in_flight(-1, 0)


def test_a_negative_max_in_flight_is_refused():
    with pytest.raises(ValueError, match="-1"):
        flow_of(-1)


def test_pause_sets_rdy_to_0_and_resume_restores_it():
    flow = flow_of(4, "ab")
    assert flow.pause(0) == [SetRdy("a", 0), SetRdy("b", 0)]
    assert flow.set_max_in_flight(6, 0) == []
    assert flow.resume(0) == [SetRdy("a", 3), SetRdy("b", 3)]


def test_a_max_in_flight_of_zero_is_a_pause_too():
    flow = flow_of(4, "ab")
    assert flow.set_max_in_flight(0, 0) == [SetRdy("a", 0), SetRdy("b", 0)]
    assert flow.add("c", NSQD_MAX_RDY_COUNT, 0) == []
    assert flow.deadline_ns is None
    assert flow.set_max_in_flight(3, 0) == [SetRdy("a", 1), SetRdy("b", 1), SetRdy("c", 1)]


# The window, and claims on it.


def test_steady_state_sends_nothing():
    flow = flow_of(10, "ab")
    for _ in range(3):
        assert flow.received("a", 5, 0) is NOTHING
        assert flow.answered("a", 3, 0) is NOTHING
        assert flow.answered("a", 2, 0) is NOTHING


def test_rdy_is_owed_while_the_messages_of_others_fill_the_budget():
    flow = flow_of(4, "a")
    flow.received("a", 4, 0)
    assert flow.add("b", NSQD_MAX_RDY_COUNT, 0) == [SetRdy("a", 2)]
    assert flow.answered("a", 1, 0) == [SetRdy("b", 1)]
    assert flow.answered("a", 1, 0) == [SetRdy("b", 2)]
    assert flow.answered("a", 1, 0) is NOTHING


def test_no_connection_has_rdy_while_more_messages_are_in_flight_than_allowed():
    flow = flow_of(9, "a")
    flow.received("a", 9, 0)
    assert flow.set_max_in_flight(4, 0) == [SetRdy("a", 0)]
    assert flow.add("b", NSQD_MAX_RDY_COUNT, 0) == []
    assert flow.answered("a", 5, 0) is NOTHING  # four are left, of four
    assert flow.answered("a", 1, 0) == [SetRdy("a", 2), SetRdy("b", 1)]


def test_the_rdy_of_each_is_withdrawn_when_late_messages_of_one_exceed_the_limit():
    flow = flow_of(2, "ab")
    flow.pause(0)
    assert flow.resume(0) == [SetRdy("a", 1), SetRdy("b", 1)]
    assert flow.received("b", 5, 0) == [SetRdy("a", 0), SetRdy("b", 0)]  # five were under way at the pause
    assert flow.answered("b", 3, 0) is NOTHING
    assert flow.answered("b", 1, 0) == [SetRdy("a", 1), SetRdy("b", 1)]
    assert flow.received("a", 1, 0) is NOTHING


def test_a_large_share_passes_on_in_few_commands():
    flow = flow_of(1000, "a")
    flow.received("a", 1000, 0)
    flow.add("b", NSQD_MAX_RDY_COUNT, 0)
    decisions = list(itertools.chain.from_iterable(flow.answered("a", 1, 0) for _ in range(1000)))
    assert decisions == [SetRdy("b", 1), SetRdy("b", 2), SetRdy("b", 500)]


def test_connection_without_rdy_gets_a_partial_share():
    flow = flow_of(1000, "a")
    flow.received("a", 1000, 0)
    flow.add("b", NSQD_MAX_RDY_COUNT, 0)
    assert flow.answered("a", 100, 0) == [SetRdy("b", 100)]  # of its share of 500
    assert flow.answered("a", 50, 0) == []  # the claims allow more, but b has enough RDY
    assert flow.received("b", 80, 0) == [SetRdy("b", 150)]


def test_restoring_rdy_to_what_is_in_flight_costs_nothing():
    flow = flow_of(8, "ab")
    flow.received("a", 4, 0)
    flow.pause(0)
    assert flow.resume(0) == [SetRdy("a", 4), SetRdy("b", 4)]


def test_connection_with_least_rdy_is_raised_first():
    flow = flow_of(9, "a")
    flow.received("a", 9, 0)
    flow.add("b", NSQD_MAX_RDY_COUNT, 0)
    flow.add("c", NSQD_MAX_RDY_COUNT, 0)
    decisions = [flow.answered("a", 1, 0) for _ in range(3)]
    assert decisions == [[SetRdy("b", 1)], [SetRdy("c", 1)], [SetRdy("b", 2)]]


def test_removed_connection_has_no_claim():
    flow = flow_of(4, "a")
    flow.received("a", 4, 0)
    flow.add("b", NSQD_MAX_RDY_COUNT, 0)
    assert flow.remove("a", 0) == [SetRdy("b", 4)]
    assert flow.answered("a", 4, 0) is NOTHING  # a handler ended after its connection


def test_is_starved_from_85_percent_of_rdy_on():
    flow = flow_of(20, "a")
    assert not flow.is_starved
    flow.received("a", 16, 0)
    assert not flow.is_starved
    flow.received("a", 1, 0)
    assert flow.is_starved
    two = flow_of(2, "a")
    two.received("a", 1, 0)
    assert not two.is_starved  # go-nsq rounds 1.7 down


def test_messages_in_flight_without_rdy_are_starved():
    flow = flow_of(2, "a")
    flow.received("a", 1, 0)
    flow.block(0)
    assert flow.is_starved


def test_in_flight_is_the_sum_over_connections():
    flow = flow_of(2, "abc")
    flow.received("a", 1, 0)
    flow.received("b", 1, 0)
    assert flow.in_flight == 2


# Seats: more connections than max_in_flight.


def test_the_first_connections_are_seated_and_the_rest_wait():
    flow = flow_of(2, "abcd")
    assert rdy_counts(flow, "abcd") == [1, 1, 0, 0]
    assert flow.deadline_ns == 5 * SECOND_NS


def test_no_deadline_unless_a_connection_waits():
    flow = flow_of(2, "abc")
    flow.remove("c", 0)
    assert flow.deadline_ns is None
    assert flow.handle_deadline(99 * SECOND_NS) is NOTHING
    flow.add("c", NSQD_MAX_RDY_COUNT, SECOND_NS)
    assert flow.deadline_ns == 6 * SECOND_NS
    flow.block(SECOND_NS)
    assert flow.deadline_ns is None


def test_new_connections_do_not_postpone_redistribution():
    flow = flow_of(1, "ab")
    flow.add("c", NSQD_MAX_RDY_COUNT, 3 * SECOND_NS)
    flow.remove("c", 4 * SECOND_NS)
    assert flow.deadline_ns == 5 * SECOND_NS


def test_an_idle_connection_gives_its_seat_up_at_the_next_redistribution():
    flow = flow_of(1, "abc")
    assert flow.handle_deadline(5 * SECOND_NS) == []  # not idle long enough
    assert flow.handle_deadline(5 * SECOND_NS) is NOTHING  # once per interval
    assert flow.handle_deadline(10 * SECOND_NS) == [SetRdy("a", 0), SetRdy("b", 1)]
    assert flow.handle_deadline(15 * SECOND_NS) == []
    assert flow.handle_deadline(20 * SECOND_NS) == [SetRdy("b", 0), SetRdy("c", 1)]
    assert flow.handle_deadline(30 * SECOND_NS) == [SetRdy("c", 0), SetRdy("a", 1)]


def test_a_busy_connection_gives_its_seat_up_after_the_longer_time():
    flow = flow_of(1, "ab")
    for second in range(5, 30, 5):
        flow.received("a", 1, (second - 1) * SECOND_NS)
        flow.answered("a", 1, (second - 1) * SECOND_NS)
        assert flow.handle_deadline(second * SECOND_NS) == []
    assert flow.handle_deadline(30 * SECOND_NS) == [SetRdy("a", 0), SetRdy("b", 1)]


def test_a_slow_handler_does_not_make_its_connection_idle():
    flow = flow_of(1, "ab")
    flow.received("a", 1, 0)
    assert flow.handle_deadline(15 * SECOND_NS) == []
    flow.answered("a", 1, 19 * SECOND_NS)
    assert flow.handle_deadline(20 * SECOND_NS) == []  # and nsqd had but one second to send the next
    assert flow.handle_deadline(29 * SECOND_NS) == [SetRdy("a", 0), SetRdy("b", 1)]


def test_a_seat_is_only_worth_rdy_once_the_message_of_the_last_holder_is_answered():
    flow = flow_of(1, "ab")
    flow.received("a", 1, 0)
    assert flow.handle_deadline(30 * SECOND_NS) == [SetRdy("a", 0)]
    assert flow.handle_deadline(90 * SECOND_NS) == []  # b's time has not begun
    assert flow.answered("a", 1, 91 * SECOND_NS) == [SetRdy("b", 1)]
    assert flow.handle_deadline(100 * SECOND_NS) == []
    assert flow.handle_deadline(105 * SECOND_NS) == [SetRdy("b", 0), SetRdy("a", 1)]


def test_only_as_many_seats_are_freed_as_connections_wait():
    flow = flow_of(3, "abcd")
    assert flow.handle_deadline(30 * SECOND_NS) == [SetRdy("a", 0), SetRdy("d", 1)]
    assert flow.handle_deadline(35 * SECOND_NS) == [SetRdy("b", 0), SetRdy("a", 1)]


def test_longest_waiting_connection_takes_a_free_seat():
    flow = flow_of(1, "abc")
    assert flow.remove("a", 0) == [SetRdy("b", 1)]


def test_fewer_seats_are_taken_from_the_longest_seated():
    flow = flow_of(3, "abcd")
    assert flow.set_max_in_flight(1, 0) == [SetRdy("a", 0), SetRdy("b", 0)]
    assert ready(flow, "abcd") == "c"


def test_backoff_and_pause_do_not_always_favour_the_same_connections():
    flow = flow_of(1, "abc")
    seen = []
    for _ in range(3):
        flow.pause(0)
        flow.resume(0)
        seen.append(ready(flow, "abc"))
    assert seen == ["b", "c", "a"]


# The gate: backoff.


def test_block_takes_all_rdy_and_unblock_gives_everyone_the_full_share():
    flow = flow_of(4, "ab")
    assert flow.block(0) == [SetRdy("a", 0), SetRdy("b", 0)]
    assert flow.gate is Gate.BLOCKED
    assert flow.add("c", NSQD_MAX_RDY_COUNT, 0) == []
    assert flow.unblock(0) == [SetRdy("a", 2), SetRdy("b", 1), SetRdy("c", 1)]


def test_a_probe_is_one_message_from_one_connection():
    flow = flow_of(4, "ab")
    flow.block(0)
    [(key, rdy_count)] = flow.probe(0)
    assert rdy_count == 1
    assert flow.received(key, 1, 0) == [SetRdy(key, 0)]  # nsqd must not follow the FIN with another
    assert flow.gate is Gate.TESTING
    assert flow.answered(key, 1, 0) is NOTHING


def test_a_message_from_before_the_backoff_is_no_test_message():
    flow = flow_of(4, "ab")
    flow.block(0)
    [(key, _)] = flow.probe(0)
    other = "b" if key == "a" else "a"
    assert flow.received(other, 1, 0) is NOTHING
    assert flow.gate is Gate.PROBING
    assert flow.received(key, 1, 0) == [SetRdy(key, 0)]


def test_a_connection_that_is_left_gets_no_rdy_and_its_messages_count_until_they_are_answered():
    flow = flow_of(4, "ab")
    flow.received("a", 2, 0)
    assert flow.retire("a", 0) == [SetRdy("a", 0)]
    assert flow.answered("a", 1, 0) == []  # b has enough RDY
    assert flow.answered("a", 1, 0) == [SetRdy("b", 4)]
    assert flow.remove("a", 0) == []
    assert flow.in_flight == 0


def test_probes_are_picked_at_random():
    flow = flow_of(9, "abc")
    picked = set()
    for _ in range(30):
        flow.unblock(0)
        flow.probe(0)
        picked.add(ready(flow, "abc"))
    assert picked == {"a", "b", "c"}


def test_probe_waits_for_a_free_claim():
    class PickLast(random.Random):
        def choice(self, seq):
            return seq[-1]

    flow = flow_of(1, "ab")
    flow.rng = PickLast()
    flow.received("a", 1, 0)
    flow.block(0)
    assert flow.probe(0) == []
    assert flow.answered("a", 1, 0) == [SetRdy("b", 1)]


def test_probe_without_message_moves_to_the_next_connection():
    flow = flow_of(9, "abc")
    flow.block(0)
    flow.probe(0)
    seen = [ready(flow, "abc")]
    for now_ns in (10 * SECOND_NS, 20 * SECOND_NS):
        flow.handle_deadline(now_ns)
        seen.append(ready(flow, "abc"))
    assert sorted(seen) == ["a", "b", "c"]


def test_a_probe_passes_on_when_its_connection_closes():
    flow = flow_of(9, "ab")
    flow.block(0)
    [(key, _)] = flow.probe(0)
    other = "b" if key == "a" else "a"
    assert flow.remove(key, 0) == [SetRdy(other, 1)]


def test_a_probe_is_repeated_when_the_test_message_is_lost_with_its_connection():
    flow = flow_of(9, "ab")
    flow.block(0)
    [(key, _)] = flow.probe(0)
    flow.received(key, 1, 0)
    other = "b" if key == "a" else "a"
    assert flow.remove(key, 0) == []
    assert flow.probe(0) == [SetRdy(other, 1)]
    assert flow.gate is Gate.PROBING


def test_probe_without_connections_uses_the_first_new_one():
    flow = flow_of(9)
    flow.block(0)
    assert flow.probe(0) == []
    assert flow.add("a", NSQD_MAX_RDY_COUNT, 0) == [SetRdy("a", 1)]
    assert flow.add("b", NSQD_MAX_RDY_COUNT, 0) == []


def test_pause_holds_a_probe_back():
    flow = flow_of(9, "a")
    flow.block(0)
    flow.pause(0)
    assert flow.probe(0) == []
    assert flow.resume(0) == [SetRdy("a", 1)]
    assert flow.pause(0) == [SetRdy("a", 0)]


def test_losing_an_ordinary_connection_during_a_test_changes_nothing():
    flow = flow_of(9, "abc")
    flow.block(0)
    [(key, _)] = flow.probe(0)
    flow.received(key, 1, 0)
    assert flow.remove(next(other for other in "abc" if other != key), 0) == []
    assert flow.gate is Gate.TESTING


# Against model nsqds, in all orders of events.


@attrs.define(eq=False)
class ModelNsqd:
    """One connection of a model nsqd, and the messages on their way to the consumer."""

    max_rdy_count: int
    waiting: int
    rdy_count: int = 0
    in_flight: int = 0
    on_the_wire: int = 0
    in_hand: int = 0  # received and not answered

    def deliver(self) -> None:
        count = min(self.waiting, max(self.rdy_count - self.in_flight, 0))
        self.waiting -= count
        self.in_flight += count
        self.on_the_wire += count

    @property
    def claim(self) -> int:
        return max(self.rdy_count, self.in_hand)


keys = st.integers(0, 7)


class FlowMachine(RuleBasedStateMachine):
    """Flow under all orders of events, with messages that take time to arrive."""

    @initialize(max_in_flight=st.integers(0, 12), seed=st.integers(0, 99))
    def begin(self, max_in_flight, seed):
        self.now_ns = 0
        self.max_in_flight = max_in_flight
        self.nsqds: dict[int, ModelNsqd] = {}
        self.names = itertools.count()
        self.flow: Flow[int] = Flow(max_in_flight=max_in_flight, rng=random.Random(seed))

    def pick(self, number: int) -> int | None:
        return list(self.nsqds)[number % len(self.nsqds)] if self.nsqds else None

    def carry_out(self, decisions: Sequence[SetRdy[int]]) -> None:
        raised = False
        for key, rdy_count in decisions:
            nsqd = self.nsqds[key]
            assert rdy_count != nsqd.rdy_count, "an unchanged value is never sent"
            assert 0 <= rdy_count <= nsqd.max_rdy_count
            claimed = sum(n.claim for n in self.nsqds.values())
            if rdy_count > nsqd.rdy_count:
                raised = True
            else:
                assert not raised, "lower values come first"
            nsqd.rdy_count = rdy_count
            claimed_now = sum(n.claim for n in self.nsqds.values())
            assert claimed_now <= max(self.max_in_flight, claimed)
        for nsqd in self.nsqds.values():
            nsqd.deliver()

    @rule(max_rdy_count=st.sampled_from([0, 1, 3, 2500]), waiting=st.integers(0, 9))
    def add(self, max_rdy_count, waiting):
        if len(self.nsqds) < 8:
            key = next(self.names)
            self.nsqds[key] = ModelNsqd(max_rdy_count, waiting)
            self.carry_out(self.flow.add(key, max_rdy_count, self.now_ns))

    @rule(number=keys)
    def remove(self, number):
        if (key := self.pick(number)) is not None:
            del self.nsqds[key]
            self.carry_out(self.flow.remove(key, self.now_ns))
            assert self.flow.answered(key, 1, self.now_ns) is NOTHING

    @rule(number=keys)
    def retire(self, number):
        if (key := self.pick(number)) is not None:
            self.nsqds[key].max_rdy_count = 0
            self.carry_out(self.flow.retire(key, self.now_ns))

    @rule(number=keys, count=st.integers(1, 20))
    def publish(self, number, count):
        if (key := self.pick(number)) is not None:
            self.nsqds[key].waiting += count
            self.nsqds[key].deliver()

    @rule(number=keys)
    def receive(self, number):
        key = self.pick(number)
        if key is not None and (count := self.nsqds[key].on_the_wire):
            self.nsqds[key].on_the_wire = 0
            self.nsqds[key].in_hand += count
            self.carry_out(self.flow.received(key, count, self.now_ns))

    @rule(number=keys, count=st.integers(1, 5))
    def answer(self, number, count):
        key = self.pick(number)
        if key is not None and (count := min(count, self.nsqds[key].in_hand)):
            self.nsqds[key].in_hand -= count
            self.nsqds[key].in_flight -= count
            self.nsqds[key].deliver()
            self.carry_out(self.flow.answered(key, count, self.now_ns))

    @rule(max_in_flight=st.integers(0, 12))
    def set_max_in_flight(self, max_in_flight):
        self.max_in_flight = max_in_flight
        self.carry_out(self.flow.set_max_in_flight(max_in_flight, self.now_ns))

    @rule(verb=st.sampled_from([Flow.pause, Flow.block, Flow.probe]))
    def hold_back(self, verb):
        self.carry_out(verb(self.flow, self.now_ns))

    @rule(verb=st.sampled_from([Flow.resume, Flow.unblock]))
    def let_go(self, verb):
        self.carry_out(verb(self.flow, self.now_ns))

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds):
        self.now_ns += seconds * SECOND_NS
        self.carry_out(self.flow.handle_deadline(self.now_ns))
        deadline_ns = self.flow.deadline_ns
        assert deadline_ns is None or deadline_ns > self.now_ns

    def answer_all(self) -> None:
        """Empty the queues of the nsqds, and answer all delivered messages."""
        for nsqd in self.nsqds.values():
            nsqd.waiting = 0
        for number in range(len(self.nsqds)):
            self.receive(number)
            self.answer(number, 10**6)

    @rule()
    def calm_down(self):
        """When all is answered, shares are full and even, and every waiting connection gets a seat."""
        self.answer_all()
        self.let_go(Flow.resume)
        self.let_go(Flow.unblock)
        takers = [n for n in self.nsqds.values() if n.max_rdy_count]
        total = sum(n.rdy_count for n in takers)
        assert total == min(self.max_in_flight, sum(n.max_rdy_count for n in takers))
        most = max((n.rdy_count for n in takers), default=0)
        assert all(n.rdy_count in {n.max_rdy_count, most, most - 1} for n in takers)
        if 0 < self.max_in_flight < len(takers):
            self.everyone_has_a_turn(takers)

    def everyone_has_a_turn(self, takers: list[ModelNsqd]) -> None:
        # A holder keeps its seat for at most the longer limit, counted in redistributions, and one for the start.
        redistributions_per_seat = math.ceil(30 / 5) + 1
        rounds = math.ceil(len(takers) / self.max_in_flight)
        seen = set()
        for _ in range(redistributions_per_seat * rounds):
            seen |= {n for n in takers if n.rdy_count}
            for number in range(len(self.nsqds)):
                self.publish(number, 3)
                self.receive(number)
                self.answer(number, 10**6)
            self.wait(5)
        assert seen == set(takers)

    @invariant()
    def rdy_is_within_max_in_flight(self):
        assert sum(n.rdy_count for n in self.nsqds.values()) <= self.max_in_flight
        assert self.flow.total_rdy_count == sum(n.rdy_count for n in self.nsqds.values())
        if sum(n.claim for n in self.nsqds.values()) > self.max_in_flight:
            assert self.flow.total_rdy_count == 0

    @invariant()
    def the_gate_holds(self):
        rdy = [n.rdy_count for n in self.nsqds.values() if n.rdy_count]
        if self.flow.paused or self.flow.gate in {Gate.BLOCKED, Gate.TESTING}:
            assert rdy == []
        elif self.flow.gate is Gate.PROBING:
            assert rdy in ([], [1])

    @invariant()
    def starvation_is_told(self):
        starved = any(n.in_hand and n.in_hand >= 0.85 * n.rdy_count for n in self.nsqds.values())
        assert self.flow.is_starved == starved


class BackoffMachine(RuleBasedStateMachine):
    """Flow and Backoff together, with nsqds that deliver at the worst moment."""

    @initialize(
        max_in_flight=st.integers(1, 8),
        max_backoff_s=st.sampled_from([0, 1, 5, 120]),
        seed=st.integers(0, 99),
    )
    def begin(self, max_in_flight, max_backoff_s, seed):
        self.now_ns = 0
        self.names = itertools.count()
        self.nsqds: dict[int, ModelNsqd] = {}
        self.messages: list[tuple[int, int]] = []  # (connection, number): received and not answered
        self.test_messages: set[tuple[int, int]] = set()  # those of them since the last action
        self.flow: Flow[int] = Flow(max_in_flight=max_in_flight, rng=random.Random(seed))
        self.backoff = Backoff(
            strategy=ExponentialStrategy(SECOND_NS), max_backoff_duration_ns=max_backoff_s * SECOND_NS
        )

    def send(self, decisions: Sequence[SetRdy[int]]) -> None:
        for key, rdy_count in decisions:
            self.nsqds[key].rdy_count = rdy_count

    def carry_out(self, decisions: Sequence[SetRdy[int]]) -> None:
        self.send(decisions)
        self.let_deliver()

    def let_deliver(self) -> None:
        """Deliver and receive until nothing is left."""
        for key, nsqd in self.nsqds.items():
            nsqd.deliver()
            if nsqd.on_the_wire:
                assert self.backoff.state is not BackoffState.WAITING
                self.receive(key, nsqd)

    def receive(self, key: int, nsqd: ModelNsqd) -> None:
        count, nsqd.on_the_wire = nsqd.on_the_wire, 0
        messages = [(key, next(self.names)) for _ in range(count)]
        self.messages += messages
        was_probing = self.flow.gate is Gate.PROBING
        decisions = self.flow.received(key, count, self.now_ns)
        if was_probing and self.flow.gate is Gate.TESTING:
            assert count == 1, "nsqd delivers exactly one test message"
            self.test_messages.update(messages)
            self.backoff.received(messages[0])
        self.carry_out(decisions)

    def act(self, action: Action | None) -> None:
        if action is not None:
            self.test_messages.clear()
            verb = {Action.BLOCK: Flow.block, Action.PROBE: Flow.probe, Action.UNBLOCK: Flow.unblock}[action]
            assert verb.__name__ == action.value
            self.carry_out(verb(self.flow, self.now_ns))

    def end(self, message: tuple[int, int], outcome: str) -> None:
        """Answer a message, which counts when it is written; nsqd reads it before the RDY that follows from it."""
        self.messages.remove(message)
        decisions = self.flow.answered(message[0], 1, self.now_ns)
        nsqd = self.nsqds[message[0]]
        nsqd.in_flight -= 1
        nsqd.deliver()
        self.send(decisions)
        self.let_deliver()
        counter, state, tested = self.backoff.counter, self.backoff.state, message in self.test_messages
        if outcome == "success":
            action = self.backoff.success(message, self.now_ns)
        elif outcome == "failure":
            action = self.backoff.failure(message, self.now_ns)
        else:
            action = self.backoff.lost(message)
        assert abs(self.backoff.counter - counter) <= 1
        assert action is not None or self.backoff.counter == counter
        assert action is None or state is BackoffState.RUNNING or tested
        self.act(action)

    @rule(waiting=st.sampled_from([0, 1, 10**6]))
    def add(self, waiting):
        if len(self.nsqds) < 5:
            key = next(self.names)
            self.nsqds[key] = ModelNsqd(NSQD_MAX_RDY_COUNT, waiting)
            self.carry_out(self.flow.add(key, NSQD_MAX_RDY_COUNT, self.now_ns))

    @rule(number=keys)
    def remove(self, number):
        if not self.nsqds:
            return
        key = list(self.nsqds)[number % len(self.nsqds)]
        del self.nsqds[key]
        decisions = self.flow.remove(key, self.now_ns)
        lost = [message for message in self.messages if message[0] == key]
        self.messages = [message for message in self.messages if message[0] != key]
        self.carry_out(decisions)
        for message in lost:
            self.act(self.backoff.lost(message))

    @rule(number=st.integers(0, 99), outcome=st.sampled_from(["success", "failure", "failure", "lost"]))
    def answer(self, number, outcome):
        if self.messages:
            self.end(self.messages[number % len(self.messages)], outcome)

    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds):
        self.now_ns += seconds * SECOND_NS
        self.act(self.backoff.handle_deadline(self.now_ns))
        self.carry_out(self.flow.handle_deadline(self.now_ns))
        for machine in (self.flow, self.backoff):
            deadline_ns = machine.deadline_ns
            assert deadline_ns is None or deadline_ns > self.now_ns

    @rule()
    def recover(self):
        """If all succeeds from now on, and one nsqd has messages, deliveries resume."""
        if not self.nsqds:
            self.add(0)
        next(iter(self.nsqds.values())).waiting += 100
        # Per step of the counter: a wait, then one seat after the other, until the nsqd with messages has it.
        for _ in range((self.backoff.counter + 1) * (24 + 7 * len(self.nsqds))):
            for message in list(self.messages):
                self.end(message, "success")
            if self.backoff.state is BackoffState.RUNNING:
                break
            self.wait(5)
        assert self.backoff.state is BackoffState.RUNNING
        for message in list(self.messages):
            self.end(message, "success")
        expected = min(self.flow.max_in_flight, len(self.nsqds))
        assert sum(self.flow.rdy_count(nsqd) > 0 for nsqd in self.nsqds) == expected

    @invariant()
    def both_agree(self):
        gates = {
            BackoffState.RUNNING: {Gate.OPEN},
            BackoffState.WAITING: {Gate.BLOCKED},
            BackoffState.PROBING: {Gate.PROBING, Gate.TESTING},
        }
        assert self.flow.gate in gates[self.backoff.state]
        assert (self.backoff.counter == 0) == (self.backoff.state is BackoffState.RUNNING)

    @invariant()
    def one_test_message_and_no_more(self):
        assert len(self.test_messages) <= 1
        assert (self.flow.gate is Gate.TESTING) == bool(self.test_messages)
        assert self.test_messages == ({self.backoff.test_message} - {None})


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestBackoffMachine = BackoffMachine.TestCase
TestBackoffMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
