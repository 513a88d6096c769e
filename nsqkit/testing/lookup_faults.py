"""The faults of an nsqlookupd: those of HTTP, and wrong lists of nsqds and topics.

Several nsqlookupds disagree if one of them has a rule of ``hide`` or ``stale``.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, Unpack

import attrs

from nsqkit.errors import OptionError
from nsqkit.testing.http_faults import Action, HTTPFault, HTTPFaults, Which
from nsqkit.transport.address import join_address, split_address
from nsqkit.wire.names import encode_topic

PATHS: Final = ("/lookup", "/nodes", "/topics", "/channels", "/ping", "/info", "/debug")
"""The paths of an nsqlookupd that clients request."""

Document: TypeAlias = dict[str, Any]

NOT_FOUND: Final = (404, {"message": "TOPIC_NOT_FOUND"})

_VERSION: Final = "1.3.0"


@attrs.frozen
class Edit(Action):
    """A change of a list."""

    topic: str | None

    def concerns(self, path: str, topic: str) -> bool:
        """Return True if the answer to this request has lists that it changes."""
        if path in {"/lookup", "/channels"}:
            return self.topic in {None, topic}
        return path in {"/nodes", "/topics"}

    def apply(self, path: str, status: int, document: Document) -> tuple[int, Document]:
        """Return the answer to put in place of this one: status and document."""
        raise NotImplementedError


@attrs.frozen
class Stale(Edit):
    """Nsqds that are gone are listed."""

    addresses: tuple[str, ...]

    def apply(self, path: str, status: int, document: Document) -> tuple[int, Document]:
        """Return the answer with the addresses."""
        if path == "/nodes":
            return status, {"producers": document["producers"] + [self._entry(address) for address in self.addresses]}
        if path == "/topics" and self.topic not in document["topics"]:
            return status, {"topics": [*document["topics"], self.topic]}
        if path != "/lookup":
            return status, document
        known = document if status == 200 else {"channels": [], "producers": []}
        listed = [{**self._entry(address)} for address in self.addresses]
        for entry in listed:
            del entry["topics"], entry["tombstones"]
        return 200, {**known, "producers": known["producers"] + listed}

    def _entry(self, address: str) -> Document:
        host, port = split_address(address)
        return {
            "remote_address": address,
            "hostname": host,
            "broadcast_address": host,
            "tcp_port": port,
            "http_port": port + 1,
            "version": _VERSION,
            "tombstones": [False],
            "topics": [self.topic],
            "topology_zone": "",
            "topology_region": "",
        }


@attrs.frozen
class Empty(Edit):
    """No nsqd is listed; topics and channels remain."""

    def apply(self, path: str, status: int, document: Document) -> tuple[int, Document]:
        """Return the answer without nsqds, or without the topic of each."""
        if path == "/lookup" and status == 200:
            return status, {**document, "producers": []}
        if path == "/nodes":
            if self.topic is None:
                return status, {"producers": []}
            return status, {"producers": [_without(entry, self.topic) for entry in document["producers"]]}
        return status, document


@attrs.frozen
class Hide(Edit):
    """A topic, an nsqd, or an nsqd for one topic is not listed."""

    node: str | None

    def apply(self, path: str, status: int, document: Document) -> tuple[int, Document]:
        """Return the answer without them."""
        if status != 200:
            return status, document
        if self.node is not None:
            return status, self._without_node(path, document)
        assert self.topic is not None
        if path == "/lookup":
            return NOT_FOUND
        if path == "/channels":
            return status, {"channels": []}
        if path == "/topics":
            return status, {"topics": [topic for topic in document["topics"] if topic != self.topic]}
        return status, {"producers": [_without(entry, self.topic) for entry in document["producers"]]}

    def _without_node(self, path: str, document: Document) -> Document:
        if "producers" not in document:
            return document
        entries = document["producers"]
        if path == "/nodes" and self.topic is not None:
            changed = [_without(entry, self.topic) if self._is_node(entry) else entry for entry in entries]
        else:
            changed = [entry for entry in entries if not self._is_node(entry)]
        return {**document, "producers": changed}

    def _is_node(self, entry: Document) -> bool:
        return join_address(entry["broadcast_address"], entry["tcp_port"]) == self.node


def _without(entry: Document, topic: str) -> Document:
    """Return an entry of ``/nodes`` without a topic."""
    kept = [index for index, name in enumerate(entry["topics"]) if name != topic]
    return {
        **entry,
        "topics": [entry["topics"][index] for index in kept],
        "tombstones": [entry["tombstones"][index] for index in kept],
    }


class LookupFaults(HTTPFaults):
    """The rules of one nsqlookupd, for its HTTP clients: consumers and operators."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(PATHS, topics=True, seed=seed)

    def stale(self, topic: str, *addresses: str, **which: Unpack[Which]) -> HTTPFault:
        """List nsqds for a topic that are gone, or were never there.

        Args:
            topic: its name.
            addresses: ``host:port`` of each, for clients.
            which: the requests of clients.

        Raises:
            OptionError: a value is not allowed; so for all faults.
        """
        if not addresses:
            raise OptionError("addresses is empty; allowed is one or more")
        for address in addresses:
            split_address(address)
        return self._edit("stale", Stale(topic, addresses), which)

    def empty(self, topic: str | None = None, **which: Unpack[Which]) -> HTTPFault:
        """List no nsqd, for one topic or for any; the topics and their channels remain."""
        return self._edit("empty", Empty(topic), which)

    def hide(self, *, topic: str | None = None, node: str | None = None, **which: Unpack[Which]) -> HTTPFault:
        """Do not list a topic, or an nsqd, or an nsqd for this topic.

        Args:
            topic: its name; without ``node`` the topic is unknown: ``/lookup`` answers 404.
            node: ``host:port`` of the nsqd, for clients.
            which: the requests of clients.
        """
        if topic is None and node is None:
            raise OptionError("topic and node are None; allowed is a topic, a node or both")
        if node is not None:
            split_address(node)
        return self._edit("hide", Hide(topic, node), which)

    def _edit(self, fault: str, edit: Edit, which: Which) -> HTTPFault:
        if edit.topic is not None:
            encode_topic(edit.topic)
        path = which.get("path")
        if path is not None and not edit.concerns(path, edit.topic or ""):
            raise OptionError(f"path is {path!r}, whose answer has no such list; allowed is /lookup or /nodes")
        return self.add(fault, edit, **which)
