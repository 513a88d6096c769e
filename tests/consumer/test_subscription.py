from __future__ import annotations

import pytest

from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.options import ConsumerOptions
from nsqkit.consumer.subscription import Subscription
from nsqkit.errors import Closed, NotConnected, OptionError
from nsqkit.wire.identify import IdentifyRequest
from tests.consumer.driven import DrivenConsumer, S


@pytest.mark.parametrize(("topic", "channel"), [("a b", "c"), ("t", "")])
def test_invalid_names_are_refused(topic, channel):
    with pytest.raises(OptionError, match="name"):
        Subscription(
            topic,
            channel,
            core=DrivenConsumer().core,
            options=ConsumerOptions(),
            identity=IdentifyRequest(feature_negotiation=True),
        )


def test_first_answer_after_a_write_wakes_the_connection():
    consumer = DrivenConsumer(max_in_flight=10)
    link = consumer.connect()
    link.lines()
    one, two, three = link.deliver(1, 2, 3)
    consumer.woken.clear()
    for message in (one, two, three):
        assert consumer.subscription.finish(message)
    assert consumer.woken == [link.session]
    assert not consumer.subscription.finish(one)
    link.lines()
    (four,) = link.deliver(4)
    assert consumer.subscription.touch(four)
    assert consumer.subscription.requeue(four, 1, backoff=False)
    assert consumer.woken == [link.session] * 2


def test_requeue_now_is_no_failure_and_a_later_answer_does_nothing():
    consumer = DrivenConsumer(max_in_flight=10)
    link = consumer.connect()
    link.lines()
    (message,) = link.deliver(1)
    consumer.subscription.requeue_now(message)
    message.finish()
    assert link.lines() == ["REQ 1 0"]
    assert consumer.core.backoff.state is BackoffState.RUNNING


def test_catch_up_touches_waiting_messages_that_are_due():
    consumer = DrivenConsumer(max_in_flight=10)
    link = consumer.connect(msg_timeout=10_000, max_msg_timeout=100_000)
    link.lines()
    link.deliver(1)
    for seconds, lines in [(4, []), (2, ["TOUCH 1"])]:
        consumer.now_ns += seconds * S
        consumer.subscription.catch_up(consumer.now_ns)
        assert link.lines() == lines


def test_time_after_the_end_is_that_of_the_core():
    consumer = DrivenConsumer()
    consumer.now_ns = 5
    consumer.connect()
    consumer.now_ns = 9
    consumer.subscription.clock = None
    assert consumer.subscription.now_ns() == 5
    with pytest.raises(Closed):
        consumer.subscription.check_entered()


def test_failure_is_raised():
    subscription = DrivenConsumer().subscription
    subscription.check_failure()
    subscription.failure = NotConnected("no")
    with pytest.raises(NotConnected):
        subscription.check_failure()
