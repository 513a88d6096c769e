"""The topics of a broker."""

from __future__ import annotations

import pytest

from nsqkit.broker.core.disk.storage import MemoryStorage
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.timers import Timers
from nsqkit.broker.core.topics.registry import Topics

NOW_NS = 1_704_067_200 * 10**9


@pytest.fixture
def topics() -> Topics:
    return Topics(BrokerOptions(), MemoryStorage(100), Timers())


def test_topic_is_created_once(topics):
    topic = topics.get_or_create(b"t")
    assert topics.get_or_create(b"t") is topic
    assert (list(topics), topics.changes.revision, topics.take_new()) == ([b"t"], 1, [])


def test_topic_waits_for_its_channels_during_a_lookup(topics):
    topics.waits_for_channels = True
    topic = topics.get_or_create(b"t")
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"m"], NOW_NS)
    assert (len(topic.queue), len(channel.queue)) == (1, 0)
    assert topics.take_new() == [topic]
    assert topics.take_new() == []


def test_channels_of_all_topics(topics):
    channels = [topics.get_or_create(name).channel(b"c", NOW_NS) for name in (b"t", b"u")]
    assert list(topics.channels()) == channels


def test_deleted_topic_loses_its_channels_and_messages(topics):
    topic = topics.get_or_create(b"t")
    channel = topic.channel(b"c", NOW_NS)
    topic.put([b"m"], NOW_NS)
    topics.delete(b"t")
    assert (topics, topic.channels, len(channel.queue)) == ({}, {}, 0)
    with pytest.raises(KeyError):
        topics.delete(b"t")


@pytest.mark.parametrize(("name", "is_left"), [(b"t", True), (b"t#ephemeral", False)])
def test_ephemeral_topic_is_deleted_with_its_last_channel(topics, name, is_left):
    topics.get_or_create(name).channel(b"c", NOW_NS)
    topics.delete_channel(name, b"c")
    assert (name in topics) is is_left
