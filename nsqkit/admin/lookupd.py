"""The client of nsqlookupd's HTTP routes.

The rule it guards: a method for each thing an operator does, named as nsqlookupd names the route; the answer is a
value. Here a topic that nsqlookupd does not know is a refusal, as nsqlookupd says it; for discovery, which takes it for
an empty answer, there is ``nsqkit.lookup``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nsqkit.admin.daemon import DaemonAdmin, channel_params, topic_params
from nsqkit.lookup.responses import RegisteredNode, decode_names, decode_nodes, decode_registered_nodes
from nsqkit.transport.address import split_address
from nsqkit.wire.lookup import Node

__all__ = ["Lookup", "LookupdAdmin"]


@attrs.frozen
class Lookup:
    """What nsqlookupd knows of a topic.

    Attributes:
        channels: its channels, by name.
        nodes: the nsqds that have it and are not hidden by a tombstone.
    """

    channels: list[str]
    nodes: list[Node]


class LookupdAdmin(DaemonAdmin):
    """Operates one nsqlookupd over HTTP, on asyncio and trio; see ``DaemonAdmin`` for the arguments.

    All methods raise ``RequestRefused`` when nsqlookupd says no (its ``message`` is nsqlookupd's word, such as
    ``TOPIC_NOT_FOUND``), ``RequestFailed`` when it gives no answer that can be used, and ``OptionError`` for a name
    that cannot be one.
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
        """Return the channels of a topic; of one that is not known there are none."""
        return await self._get(
            "/channels", topic_params(topic), lambda document: decode_names(document, "channels")
        )

    async def nodes(self) -> list[RegisteredNode]:
        """Return all nsqds with their topics."""
        return await self._get("/nodes", None, decode_registered_nodes)

    async def create_topic(self, topic: str) -> None:
        """Make a topic known before an nsqd has it."""
        await self._post("/topic/create", topic_params(topic))

    async def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels; nsqds that still have it are not told."""
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
        # nsqlookupd compares with a text of its own, which has no brackets around an IPv6 address.
        await self._post("/topic/tombstone", {**topic_params(topic), "node": f"{host}:{port}"})

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel and its topic known before an nsqd has them."""
        await self._post("/channel/create", channel_params(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Forget a channel; nsqds that still have it are not told."""
        await self._post("/channel/delete", channel_params(topic, channel))
