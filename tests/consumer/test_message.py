from __future__ import annotations

from datetime import timedelta

import pytest

from nsqkit.client.serializers import JSON
from nsqkit.consumer.message import Message
from nsqkit.errors import MessageError, OptionError
from nsqkit.wire.messages import encode_message
from tests.consumer.driven import DrivenConsumer, DrivenSession, S


@pytest.fixture
def link() -> DrivenSession:
    """A session with RDY 10 and an empty outbox."""
    link = DrivenConsumer(max_in_flight=10).connect("nsqd.example:4150")
    link.lines()
    return link


@pytest.fixture
def message(link) -> Message:
    message: Message
    (message,) = link.deliver(7, attempts=3)
    return message


def test_attributes_are_those_of_the_frame(link):
    link.send(encode_message(1_700_000_000_123_456_789, 4, b"0123456789abcdef", b"\x00body"))
    message = link.session.held[b"0123456789abcdef"]
    assert (message.id, message.body) == (b"0123456789abcdef", b"\x00body")
    assert (message.attempts, message.timestamp_ns) == (4, 1_700_000_000_123_456_789)
    assert message.nsqd_address == "nsqd.example:4150"
    assert repr(message) == "<Message 0123456789abcdef attempts=4 5 bytes>"


def test_topic_and_channel(message):
    assert (message.topic, message.channel) == ("t", "c")


def test_value_is_decoded_by_the_serializer():
    link = DrivenConsumer(serializer=JSON).connect("nsqd.example:4150")
    link.send(encode_message(1, 1, b"0123456789abcdef", b'{"n": 1}'))
    link.send(encode_message(1, 1, b"0123456789abcdeg", b"{"))
    good, bad = link.session.held.values()
    assert good.value == {"n": 1}
    assert good.body == b'{"n": 1}'
    with pytest.raises(ValueError, match="Expecting property name"):
        bad.value  # noqa: B018


def test_without_a_serializer_the_value_is_the_body(message):
    assert message.value is message.body


def test_message_has_no_dict(message):
    assert not hasattr(message, "__dict__")


def test_finish_is_one_command(link, message):
    assert not message.is_answered
    message.finish()
    assert message.is_answered
    assert link.lines() == ["FIN 7"]


def test_touch_is_one_command_each_time_and_no_answer(link, message):
    message.touch()
    message.touch()
    assert not message.is_answered
    assert link.lines() == ["TOUCH 7", "TOUCH 7"]
    message.finish()


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [(0, 0), (1.5, 1500), (timedelta(minutes=1), 60_000), (0.0004, 0), (3600, 3_600_000), (None, 3 * 90_000)],
)
def test_requeue_sends_its_delay(link, message, delay, delay_ms):
    message.requeue(delay, backoff=False)
    assert message.is_answered
    assert link.lines() == [f"REQ 7 {delay_ms}"]


def test_a_requeue_without_a_delay_grows_with_attempts_up_to_a_maximum():
    consumer = DrivenConsumer(max_in_flight=10, default_requeue_delay=2, max_requeue_delay=5, max_backoff_duration=0)
    link = consumer.connect()
    link.lines()
    for attempts in (1, 2, 3, 65535):
        (message,) = link.deliver(attempts, attempts=attempts)
        message.requeue()
    assert link.lines() == ["REQ 1 2000", "REQ 2 4000", "REQ 3 5000", "REQ 65535 5000"]


@pytest.mark.parametrize(
    ("seconds", "delay_ms"),
    [(0.5, 500), (-1, 0), (100, 60_000), (float("inf"), 60_000), (float("nan"), 60_000)],
)
def test_requeue_delay_policy_is_called_with_attempts(seconds: float, delay_ms: int):
    asked: list[int] = []

    def policy(attempts: int) -> float:
        asked.append(attempts)
        return seconds

    consumer = DrivenConsumer(requeue_delay_policy=policy, max_requeue_delay=60, max_backoff_duration=0)
    link = consumer.connect()
    link.lines()
    link.deliver(1, attempts=3)[0].requeue()
    assert link.lines() == [f"REQ 1 {delay_ms}"]
    assert asked == [3]


def test_time_left_follows_clock_and_touch():
    consumer = DrivenConsumer()
    (message,) = consumer.connect(msg_timeout=10_000, max_msg_timeout=25_000).deliver(1)
    left = [message.time_left]
    for _ in range(3):
        consumer.now_ns += 8 * S
        left.append(message.time_left)
        message.touch()
        left.append(message.time_left)
    assert left == [10, 2, 10, 2, 9, 1, 1]
    consumer.now_ns += S
    assert message.time_left == 0


@pytest.mark.parametrize(("returned", "delay_ms"), [(1.5, 3000), (-1, 0), (1e9, 7000), (float("nan"), 7000)])
def test_requeue_delay_policy_is_limited_by_the_maximum(returned, delay_ms):
    consumer = DrivenConsumer(
        max_in_flight=10, requeue_delay_policy=lambda attempts: returned * attempts, max_requeue_delay=7
    )
    link = consumer.connect()
    link.lines()
    link.deliver(1, attempts=2)[0].requeue(backoff=False)
    assert link.lines() == [f"REQ 1 {delay_ms}"]


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), float("inf"), "5", [1]], ids=repr)
def test_invalid_delay_is_refused(link, message, delay):
    with pytest.raises(OptionError) as caught:
        message.requeue(delay)
    assert str(caught.value) == f"delay is {delay!r}; allowed is 0 seconds or more"
    assert not message.is_answered
    assert link.lines() == []


@pytest.mark.parametrize("answer", ["finish", "requeue"])
@pytest.mark.parametrize("again", ["finish", "requeue", "touch"])
def test_message_is_answered_once(link, message, answer, again):
    getattr(message, answer)()
    link.lines()
    with pytest.raises(MessageError, match="message 0000000000000007 was answered before"):
        getattr(message, again)()
    assert link.lines() == []


@pytest.mark.parametrize("answer", ["finish", "requeue", "touch"])
def test_an_answer_after_the_connection_was_lost_does_nothing(link, message, answer):
    link.lose()
    assert message.is_answered
    getattr(message, answer)()
    assert link.lines() == []


@pytest.mark.parametrize("answer", ["finish", "requeue", "touch"])
def test_an_answer_to_a_delivery_that_timed_out_does_nothing_to_the_next_one(link, message, answer):
    (again,) = link.deliver(7, attempts=4)
    assert message.is_answered
    getattr(message, answer)()
    assert link.lines() == []
    assert not again.is_answered
    again.finish()
    assert link.lines() == ["FIN 7"]
