"""The consumer without sockets: which commands are sent, on one connection and on many.

The rules of flow control and of backoff have their own tests; these check that the core follows them. The last ones run
random worlds of consumers and the real broker core from a seed.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.flow import Gate
from nsqkit.consumer.message import Message
from nsqkit.consumer.stats import MessageCounts
from nsqkit.errors import InvalidCommand
from nsqkit.wire.frames import encode_error
from tests.consumer.driven import DrivenConsumer, DrivenSession, S
from tests.peers import body_of, encode_numbered


def inbox(consumer: DrivenConsumer) -> list[int]:
    return [int(message.id, 16) for message in consumer.core.inbox]


class TestFlow:
    def test_connections_share_max_in_flight(self):
        consumer = DrivenConsumer(max_in_flight=10)
        one = consumer.connect("one:1")
        assert one.lines() == ["RDY 10"]
        two = consumer.connect("two:1")
        assert one.lines() == ["RDY 5"]
        assert two.lines() == ["RDY 5"]
        two.lose()
        assert one.lines() == ["RDY 10"]

    def test_the_limit_can_be_changed(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.connect()
        link.lines()
        consumer.core.set_max_in_flight(3, 0)
        assert link.lines() == ["RDY 3"]
        consumer.core.set_max_in_flight(0, 0)
        assert link.lines() == ["RDY 0"]
        consumer.core.set_max_in_flight(0, 0)
        assert link.lines() == []

    def test_pause_and_resume(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.connect()
        link.lines()
        link.deliver(1)
        consumer.core.pause(0)
        assert link.lines() == ["RDY 0"]
        assert inbox(consumer) == [1]
        consumer.core.resume(0)
        assert link.lines() == ["RDY 10"]

    def test_in_steady_state_no_rdy_is_sent(self):
        consumer = DrivenConsumer(max_in_flight=2)
        link = consumer.connect()
        link.lines()
        for number in range(20):
            link.deliver(number)[0].finish()
            assert link.lines() == [f"FIN {number}"]
        core = consumer.core
        assert (core.counts.received, core.counts.finished, core.counts.requeued) == (20, 20, 0)

    def test_seats_rotate_with_more_connections_than_max_in_flight(self):
        consumer = DrivenConsumer(max_in_flight=1, rdy_redistribute_interval=5, low_rdy_idle_timeout=10)
        links = [consumer.connect(f"nsqd-{n}:1") for n in range(3)]
        seats: list[int] = []
        for _ in range(12):
            for n, link in enumerate(links):
                seats += [n for line in link.lines() if line == "RDY 1"]
            consumer.pass_time(5)
        assert {*seats} == {0, 1, 2}

    @pytest.mark.parametrize(("is_busy", "kept"), [(False, 3), (True, 7)])
    def test_seat_timeouts_follow_the_options(self, is_busy, kept):
        consumer = DrivenConsumer(
            max_in_flight=1, rdy_redistribute_interval=1, low_rdy_idle_timeout=3, low_rdy_timeout=7
        )
        holder, other = consumer.connect("one:1"), consumer.connect("two:1")
        for second in range(1, kept + 1):
            if is_busy:
                holder.deliver(second)[0].finish()
            assert "RDY 0" not in holder.lines()
            consumer.pass_time(1)
        assert holder.lines() == ["RDY 0"]
        assert other.lines() == ["RDY 1"]

    def test_messages_of_lost_connection_are_not_in_flight(self):
        consumer = DrivenConsumer(max_in_flight=2)
        one, two = consumer.connect("one:1"), consumer.connect("two:1")
        one.deliver(1)
        two.deliver(2)
        assert consumer.core.flow.is_starved
        one.lose()
        assert inbox(consumer) == [2]
        assert consumer.core.flow.in_flight == 1
        assert [*consumer.core.sessions] == [two.session]


class TestBackoff:
    def test_failure_blocks_until_a_test_message_succeeds(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect()
        link.lines()
        one, two = link.deliver(1, 2)
        one.requeue(0)
        two.requeue(0)
        assert link.lines() == ["REQ 1 0", "REQ 2 0", "RDY 0"]
        assert consumer.core.next_deadline() == 2 * S
        consumer.pass_time(2)
        assert consumer.core.is_probing
        assert link.lines() == ["RDY 1"]
        (test,) = link.deliver(1, attempts=2)
        assert link.lines() == ["RDY 0"]
        test.finish()
        assert link.lines() == ["FIN 1", "RDY 3"]
        assert not consumer.core.is_probing
        assert consumer.core.backoff.state is BackoffState.RUNNING

    def test_a_failed_test_message_sets_a_longer_deadline(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect()
        link.lines()
        link.deliver(1)[0].requeue(0)
        link.lines()
        consumer.pass_time(2)
        link.lines()
        (test,) = link.deliver(1, attempts=2)
        assert link.lines() == ["RDY 0"]
        test.requeue(0)
        assert link.lines() == ["REQ 1 0"]  # RDY is 0 already
        assert consumer.core.next_deadline() == consumer.now_ns + 4 * S
        states = [change.state for change in consumer.backoff_changes]
        assert states == [BackoffState.WAITING, BackoffState.PROBING, BackoffState.WAITING]

    def test_requeue_without_backoff_changes_nothing(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect()
        link.lines()
        link.deliver(1)[0].requeue(0, backoff=False)
        assert link.lines() == ["REQ 1 0"]
        assert consumer.core.backoff.state is BackoffState.RUNNING
        assert consumer.core.counts.requeued == 1

    def test_a_test_message_without_a_result_is_followed_by_another(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect()
        link.deliver(1)[0].requeue(0)
        link.lines()
        consumer.pass_time(2)
        link.lines()
        (test,) = link.deliver(1, attempts=2)
        link.lines()
        test.requeue(0, backoff=False)
        assert link.lines() == ["REQ 1 0", "RDY 1"]
        assert consumer.core.is_probing

    def test_lost_connection_of_test_message_moves_the_probe(self):
        consumer = DrivenConsumer(max_in_flight=4)
        links = [consumer.connect(f"nsqd-{n}:1") for n in range(2)]
        links[0].deliver(1)[0].requeue(0)
        for link in links:
            link.lines()
        consumer.pass_time(2)
        (tester,) = [link for link in links if link.lines() == ["RDY 1"]]
        (other,) = [link for link in links if link is not tester]
        tester.deliver(1, attempts=2)
        assert consumer.core.flow.gate is Gate.TESTING
        tester.lose()
        assert other.lines() == ["RDY 1"]

    @pytest.mark.parametrize("is_closing", [False, True])
    def test_test_message_and_fatal_error_in_one_buffer_move_the_probe(self, is_closing):
        consumer = DrivenConsumer(max_in_flight=4)
        links = [consumer.connect(f"nsqd-{n}:1") for n in range(2)]
        links[0].deliver(1)[0].requeue(0)
        for link in links:
            link.lines()
        consumer.pass_time(2)
        (tester,) = [link for link in links if link.lines() == ["RDY 1"]]
        (other,) = [link for link in links if link is not tester]
        if is_closing:
            tester.session.start_close()
            assert tester.lines() == ["CLS"]
        tester.send(encode_numbered(1, attempts=2) + encode_error(InvalidCommand("no")))
        assert tester.session.ended
        assert tester.lines() == []
        assert not consumer.core.inbox
        assert other.lines() == ["RDY 1"]

    def test_wait_may_have_jitter(self):
        waits = set()
        for seed in range(20):
            consumer = DrivenConsumer(seed=seed, max_in_flight=3, backoff_strategy="full-jitter")
            link = consumer.connect()
            link.deliver(1)[0].requeue(0)
            link.lines()
            waits.add(consumer.core.backoff.wait_ns)
        assert len(waits) == 20
        assert all(0 <= wait <= 2 * S for wait in waits)

    @pytest.mark.parametrize(
        ("seconds", "wait"), [(0.25, 0.25), (-1, 0), (1000, 60), (float("inf"), 60), (float("nan"), 60)]
    )
    def test_strategy_may_be_a_function(self, seconds: float, wait: float):
        asked: list[int] = []

        def strategy(attempt: int) -> float:
            asked.append(attempt)
            return seconds

        consumer = DrivenConsumer(max_in_flight=3, backoff_strategy=strategy, max_backoff_duration=60)
        link = consumer.connect()
        link.deliver(1)[0].requeue(0)
        link.lines()
        assert consumer.core.backoff_stats(0).seconds_left == wait
        assert {*asked} == {1}

    @pytest.mark.parametrize(
        ("options", "waits"),
        [
            ({"max_backoff_duration": 0.5}, [0.5, 0.5, 0.5]),
            ({"backoff_strategy": lambda attempt: attempt * 1.5}, [1.5, 3.0, 4.5]),
            ({"backoff_strategy": lambda attempt: 1e400}, [120.0, 120.0, 120.0]),
            ({"backoff_strategy": lambda attempt: float("nan")}, [120.0, 120.0, 120.0]),
            ({"backoff_strategy": lambda attempt: -1}, [0.0, 0.0, 0.0]),
        ],
        ids=["small maximum", "own", "infinite", "no number", "negative"],
    )
    def test_exponential_wait(self, options, waits):
        consumer = DrivenConsumer(max_in_flight=3, **options)
        link = consumer.connect()
        seen = []
        for attempts in (1, 2, 3):
            link.lines()
            link.deliver(1, attempts=attempts)[0].requeue(0)
            link.lines()
            stats = consumer.core.backoff_stats(consumer.now_ns)
            assert stats.seconds_left == stats.wait
            seen.append(stats.wait)
            consumer.pass_time(stats.wait)
            assert consumer.core.backoff_stats(consumer.now_ns).seconds_left == 0
        assert seen == waits

    def test_full_jitter_waits_at_random(self):
        waits = set()
        for seed in range(5):
            consumer = DrivenConsumer(seed=seed, max_in_flight=3, backoff_strategy="full-jitter")
            link = consumer.connect()
            link.deliver(1)[0].requeue(0)
            link.lines()
            waits.add(consumer.core.backoff_stats(0).wait)
        assert len(waits) > 1
        assert all(0 <= wait <= 2 for wait in waits)

    def test_backoff_can_be_switched_off(self):
        consumer = DrivenConsumer(max_in_flight=3, max_backoff_duration=0)
        link = consumer.connect()
        link.lines()
        link.deliver(1)[0].requeue(0)
        assert link.lines() == ["REQ 1 0"]
        assert consumer.core.backoff.deadline_ns is None
        assert consumer.core.backoff.state is BackoffState.RUNNING


class TestTime:
    def test_timed_out_message_is_not_in_flight(self):
        consumer = DrivenConsumer(max_in_flight=1)
        one, two = consumer.connect("one:1", msg_timeout=60_000), consumer.connect("two:1")
        (message,) = one.deliver(1)
        consumer.core.inbox.clear()
        consumer.pass_time(30)
        assert one.lines() == ["RDY 1", "RDY 0"]
        consumer.pass_time(29.9)
        assert not message.is_answered
        assert two.lines() == []  # its turn, but the message of the first one counts
        consumer.pass_time(0.1)
        assert message.is_answered
        assert two.lines() == ["RDY 1"]
        message.finish()
        message.requeue()
        message.touch()
        assert one.lines() == []
        core = consumer.core
        assert (core.counts.timed_out, core.counts.finished, one.session.counts.timed_out) == (1, 0, 1)

    def test_a_message_that_timed_out_is_not_begun(self):
        consumer = DrivenConsumer(max_in_flight=5)
        link = consumer.connect(msg_timeout=20_000)
        link.deliver(1)
        consumer.now_ns += 9 * S
        link.deliver(2)
        consumer.pass_time(11)  # as if the event loop had been blocked
        assert inbox(consumer) == [2]

    def test_a_message_that_waits_is_touched_at_half_of_its_timeout(self):
        consumer = DrivenConsumer(max_in_flight=5)
        link = consumer.connect(msg_timeout=20_000, max_msg_timeout=900_000)
        link.deliver(1, 2)
        begun = consumer.core.inbox.popleft()
        link.lines()
        for second in range(1, 60):
            consumer.pass_time(1)
            assert link.lines() == (["TOUCH 2"] if second % 10 == 0 else [])
            if second == 19:
                begun.finish()
                assert link.lines() == ["FIN 1"]
        assert consumer.core.extended_count == 5
        assert consumer.core.counts.timed_out == 0

    def test_waiting_message_is_requeued_before_nsqds_maximum(self):
        consumer = DrivenConsumer(max_in_flight=5)
        link = consumer.connect(msg_timeout=20_000, max_msg_timeout=30_000)
        link.deliver(1)
        link.lines()
        sent = []
        for second in range(1, 31):
            consumer.pass_time(1)
            sent += [(second, line) for line in link.lines()]
        assert sent == [(10, "TOUCH 1"), (25, "REQ 1 0")]
        assert inbox(consumer) == []
        assert (consumer.core.counts.timed_out, consumer.core.counts.requeued) == (0, 1)

    def test_a_message_that_was_touched_late_is_requeued_before_nsqds_maximum(self):
        consumer = DrivenConsumer(max_in_flight=5)
        link = consumer.connect(msg_timeout=20_000, max_msg_timeout=27_000)
        link.deliver(1)
        consumer.pass_time(19)  # as if the event loop had been blocked
        assert link.lines()[-1] == "TOUCH 1"
        sent = []
        for second in range(20, 26):
            consumer.pass_time(1)
            sent += [(second, line) for line in link.lines()]
        assert sent == [(22, "REQ 1 0")]

    @given(
        msg_timeout=st.integers(1, 60),
        maximum=st.integers(1, 20),
        steps=st.lists(st.tuples(st.sampled_from(["deliver", "begin", "pass"]), st.floats(0, 5)), max_size=60),
    )
    def test_a_message_is_begun_with_a_quarter_of_its_timeout_left(self, msg_timeout, maximum, steps):
        consumer = DrivenConsumer(max_in_flight=1000)
        link = consumer.connect(msg_timeout=msg_timeout * 1000, max_msg_timeout=msg_timeout * maximum * 1000)
        count = 0
        for step, value in steps:
            if step == "deliver":
                link.deliver(count)
                count += 1
            elif step == "begin" and consumer.core.inbox:
                message = consumer.core.inbox.popleft()
                assert message.time_left >= msg_timeout / 4 - msg_timeout / 10
                message.finish()
            else:
                for _ in range(round(value * 20)):
                    consumer.pass_time(msg_timeout / 50)
        assert consumer.core.counts.timed_out == 0

    def test_touch_restarts_the_timeout_up_to_the_maximum(self):
        consumer = DrivenConsumer(max_in_flight=5)
        link = consumer.connect(msg_timeout=20_000, max_msg_timeout=50_000)
        (message,) = link.deliver(1)
        consumer.core.inbox.clear()
        deadlines = []
        for _ in range(4):
            consumer.pass_time(12)
            message.touch()
            deadlines.append(message.deadline_ns // S)
        assert deadlines == [32, 44, 50, 50]
        consumer.pass_time(2)
        assert message.is_answered

    def test_timed_out_test_message_is_followed_by_another(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect(msg_timeout=20_000)
        link.deliver(1)[0].requeue(0)
        link.lines()
        consumer.pass_time(2)
        link.lines()
        link.deliver(1, attempts=2)
        assert link.lines() == ["RDY 0"]
        consumer.pass_time(20)
        assert link.lines() == ["RDY 1"]
        link.deliver(1, attempts=3)[0].finish()
        assert link.lines() == ["RDY 0", "FIN 1", "RDY 3"]

    def test_a_result_counts_even_if_the_connection_is_lost_before_it_is_sent(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect()
        link.deliver(1)[0].requeue(0)
        link.lines()
        consumer.pass_time(2)
        link.lines()
        link.deliver(1, attempts=2)[0].finish()
        link.lose()
        assert consumer.core.backoff.state is BackoffState.RUNNING

    def test_closing_session_ends_when_its_last_message_times_out(self):
        consumer = DrivenConsumer(max_in_flight=3)
        link = consumer.connect(msg_timeout=20_000)
        link.deliver(1)
        consumer.core.inbox.clear()
        consumer.core.leave(link.session, 0)
        link.lines()
        link.dismiss()
        assert not link.session.ended
        consumer.pass_time(20)
        assert link.session.ended

    def test_unknown_msg_timeout_is_nsqds_default(self):
        link = DrivenConsumer(max_in_flight=3).connect(msg_timeout=0)
        assert link.deliver(1)[0].deadline_ns == 60 * S


class TestClosing:
    def test_close_requeues_waiting_messages_and_sends_cls(self):
        consumer = DrivenConsumer(max_in_flight=10)
        one, two = consumer.connect("one:1"), consumer.connect("two:1")
        for link in (one, two):
            link.lines()
        one.deliver(1, 2)
        two.deliver(3)
        begun = consumer.core.inbox.popleft()
        consumer.core.close(0, S)
        assert one.lines() == ["RDY 0", "REQ 2 0", "CLS"]
        assert two.lines() == ["RDY 0", "REQ 3 0", "CLS"]
        assert inbox(consumer) == []
        begun.finish()
        assert one.lines() == ["FIN 1"]
        consumer.core.close(0, S)
        assert one.lines() == two.lines() == []

    def test_requeue_at_close_is_no_failure(self):
        consumer = DrivenConsumer(max_in_flight=10)
        consumer.connect().deliver(1, 2)
        consumer.core.close(0, S)
        assert consumer.core.backoff.state is BackoffState.RUNNING

    def test_messages_received_while_closing_are_requeued(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.connect()
        consumer.core.close(0, S)
        link.lines()
        link.deliver(1)
        assert link.lines() == ["REQ 1 0"]
        assert inbox(consumer) == []

    def test_requeue_all_includes_begun_messages(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.connect()
        link.lines()
        link.deliver(1, 2)
        consumer.core.inbox.clear()
        consumer.core.close(0, S)
        consumer.core.requeue_all()
        assert link.lines() == ["RDY 0", "CLS", "REQ 1 0", "REQ 2 0"]

    def test_subscription_accepted_after_close_sends_cls(self):
        consumer = DrivenConsumer(max_in_flight=10)
        link = consumer.handshake()
        consumer.core.close(0, S)
        link.send(b"\0\0\0\x06\0\0\0\0OK")
        assert link.lines() == ["CLS"]


class TestFinishingTogether:
    @given(
        addresses=st.integers(1, 3),
        steps=st.lists(
            st.tuples(st.sampled_from(["deliver", "finish", "requeue", "lose"]), st.integers(0, 11)),
            max_size=30,
        ),
        chosen=st.permutations(range(30)),
        count=st.integers(0, 30),
    )
    def test_finish_all_equals_single_finishes(self, addresses, steps, chosen, count):
        sent = []
        for together in (True, False):
            consumer = DrivenConsumer(max_in_flight=100)
            links = [consumer.connect(f"nsqd-{number}:4150") for number in range(addresses)]
            came: list[Message] = []
            for what, number in steps:
                link = links[number % addresses]
                if what == "deliver":  # perhaps again
                    came += link.deliver(number)
                elif what == "lose":
                    link.lose()
                    links[number % addresses] = consumer.connect(link.session.address)
                elif number < len(came):
                    message = came[number]
                    if what == "finish":
                        consumer.subscription.finish(message)
                    else:
                        consumer.subscription.requeue(message, 0, backoff=False)
            messages = [came[index] for index in chosen if index < len(came)][:count]
            if together:
                consumer.subscription.finish_all(messages)
            else:
                for message in messages:
                    consumer.subscription.finish(message)
            sent.append([(link.lines(), {*link.session.held}, consumer.core.counts.finished) for link in links])
        assert sent[0] == sent[1]

    def test_each_connection_is_flushed_once(self):
        consumer = DrivenConsumer(max_in_flight=10)
        links = [consumer.connect(f"nsqd-{number}:4150") for number in range(2)]
        messages = [message for link in links for message in link.deliver(1, 2, 3)]
        for link in links:
            link.lines()
        consumer.woken.clear()
        consumer.subscription.finish_all(messages)
        assert consumer.woken == [link.session for link in links]
        assert [link.lines() for link in links] == [["FIN 1", "FIN 2", "FIN 3"]] * 2


class World:
    """Consumers, brokers and a publisher; a seed decides how bytes are cut and delayed, and which connections break."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ns = S
        self.brokers = [Broker(BrokerOptions(msg_timeout_ns=30 * S), self.random) for _ in range(2)]
        self.consumers = [
            DrivenConsumer(seed=seed, max_in_flight=self.random.choice([1, 2, 7]), backoff_multiplier=0.5)
            for _ in range(2)
        ]
        self.links: list[Link] = []
        self.finished: set[bytes] = set()
        self.published: set[bytes] = set()
        for consumer in self.consumers:
            for broker in self.brokers:
                self.connect(consumer, broker)

    def connect(self, consumer: DrivenConsumer, broker: Broker) -> None:
        near = DrivenSession(consumer, f"nsqd-{self.brokers.index(broker)}:1")
        self.links.append(Link(consumer, broker, near, broker.open_session("client:1", self.now_ns)))

    def publish(self) -> None:
        body = body_of(len(self.published))
        self.published.add(body)
        broker = self.random.choice(self.brokers)
        broker.topics.get_or_create(b"t").put([body], self.now_ns)
        broker.settle(self.now_ns)

    def step(self, *, calm: bool) -> None:
        self.now_ns += self.random.randrange(S // 10, 2 * S)
        for broker in self.brokers:
            broker.handle_deadline(self.now_ns)
        for consumer in self.consumers:
            consumer.now_ns = self.now_ns
            consumer.core.handle_deadline(self.now_ns)
            consumer.after()
            self.handle(consumer, calm=calm)
        for link in [*self.links]:
            link.carry(self.now_ns, self.random)
            if not calm and self.random.random() < 0.02:
                link.near.lose()
                link.broker.close_session(link.far, self.now_ns)
                self.links.remove(link)
                self.connect(link.consumer, link.broker)
        for consumer in self.consumers:
            flow = consumer.core.flow
            assert flow.total_rdy_count <= flow.max_in_flight

    def handle(self, consumer: DrivenConsumer, *, calm: bool) -> None:
        while consumer.core.inbox and (calm or self.random.random() < 0.8):
            message = consumer.core.inbox.popleft()
            luck = 1.0 if calm else self.random.random()
            if luck < 0.15:
                message.requeue(self.random.choice([0, 1]))
            elif luck < 0.2:
                message.touch()
                consumer.core.inbox.append(message)
            elif not message.is_answered:
                message.finish()
                self.finished.add(message.body)


class Link:
    """A session of a consumer, one of a broker, and the bytes on their way between them."""

    def __init__(self, consumer: DrivenConsumer, broker: Broker, near: DrivenSession, far: Session) -> None:
        self.consumer, self.broker, self.near, self.far = consumer, broker, near, far
        self.up = self.down = b""

    def carry(self, now_ns: int, random: Random) -> None:
        for _ in range(3):
            self.up += self.near.data_to_send()
            cut = random.randrange(len(self.up) + 1) if random.random() < 0.3 else len(self.up)
            self.far.receive_data(self.up[:cut], now_ns)
            self.broker.settle(now_ns)
            self.up = self.up[cut:]
            self.down += self.far.data_to_send()
            cut = random.randrange(len(self.down) + 1) if random.random() < 0.3 else len(self.down)
            if cut:
                self.near.send(self.down[:cut])
            self.down = self.down[cut:]
            assert self.near.session.error is None
            assert not self.far.ended


@given(st.integers(0, 2**32))
def test_random_world_loses_no_message_and_keeps_max_in_flight(seed):
    world = World(seed)
    for _ in range(60):
        if world.random.random() < 0.5:
            world.publish()
        world.step(calm=False)
    for _ in range(400):
        if world.finished >= world.published and not any(link.near.session.held for link in world.links):
            break
        world.step(calm=True)
    assert world.finished == world.published


def test_the_same_seed_gives_the_same_world():
    worlds = [World(7), World(7)]
    for world in worlds:
        for _ in range(50):
            world.publish()
            world.step(calm=False)
    assert worlds[0].finished == worlds[1].finished
    assert worlds[0].finished


def test_a_new_consumer_has_counted_nothing():
    assert DrivenConsumer().core.counts == MessageCounts()
