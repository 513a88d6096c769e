"""The state of a broker, as values: its topics, channels and clients, with nsqd's counts.

A test reads the same values from an embedded broker (``of_broker``) and from any nsqd (``of_stats``, from ``/stats``).
A topic or channel that does not exist is a state with zeros, of which ``exists`` is false: so a test can wait for a
count of a topic that a client has not created yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from nsqkit.wire.names import encode_channel, encode_topic

if TYPE_CHECKING:
    from nsqkit.admin.stats import ChannelStats, ClientStats, NsqdStats, TopicStats
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.topic import Topic

_COUNTS: Final = ("depth", "in_flight", "deferred", "messages", "requeues", "timeouts", "clients")
_HEADS: Final = ("topic", "channel", *_COUNTS, "paused")


@attrs.frozen(kw_only=True)
class ClientState:
    """One connection.

    Attributes:
        address: ``host:port`` of the client, as the broker reports it.
        topic: that it consumes; empty before SUB, as is ``channel``.
        ready_count: its last RDY.
        in_flight: the number of messages that it holds.
        message_count: the number of messages that it was sent.
        finish_count: the number of messages that it has finished; ``requeue_count`` likewise.
        compression: ``deflate`` or ``snappy``, empty without.
    """

    address: str
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topic: str = ""
    channel: str = ""
    ready_count: int = 0
    in_flight: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    sample_rate: int = 0
    compression: str = ""
    tls: bool = False

    def __str__(self) -> str:
        subject = f"client {self.address} ({self.client_id or 'no client_id'}, {self.user_agent or 'no user agent'})"
        if not self.topic:
            return f"{subject}: no subscription"
        return (
            f"{subject}: {self.topic}/{self.channel}, ready {self.ready_count}, in flight {self.in_flight}, "
            f"delivered {self.message_count}, finished {self.finish_count}, requeued {self.requeue_count}"
        )


@attrs.frozen(kw_only=True)
class ChannelState:
    """One channel.

    Attributes:
        exists: false for a channel that the topic does not have; then everything else is 0 or empty.
        depth: the number of waiting messages; ``backend_depth`` of them are not in memory.
        in_flight: the number of messages that its consumers hold.
        deferred: the number of messages with a delay that has not passed.
        message_count: the number of messages that it was given; ``requeue_count`` and ``timeout_count`` likewise.
        clients: its consumers, in the order in which they subscribed.
    """

    name: str
    exists: bool = True
    paused: bool = False
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    clients: tuple[ClientState, ...] = ()

    @property
    def ready_count(self) -> int:
        """The sum of its consumers' RDY counts."""
        return sum(client.ready_count for client in self.clients)

    def __str__(self) -> str:
        return _table([_channel_row("", self)]) if self.exists else f"channel {self.name!r} does not exist"


@attrs.frozen(kw_only=True)
class TopicState:
    """One topic.

    Attributes:
        exists: false for a topic that the broker does not have; then everything else is 0 or empty.
        depth: the number of messages that wait for a channel; ``backend_depth`` of them are not in memory.
        message_count: the number of messages published so far; ``message_bytes`` is the size of their bodies.
        channels: by name, sorted.
    """

    name: str
    exists: bool = True
    paused: bool = False
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    channels: Mapping[str, ChannelState] = attrs.field(factory=dict)

    def channel(self, name: str) -> ChannelState:
        """Return the channel, or a state with zeros if there is none.

        Raises:
            OptionError: no channel can have this name.
        """
        encode_channel(name)
        return self.channels.get(name) or ChannelState(name=name, exists=False)

    def __str__(self) -> str:
        return _table(_topic_rows(self)) if self.exists else f"topic {self.name!r} does not exist"


@attrs.frozen(kw_only=True)
class NsqdState:
    """The whole broker.

    Attributes:
        health: ``OK``, or nsqd's sentence about the error of its disk.
        topics: by name, sorted.
        connections: the consumers, by topic, channel and subscription, then all other clients. ``/stats`` omits clients
            that have neither subscribed nor published.
    """

    health: str = "OK"
    topics: Mapping[str, TopicState] = attrs.field(factory=dict)
    connections: tuple[ClientState, ...] = ()

    def topic(self, name: str) -> TopicState:
        """Return the topic, or a state with zeros if there is none.

        Raises:
            OptionError: no topic can have this name.
        """
        encode_topic(name)
        return self.topics.get(name) or TopicState(name=name, exists=False)

    def __str__(self) -> str:
        rows = [row for topic in self.topics.values() for row in _topic_rows(topic)]
        lines = [_table(rows) if rows else "no topics", *map(str, self.connections)]
        if self.health != "OK":
            lines.insert(0, self.health)
        return "\n".join(lines)


# ---- from the engine -------------------------------------------------------------------------------------------------


def of_broker(broker: Broker) -> NsqdState:
    """Return the state of a broker of this process."""
    topics = {name.decode(): _topic(broker, broker.topics[name]) for name in sorted(broker.topics)}
    others = [session for session in broker.sessions if session.subscription is None and not session.ended]
    return NsqdState(
        health=broker.health, topics=topics, connections=(*_consumers(topics.values()), *map(_client, others))
    )


def _topic(broker: Broker, topic: Topic) -> TopicState:
    channels = {name.decode(): _channel(broker, topic.channels[name]) for name in sorted(topic.channels)}
    return TopicState(
        name=topic.name.decode(),
        paused=topic.paused,
        depth=len(topic.queue),
        backend_depth=len(topic.queue.backend),
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        channels=channels,
    )


def _channel(broker: Broker, channel: Channel) -> ChannelState:
    by_subscription = broker.sessions.by_subscription
    return ChannelState(
        name=channel.name.decode(),
        paused=channel.paused,
        depth=len(channel.queue),
        backend_depth=len(channel.queue.backend),
        in_flight=channel.in_flight_count,
        deferred=len(channel.deferred),
        message_count=channel.message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        clients=tuple(_client(by_subscription[subscription]) for subscription in channel.subscriptions),
    )


def _client(session: Session) -> ClientState:
    identity, subscription = session.identity, session.subscription
    state = ClientState(
        address=session.remote_address,
        client_id=identity.client_id,
        hostname=identity.hostname,
        user_agent=identity.user_agent,
        sample_rate=session.grant.sample_rate,
        compression=session.compression,
        tls=session.tls is not None,
    )
    if subscription is None or session.channel is None:
        return state
    return attrs.evolve(
        state,
        topic=session.topic_name.decode(),
        channel=session.channel.name.decode(),
        ready_count=subscription.rdy_count,
        in_flight=len(subscription.in_flight),
        message_count=subscription.message_count,
        finish_count=subscription.finish_count,
        requeue_count=subscription.requeue_count,
    )


# ---- from /stats -----------------------------------------------------------------------------------------------------


def of_stats(stats: NsqdStats) -> NsqdState:
    """Return the state of any nsqd, from its answer to ``/stats`` with its clients."""
    topics = {topic.topic_name: _topic_of(topic) for topic in sorted(stats.topics, key=lambda topic: topic.topic_name)}
    consuming = {
        _identity(client) for topic in stats.topics for channel in topic.channels for client in channel.clients
    }
    others = [_client_of(client) for client in stats.producers if _identity(client) not in consuming]
    return NsqdState(health=stats.health, topics=topics, connections=(*_consumers(topics.values()), *others))


def _identity(client: ClientStats) -> tuple[str, str, int]:
    return client.remote_address, client.client_id, client.connect_ts


def _topic_of(stats: TopicStats) -> TopicState:
    channels = sorted(stats.channels, key=lambda channel: channel.channel_name)
    return TopicState(
        name=stats.topic_name,
        paused=stats.paused,
        depth=stats.depth,
        backend_depth=stats.backend_depth,
        message_count=stats.message_count,
        message_bytes=stats.message_bytes,
        channels={channel.channel_name: _channel_of(stats.topic_name, channel) for channel in channels},
    )


def _channel_of(topic: str, stats: ChannelStats) -> ChannelState:
    return ChannelState(
        name=stats.channel_name,
        paused=stats.paused,
        depth=stats.depth,
        backend_depth=stats.backend_depth,
        in_flight=stats.in_flight_count,
        deferred=stats.deferred_count,
        message_count=stats.message_count,
        requeue_count=stats.requeue_count,
        timeout_count=stats.timeout_count,
        clients=tuple(_client_of(client, topic, stats.channel_name) for client in stats.clients),
    )


def _client_of(stats: ClientStats, topic: str = "", channel: str = "") -> ClientState:
    return ClientState(
        address=stats.remote_address,
        client_id=stats.client_id,
        hostname=stats.hostname,
        user_agent=stats.user_agent,
        topic=topic,
        channel=channel,
        ready_count=stats.ready_count,
        in_flight=stats.in_flight_count,
        message_count=stats.message_count,
        finish_count=stats.finish_count,
        requeue_count=stats.requeue_count,
        sample_rate=stats.sample_rate,
        compression="deflate" if stats.deflate else "snappy" if stats.snappy else "",
        tls=stats.tls,
    )


# ---- both ------------------------------------------------------------------------------------------------------------


def _consumers(topics: Iterable[TopicState]) -> Iterator[ClientState]:
    return (client for topic in topics for channel in topic.channels.values() for client in channel.clients)


def _topic_rows(topic: TopicState) -> list[tuple[object, ...]]:
    messages = (topic.depth, "", "", topic.message_count, "", "", "", _paused(topic.paused))
    return [(topic.name, "", *messages), *(_channel_row(topic.name, channel) for channel in topic.channels.values())]


def _channel_row(topic: str, channel: ChannelState) -> tuple[object, ...]:
    counts = (channel.message_count, channel.requeue_count, channel.timeout_count, len(channel.clients))
    waiting = (channel.depth, channel.in_flight, channel.deferred)
    return (topic, channel.name, *waiting, *counts, _paused(channel.paused))


def _paused(paused: bool) -> str:
    return "paused" if paused else ""


def _table(rows: Sequence[tuple[object, ...]]) -> str:
    """Return a table: names at the left of their columns, numbers at the right."""
    cells = [_HEADS, *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = (
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in aligned)
