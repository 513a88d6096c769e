from __future__ import annotations

import pytest

from nsqkit import BlockingConsumer, BlockingProducer
from nsqkit.client.serializers import JSON
from nsqkit.errors import MessageError, OptionError
from tests.threads import until


@pytest.fixture
def consumer(nsqd):
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        yield consumer


@pytest.fixture
def message(nsqd, consumer):
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("t", b"body")
    return consumer.receive()


def test_attributes_are_those_of_the_message(message, nsqd):
    delivery = message.delivery
    names = (
        "id",
        "body",
        "attempts",
        "timestamp_ns",
        "received_ns",
        "deadline_ns",
        "nsqd_address",
        "topic",
        "channel",
    )
    for name in names:
        assert getattr(message, name) == getattr(delivery, name)
    assert 0 < message.time_left <= 60
    assert message.nsqd_address == nsqd.tcp_address
    assert repr(message).endswith("attempts=1 4 bytes>")


def test_value_is_decoded_by_the_serializer(nsqd):
    with BlockingProducer(nsqd.tcp_address, serializer=JSON) as producer:
        producer.publish("t", [1, 2])
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], serializer=JSON) as consumer:
        message = consumer.receive()
        assert message is not None
        assert message.value == [1, 2]
        message.body = b"["
        with pytest.raises(ValueError, match="Expecting value"):
            message.value  # noqa: B018


def test_message_is_finished_once(message, consumer):
    assert not message.is_answered
    message.finish()
    assert message.is_answered
    with pytest.raises(MessageError):
        message.finish()
    with pytest.raises(MessageError):
        message.requeue()
    until(lambda: consumer.stats().finished == 1)


def test_message_is_requeued_once(message, consumer):
    with pytest.raises(OptionError, match="delay"):
        message.requeue(-1)
    message.requeue(60.0, backoff=False)
    assert message.is_answered
    for answer in (message.finish, message.requeue):
        with pytest.raises(MessageError):
            answer()
    assert consumer.stats().requeued == 1
    assert consumer.backoff.counter == 0


def test_requeued_message_is_delivered_again(message, consumer):
    message.requeue(0, backoff=False)
    again = consumer.receive()
    assert (again.id, again.attempts) == (message.id, 2)


def test_touch_extends_the_timeout(message, consumer):
    before = message.deadline_ns
    message.touch()
    assert message.deadline_ns > before
    assert consumer.stats().touched == 1


def test_time_left_follows_the_event_loop(message, consumer):
    loop_client = consumer._opened()
    before = message.deadline_ns
    loop_client.ask(message.delivery.touch)  # as with auto_touch
    assert message.deadline_ns > before
    loop_client.ask(lambda: loop_client.client.subscription.requeue_now(message.delivery))
    assert message.is_answered
    assert message.time_left == 0


def test_answer_after_connection_loss_does_nothing(message, consumer):
    consumer.close()
    assert message.is_answered
    for answer in (message.finish, message.requeue, message.touch):
        answer()
