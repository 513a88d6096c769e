"""Snapshots: the messages and counts of a broker as a value, which a test saves and restores.

A snapshot has the things that outlive the clients: topics, channels, messages, and the counts of nsqd's ``/stats``, but
for latencies. Clients are disconnected before a restore, and connect again. A message in flight counts as delivered: it
waits again, before all others, and its next delivery has one more attempt, as after a restart of nsqd. A deferred
message keeps the rest of its delay.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from nsqkit.errors import OptionError
from nsqkit.wire.messages import (
    FRAME_HEADER_LENGTH,
    attempts_of,
    encode_message,
    for_redelivery,
    id_of,
    timestamp_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.topic import Topic

VERSION: Final = 1
"""Of the files; another one is refused."""


@attrs.frozen(kw_only=True)
class SavedMessage:
    """One message.

    Attributes:
        attempts: the number that its next consumer gets.
        delay_ns: the rest of its delay, less than 0 if it is overdue; None if it waits for a consumer.
    """

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    delay_ns: int | None = None

    @classmethod
    def of(cls, frame: bytes, delay_ns: int | None = None) -> Self:
        """Return the message of a frame."""
        return cls(
            id=id_of(frame),
            body=frame[FRAME_HEADER_LENGTH:],
            attempts=attempts_of(frame),
            timestamp_ns=timestamp_of(frame),
            delay_ns=delay_ns,
        )

    @property
    def frame(self) -> bytes:
        """The message as queues hold it."""
        return encode_message(self.timestamp_ns, self.attempts, self.id, self.body)


@attrs.frozen(kw_only=True)
class SavedChannel:
    """One channel; ``delivery_counts`` are those of each proximity, the nearest first."""

    name: str
    paused: bool
    messages: tuple[SavedMessage, ...]
    message_count: int
    requeue_count: int
    timeout_count: int
    delivery_counts: tuple[int, ...]


@attrs.frozen(kw_only=True)
class SavedTopic:
    """One topic; ``messages`` are those that no channel has, whose delays have not begun."""

    name: str
    paused: bool
    messages: tuple[SavedMessage, ...]
    message_count: int
    message_bytes: int
    channels: tuple[SavedChannel, ...]


@attrs.frozen(kw_only=True)
class Snapshot:
    """The state of a broker at one time; two are equal if their topics are.

    Attributes:
        topics: in the order in which they were created, as the channels of each.
        time_ns: the time of the broker's clock, ns since the Unix epoch.
        last_tick: of the broker's message ids; a broker that is restored gives later ones.
    """

    topics: tuple[SavedTopic, ...]
    time_ns: int = attrs.field(eq=False)
    last_tick: int = attrs.field(eq=False)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the snapshot to a file, as JSON."""
        document = {"version": VERSION, **attrs.asdict(self, value_serializer=_to_json)}
        with open(path, "w", encoding="ascii") as file:
            json.dump(document, file, indent=1)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the snapshot in a file.

        Raises:
            OptionError: the file is not a snapshot, or is one of another version.
        """
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            document = json.loads(text)
            version = document.pop("version")
            if version == VERSION:
                return cls(**{**document, "topics": tuple(map(_topic_from, document["topics"]))})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError(f"file {str(path)!r} is not a snapshot of a broker: {error!r}") from error
        raise OptionError(f"snapshot {str(path)!r} has version {version!r}; allowed is version {VERSION}")


def _to_json(message: object, field: attrs.Attribute[Any] | None, value: object) -> object:
    if not isinstance(value, bytes):
        return value
    return value.decode("latin-1") if field is not None and field.name == "id" else b64encode(value).decode()


def _topic_from(document: Mapping[str, Any]) -> SavedTopic:
    channels = tuple(map(_channel_from, document["channels"]))
    return SavedTopic(**{**document, "channels": channels, "messages": _messages_from(document)})


def _channel_from(document: Mapping[str, Any]) -> SavedChannel:
    counts = tuple(document["delivery_counts"])
    return SavedChannel(**{**document, "delivery_counts": counts, "messages": _messages_from(document)})


def _messages_from(document: Mapping[str, Any]) -> tuple[SavedMessage, ...]:
    return tuple(
        SavedMessage(**{**message, "id": message["id"].encode("latin-1"), "body": b64decode(message["body"])})
        for message in document["messages"]
    )


# ---- from a broker ---------------------------------------------------------------------------------------------------


def snapshot(broker: Broker, now_ns: int) -> Snapshot:
    """Return the state of a broker, which stays as it is; raise OSError if messages on disk cannot be read now."""
    topics = tuple(_save_topic(topic, now_ns) for topic in broker.topics.values())
    return Snapshot(topics=topics, time_ns=now_ns, last_tick=broker.storage.guids.tick)


def _save_topic(topic: Topic, now_ns: int) -> SavedTopic:
    delays_ns = topic.waiting_delays_ns
    return SavedTopic(
        name=topic.name.decode(),
        paused=topic.paused,
        messages=tuple(SavedMessage.of(frame, delays_ns.get(id_of(frame))) for frame in topic.queue.messages()),
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        channels=tuple(_save_channel(channel, now_ns) for channel in topic.channels.values()),
    )


def _save_channel(channel: Channel, now_ns: int) -> SavedChannel:
    due_ns = channel.deferred_times.by_id  # of messages in the queue that were deferred before a restart
    queued = channel.queue.messages()
    waiting = [*map(for_redelivery, _in_flight(channel)), *(frame for frame in queued if id_of(frame) not in due_ns)]
    deferred = channel.deferred.messages()
    deferred += [(due_ns[id_of(frame)], frame) for frame in queued if id_of(frame) in due_ns]
    deferred.sort(key=lambda pair: pair[0])
    return SavedChannel(
        name=channel.name.decode(),
        paused=channel.paused,
        messages=(
            *map(SavedMessage.of, waiting),
            *(SavedMessage.of(frame, due_ns - now_ns) for due_ns, frame in deferred),
        ),
        message_count=channel.message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        delivery_counts=tuple(channel.delivery_counts),
    )


def _in_flight(channel: Channel) -> list[bytes]:
    """Return the frames of the messages in flight, in the order of their deliveries."""
    held = [
        (delivered_ns, frame)
        for subscription in channel.holders()
        for messages in (subscription.in_flight.untouched, subscription.in_flight.touched)
        for frame, delivered_ns, _ in messages.values()
    ]
    return [frame for _, frame in sorted(held, key=lambda pair: pair[0])]


# ---- to a broker -----------------------------------------------------------------------------------------------------


def reset(broker: Broker) -> None:
    """End all client sessions, without the output that waits, and delete all topics."""
    for session in list(broker.sessions):
        session.end(None)
        session.discard()
    for name in list(broker.topics):
        broker.delete_topic(name)


def restore(broker: Broker, saved: Snapshot, now_ns: int) -> None:
    """Replace the state of a broker: end all client sessions, and have the topics of the snapshot.

    An ephemeral channel keeps no more than ``mem_queue_size`` messages.

    Raises:
        OSError: the disk fails.
    """
    reset(broker)
    broker.storage.guids.skip(saved.last_tick)
    broker.storage.guids.gave_all = False
    for topic in saved.topics:
        _restore_topic(broker, topic, now_ns)


def _restore_topic(broker: Broker, saved: SavedTopic, now_ns: int) -> None:
    topic = broker.topics.get_or_create(saved.name.encode())
    topic.pause()  # so that messages stay in the topic
    topic.start([channel.name.encode() for channel in saved.channels], now_ns)
    for channel in saved.channels:
        _restore_channel(topic.channels[channel.name.encode()], channel, now_ns)
    topic.queue.put([message.frame for message in saved.messages])
    topic.waiting_delays_ns.update(_delays(saved.messages))
    topic.message_count, topic.message_bytes = saved.message_count, saved.message_bytes
    if not saved.paused:
        topic.unpause(now_ns)


def _delays(messages: Iterable[SavedMessage]) -> dict[bytes, int]:
    return {message.id: message.delay_ns for message in messages if message.delay_ns is not None}


def _restore_channel(channel: Channel, saved: SavedChannel, now_ns: int) -> None:
    channel.put([message.frame for message in saved.messages if message.delay_ns is None])
    for message in saved.messages:
        if message.delay_ns is not None:
            channel.put_deferred((message.frame,), now_ns + message.delay_ns)
    channel.message_count = saved.message_count
    channel.requeue_count = saved.requeue_count
    channel.timeout_count = saved.timeout_count
    channel.delivery_counts[:] = saved.delivery_counts
    if saved.paused:
        channel.pause()
