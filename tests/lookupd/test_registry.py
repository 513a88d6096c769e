from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit.lookupd.registry import ANY_TOPIC, CLIENT, Peer, Registration, Registry
from nsqkit.wire.lookup import Node

INACTIVE_NS = 300
TOMBSTONE_NS = 45


def node(broadcast_address: str = "b", http_port: int = 4151) -> Node:
    return Node(broadcast_address=broadcast_address, tcp_port=4150, http_port=http_port, version="1.3.0")


def new_registry() -> Registry:
    return Registry(inactive_producer_timeout_ns=INACTIVE_NS, tombstone_lifetime_ns=TOMBSTONE_NS)


@pytest.fixture
def registry() -> Registry:
    return new_registry()


@pytest.fixture
def peer(registry: Registry) -> Peer:
    return registry.add_peer("10.0.0.1:1", node(), 0)


def topic(name: bytes) -> Registration:
    return Registration("topic", name)


def channel(name: bytes, channel_name: bytes) -> Registration:
    return Registration("channel", name, channel_name)


# ---- for an nsqd ------------------------------------------------------------------------------------------------


def test_a_channel_is_registered_with_its_topic(registry: Registry, peer: Peer) -> None:
    assert registry.register(peer, b"t", b"c") == [channel(b"t", b"c"), topic(b"t")]
    assert registry.register(peer, b"t", b"d") == [channel(b"t", b"d")]
    assert registry.register(peer, b"t") == []
    assert registry.producers(b"t", 0) == [peer]
    assert registry.topics() == [b"t"]
    assert registry.channels(b"t") == [b"c", b"d"]


def test_unregistered_names_remain(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t", b"c")
    assert registry.unregister(peer, b"t", b"c") == [channel(b"t", b"c")]
    assert registry.unregister(peer, b"t", b"c") == []
    assert registry.producers(b"t", 0) == [peer]
    assert registry.unregister(peer, b"t") == [topic(b"t")]
    assert registry.producers(b"t", 0) == []
    assert (registry.topics(), registry.channels(b"t")) == ([b"t"], [b"c"])


def test_a_topic_is_unregistered_with_its_channels(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t", b"c")
    registry.register(peer, b"u", b"c")
    assert registry.unregister(peer, b"t") == [channel(b"t", b"c"), topic(b"t")]
    assert registry.producers(b"u", 0) == [peer]
    assert peer.channels == {b"u": {b"c": None}}


def test_an_ephemeral_channel_is_deleted_with_its_last_peer(registry: Registry, peer: Peer) -> None:
    other = registry.add_peer("10.0.0.1:2", node(), 0)
    for each in (peer, other):
        registry.register(each, b"t", b"c#ephemeral")
    registry.unregister(peer, b"t", b"c#ephemeral")
    assert registry.channels(b"t") == [b"c#ephemeral"]
    registry.unregister(other, b"t", b"c#ephemeral")
    assert registry.channels(b"t") == []


def test_an_ephemeral_channel_without_peers_is_deleted_by_any_unregister(registry: Registry, peer: Peer) -> None:
    registry.create_channel(b"t", b"c#ephemeral")
    assert registry.unregister(peer, b"t", b"c#ephemeral") == []
    assert registry.channels(b"t") == []


def test_an_ephemeral_topic_is_deleted_without_its_channels(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t#ephemeral", b"c#ephemeral")
    registry.unregister(peer, b"t#ephemeral")
    assert not registry.has_topic(b"t#ephemeral")
    assert registry.channels(b"t#ephemeral") == [b"c#ephemeral"]


def test_an_ephemeral_topic_remains_while_it_has_peers(registry: Registry, peer: Peer) -> None:
    other = registry.add_peer("10.0.0.1:2", node(), 0)
    for each in (peer, other):
        registry.register(each, b"t#ephemeral")
    registry.unregister(peer, b"t#ephemeral")
    assert registry.producers(b"t#ephemeral", 0) == [other]
    registry.unregister(other, b"t#ephemeral")
    assert registry.topics() == []


def test_removing_a_peer_keeps_names_even_ephemeral_ones(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t#ephemeral", b"c#ephemeral")
    assert set(registry.remove_peer(peer, 100)) == {
        CLIENT,
        topic(b"t#ephemeral"),
        channel(b"t#ephemeral", b"c#ephemeral"),
    }
    assert registry.remove_peer(peer, 100) == []
    assert registry.active_peers(0) == []
    assert registry.producers(b"t#ephemeral", 0) == []
    assert registry.topics() == [b"t#ephemeral"]
    assert registry.channels(b"t#ephemeral") == [b"c#ephemeral"]


# ---- for HTTP ---------------------------------------------------------------------------------------------------


def test_names_may_be_created_before_a_peer_has_them(registry: Registry) -> None:
    registry.create_channel(b"t", b"c")
    assert not registry.has_topic(b"t")
    registry.create_topic(b"t")
    registry.create_topic(b"t")
    assert (registry.topics(), registry.channels(b"t"), registry.producers(b"t", 0)) == ([b"t"], [b"c"], [])


def test_a_deleted_topic_is_gone_until_it_is_registered_again(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t", b"c")
    assert registry.delete_topic(b"t") == [channel(b"t", b"c"), topic(b"t")]
    assert registry.delete_topic(b"t") == []
    assert not registry.has_topic(b"t")
    assert peer.topics == peer.channels == {}
    assert registry.register(peer, b"t", b"c") == [channel(b"t", b"c"), topic(b"t")]


def test_channels_of_a_missing_topic_are_deleted_too(registry: Registry) -> None:
    registry.create_channel(b"t", b"c")
    assert registry.delete_topic(b"t") == [channel(b"t", b"c")]
    assert registry.channels(b"t") == []


def test_deleting_a_channel_keeps_its_topic(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t", b"c")
    assert registry.delete_channel(b"t", b"c")
    assert not registry.delete_channel(b"t", b"c")
    assert not registry.delete_channel(b"u", b"c")
    assert registry.producers(b"t", 0) == [peer]


def test_deleted_names_leave_no_data(registry: Registry) -> None:
    registry.create_channel(b"t", b"c")
    registry.delete_channel(b"t", b"c")
    registry.create_channel(b"u", b"c")
    registry.delete_topic(b"u")
    assert registry._channels == {}


# ---- time -------------------------------------------------------------------------------------------------------


def test_a_silent_peer_is_not_returned_until_its_next_ping(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t")
    for ask in (lambda now_ns: registry.producers(b"t", now_ns), registry.active_peers):
        assert ask(INACTIVE_NS) == [peer]
        assert ask(INACTIVE_NS + 1) == []
    peer.last_update_ns = 1
    assert registry.producers(b"t", INACTIVE_NS + 1) == registry.active_peers(INACTIVE_NS + 1) == [peer]


def test_a_tombstone_hides_a_peer_at_one_topic_for_a_while(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t")
    registry.register(peer, b"u")
    registry.tombstone(b"t", "b:4150", 100)
    registry.tombstone(b"t", "x:4151", 100)
    registry.tombstone(b"v", "b:4151", 100)
    assert registry.producers(b"t", 100) == [peer]
    registry.tombstone(b"t", "b:4151", 100)
    assert registry.producers(b"t", 99 + TOMBSTONE_NS) == []
    assert registry.producers(b"u", 100) == registry.active_peers(100) == [peer]
    assert [registry.is_tombstoned(peer, name, 100) for name in (b"t", b"u")] == [True, False]
    assert registry.producers(b"t", 100 + TOMBSTONE_NS) == [peer]


def test_a_tombstone_remains_when_the_peer_registers_again(registry: Registry, peer: Peer) -> None:
    registry.register(peer, b"t")
    registry.tombstone(b"t", "b:4151", 0)
    registry.register(peer, b"t", b"c")
    assert registry.producers(b"t", 0) == []
    registry.unregister(peer, b"t")
    registry.register(peer, b"t")
    assert registry.producers(b"t", 0) == [peer]


# ---- every topic ------------------------------------------------------------------------------------------------


def test_a_star_is_every_topic(registry: Registry, peer: Peer) -> None:
    assert not registry.has_topic(ANY_TOPIC)
    for name in (b"t", b"u"):
        registry.register(peer, name, b"c")
    assert registry.has_topic(ANY_TOPIC)
    assert registry.producers(ANY_TOPIC, 0) == [peer]
    assert registry.channels(ANY_TOPIC) == [b"c", b"c"]
    registry.tombstone(ANY_TOPIC, "b:4151", 0)
    assert registry.producers(ANY_TOPIC, 0) == registry.producers(b"t", 0) == []
    assert registry.producers(b"u", 0) == [peer]
    assert len(registry.delete_topic(ANY_TOPIC)) == 4
    assert list(registry.registrations()) == [(CLIENT, [peer])]


@pytest.mark.parametrize(
    ("registration", "key", "text"),
    [
        (CLIENT, "client::", "category:client key: subkey:"),
        (topic(b"t"), "topic:t:", "category:topic key:t subkey:"),
        (channel(b"t", b"c"), "channel:t:c", "category:channel key:t subkey:c"),
    ],
)
def test_text_of_registrations(registration: Registration, key: str, text: str) -> None:
    assert (registration.key, str(registration)) == (key, text)


# ---- against a slow oracle --------------------------------------------------------------------------------------

Key: TypeAlias = tuple[str, bytes, bytes]


class Oracle:
    """The registrations as one flat dict, searched from end to end each time."""

    def __init__(self) -> None:
        self.peers: dict[int, tuple[str, int]] = {}
        self.found: dict[Key, dict[int, int | None]] = {}

    def matching(self, category: str, name: bytes) -> list[Key]:
        return [key for key in self.found if key[0] == category and name in (key[1], ANY_TOPIC)]

    def add(self, key: Key, peer: int) -> None:
        self.found.setdefault(key, {}).setdefault(peer, None)

    def remove(self, key: Key, peer: int) -> None:
        producers = self.found.get(key, {})
        producers.pop(peer, None)
        if not producers and (key[2] or key[1]).endswith(b"#ephemeral"):
            self.found.pop(key, None)

    def register(self, peer: int, name: bytes, channel_name: bytes) -> None:
        if channel_name:
            self.add(("channel", name, channel_name), peer)
        self.add(("topic", name, b""), peer)

    def unregister(self, peer: int, name: bytes, channel_name: bytes) -> None:
        if channel_name:
            self.remove(("channel", name, channel_name), peer)
        else:
            for key in self.matching("channel", name):
                self.found[key].pop(peer, None)
            self.remove(("topic", name, b""), peer)

    def remove_peer(self, peer: int) -> None:
        del self.peers[peer]
        for producers in self.found.values():
            producers.pop(peer, None)

    def producers(self, name: bytes, now_ns: int) -> set[int]:
        return {
            peer
            for key in self.matching("topic", name)
            for peer, tombstoned_at_ns in self.found[key].items()
            if now_ns - self.peers[peer][1] <= INACTIVE_NS
            and (tombstoned_at_ns is None or now_ns - tombstoned_at_ns >= TOMBSTONE_NS)
        }


TOPICS = st.sampled_from([b"t", b"u", b"t#ephemeral"])
CHANNELS = st.sampled_from([b"", b"c", b"d", b"c#ephemeral"])
PEERS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("register"), PEERS, TOPICS, CHANNELS),
    st.tuples(st.just("register"), PEERS, TOPICS, CHANNELS),
    st.tuples(st.just("unregister"), PEERS, TOPICS, CHANNELS),
    st.tuples(st.just("remove"), PEERS),
    st.tuples(st.just("ping"), PEERS),
    st.tuples(st.just("pass"), st.sampled_from([1, TOMBSTONE_NS - 1, TOMBSTONE_NS, INACTIVE_NS])),
    st.tuples(st.just("tombstone"), PEERS, TOPICS),
    st.tuples(st.just("create"), TOPICS, CHANNELS),
    st.tuples(st.just("delete"), TOPICS | st.just(ANY_TOPIC), CHANNELS),
)


class Pair:
    """A registry and the oracle, with the same operations."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self.oracle = Oracle()
        self.peers: dict[int, Peer] = {}
        self.now_ns = 0

    def peer(self, number: int) -> Peer:
        if number not in self.peers:
            address = f"n{number % 2}"
            self.peers[number] = self.registry.add_peer(f"10.0.0.1:{number}", node(address), self.now_ns)
            self.oracle.peers[number] = (address, self.now_ns)
        return self.peers[number]

    def register(self, number: int, name: bytes, channel_name: bytes) -> None:
        self.registry.register(self.peer(number), name, channel_name)
        self.oracle.register(number, name, channel_name)

    def unregister(self, number: int, name: bytes, channel_name: bytes) -> None:
        self.registry.unregister(self.peer(number), name, channel_name)
        self.oracle.unregister(number, name, channel_name)

    def remove(self, number: int) -> None:
        self.registry.remove_peer(self.peer(number), 100)
        self.oracle.remove_peer(number)
        del self.peers[number]

    def ping(self, number: int) -> None:
        self.peer(number).last_update_ns = self.now_ns
        self.oracle.peers[number] = (self.oracle.peers[number][0], self.now_ns)

    def let_pass(self, ns: int) -> None:
        self.now_ns += ns

    def tombstone(self, number: int, name: bytes) -> None:
        self.registry.tombstone(name, self.peer(number).http_address, self.now_ns)
        producers = self.oracle.found.get(("topic", name, b""), {})
        for each in producers:
            if self.oracle.peers[each][0] == self.oracle.peers[number][0]:
                producers[each] = self.now_ns

    def create(self, name: bytes, channel_name: bytes) -> None:
        if channel_name:
            self.registry.create_channel(name, channel_name)
            self.oracle.found.setdefault(("channel", name, channel_name), {})
        else:
            self.registry.create_topic(name)
            self.oracle.found.setdefault(("topic", name, b""), {})

    def delete(self, name: bytes, channel_name: bytes) -> None:
        if channel_name:
            was_there = self.oracle.found.pop(("channel", name, channel_name), None) is not None
            assert self.registry.delete_channel(name, channel_name) is was_there
        else:
            self.registry.delete_topic(name)
            for key in [*self.oracle.matching("channel", name), *self.oracle.matching("topic", name)]:
                del self.oracle.found[key]

    def compare(self) -> None:
        number_of = {peer: number for number, peer in self.peers.items()}
        seen = {
            (registration.category, registration.topic, registration.channel): {
                number_of[peer]: peer.topics[registration.topic] if registration.category == "topic" else None
                for peer in peers
            }
            for registration, peers in self.registry.registrations()
            if registration is not CLIENT
        }
        assert seen == self.oracle.found
        active = {n for n, (_, heard_ns) in self.oracle.peers.items() if self.now_ns - heard_ns <= INACTIVE_NS}
        assert {number_of[peer] for peer in self.registry.active_peers(self.now_ns)} == active
        for name in (b"t", b"u", b"t#ephemeral"):
            producers = {number_of[peer] for peer in self.registry.producers(name, self.now_ns)}
            assert producers == self.oracle.producers(name, self.now_ns)
        for peer in self.peers.values():
            assert {("topic", name, b"") for name in peer.topics} | {
                ("channel", name, channel) for name, channels in peer.channels.items() for channel in channels
            } == {key for key, producers in self.oracle.found.items() if number_of[peer] in producers}


@given(st.lists(STEPS, max_size=30))
def test_the_registry_equals_the_oracle(steps: list[tuple[object, ...]]) -> None:
    pair = Pair()
    acts: dict[object, Callable[..., None]] = {"pass": pair.let_pass}
    for name, *arguments in steps:
        act = acts.get(name) or getattr(pair, str(name))
        act(*arguments)
        pair.compare()
