"""The topics and channels that a data path names: nsqd's ``nsqd.dat``.

    {"topics": [{"name": "t", "paused": false, "channels": [{"name": "c", "paused": false}]}], "version": "1.3.0"}

A broker that is started on the data path of nsqd creates nsqd's channels, so that messages that are published before
their consumers return are kept for them. An invalid name is skipped, as by nsqd; a document that cannot be read is
refused, since a start without it would lose messages silently.
"""

from __future__ import annotations

import json
from reprlib import repr as _repr
from typing import TYPE_CHECKING, TypeVar

import attrs

from nsqkit.errors import OptionError
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topics.topic import Topic

FILE_NAME = "nsqd.dat"

_Kind = TypeVar("_Kind", str, bool, list[object])


def document(broker: Broker) -> bytes:
    """Return the document for the topics and channels of ``broker``, without ephemeral ones."""
    topics = [_topic_entry(topic) for topic in broker.topics.values() if not topic.ephemeral]
    whole = {"topics": topics or None, "version": BROKER_VERSION}
    return json.dumps(whole, separators=(",", ":")).encode()


def _topic_entry(topic: Topic) -> dict[str, object]:
    channels = [
        {"name": channel.name.decode(), "paused": channel.paused}
        for channel in topic.channels.values()
        if not channel.ephemeral
    ]
    return {"name": topic.name.decode(), "paused": topic.paused, "channels": channels or None}


def restore(broker: Broker, document: bytes, now_ns: int) -> list[str]:
    """Create the topics and channels that ``document`` names; return those that are skipped for their invalid names.

    Raises:
        OptionError: it is not nsqd's metadata; then nothing is created.
    """
    try:
        whole = json.loads(document.decode("utf-8", "replace"))
        topics = [_Entry.read(entry, "channels") for entry in _field(whole, "topics", list)]
    except (ValueError, TypeError, RecursionError) as error:
        raise OptionError(f"failed to load metadata: {FILE_NAME} is not what nsqd writes: {error!r}") from error
    skipped = []
    for topic in topics:
        if is_valid_name(topic.name):
            skipped += _restore_topic(broker, topic, now_ns)
        else:
            skipped.append(f"topic {topic.name.decode()}")
    return skipped


def _restore_topic(broker: Broker, entry: _Entry, now_ns: int) -> list[str]:
    channels = [channel for channel in entry.below if is_valid_name(channel.name)]
    topic = broker.topics.get_or_create(entry.name)
    paused = topic.paused or entry.paused
    topic.pause()  # until all channels exist, so that each of them gets the messages in the topic
    for channel in channels:
        restored = topic.channel(channel.name, now_ns)
        if channel.paused:
            restored.pause()
    topic.start((), now_ns)
    if not paused:
        topic.unpause(now_ns)
    return [f"channel {channel.name.decode()}" for channel in entry.below if channel not in channels]


@attrs.frozen
class _Entry:
    """A topic with its channels, or a channel."""

    name: bytes
    paused: bool
    below: list[_Entry]

    @classmethod
    def read(cls, found: object, key: str | None = None) -> _Entry:
        """Read an entry, and its list under ``key``; raise TypeError if a value is of another type than nsqd writes."""
        below = [] if key is None else [cls.read(entry) for entry in _field(found, key, list)]
        return cls(_field(found, "name", str).encode("utf-8", "replace"), _field(found, "paused", bool), below)


def _field(found: object, key: str, kind: type[_Kind]) -> _Kind:
    """Return a field of an object; a missing one, or null, counts as empty, as in nsqd."""
    if found is not None and not isinstance(found, dict):
        raise TypeError(f"{_repr(found)} is no object with {key!r}")
    value = found.get(key) if found else None
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{key!r} is {_repr(value)}")
    return value
