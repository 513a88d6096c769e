"""The states of a message under all orders of events: delivered, answered, timed out, lost, delivered again, requeued.

The test models nsqd: its messages in flight on each connection, their timeouts, and its reaction to each command.
"""

from __future__ import annotations

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.flow import Gate
from nsqkit.consumer.message import Message
from nsqkit.errors import MessageError
from tests.consumer.driven import DrivenConsumer, DrivenSession, S

MSG_TIMEOUT = 20
KINDS = ["finish", "finish", "requeue", "fail", "touch"]
numbers = st.integers(0, 99)


@attrs.define(eq=False)
class Nsqd:
    """One connection, from nsqd's side.

    Attributes:
        link: the consumer's side.
        rdy_count: the last one sent.
        in_flight: until when each message may be answered, ns, by its number.
        answers: how often each delivery was answered, by number and attempts.
    """

    link: DrivenSession
    rdy_count: int = 0
    in_flight: dict[int, int] = attrs.field(factory=dict)
    closing: bool = False


class Life(RuleBasedStateMachine):
    """A consumer with some connections; the test is nsqd and the user."""

    @initialize(max_in_flight=st.integers(1, 6), max_backoff=st.sampled_from([0, 3]))
    def begin(self, max_in_flight, max_backoff):
        self.consumer = DrivenConsumer(
            max_in_flight=max_in_flight, max_backoff_duration=max_backoff, default_requeue_delay=0
        )
        self.core = self.consumer.core
        self.nsqds: list[Nsqd] = []
        self.queue: list[int] = list(range(1000))  # in flight on no connection
        self.attempts: dict[int, int] = {}
        self.begun: list[Message] = []
        self.received: list[Message] = []
        self.answered: set[Message] = set()  # by the user, with success
        self.sent: dict[tuple[int, int], int] = {}  # answers that nsqd was sent, for each delivery

    # ---- nsqd ----

    def read(self, nsqd: Nsqd) -> None:
        """Read the commands for an nsqd."""
        for line in nsqd.link.lines():
            word, *rest = line.split(" ")
            if word == "RDY":
                nsqd.rdy_count = int(rest[0])
            elif word == "CLS":
                nsqd.closing = True
            elif (number := int(rest[0])) in nsqd.in_flight:
                if word == "TOUCH":
                    nsqd.in_flight[number] = self.consumer.now_ns + MSG_TIMEOUT * S
                else:
                    del nsqd.in_flight[number]
                    delivery = (number, self.attempts[number])
                    self.sent[delivery] = self.sent.get(delivery, 0) + 1
                    if word == "REQ":
                        self.queue.append(number)

    def settle(self) -> None:
        for nsqd in self.nsqds:
            self.read(nsqd)

    @rule(count=st.integers(1, 3))
    def connect(self, count):
        for _ in range(count if len(self.nsqds) < 4 else 0):
            link = self.consumer.connect(
                f"nsqd-{len(self.nsqds)}:1",
                msg_timeout=MSG_TIMEOUT * 1000,
                max_msg_timeout=3 * MSG_TIMEOUT * 1000,
            )
            self.nsqds.append(Nsqd(link))
        self.settle()

    @rule(number=numbers, count=st.integers(1, 6))
    def deliver(self, number, count):
        if not self.nsqds:
            return
        nsqd = self.nsqds[number % len(self.nsqds)]
        room = 0 if nsqd.closing else nsqd.rdy_count - len(nsqd.in_flight)
        chosen = [self.queue.pop(0) for _ in range(min(count, room, len(self.queue)))]
        for each in chosen:
            self.attempts[each] = self.attempts.get(each, 0) + 1
            nsqd.in_flight[each] = self.consumer.now_ns + MSG_TIMEOUT * S
            was_testing = self.core.backoff.test_message is not None
            self.received += nsqd.link.deliver(each, attempts=self.attempts[each])
            assert not (was_testing and nsqd.rdy_count), "no RDY while the test message is out"
        self.settle()

    @rule(seconds=st.sampled_from([1, 5, 21]))
    def wait(self, seconds):
        self.consumer.pass_time(seconds)
        for nsqd in self.nsqds:
            for number in [n for n, due_ns in nsqd.in_flight.items() if due_ns <= self.consumer.now_ns]:
                del nsqd.in_flight[number]
                self.queue.insert(0, number)
        self.settle()

    @rule(number=numbers)
    def lose(self, number):
        if self.nsqds:
            nsqd = self.nsqds.pop(number % len(self.nsqds))
            nsqd.link.lose()
            self.queue = [*nsqd.in_flight, *self.queue]
            assert nsqd.link.session.held == {}
            self.settle()

    # ---- the user ----

    @rule()
    def take(self):
        if self.core.inbox:
            message = self.core.inbox.popleft()
            assert not message.is_answered, "an answered message is in the inbox"
            self.begun.append(message)

    @precondition(lambda self: self.begun)
    @rule(
        number=numbers,
        kind=st.sampled_from(["finish", "finish", "requeue", "fail", "touch"]),
        together=st.booleans(),
    )
    def answer(self, number, kind, together):
        message = self.begun[number % len(self.begun)]
        was_answered = message.is_answered
        try:
            if kind == "touch":
                message.touch()
            elif kind == "finish":
                message.finish()
            else:
                message.requeue(0, backoff=kind == "fail")
        except MessageError:
            assert message in self.answered
        else:
            # A message of a lost connection may be answered again without effect.
            assert message not in self.answered or message.session.ended
            if kind != "touch" and not was_answered:
                self.answered.add(message)
        if not together:
            self.settle()

    @precondition(lambda self: self.nsqds)
    @rule(number=numbers)
    def disconnect(self, number):
        self.core.leave(self.nsqds[number % len(self.nsqds)].link.session, self.consumer.now_ns)
        self.settle()

    @rule()
    def pause_and_resume(self):
        self.core.pause(self.consumer.now_ns)
        self.settle()
        assert all(nsqd.rdy_count == 0 for nsqd in self.nsqds)
        self.core.resume(self.consumer.now_ns)
        self.settle()

    # ---- what holds at any time ----

    @invariant()
    def no_delivery_is_answered_twice(self):
        assert all(count == 1 for count in self.sent.values())

    @invariant()
    def rdy_never_passes_the_limit(self):
        assert sum(nsqd.rdy_count for nsqd in self.nsqds) <= self.core.flow.max_in_flight

    @invariant()
    def the_books_are_right(self):
        self.settle()
        held = [message for nsqd in self.nsqds for message in nsqd.link.session.held.values()]
        assert self.core.flow.in_flight == len(held)
        assert set(self.core.inbox) <= set(held)
        counted = self.core.counts.finished + self.core.counts.requeued + self.core.counts.timed_out
        lost = sum(message.is_answered for message in self.received) - counted
        assert lost >= 0
        assert self.core.counts.received == len(self.received)

    @invariant()
    def there_is_one_test_message(self):
        testing = self.core.flow.gate is Gate.TESTING
        assert testing == (self.core.backoff.test_message is not None)
        assert self.core.backoff.state is BackoffState.PROBING or not testing

    def teardown(self):
        """Close: every received message is answered, requeued, or has timed out."""
        if not hasattr(self, "core"):
            return
        self.core.close(self.consumer.now_ns, self.consumer.now_ns)
        self.core.requeue_all()
        self.settle()
        for nsqd in self.nsqds:
            assert nsqd.rdy_count == 0
            assert nsqd.in_flight == {}, "a received message was not answered"
            if nsqd.closing and not nsqd.link.session.ended:
                nsqd.link.dismiss()
            assert nsqd.link.session.ended
        assert all(message.is_answered for message in self.received)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
