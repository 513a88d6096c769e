"""The topics and channels that a data path names: nsqd's ``nsqd.dat``.

    {"topics": [{"name": "t", "paused": false, "channels": [{"name": "c", "paused": false}]}], "version": "1.3.0"}

The rule it guards: a broker that is started where nsqd stood has the channels that nsqd had, so that what is published
before their consumers are back is kept for them. A name that is not valid is passed over, as nsqd does; a document
that cannot be read is refused, since starting without it would lose messages silently.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsqkit.errors import OptionError
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topic import Topic

FILE_NAME = "nsqd.dat"


def document(broker: Broker) -> bytes:
    """Return what to write for the topics and channels of ``broker``; nothing ephemeral is in it, nor below it."""
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


def restore(broker: Broker, document: bytes, now_ns: int) -> None:
    """Make the topics and channels that ``document`` names.

    Raises:
        OptionError: it is not nsqd's metadata.
    """
    try:
        for topic in json.loads(document)["topics"] or ():
            _restore_topic(broker, topic, now_ns)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise OptionError(
            f"failed to load metadata: {FILE_NAME} is not what nsqd writes: {error!r}"
        ) from error


def _restore_topic(broker: Broker, entry: dict[str, Any], now_ns: int) -> None:
    name = str(entry["name"]).encode("utf-8", "surrogateescape")
    if not is_valid_name(name):
        return
    topic = broker.topic(name)
    if entry.get("paused"):
        topic.pause()
    for channel_entry in entry.get("channels") or ():
        channel_name = str(channel_entry["name"]).encode("utf-8", "surrogateescape")
        if is_valid_name(channel_name):
            channel = topic.channel(channel_name, now_ns)
            if channel_entry.get("paused"):
                channel.pause()
