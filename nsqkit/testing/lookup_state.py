"""The state of an nsqlookupd, as values: its topics and the nsqds that are registered there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from nsqkit.transport.address import join_address
from nsqkit.wire.names import encode_topic

if TYPE_CHECKING:
    from nsqkit.lookupd.registry import Peer, Registry


@attrs.frozen(kw_only=True)
class NodeState:
    """An nsqd that has identified itself, and was not silent for too long.

    Attributes:
        tcp_address: ``host:port`` for clients.
        http_address: ``host:port`` of its HTTP routes.
        topics: its topics, in the order of registration; consumers do not get it for those in ``tombstones``.
        channels: its channels, each with its topic.
    """

    tcp_address: str
    http_address: str
    hostname: str
    version: str
    topics: tuple[str, ...]
    tombstones: tuple[str, ...]
    channels: tuple[tuple[str, str], ...]


@attrs.frozen(kw_only=True)
class LookupState:
    """The registrations.

    Attributes:
        topics: the channels of each topic, sorted; a topic without nsqds remains.
        nodes: the nsqds.
    """

    topics: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    nodes: tuple[NodeState, ...] = ()

    def producers(self, topic: str) -> list[NodeState]:
        """Return the nsqds from which consumers get a topic.

        Raises:
            OptionError: no topic can have this name.
        """
        encode_topic(topic)
        return [node for node in self.nodes if topic in node.topics and topic not in node.tombstones]


def of_registry(registry: Registry, now_ns: int) -> LookupState:
    """Return the state of an nsqlookupd of this process."""
    topics = {topic.decode(): tuple(sorted(map(bytes.decode, registry.channels(topic)))) for topic in registry.topics()}
    nodes = tuple(_node(registry, peer, now_ns) for peer in registry.active_peers(now_ns))
    return LookupState(topics=dict(sorted(topics.items())), nodes=nodes)


def _node(registry: Registry, peer: Peer, now_ns: int) -> NodeState:
    node = peer.node
    return NodeState(
        tcp_address=join_address(node.broadcast_address, node.tcp_port),
        http_address=join_address(node.broadcast_address, node.http_port),
        hostname=node.hostname,
        version=node.version,
        topics=tuple(map(bytes.decode, peer.topics)),
        tombstones=tuple(topic.decode() for topic in peer.topics if registry.is_tombstoned(peer, topic, now_ns)),
        channels=tuple((topic.decode(), name.decode()) for topic, names in peer.channels.items() for name in names),
    )
