"""The client of nsqlookupd's HTTP routes: one method for each operation, named after the route.

A topic that nsqlookupd does not have is refused, as nsqlookupd answers it; ``nsqkit.lookup``, for discovery, returns an
empty list instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nsqkit.admin.daemon import DaemonAdmin, channel_params, topic_params
from nsqkit.lookup.responses import RegisteredNode, decode_names, decode_nodes, decode_registered_nodes
from nsqkit.transport.address import split_address
from nsqkit.wire.lookup import Node


@attrs.frozen
class Lookup:
    """The channels and nsqds of a topic.

    Attributes:
        channels: the names of its channels.
        nodes: the nsqds that have it, without those that a tombstone hides.
    """

    channels: list[str]
    nodes: list[Node]


class LookupdAdmin(DaemonAdmin):
    """Operates one nsqlookupd over HTTP, on asyncio and trio; see ``DaemonAdmin`` for the arguments.

    All methods raise ``RequestRefused`` for a refusal (its ``message`` is that of nsqlookupd, such as
    ``TOPIC_NOT_FOUND``), ``RequestFailed`` without a usable answer, and ``OptionError`` for an invalid name.
    """

    async def version(self) -> str:
        """Return the version of nsqlookupd."""
        return await self._get("/info", None, lambda document: str(document.get("version", "")))

    async def lookup(self, topic: str) -> Lookup:
        """Return the channels of a topic, and the nsqds from which consumers get it."""

        def decode(document: Mapping[str, Any]) -> Lookup:
            return Lookup(decode_names(document, "channels"), decode_nodes(document))

        return await self._get("/lookup", topic_params(topic), decode)

    async def topics(self) -> list[str]:
        """Return all topics."""
        return await self._get("/topics", None, lambda document: decode_names(document, "topics"))

    async def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic; an unknown topic has none."""
        return await self._get("/channels", topic_params(topic), lambda document: decode_names(document, "channels"))

    async def nodes(self) -> list[RegisteredNode]:
        """Return all nsqds with their topics."""
        return await self._get("/nodes", None, decode_registered_nodes)

    async def create_topic(self, topic: str) -> None:
        """Create a topic before an nsqd has it."""
        await self._post("/topic/create", topic_params(topic))

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and its channels from nsqlookupd; nsqds that have it are not notified."""
        await self._post("/topic/delete", topic_params(topic))

    async def tombstone_topic(self, topic: str, node: Node | str) -> None:
        """Hide an nsqd from the consumers of a topic for a while, by default 45 seconds.

        Args:
            topic: the topic.
            node: the nsqd, as ``lookup`` and ``nodes`` return it, or its ``broadcast_address:http_port``.
        """
        if isinstance(node, Node):
            host, port = node.broadcast_address, node.http_port
        else:
            host, port = split_address(node)
        # nsqlookupd compares texts, and its own has no brackets around an IPv6 address.
        await self._post("/topic/tombstone", {**topic_params(topic), "node": f"{host}:{port}"})

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel and its topic before an nsqd has them."""
        await self._post("/channel/create", channel_params(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Remove a channel from nsqlookupd; nsqds that have it are not notified."""
        await self._post("/channel/delete", channel_params(topic, channel))
