"""The ``/stats`` document, in JSON and in text.

Both equal those of nsqd 1.3.0, key by key and column by column (nsqd/stats.go, and printStats in nsqd/http.go).
``collect`` reads the state of a broker; ``to_document`` and ``to_text`` format it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsqkit.broker.core.topics.latency import Latency
from nsqkit.broker.core.topics.topology import GLOBAL, REGION_LOCAL, ZONE_LOCAL
from nsqkit.options.durations import format_duration
from nsqkit.wire.identify import BROKER_VERSION

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.broker.core.topics.topic import Topic

_NS_PER_S: Final = 1_000_000_000
_UNITS: Final = (("s", _NS_PER_S), ("ms", 1_000_000), ("us", 1_000))


Document: TypeAlias = dict[str, Any]
"""A JSON object, whose keys stand in nsqd's order."""

_OMITTED_IF_EMPTY: Final = (
    *("zone_local_msg_count", "region_local_msg_count", "global_msg_count"),
    *("authed", "auth_identity", "auth_identity_url", "pub_counts"),
)
"""The keys that nsqd leaves out where the value is zero or empty; all others are always there."""


def collect(
    broker: Broker, now_ns: int, *, topic: bytes = b"", channel: bytes = b"", include_clients: bool = True
) -> Document:
    """Return the state of a broker: its ``topics``, and the clients that publish, its ``producers``.

    A client that publishes and consumes is in both lists.

    Args:
        broker: whose state.
        now_ns: the time; latencies cover the last minutes.
        topic: only this topic; empty for all. For one that does not exist the result is empty.
        channel: only channels of this name, and topics that have one; empty for all.
        include_clients: include each client.
    """
    if topic and topic not in broker.topics:
        return {"topics": None, "producers": None}
    topics = [broker.topics[name] for name in ([topic] if topic else sorted(broker.topics))]
    publishing = [session for session in broker.sessions if session.pub_counts and include_clients]
    return {
        "topics": [
            _topic(broker, found, now_ns, topic, channel, include_clients)
            for found in topics
            if not channel or channel in found.channels
        ],
        "producers": [_client(session, topic) for session in publishing] or None,
    }


def _topic(
    broker: Broker, topic: Topic, now_ns: int, topic_filter: bytes, channel: bytes, include_clients: bool
) -> Document:
    names = [channel] if channel else sorted(topic.channels)
    return {
        "topic_name": topic.name.decode(),
        "channels": [_channel(broker, topic.channels[name], now_ns, topic_filter, include_clients) for name in names],
        "depth": len(topic.queue),
        "backend_depth": len(topic.queue.backend),
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.channels.values(), now_ns),
    }


def _latency(channels: Iterable[Channel], now_ns: int) -> Document:
    """Return the latencies of all messages of some channels; nsqd shows them even where it measures nothing."""
    latencies = [channel.latency for channel in channels if channel.latency is not None]
    if not latencies:
        return {"count": 0, "percentiles": None}
    return Latency.merged(latencies, now_ns).result(now_ns)


def _channel(broker: Broker, channel: Channel, now_ns: int, topic_filter: bytes, include_clients: bool) -> Document:
    counts = channel.delivery_counts
    sessions = [broker.sessions.by_subscription[subscription] for subscription in channel.subscriptions]
    clients = [_client(session, topic_filter) for session in sessions] if include_clients else None
    stats = {
        "channel_name": channel.name.decode(),
        "depth": len(channel.queue),
        "backend_depth": len(channel.queue.backend),
        "in_flight_count": channel.in_flight_count,
        "deferred_count": len(channel.deferred),
        "message_count": channel.message_count,
        "zone_local_msg_count": counts[ZONE_LOCAL],
        "region_local_msg_count": counts[REGION_LOCAL],
        "global_msg_count": counts[GLOBAL],
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.subscriptions),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": _latency((channel,), now_ns),
    }
    return _without_empty(stats)


def _client(session: Session, topic_filter: bytes) -> Document:
    identity, grant, tls, subscription = session.identity, session.grant, session.tls, session.subscription
    auth = None if session.authorization is None else session.authorization.state
    stats = {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": session.state.number,
        "ready_count": subscription.rdy_count if subscription else 0,
        "in_flight_count": len(subscription.in_flight) if subscription else 0,
        "message_count": subscription.message_count if subscription else 0,
        "finish_count": subscription.finish_count if subscription else 0,
        "requeue_count": subscription.requeue_count if subscription else 0,
        "connect_ts": session.connect_time_ns // _NS_PER_S,
        "sample_rate": grant.sample_rate,
        "deflate": session.compression == "deflate",
        "snappy": session.compression == "snappy",
        "user_agent": identity.user_agent,
        "topology_zone": identity.topology_zone,
        "topology_region": identity.topology_region,
        "authed": auth is not None and bool(auth.authorizations),
        "auth_identity": auth.identity if auth else "",
        "auth_identity_url": auth.identity_url if auth else "",
        "pub_counts": _pub_counts(session, topic_filter),
        "tls": tls is not None,
        "tls_cipher_suite": tls.cipher_suite if tls else "",
        "tls_version": tls.version if tls else "",
        "tls_negotiated_protocol": tls.negotiated_protocol if tls else "",
        "tls_negotiated_protocol_is_mutual": tls is not None,  # as Go does
    }
    return _without_empty(stats)


def _without_empty(stats: Document) -> Document:
    return {key: value for key, value in stats.items() if value or key not in _OMITTED_IF_EMPTY}


def _pub_counts(session: Session, topic_filter: bytes) -> list[Document]:
    """Return the count of one topic, the first that was published to: nsqd shows one, too, and chooses any."""
    for topic, count in session.pub_counts.items():
        if not topic_filter or topic == topic_filter:
            return [{"topic": topic.decode(), "count": count}]
    return []


def to_document(stats: Document, *, health: str, start_time_ns: int, memory: Mapping[str, int] | None) -> Document:
    """Return the JSON document; without ``memory`` it has no such key."""
    document: Document = {
        "version": BROKER_VERSION,
        "health": health,
        "start_time": start_time_ns // _NS_PER_S,
        "topics": stats["topics"],
    }
    if memory is not None:
        document["memory"] = memory
    document["producers"] = stats["producers"]
    return document


def to_text(
    stats: Document,
    *,
    version_line: str,
    health: str,
    start_time: str,
    start_time_ns: int,
    now_ns: int,
    memory: Mapping[str, int] | None,
) -> str:
    """Return the text, with ``start_time`` in the form of RFC 3339; without ``memory`` it has no such part."""
    lines = [
        version_line,
        f"start_time {start_time}",
        f"uptime {format_duration(now_ns - start_time_ns)}",
        "",
        f"Health: {health}",
    ]
    if memory is not None:
        lines += ["", "Memory:", *(f"   {key:<25}\t{value}" for key, value in memory.items())]
    lines += ["", "Topics:" if stats["topics"] else "Topics: None"]
    for number, topic in enumerate(stats["topics"] or ()):
        lines += [""] if number else []
        lines += _topic_lines(topic, now_ns)
    lines += ["", "Producers:" if stats["producers"] else "Producers: None"]
    lines += _client_lines(stats["producers"], "   ", now_ns)
    return "\n".join(lines) + "\n"


def _topic_lines(topic: Document, now_ns: int) -> Iterator[str]:
    paused = "*P " if topic["paused"] else "   "
    yield (
        f"{paused}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: {_latency_text(topic['e2e_processing_latency'])}"
    )
    for channel in topic["channels"]:
        paused = "   *P " if channel["paused"] else "      "
        yield (
            f"{paused}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
            f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
            f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} "
            f"e2e%: {_latency_text(channel['e2e_processing_latency'])}"
        )
        yield from _client_lines(channel["clients"], "        ", now_ns)


def _latency_text(latency: Document) -> str:
    values = (percentile["value"] for percentile in latency["percentiles"] or ())
    return ", ".join(map(_human_time, values))


def _human_time(time_ns: int) -> str:
    """Return a time in the greatest unit of which it is more than one, as nsqd does."""
    for unit, unit_ns in _UNITS:
        if time_ns > unit_ns:
            return f"{time_ns / unit_ns:.1f}{unit}"
    return f"{time_ns:.1f}ns"


def _client_lines(clients: Sequence[Document] | None, indent: str, now_ns: int) -> Iterator[str]:
    for client in clients or ():
        yield indent + _client_line(client, now_ns)


def _client_line(client: Document, now_ns: int) -> str:
    _, colon, port = client["remote_address"].rpartition(":")
    port = port if colon else ""  # a client of a Unix socket
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    connected = format_duration((now_ns // _NS_PER_S - client["connect_ts"]) * _NS_PER_S)
    if pub_counts := client.get("pub_counts"):
        total = sum(pub_count["count"] for pub_count in pub_counts)
        topics = ",".join(f"{pub_count['topic']}={pub_count['count']}" for pub_count in pub_counts)
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} "
        f"msgs: {client['message_count']:<8} connected: {connected}"
    )
