"""The registrations of an nsqlookupd: the nsqds that have identified themselves, with their topics and channels.

Its behaviour is that of nsqlookupd's registration database (nsqlookupd/registration_db.go). A topic or channel remains
when its last nsqd has disconnected, unless it is deleted over HTTP, or is ephemeral and unregistered. Peers without a
recent ping are not returned; a tombstone hides a peer from the consumers of one topic for a while. A topic and the
channels of a topic are registered independently. In HTTP requests ``*`` means every topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

import attrs

from nsqkit.wire.lookup import Node
from nsqkit.wire.names import is_ephemeral

ANY_TOPIC: Final = b"*"


@attrs.frozen
class Registration:
    """The object of a registration: being a client, a topic, or a channel."""

    category: str
    topic: bytes = b""
    channel: bytes = b""

    @property
    def key(self) -> str:
        """The key in ``/debug``: ``channel:TOPIC:CHANNEL``."""
        return f"{self.category}:{self.topic.decode()}:{self.channel.decode()}"

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.topic.decode()} subkey:{self.channel.decode()}"


CLIENT: Final = Registration("client")


@attrs.define(eq=False)
class Peer:
    """One nsqd that has identified itself; each connection is a separate peer.

    Attributes:
        remote_address: ``host:port`` of its end of the connection.
        node: its data from IDENTIFY.
        last_update_ns: the time of IDENTIFY or of its last PING, ns since the Unix epoch.
        topics: its topics, each with the time of its tombstone, or None.
        channels: its channels, by topic.
    """

    remote_address: str
    node: Node
    last_update_ns: int
    topics: dict[bytes, int | None] = attrs.field(factory=dict, init=False)
    channels: dict[bytes, dict[bytes, None]] = attrs.field(factory=dict, init=False)

    @property
    def http_address(self) -> str:
        """The name of the peer in ``/topic/tombstone``."""
        return f"{self.node.broadcast_address}:{self.node.http_port}"

    def remove_channel(self, topic: bytes, channel: bytes) -> None:
        """Remove one of its channels."""
        del self.channels[topic][channel]
        if not self.channels[topic]:
            del self.channels[topic]


class Registry:
    """The registrations of one nsqlookupd.

    Args:
        inactive_producer_timeout_ns: the time after its last PING until a peer is no longer returned.
        tombstone_lifetime_ns: the time for which a tombstone hides a peer.
    """

    def __init__(self, *, inactive_producer_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._inactive_producer_timeout_ns = inactive_producer_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        # Dicts instead of sets, for the order of registration.
        self._peers: dict[Peer, None] = {}
        self._topics: dict[bytes, dict[Peer, None]] = {}
        self._channels: dict[bytes, dict[bytes, dict[Peer, None]]] = {}

    # ---- for an nsqd --------------------------------------------------------------------------------------------

    def add_peer(self, remote_address: str, node: Node, now_ns: int) -> Peer:
        """Add and return the peer of a connection."""
        peer = Peer(remote_address, node, now_ns)
        self._peers[peer] = None
        return peer

    def __contains__(self, peer: Peer) -> bool:
        """Return True until ``remove_peer`` has removed the peer and its last registration."""
        return peer in self._peers

    def remove_peer(self, peer: Peer, count: int) -> list[Registration]:
        """Remove at most ``count`` topics and channels of a peer, and the peer after the last one; return them all."""
        topics = list(islice(peer.topics, count))
        pairs = ((topic, channel) for topic, names in peer.channels.items() for channel in names)
        channels = list(islice(pairs, count - len(topics)))
        removed = [Registration("topic", topic) for topic in topics]
        removed += [Registration("channel", *names) for names in channels]
        for topic in topics:
            self._remove_from_topic(peer, topic)
        for topic, channel in channels:
            self._remove_from_channel(peer, topic, channel)
        if peer in self._peers and not peer.topics and not peer.channels:
            del self._peers[peer]
            removed.append(CLIENT)
        return removed

    def register(self, peer: Peer, topic: bytes, channel: bytes = b"") -> list[Registration]:
        """Register a peer for a channel and its topic, or for a topic; return the new registrations."""
        added = []
        if channel:
            self.create_channel(topic, channel)
            if channel not in (names := peer.channels.setdefault(topic, {})):
                names[channel] = None
                self._channels[topic][channel][peer] = None
                added.append(Registration("channel", topic, channel))
        self.create_topic(topic)
        if topic not in peer.topics:
            peer.topics[topic] = None
            self._topics[topic][peer] = None
            added.append(Registration("topic", topic))
        return added

    def unregister(
        self, peer: Peer, topic: bytes, channel: bytes = b"", *, count: int | None = None
    ) -> list[Registration]:
        """Unregister a peer from a channel, or from a topic and all its channels; return the removed registrations.

        An ephemeral channel is deleted when its last peer is removed. So is an ephemeral topic, but not its channels.

        Args:
            peer: the peer.
            topic: the topic.
            channel: the channel; empty for the topic and all its channels.
            count: the most registrations to remove, which may leave others; None for no limit.
        """
        if channel:
            return self._unregister_channel(peer, topic, channel)
        names = list(islice(peer.channels.get(topic, ()), count))
        for name in names:
            self._remove_from_channel(peer, topic, name)
        removed = [Registration("channel", topic, name) for name in names]
        if len(removed) == count:
            return removed
        if self._remove_from_topic(peer, topic):
            removed.append(Registration("topic", topic))
        if is_ephemeral(topic) and not self._topics.get(topic):
            self._topics.pop(topic, None)
        return removed

    def _unregister_channel(self, peer: Peer, topic: bytes, channel: bytes) -> list[Registration]:
        was_there = self._remove_from_channel(peer, topic, channel)
        if is_ephemeral(channel) and not self._channels.get(topic, {}).get(channel):
            self.delete_channel(topic, channel)
        return [Registration("channel", topic, channel)] if was_there else []

    def _remove_from_topic(self, peer: Peer, topic: bytes) -> bool:
        if topic not in peer.topics:
            return False
        del peer.topics[topic]
        del self._topics[topic][peer]
        return True

    def _remove_from_channel(self, peer: Peer, topic: bytes, channel: bytes) -> bool:
        if channel not in peer.channels.get(topic, ()):
            return False
        peer.remove_channel(topic, channel)
        del self._channels[topic][channel][peer]
        return True

    # ---- for HTTP -----------------------------------------------------------------------------------------------

    def create_topic(self, topic: bytes) -> None:
        """Add a topic unless it exists; it needs no peer."""
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: bytes, channel: bytes) -> None:
        """Add a channel unless it exists; it needs no peer, and its topic is not added."""
        self._channels.setdefault(topic, {}).setdefault(channel, {})

    def delete_topic(self, topic: bytes) -> list[Registration]:
        """Delete a topic, or every topic, with its channels, also from all peers; return their registrations."""
        removed = []
        for name in _matching(self._channels, topic):
            for channel in list(self._channels[name]):
                self.delete_channel(name, channel)
                removed.append(Registration("channel", name, channel))
        for name in _matching(self._topics, topic):
            for peer in self._topics.pop(name):
                del peer.topics[name]
            removed.append(Registration("topic", name))
        return removed

    def delete_channel(self, topic: bytes, channel: bytes) -> bool:
        """Delete a channel, also from all peers; return False if there is none."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        for peer in channels.pop(channel):
            peer.remove_channel(topic, channel)
        if not channels:
            del self._channels[topic]
        return True

    def tombstone(self, topic: bytes, http_address: str, now_ns: int) -> None:
        """Hide the peers with this address from the consumers of a topic, for the lifetime of a tombstone.

        Where the topic is ``*``, each of them is hidden from one of its topics only, as in nsqlookupd.
        """
        for peer, name in self._producers(topic).items():
            if peer.http_address == http_address:
                peer.topics[name] = now_ns

    # ---- queries -------------------------------------------------------------------------------------------------

    def topics(self) -> list[bytes]:
        """Return all topics."""
        return list(self._topics)

    def channels(self, topic: bytes) -> list[bytes]:
        """Return all channels of a topic; for every topic, equal names of different topics are repeated."""
        return [channel for name in _matching(self._channels, topic) for channel in self._channels[name]]

    def has_topic(self, topic: bytes) -> bool:
        """Return True if a topic exists; for ``*``, if there is any."""
        return bool(_matching(self._topics, topic))

    def producers(self, topic: bytes, now_ns: int) -> list[Peer]:
        """Return the peers from which consumers get a topic: active, and without a tombstone there."""
        return [
            peer
            for peer, name in self._producers(topic).items()
            if self._is_active(peer, now_ns) and not self.is_tombstoned(peer, name, now_ns)
        ]

    def active_peers(self, now_ns: int) -> list[Peer]:
        """Return the peers with a recent PING, with or without tombstones."""
        return [peer for peer in self._peers if self._is_active(peer, now_ns)]

    def is_tombstoned(self, peer: Peer, topic: bytes, now_ns: int) -> bool:
        """Return True while a tombstone hides a peer at one of its topics."""
        tombstoned_at_ns = peer.topics[topic]
        return tombstoned_at_ns is not None and now_ns - tombstoned_at_ns < self._tombstone_lifetime_ns

    def registrations(self) -> Iterator[tuple[Registration, list[Peer]]]:
        """Yield every registration with its peers, in the order of ``Registration.key``.

        A registration that is added or removed during the iteration may be included or not.
        """
        for topic in sorted(self._channels, key=_key_part):
            for channel in sorted(self._channels.get(topic, ())):
                yield (
                    Registration("channel", topic, channel),
                    list(self._channels.get(topic, {}).get(channel, ())),
                )
        yield CLIENT, list(self._peers)
        for topic in sorted(self._topics, key=_key_part):
            yield Registration("topic", topic), list(self._topics.get(topic, ()))

    def _is_active(self, peer: Peer, now_ns: int) -> bool:
        return now_ns - peer.last_update_ns <= self._inactive_producer_timeout_ns

    def _producers(self, topic: bytes) -> dict[Peer, bytes]:
        """Return the peers of a topic, or of any topic, each with the first of its topics that matches."""
        found: dict[Peer, bytes] = {}
        for name in _matching(self._topics, topic):
            for peer in self._topics[name]:
                found.setdefault(peer, name)
        return found


def _matching(topics: Collection[bytes], topic: bytes) -> list[bytes]:
    if topic == ANY_TOPIC:
        return list(topics)
    return [topic] if topic in topics else []


def _key_part(topic: bytes) -> bytes:
    return topic + b":"
