"""A reference nsqlookupd in dicts and sets: it receives every command and request, and computes each answer.

It shares only the wire format with nsqlookupd. A topic or channel stays when its last nsqd has gone, unless it is
ephemeral and unregistered, or is deleted over HTTP; a lost connection removes the nsqd from all of them.
"""

from __future__ import annotations

import json

import attrs

from nsqkit.wire.lookup import LookupCommand

EPHEMERAL = b"#ephemeral"


@attrs.define(eq=False)
class PeerOracle:
    """One connection of an nsqd.

    Attributes:
        address: its ``host:port`` for clients.
        http_address: its name in a tombstone.
        seen_ns: the time of IDENTIFY or of its last PING.
        topics: each with the time of its tombstone, or None.
        channels: pairs of topic and channel.
        withdrawn: names that were deleted over HTTP while the nsqd has it, and still believes to be registered.
    """

    address: str
    http_address: str
    seen_ns: int
    topics: dict[bytes, int | None] = attrs.field(factory=dict)
    channels: set[tuple[bytes, bytes]] = attrs.field(factory=set)
    withdrawn: set[tuple[bytes, bytes]] = attrs.field(factory=set)


class RegistryOracle:
    """The expected registrations of one nsqlookupd.

    Attributes:
        peers: by connection.
        topics, channels: the names that exist.
    """

    def __init__(self, *, inactive_ns: int, tombstone_ns: int) -> None:
        self._inactive_ns, self._tombstone_ns = inactive_ns, tombstone_ns
        self.peers: dict[object, PeerOracle] = {}
        self.topics: set[bytes] = set()
        self.channels: set[tuple[bytes, bytes]] = set()

    # ---- an nsqd -----------------------------------------------------------------------------------------------------

    def command(self, link: object, command: LookupCommand, now_ns: int) -> None:
        """Process a command."""
        match command.verb:
            case b"IDENTIFY":
                node = json.loads(command.body)
                host = node["broadcast_address"]
                addresses = f"{host}:{node['tcp_port']}", f"{host}:{node['http_port']}"
                self.peers[link] = PeerOracle(*addresses, now_ns)
            case b"PING":
                self.peers[link].seen_ns = now_ns
            case b"REGISTER":
                self._register(self.peers[link], *command.params)
            case b"UNREGISTER":
                self._unregister(self.peers[link], *command.params)

    def _register(self, peer: PeerOracle, topic: bytes, channel: bytes = b"") -> None:
        self.topics.add(topic)
        peer.topics.setdefault(topic)
        peer.withdrawn -= {(topic, b""), (topic, channel)}
        if channel:
            self.channels.add((topic, channel))
            peer.channels.add((topic, channel))

    def _unregister(self, peer: PeerOracle, topic: bytes, channel: bytes = b"") -> None:
        gone = {pair for pair in peer.channels if pair == (topic, channel) or (not channel and pair[0] == topic)}
        peer.channels -= gone
        peer.withdrawn -= {(topic, b"")} if not channel else {(topic, channel)}
        if not channel:
            peer.topics.pop(topic, None)
            if topic.endswith(EPHEMERAL) and not any(topic in each.topics for each in self.peers.values()):
                self.topics.discard(topic)
        elif channel.endswith(EPHEMERAL) and not any((topic, channel) in each.channels for each in self.peers.values()):
            self.channels.discard((topic, channel))

    def closed(self, link: object) -> None:
        """Process the end of a connection."""
        self.peers.pop(link, None)

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    def delete_topic(self, topic: bytes) -> None:
        self.topics.discard(topic)
        for peer in self.peers.values():
            if topic in peer.topics:
                del peer.topics[topic]
                peer.withdrawn.add((topic, b""))
        for pair in [pair for pair in self.channels if pair[0] == topic]:
            self.delete_channel(*pair)

    def delete_channel(self, topic: bytes, channel: bytes) -> bool:
        """Delete a channel; return whether it was there."""
        for peer in self.peers.values():
            if (topic, channel) in peer.channels:
                peer.channels.discard((topic, channel))
                peer.withdrawn.add((topic, channel))
        was_there = (topic, channel) in self.channels
        self.channels.discard((topic, channel))
        return was_there

    def tombstone(self, topic: bytes, http_address: str, now_ns: int) -> None:
        for peer in self.peers.values():
            if peer.http_address == http_address and topic in peer.topics:
                peer.topics[topic] = now_ns

    def lookup(self, topic: bytes, now_ns: int) -> list[str]:
        """Return the addresses that consumers of a topic get, sorted; one that has two connections is there twice."""
        return sorted(
            peer.address
            for peer in self.active_peers(now_ns)
            if topic in peer.topics and not self.is_tombstoned(peer, topic, now_ns)
        )

    def active_peers(self, now_ns: int) -> list[PeerOracle]:
        """Return the peers with a recent PING."""
        return [peer for peer in self.peers.values() if now_ns - peer.seen_ns <= self._inactive_ns]

    def is_tombstoned(self, peer: PeerOracle, topic: bytes, now_ns: int) -> bool:
        at_ns = peer.topics[topic]
        return at_ns is not None and now_ns - at_ns < self._tombstone_ns
