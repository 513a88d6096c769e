"""A channel and its consumers; last a state machine that compares them with a plain dict."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqkit.broker.core.changes import Changes
from nsqkit.broker.core.disk.deferred_times import DeferredTimes
from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.disk.storage import MemoryStorage
from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics.channel import DELIVERY_SIZE_MAX, Channel
from nsqkit.broker.core.topics.subscription import InFlight, Subscription
from nsqkit.broker.core.topics.topology import GLOBAL, REGION_LOCAL, ZONE_LOCAL
from nsqkit.wire.identify import Grant
from nsqkit.wire.messages import FRAME_HEADER_LENGTH, ID, attempts_of, encode_message
from nsqkit.wire.names import is_ephemeral

TIMEOUT_NS = 60
GRANT = Grant(heartbeat_interval_ns=0, msg_timeout_ns=TIMEOUT_NS, output_buffer_size=0, output_buffer_timeout_ns=0)


class Consumer:
    """A consumer of a channel; it keeps the frames that it gets."""

    def __init__(self, channel: Channel, rdy_count: int = 0, proximity: int = GLOBAL) -> None:
        self.channel = channel
        self.is_full = False
        self.batches: list[list[bytes]] = []
        self.subscription = Subscription(self, GRANT, proximity, GuidFactory(1), Random(1))
        channel.add(self.subscription)
        self.set_ready(rdy_count)

    @property
    def in_flight(self) -> InFlight:
        return self.subscription.in_flight

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        self.batches.append(frames)

    def set_ready(self, rdy_count: int) -> None:
        self.subscription.rdy_count = rdy_count
        self.channel.update_ready(self.subscription)

    def finish(self, number: int) -> bool:
        found = self.in_flight.remove(an_id(number)) is not None
        self.channel.update_ready(self.subscription)
        return found

    def requeue(self, number: int, due_ns: int | None = None) -> None:
        frame = self.in_flight.remove(an_id(number))
        assert frame is not None
        self.channel.requeue(frame, due_ns)
        self.channel.update_ready(self.subscription)

    def leave(self) -> None:
        self.subscription.close()
        self.channel.remove(self.subscription)

    @property
    def numbers(self) -> list[int]:
        """The messages that it got, in order."""
        return [int(frame[ID]) for frames in self.batches for frame in frames]


class Channels:
    """One channel with its timers and the time."""

    def __init__(self, name: bytes = b"c", mem_queue_size: int = 100) -> None:
        self.timers = Timers()
        self.changes: Changes[Channel] = Changes()
        self.channel = Channel(
            name,
            self.timers,
            self.changes,
            MemoryStorage(mem_queue_size).open_queue(name, ephemeral=is_ephemeral(name)),
            DeferredTimes(),
        )
        self.now_ns = 0

    def settle(self) -> None:
        channels = [*self.changes.channels]
        self.changes.channels.clear()
        for channel in channels:
            channel.deliver(self.now_ns)

    def put(self, *numbers: int) -> None:
        self.channel.put([*map(a_frame, numbers)])
        self.settle()

    def pass_time(self, ns: int) -> None:
        self.now_ns += ns
        self.handle_due()
        self.settle()

    def handle_due(self) -> None:
        for owner in self.timers.take_due(self.now_ns):
            if (again_ns := owner.handle_deadline(self.now_ns)) is not None:
                self.timers.schedule(owner, again_ns)


def an_id(number: int) -> bytes:
    return b"%016d" % number


def a_frame(number: int, attempts: int = 1, size: int = 1) -> bytes:
    return encode_message(0, attempts, an_id(number), b"x" * size)


@pytest.fixture
def world() -> Channels:
    return Channels()


# Delivery.


def test_messages_wait_for_a_consumer_that_can_take_them(world):
    world.put(1, 2, 3)
    consumer = Consumer(world.channel)
    assert consumer.batches == []
    consumer.set_ready(2)
    world.settle()
    assert consumer.batches == [[a_frame(1), a_frame(2)]]
    consumer.finish(1)
    world.settle()
    assert consumer.numbers == [1, 2, 3]
    assert world.channel.message_count == 3


def test_waiting_messages_are_shared_in_equal_parts(world):
    consumers = [Consumer(world.channel, 100) for _ in range(3)]
    world.put(*range(8))
    assert [len(consumer.numbers) for consumer in consumers] == [3, 3, 2]


def test_single_messages_are_delivered_in_turns(world):
    consumers = [Consumer(world.channel, 100) for _ in range(3)]
    for number in range(7):
        world.put(number)
    assert [consumer.numbers for consumer in consumers] == [[0, 3, 6], [1, 4], [2, 5]]


def test_channel_without_messages_has_nothing_to_deliver(world):
    consumer = Consumer(world.channel, rdy_count=1)
    assert not world.changes.channels
    world.put(1)
    assert consumer.numbers == [1]


def test_consumer_whose_output_was_filled_by_other_frames_gets_nothing(world):
    full, other = Consumer(world.channel, rdy_count=2), Consumer(world.channel, rdy_count=2)
    full.is_full = True
    world.put(1, 2, 3)
    assert (full.numbers, other.numbers) == ([], [1, 2])
    full.is_full = False
    full.set_ready(2)
    world.settle()
    assert full.numbers == [3]


def test_consumer_with_a_small_rdy_count_gets_few_messages(world):
    small, large = Consumer(world.channel, 1), Consumer(world.channel, 100)
    world.put(*range(8))
    assert [len(small.numbers), len(large.numbers)] == [1, 7]


def test_delivery_has_a_limit_of_bytes(world):
    consumer = Consumer(world.channel, 100)
    size = DELIVERY_SIZE_MAX // 2 - FRAME_HEADER_LENGTH
    world.channel.put([a_frame(number, size=size) for number in range(5)])
    world.settle()
    assert [len(batch) for batch in consumer.batches] == [2, 2, 1]


@pytest.mark.parametrize("proximity", [ZONE_LOCAL, REGION_LOCAL])
def test_nearer_consumer_is_served_first(world, proximity):
    far, near = Consumer(world.channel, 5), Consumer(world.channel, 2, proximity)
    world.put(1, 2, 3)
    assert (near.numbers, far.numbers) == ([1, 2], [3])
    near.finish(1)
    world.put(4, 5)
    assert (near.numbers, far.numbers) == ([1, 2, 4], [3, 5])
    expected = [0, 0, 2]
    expected[proximity] = 3
    assert world.channel.delivery_counts == expected


def test_consumer_that_is_full_gets_nothing_and_does_not_block_others(world):
    full, other = Consumer(world.channel, 5), Consumer(world.channel, 5)
    full.is_full = True  # as when its outbox fills with answers
    world.put(1, 2)
    assert (full.numbers, other.numbers) == ([], [1, 2])
    assert [batch for batch in full.batches if batch] == []
    full.is_full = False
    full.set_ready(5)
    world.put(3, 4)
    assert len(full.numbers) == 1


# Requeueing, deferring, timing out.


def test_requeued_message_is_delivered_after_the_others_with_one_attempt_more(world):
    consumer = Consumer(world.channel, 1)
    world.put(1, 2)
    consumer.requeue(1)
    world.settle()
    consumer.finish(2)
    world.settle()
    assert consumer.batches == [[a_frame(1)], [a_frame(2)], [a_frame(1, attempts=2)]]
    assert world.channel.requeue_count == 1


def test_message_requeued_with_a_delay_is_delivered_after_it(world):
    consumer = Consumer(world.channel, 1)
    world.put(1)
    consumer.requeue(1, due_ns=world.now_ns + 50)
    world.pass_time(49)
    assert (consumer.numbers, len(world.channel.deferred)) == ([1], 1)
    world.pass_time(1)
    assert (consumer.batches[1:], len(world.channel.deferred)) == ([[a_frame(1, attempts=2)]], 0)


def test_deferred_message_is_delivered_at_its_time_with_attempts_1(world):
    consumer = Consumer(world.channel, 1)
    world.channel.put_deferred([a_frame(1)], 50)
    world.pass_time(49)
    assert consumer.batches == []
    world.pass_time(1)
    assert consumer.batches == [[a_frame(1)]]
    assert (world.channel.message_count, world.channel.requeue_count) == (1, 0)


def test_timed_out_message_is_delivered_to_another_consumer(world):
    silent = Consumer(world.channel, 1)
    world.put(1)
    other = Consumer(world.channel, 1)
    silent.set_ready(0)
    world.pass_time(TIMEOUT_NS - 1)
    assert other.batches == []
    world.pass_time(1)
    assert other.batches == [[a_frame(1, attempts=2)]]
    assert not silent.finish(1)
    assert world.channel.timeout_count == 1


def test_attempts_wrap(world):
    consumer = Consumer(world.channel, 1)
    world.channel.put([a_frame(1, attempts=65535)])
    world.settle()
    consumer.requeue(1)
    world.settle()
    assert [attempts_of(frame) for frame in (*consumer.batches[0], *consumer.batches[1])] == [65535, 0]


@pytest.mark.parametrize("mem_queue_size", [0, 2])
def test_ephemeral_channel_keeps_messages_that_its_consumers_take_at_once(mem_queue_size: int):
    world = Channels(b"c#ephemeral", mem_queue_size=mem_queue_size)
    first, second = Consumer(world.channel, 1), Consumer(world.channel, 4)
    world.put(*range(10))
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3, 4]
    assert len(world.channel.queue) == mem_queue_size
    second.requeue(second.numbers[0])
    assert len(world.channel.queue) == mem_queue_size, "its consumer has no room before the answer is complete"


def test_ephemeral_channel_that_is_paused_keeps_no_message_for_its_consumers():
    world = Channels(b"c#ephemeral", mem_queue_size=0)
    consumer = Consumer(world.channel, 4)
    world.channel.pause()
    world.put(1, 2)
    world.channel.unpause()
    world.settle()
    assert consumer.numbers == []


def test_ephemeral_channel_drops_messages_beyond_its_memory():
    world = Channels(b"c#ephemeral", mem_queue_size=2)
    consumer = Consumer(world.channel, 0)
    world.put(1, 2, 3)
    consumer.set_ready(5)
    world.settle()
    assert (consumer.numbers, world.channel.message_count) == ([1, 2], 3)


def test_channel_keeps_messages_beyond_its_memory():
    world = Channels(b"c", mem_queue_size=2)
    world.put(1, 2, 3)
    assert (len(world.channel.queue), len(world.channel.queue.backend)) == (3, 1)


# Pausing.


def test_paused_channel_accepts_and_does_not_deliver(world):
    consumer = Consumer(world.channel, 10)
    world.channel.pause()
    world.put(1)
    world.channel.put_deferred([a_frame(2)], 50)
    world.pass_time(50)
    assert (consumer.batches, len(world.channel.queue)) == ([], 2)
    world.channel.unpause()
    world.settle()
    assert consumer.numbers == [1, 2]


def test_messages_that_return_to_a_paused_channel_wait(world):
    consumer = Consumer(world.channel, 10)
    world.put(1, 2, 3)
    world.channel.pause()
    consumer.requeue(1)
    consumer.requeue(2, due_ns=30)
    world.settle()
    world.pass_time(TIMEOUT_NS)
    assert (consumer.numbers, len(world.channel.queue), world.channel.in_flight_count) == ([1, 2, 3], 3, 0)
    world.channel.unpause()
    world.settle()
    assert [(int(frame[ID]), attempts_of(frame)) for frame in consumer.batches[-1]] == [
        (1, 2),
        (2, 2),
        (3, 2),
    ]


# Consumers that go.


def test_messages_of_a_lost_consumer_wait_for_their_timeout(world):
    lost, other = Consumer(world.channel, 2), Consumer(world.channel)
    world.put(1, 2)
    lost.leave()
    other.set_ready(5)
    world.settle()
    assert world.channel.find_held([an_id(1), an_id(2), an_id(9)]) == {an_id(1), an_id(2)}
    assert (world.channel.in_flight_count, other.batches) == (2, [])
    world.pass_time(TIMEOUT_NS)
    assert other.numbers == [1, 2]
    assert world.channel.in_flight_count == 2


def test_lost_consumer_gets_nothing(world):
    lost = Consumer(world.channel, 2)
    lost.leave()
    world.put(1)
    assert lost.batches == []
    assert list(world.channel.subscriptions) == []


def test_lost_consumers_are_forgotten_after_their_messages_have_timed_out(world):
    for number in range(20):
        lost = Consumer(world.channel, 1)
        world.put(number)
        lost.leave()
    assert len(world.channel._abandoned) == world.channel.in_flight_count == 20
    world.pass_time(TIMEOUT_NS)
    assert len(world.channel._abandoned) == 0
    assert len(world.channel.queue) == 20


def test_lost_consumer_without_messages_is_forgotten(world):
    lost = Consumer(world.channel, 1)
    world.put(1)
    lost.finish(1)
    lost.leave()
    assert len(world.channel._abandoned) == 0
    assert world.timers.next_deadline() is None


# Emptying.


def test_empty_removes_queued_deferred_and_in_flight_messages(world):
    lost, consumer = Consumer(world.channel, 1), Consumer(world.channel, 1)
    world.put(1, 2, 3)
    world.channel.put_deferred([a_frame(4)], 50)
    lost.leave()
    world.channel.empty()
    assert (len(world.channel.queue), len(world.channel.deferred), world.channel.in_flight_count) == (0, 0, 0)
    assert len(world.channel._abandoned) == 0
    assert not consumer.finish(2)
    assert world.timers.next_deadline() is None, "nothing is left to do"
    world.pass_time(100)
    assert (consumer.numbers, world.channel.timeout_count) == ([2], 0)


def test_consumers_can_take_messages_after_empty(world):
    consumer = Consumer(world.channel, 1)
    world.put(1, 2)
    world.channel.empty()
    world.put(3)
    assert consumer.numbers == [1, 3]
    world.pass_time(TIMEOUT_NS)
    assert consumer.numbers == [1, 3, 3]


class ChannelMachine(RuleBasedStateMachine):
    """Any calls in any order: each message is where a dict has it, and each that can be delivered is.

    A message is "queued", ("deferred", due) or (consumer, deadline), with its attempts beside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = Channels(mem_queue_size=3)
        self.channel = self.world.channel
        self.consumers: list[Consumer] = []
        self.lost: list[Consumer] = []
        self.places: dict[int, Any] = {}
        self.attempts: dict[int, int] = {}
        self.number = 0
        for rdy_count in (1, 3):
            self.consumers.append(Consumer(self.channel, rdy_count))

    def settle(self) -> None:
        """Deliver, and record the deliveries."""
        before = {consumer: len(consumer.in_flight) for consumer in self.consumers}
        self.world.settle()
        for consumer in self.consumers:
            for frame in [frame for batch in consumer.batches for frame in batch]:
                number = int(frame[ID])
                assert not self.channel.paused
                assert self.places[number] == "queued"
                self.attempts[number] += 1
                assert attempts_of(frame) == self.attempts[number]
                self.places[number] = (consumer, self.world.now_ns + TIMEOUT_NS)
            consumer.batches.clear()
            assert len(consumer.in_flight) <= max(consumer.subscription.rdy_count, before[consumer])

    def held_by(self, consumers: list[Consumer]) -> list[int]:
        return [number for number, place in self.places.items() if place[0] in cast("list[object]", consumers)]

    @rule(count=st.integers(1, 4), delay_ns=st.sampled_from([0, 0, 20, 90]))
    def put(self, count, delay_ns):
        numbers = range(self.number, self.number + count)
        self.number += count
        self.attempts |= dict.fromkeys(numbers, 0)
        if delay_ns:
            due_ns = self.world.now_ns + delay_ns
            self.channel.put_deferred([*map(a_frame, numbers)], due_ns)
            self.places |= dict.fromkeys(numbers, ("deferred", due_ns))
        else:
            self.channel.put([*map(a_frame, numbers)])
            self.places |= dict.fromkeys(numbers, "queued")
        self.settle()

    @rule(number=st.integers(0, 1), rdy_count=st.integers(0, 4))
    def set_ready(self, number, rdy_count):
        self.consumers[number].set_ready(rdy_count)
        self.settle()

    @rule(number=st.integers(0, 1), rdy_count=st.integers(1, 4), proximity=st.integers(0, 2))
    def lose_and_replace(self, number, rdy_count, proximity):
        self.lost.append(self.consumers[number])
        self.consumers[number].leave()
        self.consumers[number] = Consumer(self.channel, rdy_count, proximity)
        self.settle()

    @precondition(lambda self: self.held_by(self.consumers))
    @rule(data=st.data(), delay_ns=st.sampled_from([None, 0, 30]))
    def answer(self, data, delay_ns):
        number = data.draw(st.sampled_from(self.held_by(self.consumers)))
        consumer = self.places[number][0]
        if delay_ns is None:
            assert consumer.finish(number)
            del self.places[number]
        elif delay_ns:
            consumer.requeue(number, self.world.now_ns + delay_ns)
            self.places[number] = ("deferred", self.world.now_ns + delay_ns)
        else:
            consumer.requeue(number)
            self.places[number] = "queued"
        self.settle()

    @rule(action=st.sampled_from(["unpause", "unpause", "pause", "empty"]))
    def act_from_outside(self, action):
        getattr(self.channel, action)()
        if action == "empty":
            self.places.clear()
        self.settle()

    @rule(ns=st.sampled_from([0, 1, 20, 30, 59, TIMEOUT_NS, 90]))
    def let_time_go_by(self, ns):
        self.world.now_ns += ns
        self.world.handle_due()
        for number, place in self.places.items():
            if place != "queued" and place[1] <= self.world.now_ns:
                self.places[number] = "queued"
        self.settle()

    @invariant()
    def each_message_is_in_one_place(self):
        queued = sum(place == "queued" for place in self.places.values())
        deferred = sum(place[0] == "deferred" for place in self.places.values())
        assert len(self.channel.queue) == queued
        assert len(self.channel.deferred) == deferred
        assert self.channel.in_flight_count == len(self.places) - queued - deferred
        held = [an_id(n) for n in self.held_by(self.consumers + self.lost)]
        assert self.channel.find_held(held) == set(held)

    @invariant()
    def no_message_waits_while_a_consumer_can_take_it(self):
        if len(self.channel.queue) and not self.channel.paused:
            assert all(consumer.subscription.capacity <= 0 for consumer in self.consumers)

    @invariant()
    def the_next_deadline_is_not_later_than_the_first_thing_due(self):
        due = [place[1] for place in self.places.values() if place != "queued"]
        deadline_ns = self.world.timers.next_deadline()
        assert not due or (deadline_ns is not None and deadline_ns <= min(due))


TestChannel = ChannelMachine.TestCase
TestChannel.settings = settings(stateful_step_count=40)
