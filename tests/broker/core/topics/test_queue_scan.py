"""nsqd's own timing: the scan for messages that are due."""

from __future__ import annotations

from random import Random

import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.queue_scan import (
    REFRESH_INTERVAL_NS,
    SCAN_INTERVAL_NS,
    QueueScan,
)
from tests.pairs import DrivenBroker


@pytest.fixture
def driven() -> DrivenBroker:
    return DrivenBroker(timing="nsqd")


class CountingChannel:
    """A channel that counts how often it was scanned, and has something due ``dirty`` times."""

    def __init__(self, dirty: int = 0) -> None:
        self.count = 0
        self._dirty = dirty

    def queue_all_due(self, now_ns: int) -> bool:
        self.count += 1
        return self.count <= self._dirty


class StubTopics:
    """Topics that have only channels and options."""

    def __init__(self, channels: list[CountingChannel], selection_count: int) -> None:
        self.options = BrokerOptions(queue_scan_selection_count=selection_count)
        self._channels = channels

    def channels(self) -> list[CountingChannel]:
        return self._channels


def scan_of(channels: list[CountingChannel], selection_count: int = 20) -> QueueScan:
    return QueueScan(StubTopics(channels, selection_count), Random(1))  # type: ignore[arg-type]


class TestQueueScan:
    def test_scan_is_repeated_every_100_ms(self):
        channels = [CountingChannel()]
        scan = scan_of(channels)
        assert scan.start(7) == 7 + SCAN_INTERVAL_NS
        assert scan.handle_deadline(1000) == 1000 + SCAN_INTERVAL_NS
        assert channels[0].count == 1

    def test_new_channel_is_scanned_after_the_list_is_rebuilt(self):
        channels: list[CountingChannel] = []
        scan = scan_of(channels)
        scan.start(0)
        channels.append(CountingChannel())
        scan.handle_deadline(REFRESH_INTERVAL_NS - 1)
        assert channels[0].count == 0
        scan.handle_deadline(REFRESH_INTERVAL_NS)
        assert channels[0].count == 1

    def test_scan_selects_some_of_many_channels(self):
        channels = [CountingChannel() for _ in range(100)]
        scan = scan_of(channels, 20)
        scan.start(0)
        scan.handle_deadline(1)
        assert sum(channel.count for channel in channels) == 20

    def test_scan_repeats_at_once_while_a_quarter_of_the_channels_had_something_due(self):
        channels = [CountingChannel(dirty) for dirty in (3, 3, 1, 0, 0)]
        scan = scan_of(channels)
        scan.start(0)
        scan.handle_deadline(1)
        assert [channel.count for channel in channels] == [4] * 5


class TestMessages:
    def test_timed_out_message_is_delivered_after_the_next_scan(self, driven):
        consumer = driven.consumer(1, msg_timeout=1000)
        driven.advance(5.05)  # the channel is in the list from here on
        driven.publish(b"m")
        message = consumer.message()
        driven.advance(1.049)  # it has been due for 49 ms
        assert consumer.messages() == []
        driven.advance(0.001)
        assert (consumer.message().id, driven.topic().channels[b"c"].timeout_count) == (message.id, 1)

    def test_deferred_message_of_a_new_channel_may_be_five_seconds_late(self, driven):
        driven.settle()
        consumer = driven.consumer(1)
        driven.publish(b"m", delay=1)
        driven.advance(4.9)
        assert consumer.messages() == []
        driven.advance(0.2)
        assert consumer.bodies() == [b"m"]

    def test_exact_timing_delivers_when_a_message_is_due(self):
        driven = DrivenBroker(timing="exact")
        consumer = driven.consumer(1)
        driven.publish(b"m", delay=1)
        driven.advance(1)
        assert consumer.bodies() == [b"m"]
