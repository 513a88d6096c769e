"""All topics of a broker, by name.

It is the part of a broker that a session needs to publish and to subscribe. The sessions of the consumers of a deleted
channel are ended by the broker, beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.broker.core.changes import Changes
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.core.topics.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqkit.broker.core.disk.storage import Storage
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.broker.core.timers import Timers


class Topics(dict[bytes, Topic]):
    """The topics of one broker.

    Attributes:
        changes: what the broker and its driver have to act on.
        waits_for_channels: a new topic waits until ``Topic.start`` is called with the channels that the nsqlookupds
            have for it.
        new: topics that wait for that.
    """

    def __init__(self, options: BrokerOptions, storage: Storage, timers: Timers) -> None:
        super().__init__()
        self.options = options
        self.storage = storage
        self.timers = timers
        self.changes: Changes[Channel] = Changes()
        self.waits_for_channels = False
        self.new: list[Topic] = []

    def get_or_create(self, name: bytes) -> Topic:
        """Return the topic, created if it is new; raise OSError if its files cannot be opened."""
        topic = self.get(name)
        if topic is None:
            started = not self.waits_for_channels
            topic = Topic(name, self.timers, self.changes, self.storage, self.options, started=started)
            self[name] = topic
            self.changes.raise_revision()
            if not started:
                self.new.append(topic)
        return topic

    def take_new(self) -> list[Topic]:
        """Remove and return the topics that wait for ``Topic.start``."""
        topics, self.new = self.new, []
        return topics

    def channels(self) -> Iterator[Channel]:
        """Yield the channels of all topics."""
        return (channel for topic in self.values() for channel in topic.channels.values())

    def delete(self, name: bytes) -> None:
        """Delete the topic, its channels and their messages; raise KeyError if there is no such topic."""
        topic = self.pop(name)
        self.changes.raise_revision()
        for channel_name in list(topic.channels):
            topic.remove_channel(channel_name).delete()
        topic.delete()

    def delete_channel(self, topic_name: bytes, name: bytes) -> None:
        """Delete the channel and its messages, and an ephemeral topic with its last channel.

        If there is no such topic or channel, a KeyError is raised.
        """
        topic = self[topic_name]
        topic.remove_channel(name).delete()
        if topic.ephemeral and not topic.channels:
            self.delete(topic_name)
