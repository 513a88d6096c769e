from __future__ import annotations

import json
from random import Random

import pytest

from nsqkit.broker.core import metadata
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


def test_topics_and_channels_are_restored_with_their_pauses(broker: Broker) -> None:
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


def test_invalid_name_is_skipped(broker: Broker) -> None:
    channels = [{"name": "c:d", "paused": False}, {"name": "c", "paused": False}]
    restore(broker, document({"name": "a b", "channels": []}, {"name": "t", "channels": channels}), NOW_NS)
    assert list(broker.topics) == [b"t"]
    assert list(broker.topics[b"t"].channels) == [b"c"]


def test_document_without_topics_restores_none(broker: Broker) -> None:
    restore(broker, b'{"topics":null,"version":"1.3.0"}', NOW_NS)
    assert broker.topics == {}


@pytest.mark.parametrize("empty", [b"{}", b"null", b'{"topics":[]}', b'{"topics":[null,{},{"name":null}]}'])
def test_missing_fields_count_as_empty(broker: Broker, empty: bytes) -> None:
    restore(broker, empty, NOW_NS)
    assert broker.topics == {}


def test_entry_needs_a_name_alone(broker: Broker) -> None:
    restore(broker, document({"name": "t", "paused": None, "channels": [{"name": "c"}, None]}), NOW_NS)
    assert not broker.topics[b"t"].paused
    assert not broker.topics[b"t"].channels[b"c"].paused


def test_skipped_names_are_returned(broker: Broker) -> None:
    damaged = b'{"topics":[{"name":"t\xff"},{"name":"\\ud800"},{"name":"t","channels":[{"name":"c d"},{}]}]}'
    assert restore(broker, damaged, NOW_NS) == ["topic t\ufffd", "topic ?", "channel c d", "channel "]
    assert list(broker.topics) == [b"t"]


def test_topic_named_twice_has_the_channels_of_both(broker: Broker) -> None:
    restore(
        broker,
        document(
            {"name": "t", "paused": True, "channels": [{"name": "c"}]},
            {"name": "t", "channels": [{"name": "d"}]},
        ),
        NOW_NS,
    )
    assert broker.topics[b"t"].paused
    assert list(broker.topics[b"t"].channels) == [b"c", b"d"]


@pytest.mark.parametrize(
    "damaged",
    [
        *(
            b"",
            b"[]",
            b"\xff",
            b'{"topics": [1]}',
            b'{"topics": {}}',
            b'{"topics": "t"}',
            b'{"topics": [{"name": 5}]}',
        ),
        *(b'{"topics": [{"name": "t", "paused": "yes"}]}', b'{"topics": [{"name": "t", "channels": {}}]}'),
        *(b'{"topics": [{"name": "t", "channels": ["c"]}]}', b'{"topics": []}}'),
    ],
)
def test_damaged_document_is_refused(broker: Broker, damaged: bytes) -> None:
    with pytest.raises(OptionError, match=r"nsqd\.dat"):
        restore(broker, damaged, NOW_NS)
    with pytest.raises(OptionError, match=r"nsqd\.dat"):
        restore(broker, damaged.replace(b'"topics": [', b'"topics": [{"name": "first"}, ') or b"x", NOW_NS)
    assert broker.topics == {}


def test_document_names_durable_topics_and_channels(broker: Broker) -> None:
    assert metadata.document(broker) == b'{"topics":null,"version":"1.3.0"}'
    for name in (b"t", b"u", b"e#ephemeral"):
        broker.topics.get_or_create(name)
    broker.topics.get_or_create(b"t").channel(b"c", NOW_NS).pause()
    broker.topics.get_or_create(b"t").channel(b"e#ephemeral", NOW_NS)
    broker.topics.get_or_create(b"u").pause()
    broker.topics.get_or_create(b"u").channel(b"e#ephemeral", NOW_NS)
    assert metadata.document(broker) == (
        b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
        b'{"name":"u","paused":true,"channels":null}],"version":"1.3.0"}'
    )
    again = Broker(BrokerOptions(), Random(1))
    assert restore(again, metadata.document(broker), NOW_NS) == []
    assert metadata.document(again) == metadata.document(broker)


def test_each_restored_channel_gets_the_messages_of_the_topic(broker: Broker) -> None:
    broker.topics.get_or_create(b"t").put([b"1", b"2"], NOW_NS)
    restore(broker, document({"name": "t", "channels": [{"name": "c"}, {"name": "d", "paused": True}]}), NOW_NS)
    assert [len(channel.queue) for channel in broker.topics[b"t"].channels.values()] == [2, 2]
    broker.topics.get_or_create(b"t").put([b"3"], NOW_NS)
    assert [len(channel.queue) for channel in broker.topics[b"t"].channels.values()] == [3, 3]


def test_restored_paused_topic_keeps_its_messages(broker: Broker) -> None:
    broker.topics.get_or_create(b"t").put([b"1"], NOW_NS)
    restore(broker, document({"name": "t", "paused": True, "channels": [{"name": "c"}]}), NOW_NS)
    assert (len(broker.topics[b"t"].queue), len(broker.topics[b"t"].channels[b"c"].queue)) == (1, 0)


def test_restored_topic_starts_without_a_lookup(broker: Broker) -> None:
    broker.topics.waits_for_channels = True
    restore(broker, document({"name": "t", "channels": [{"name": "c"}]}), NOW_NS)
    broker.topics.get_or_create(b"t").put([b"1"], NOW_NS)
    assert len(broker.topics[b"t"].channels[b"c"].queue) == 1
