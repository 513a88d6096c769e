"""Who has what: the nsqds that have identified themselves, and the topics and channels registered for them.

The rule it guards: it is nsqlookupd's registration database (nsqlookupd, registration_db.go), seen from outside. A
topic or channel stays known when the last nsqd that had it has gone, unless somebody deletes it or an ephemeral one is
unregistered. Peers that have been silent for too long are not told of; a tombstone hides one peer from the consumers
of one topic for a while.

How to read it: ``Peer`` first; then what an nsqd may do, what HTTP may do, and what both may ask. A topic and the
channels of a topic are known independently of each other. Where HTTP asks, ``*`` stands for every topic.
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
    """What a peer can be registered for: to be a client, to have a topic, or to have a channel."""

    category: str
    topic: bytes = b""
    channel: bytes = b""

    @property
    def key(self) -> str:
        """The three parts as ``/debug`` shows them: ``channel:TOPIC:CHANNEL``."""
        return f"{self.category}:{self.topic.decode()}:{self.channel.decode()}"

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.topic.decode()} subkey:{self.channel.decode()}"


CLIENT: Final = Registration("client")


@attrs.define(eq=False)
class Peer:
    """One nsqd that has identified itself. Each connection is a peer of its own.

    Attributes:
        remote_address: ``host:port`` that it has connected from.
        node: what it has told of itself.
        last_update_ns: when it was heard of last.
        topics: those it is registered for, each with the time of its tombstone, or None.
        channels: those it is registered for, as topic and channel.
    """

    remote_address: str
    node: Node
    last_update_ns: int
    topics: dict[bytes, int | None] = attrs.field(factory=dict, init=False)
    channels: dict[tuple[bytes, bytes], None] = attrs.field(factory=dict, init=False)

    @property
    def http_address(self) -> str:
        """What ``/topic/tombstone`` knows it by."""
        return f"{self.node.broadcast_address}:{self.node.http_port}"


class Registry:
    """The registrations of one nsqlookupd.

    Args:
        inactive_producer_timeout_ns: how long a peer is told of that says nothing.
        tombstone_lifetime_ns: how long a tombstone stands.
    """

    def __init__(self, *, inactive_producer_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._inactive_producer_timeout_ns = inactive_producer_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        # Dicts for sets: what was registered first is told first.
        self._peers: dict[Peer, None] = {}
        self._topics: dict[bytes, dict[Peer, None]] = {}
        self._channels: dict[bytes, dict[bytes, dict[Peer, None]]] = {}

    # ---- what an nsqd does ---------------------------------------------------------------------------------------

    def add_peer(self, remote_address: str, node: Node, now_ns: int) -> Peer:
        """Return the new peer for a connection whose nsqd has identified itself."""
        peer = Peer(remote_address, node, now_ns)
        self._peers[peer] = None
        return peer

    def __contains__(self, peer: Peer) -> bool:
        """Tell whether a peer is there, or anything that it is registered for."""
        return peer in self._peers

    def remove_peer(self, peer: Peer, count: int) -> list[Registration]:
        """Take away ``count`` of the things that a peer is registered for; return what they were.

        When nothing else is left the peer itself is taken away.
        """
        topics = list(islice(peer.topics, count))
        channels = list(islice(peer.channels, count - len(topics)))
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
        """Register a peer for a channel and its topic, or for a topic; return what is new."""
        added = []
        if channel:
            self.create_channel(topic, channel)
            if (topic, channel) not in peer.channels:
                peer.channels[topic, channel] = None
                self._channels[topic][channel][peer] = None
                added.append(Registration("channel", topic, channel))
        self.create_topic(topic)
        if topic not in peer.topics:
            peer.topics[topic] = None
            self._topics[topic][peer] = None
            added.append(Registration("topic", topic))
        return added

    def unregister(self, peer: Peer, topic: bytes, channel: bytes = b"") -> list[Registration]:
        """Undo ``register`` of a channel, or of a topic and all its channels; return what was registered.

        An ephemeral channel is forgotten when no peer is left that has it. So is an ephemeral topic, though not its
        channels.
        """
        if channel:
            return self._unregister_channel(peer, topic, channel)
        removed = [
            Registration("channel", topic, name)
            for name in self._channels.get(topic, ())
            if self._remove_from_channel(peer, topic, name)
        ]
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
        if (topic, channel) not in peer.channels:
            return False
        del peer.channels[topic, channel]
        del self._channels[topic][channel][peer]
        return True

    # ---- what HTTP does ------------------------------------------------------------------------------------------

    def create_topic(self, topic: bytes) -> None:
        """Make a topic known, whether a peer has it or not."""
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: bytes, channel: bytes) -> None:
        """Make a channel known, whether a peer has it or not; its topic is not touched."""
        self._channels.setdefault(topic, {}).setdefault(channel, {})

    def delete_topic(self, topic: bytes) -> list[Registration]:
        """Forget a topic, or every topic, with its channels, whoever has them; return what was known."""
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
        """Forget a channel, whoever has it; return whether it was known."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        for peer in channels.pop(channel):
            del peer.channels[topic, channel]
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

    # ---- what both may ask ---------------------------------------------------------------------------------------

    def topics(self) -> list[bytes]:
        """Return all topics that are known."""
        return list(self._topics)

    def channels(self, topic: bytes) -> list[bytes]:
        """Return all channels of a topic that are known; of every topic, each as often as there is one of its name."""
        return [channel for name in _matching(self._channels, topic) for channel in self._channels[name]]

    def knows_topic(self, topic: bytes) -> bool:
        """Tell whether a topic, or any topic, is known."""
        return bool(_matching(self._topics, topic))

    def producers(self, topic: bytes, now_ns: int) -> list[Peer]:
        """Return the peers from which consumers get a topic: the active ones without a tombstone there."""
        return [
            peer
            for peer, name in self._producers(topic).items()
            if self._is_active(peer, now_ns) and not self.is_tombstoned(peer, name, now_ns)
        ]

    def active_peers(self, now_ns: int) -> list[Peer]:
        """Return the peers that were heard of lately, with a tombstone or without."""
        return [peer for peer in self._peers if self._is_active(peer, now_ns)]

    def is_tombstoned(self, peer: Peer, topic: bytes, now_ns: int) -> bool:
        """Tell whether a tombstone stands for a peer at one of its topics."""
        tombstoned_at_ns = peer.topics[topic]
        return tombstoned_at_ns is not None and now_ns - tombstoned_at_ns < self._tombstone_lifetime_ns

    def registrations(self) -> Iterator[tuple[Registration, list[Peer]]]:
        """Yield everything that is known, with the peers registered for it, in the order of ``Registration.key``.

        A registration that is added or removed between two of them may be included or not.
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
        """Return the peers registered for a topic, or for any, each with the first topic it was found at."""
        found: dict[Peer, bytes] = {}
        for name in _matching(self._topics, topic):
            for peer in self._topics[name]:
                found.setdefault(peer, name)
        return found


def _matching(known: Collection[bytes], topic: bytes) -> list[bytes]:
    if topic == ANY_TOPIC:
        return list(known)
    return [topic] if topic in known else []


def _key_part(topic: bytes) -> bytes:
    return topic + b":"
