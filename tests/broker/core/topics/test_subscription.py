"""One consumer of a channel."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from nsqkit.broker.core.disk.guid import GuidFactory
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.core.topics.topology import GLOBAL
from nsqkit.wire.identify import Grant
from nsqkit.wire.messages import encode_message

GRANT = Grant(heartbeat_interval_ns=0, msg_timeout_ns=60, output_buffer_size=99, output_buffer_timeout_ns=0)


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


def a_frame(number: int) -> bytes:
    return encode_message(0, 1, b"%016d" % number, b"x")


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
