from __future__ import annotations

import pytest

from nsqkit.errors import OptionError
from nsqkit.lookupd.registry import Registry
from nsqkit.testing.lookup_state import LookupState, NodeState, of_registry
from nsqkit.wire.lookup import Node

NODE = Node(broadcast_address="nsqd.test", hostname="host", tcp_port=4150, http_port=4151, version="1.3.0")


def test_state_has_topics_channels_and_nsqds() -> None:
    registry = Registry(inactive_producer_timeout_ns=10, tombstone_lifetime_ns=5)
    peer = registry.add_peer("127.0.0.1:1", NODE, 0)
    registry.register(peer, b"t", b"c")
    registry.register(peer, b"u")
    registry.create_channel(b"t", b"b")
    registry.tombstone(b"u", "nsqd.test:4151", 2)
    state = of_registry(registry, 3)
    node = NodeState(
        tcp_address="nsqd.test:4150",
        http_address="nsqd.test:4151",
        hostname="host",
        version="1.3.0",
        topics=("t", "u"),
        tombstones=("u",),
        channels=(("t", "c"),),
    )
    assert state == LookupState(topics={"t": ("b", "c"), "u": ()}, nodes=(node,))
    assert state.producers("t") == [node]
    assert state.producers("u") == []
    assert len(of_registry(registry, 7).producers("u")) == 1


def test_silent_nsqd_is_not_listed_and_its_topic_remains() -> None:
    registry = Registry(inactive_producer_timeout_ns=10, tombstone_lifetime_ns=5)
    registry.register(registry.add_peer("127.0.0.1:1", NODE, 0), b"t")
    assert of_registry(registry, 11) == LookupState(topics={"t": ()})


def test_name_that_no_topic_has_is_refused() -> None:
    with pytest.raises(OptionError, match="a b"):
        LookupState().producers("a b")
