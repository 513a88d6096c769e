from __future__ import annotations

import json
from random import Random

import pytest

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.metadata import restore
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.errors import OptionError

NOW_NS = 1_700_000_000 * 10**9


@pytest.fixture
def broker() -> Broker:
    return Broker(BrokerOptions(), Random(1))


def document(*topics: object) -> bytes:
    return json.dumps({"topics": topics, "version": "1.3.0"}).encode()


def test_topics_and_channels_are_there_with_what_was_paused(broker: Broker) -> None:
    channels = [{"name": "c", "paused": False}, {"name": "paused", "paused": True}]
    restore(
        broker,
        document(
            {"name": "t", "paused": False, "channels": channels},
            {"name": "u", "paused": True, "channels": None},
        ),
        NOW_NS,
    )
    assert {name: topic.paused for name, topic in broker.topics.items()} == {b"t": False, b"u": True}
    assert {name: channel.paused for name, channel in broker.topics[b"t"].channels.items()} == {
        b"c": False,
        b"paused": True,
    }


def test_a_name_that_is_not_valid_is_passed_over(broker: Broker) -> None:
    channels = [{"name": "c:d", "paused": False}, {"name": "c", "paused": False}]
    restore(broker, document({"name": "a b", "channels": []}, {"name": "t", "channels": channels}), NOW_NS)
    assert list(broker.topics) == [b"t"]
    assert list(broker.topics[b"t"].channels) == [b"c"]


def test_a_fresh_file_has_no_topics(broker: Broker) -> None:
    restore(broker, b'{"topics":null,"version":"1.3.0"}', NOW_NS)
    assert broker.topics == {}


@pytest.mark.parametrize(
    "damaged", [b"", b"{}", b"[]", b"null", b'{"topics": [1]}', b'{"topics": [{}]}', b"\xff"]
)
def test_a_damaged_file_is_refused(broker: Broker, damaged: bytes) -> None:
    with pytest.raises(OptionError, match=r"nsqd\.dat"):
        restore(broker, damaged, NOW_NS)
