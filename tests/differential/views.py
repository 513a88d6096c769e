"""The answers of HTTP without the parts that differ in each run: addresses, times, memory, and the order of maps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from tests.differential.http_client import Answer

View: TypeAlias = dict[str, Any]
Labels: TypeAlias = Mapping[int, str]
"""The name of a connection by its local port."""

# Go's server sends more than 2 KiB in chunks.
_UNCOMPARED_HEADERS: Final = frozenset(("date", "content-length", "transfer-encoding"))
_LISTENERS: Final = frozenset(("tcp_port", "http_port", "start_time"))
_ENTRY_FIELDS: Final = ("id", "remote_address", "broadcast_address", "http_port", "tcp_port", "topics")
_SUBSCRIBED: Final = 3
"""nsqd's number for the state of a client that gets messages."""

# nsqd lists one topic of a publisher, which a map selects at random.
_UNCOMPARED_OF_CLIENT: Final = {"remote_address": "address", "connect_ts": "time"}

_TEXT_PATTERNS: Final = (
    (re.compile(r"^start_time .*|^uptime .*", re.MULTILINE), "time"),
    (re.compile(r"^(   \w+ +\t)\d+$", re.MULTILINE), r"\1number"),
    (re.compile(r"connected: \S+"), "connected: time"),
    (re.compile(r"topics: \S+=\d+"), "topics: one"),
)
_TEXT_ADDRESS: Final = re.compile(r"(?:127\.0\.0\.1)?:(\d{4,5}) *")


def answer_view(path: str, answer: Answer, labels: Labels, prefix: str) -> View:
    """Return a view of an answer.

    Args:
        path: of the request.
        answer: the answer.
        labels: the connections of the sequence.
        prefix: the beginning of its topics' names.
    """
    headers = {name: value for name, value in answer.headers.items() if name not in _UNCOMPARED_HEADERS}
    return {"status": answer.status, "headers": headers, "body": _body_view(path, answer.body, labels, prefix)}


def _body_view(path: str, body: bytes, labels: Labels, prefix: str) -> Any:
    text = body.decode("latin-1")
    if not text.startswith("{"):
        return _text_view(text, labels)
    try:
        document = json.loads(body)
    except ValueError:
        return text
    if path.startswith("/stats"):
        return stats_view(document, labels, prefix)
    if path.startswith("/info"):
        return {name: value for name, value in document.items() if name not in _LISTENERS}
    return lookup_view(document, labels)


def _text_view(text: str, labels: Labels) -> list[str]:
    """Return the lines of a text, with the lines of clients sorted, since Go's order is random."""
    for pattern, replacement in _TEXT_PATTERNS:
        text = pattern.sub(replacement, text)
    text = _TEXT_ADDRESS.sub(lambda found: labels.get(int(found[1]), "other") + " ", text)
    text = re.sub(r"v1\.3\.0 \(built w/\S+\)", "version", text)
    lines: list[str] = []
    clients: list[str] = []
    for line in text.splitlines():
        if line.startswith(("        [", "   [V2")):
            clients.append(line)
            continue
        lines += sorted(clients)
        clients.clear()
        lines.append(line)
    return lines + sorted(clients)


def stats_view(document: View, labels: Labels, prefix: str) -> View:
    """Return the stats of nsqd as nested dicts: the topics, channels and clients of one sequence, by name."""
    view = {name: value for name, value in document.items() if name != "start_time"}
    view["memory"] = sorted(view.get("memory") or ())
    if view.get("topics") is not None:
        view["topics"] = {
            topic["topic_name"]: _topic_view(topic, labels)
            for topic in view["topics"]
            if topic["topic_name"].startswith(prefix)
        }
    if view.get("producers") is not None:
        view["producers"] = _clients_view(view["producers"], labels)
    return view


def _topic_view(topic: View, labels: Labels) -> View:
    channels = {channel["channel_name"]: _channel_view(channel, labels) for channel in topic["channels"]}
    return topic | {"channels": channels}


def _channel_view(channel: View, labels: Labels) -> View:
    clients = channel["clients"]
    return channel | {"clients": clients if clients is None else _clients_view(clients, labels)}


def _clients_view(clients: list[View], labels: Labels) -> View:
    return {
        labels[port]: client | _UNCOMPARED_OF_CLIENT | ({"pub_counts": "one"} if "pub_counts" in client else {})
        for client in clients
        if (port := int(client["remote_address"].rpartition(":")[2])) in labels
    }


def is_at_rest(view: View) -> bool:
    """Return whether no message of these stats can move."""
    return all(map(_is_topic_at_rest, (view["topics"] or {}).values()))


def _is_topic_at_rest(topic: View) -> bool:
    if topic["depth"] and topic["channels"] and not topic["paused"]:
        return False
    return not any(
        channel["depth"] and not channel["paused"] and any(map(_has_room, channel["clients"].values()))
        for channel in topic["channels"].values()
    )


def _has_room(client: View) -> bool:
    return bool(client["state"] == _SUBSCRIBED and client["in_flight_count"] < client["ready_count"])


def message_counts(view: View) -> dict[str, int]:
    """Return how many messages have been sent to each connection."""
    return {
        label: client["message_count"]
        for topic in (view["topics"] or {}).values()
        for channel in topic["channels"].values()
        for label, client in channel["clients"].items()
    }


def lookup_view(document: Any, labels: Labels) -> Any:
    """Return an answer of nsqlookupd with its lists sorted, and connections by name."""
    if isinstance(document, dict):
        view = {name: lookup_view(value, labels) for name, value in document.items() if name != "last_update"}
        for name in ("remote_address", "id"):
            if isinstance(address := view.get(name), str):
                port = address.rpartition(":")[2]
                view[name] = labels.get(int(port), "other") if port.isdigit() else address
        if view.get("tombstoned"):
            view["tombstoned_at"] = "time"
        return view
    if isinstance(document, list):
        entries = sorted((lookup_view(entry, labels) for entry in document), key=_order)
        return dict(enumerate(entries, 1)) if entries and isinstance(entries[0], dict) else entries
    return document


def _order(entry: Any) -> str:
    """Return the key by which entries of a list are sorted; both programs have these fields."""
    return str([entry.get(name) for name in _ENTRY_FIELDS]) if isinstance(entry, dict) else str(entry)


def differences_of(reference: Any, ours: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each place in which two views differ, with both values; None for a value that is not there."""
    if isinstance(reference, dict) and isinstance(ours, dict):
        for name in sorted(reference.keys() | ours.keys()):
            if name not in reference or name not in ours:
                yield f"{where}/{name}", reference.get(name, "absent"), ours.get(name, "absent")
            else:
                yield from differences_of(reference[name], ours[name], f"{where}/{name}")
    elif reference != ours:
        yield where, reference, ours
