"""Decoding of nsqlookupd's responses.

Each function takes the JSON object of a response and decodes one kind of list. An invalid entry is skipped; a list of
invalid entries only is an error. So an empty result always means that the nsqlookupd listed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs

from nsqkit.transport.address import PORT_MAX, join_address
from nsqkit.wire.lookup import Node
from nsqkit.wire.names import is_valid_name

T = TypeVar("T")

_HOST: Final = re.compile(r"[^\s/@\[\]\x00-\x1f\x7f]+")


@attrs.frozen
class RegisteredNode:
    """An nsqd and its topics; the value is True for a topic that a tombstone hides from consumers."""

    node: Node
    topics: Mapping[str, bool]


def tcp_address(node: Node) -> str:
    """Return ``broadcast_address:tcp_port``, the address for clients, which also identifies an nsqd."""
    return join_address(node.broadcast_address, node.tcp_port)


def decode_nodes(document: Mapping[str, Any]) -> list[Node]:
    """Return the nsqds in a response to ``/lookup``.

    Raises:
        ValueError: there is no list, or all of its entries are invalid.
    """
    return _decode_list(document, "producers", _decode_node)


def decode_registered_nodes(document: Mapping[str, Any]) -> list[RegisteredNode]:
    """Return the nsqds in a response to ``/nodes``; the errors are those of ``decode_nodes``."""
    return _decode_list(document, "producers", _decode_registered_node)


def decode_names(document: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of topics or channels under ``key`` of a response; errors as ``decode_nodes``."""
    return _decode_list(document, key, _decode_name)


def _decode_list(document: Mapping[str, Any], key: str, decode: Callable[[object], T | None]) -> list[T]:
    entries = document.get(key, ...)
    if entries is None:  # Go encodes an empty list so
        return []
    if not isinstance(entries, list):
        raise ValueError(f"the answer has no list of {key}")
    decoded = [value for entry in entries if (value := decode(entry)) is not None]
    if entries and not decoded:
        raise ValueError(f"none of the {len(entries)} {key} can be understood")
    return decoded


def _decode_node(entry: object) -> Node | None:
    if not isinstance(entry, dict):
        return None
    # Old versions of nsqd send "address" instead.
    host = entry.get("broadcast_address") or entry.get("address")
    port = entry.get("tcp_port")
    if not isinstance(host, str) or not _HOST.fullmatch(host):
        return None
    if type(port) is not int or not 0 < port <= PORT_MAX:
        return None
    http_port = entry.get("http_port")
    texts = {
        key: value
        for key in ("hostname", "version", "topology_zone", "topology_region")
        if isinstance(value := entry.get(key), str)
    }
    return Node(
        broadcast_address=host,
        tcp_port=port,
        http_port=http_port if type(http_port) is int else 0,
        **{"version": "", **texts},
    )


def _decode_registered_node(entry: object) -> RegisteredNode | None:
    node = _decode_node(entry)
    if node is None:
        return None
    assert isinstance(entry, dict)
    topics, tombstones = (
        value if isinstance(value := entry.get(key), list) else [] for key in ("topics", "tombstones")
    )
    flags = [flag is True for flag in tombstones] + [False] * len(topics)
    named = zip(map(_decode_name, topics), flags, strict=False)
    return RegisteredNode(node, {topic: flag for topic, flag in named if topic is not None})


def _decode_name(entry: object) -> str | None:
    if isinstance(entry, str) and is_valid_name(entry.encode("utf-8", "surrogatepass")):
        return entry
    return None
