"""The reports of a broker to statsd: lines of text, in packets of UDP.

The lines are nsqd's, in its order (nsqd/statsd.go), so that dashboards made for nsqd show this broker. A counter is
reported as its difference to the last report, a gauge as it is; a packet holds whole lines.

``report`` makes the lines of two successive snapshots of a broker, ``cut_packets`` makes packets of them, and
``resolve_prefix`` the prefix of every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nsqkit.broker.core.report.stats import Document

_EPHEMERAL: Final = "#ephemeral"


NOTHING: Final[Document] = {"topics": None, "memory": None}
"""The first report is compared to it."""


def resolve_prefix(prefix: str, broadcast_address: str, broadcast_http_port: int) -> str:
    """Return the prefix of the keys, where ``%s`` in the option stands for host and port of the HTTP routes.

    The dots and colons of the host become underscores.
    """
    if not prefix:
        return ""
    host = f"[{broadcast_address}]" if ":" in broadcast_address else broadcast_address
    key = f"{host}:{broadcast_http_port}".replace(".", "_").replace(":", "_")
    prefix = prefix.replace("%s", key)
    return prefix if prefix.endswith(".") else prefix + "."


def report(now: Document, last: Document, *, exclude_ephemeral: bool = False) -> Iterator[str]:
    """Yield the lines of a report, without a prefix and without line ends.

    ``now`` has the ``topics`` of ``stats.collect``, and under ``memory`` that of the process, None to leave it out. The
    counters are the differences to ``last``, the content of the last report.
    """
    last_topics = {topic["topic_name"]: topic for topic in last["topics"] or ()}
    for topic in now["topics"] or ():
        name = topic["topic_name"]
        if not (exclude_ephemeral and name.endswith(_EPHEMERAL)):
            yield from _topic_lines(topic, last_topics.get(name), exclude_ephemeral)
    if now["memory"] is not None:
        yield from _memory_lines(now["memory"], last["memory"])


def _topic_lines(topic: Document, last: Document | None, exclude_ephemeral: bool) -> Iterator[str]:
    key = f"topic.{topic['topic_name']}."
    yield f"{key}message_count:{topic['message_count'] - (last['message_count'] if last else 0)}|c"
    yield f"{key}message_bytes:{topic['message_bytes'] - (last['message_bytes'] if last else 0)}|c"
    yield f"{key}depth:{topic['depth']}|g"
    yield f"{key}backend_depth:{topic['backend_depth']}|g"
    yield from _latency_lines(key, topic["e2e_processing_latency"])
    last_channels = {channel["channel_name"]: channel for channel in last["channels"]} if last else {}
    for channel in topic["channels"]:
        name = channel["channel_name"]
        if not (exclude_ephemeral and name.endswith(_EPHEMERAL)):
            yield from _channel_lines(f"{key}channel.{name}.", channel, last_channels.get(name))


def _channel_lines(key: str, channel: Document, last: Document | None) -> Iterator[str]:
    yield f"{key}message_count:{channel['message_count'] - (last['message_count'] if last else 0)}|c"
    yield f"{key}depth:{channel['depth']}|g"
    yield f"{key}backend_depth:{channel['backend_depth']}|g"
    yield f"{key}in_flight_count:{channel['in_flight_count']}|g"
    yield f"{key}deferred_count:{channel['deferred_count']}|g"
    yield f"{key}requeue_count:{channel['requeue_count'] - (last['requeue_count'] if last else 0)}|c"
    yield f"{key}timeout_count:{channel['timeout_count'] - (last['timeout_count'] if last else 0)}|c"
    yield f"{key}clients:{channel['client_count']}|g"
    yield from _latency_lines(key, channel["e2e_processing_latency"])


def _latency_lines(key: str, latency: Document) -> Iterator[str]:
    for percentile in latency["percentiles"] or ():
        yield f"{key}e2e_processing_latency_{percentile['quantile'] * 100:.0f}:{percentile['value']}|g"


def _memory_lines(memory: Mapping[str, int], last: Mapping[str, int] | None) -> Iterator[str]:
    for key, value in memory.items():
        if key != "gc_total_runs":
            yield f"mem.{key}:{value}|g"
    yield f"mem.gc_runs:{memory['gc_total_runs'] - (last['gc_total_runs'] if last else 0)}|c"


def cut_packets(lines: Iterable[str], size: int) -> list[bytes]:
    """Return packets of whole lines with their line ends; one of more than ``size`` bytes is a packet by itself."""
    packets: list[bytes] = []
    packet = bytearray()
    for line in lines:
        data = f"{line}\n".encode("utf-8", "surrogateescape")
        if packet and len(packet) + len(data) > size:
            packets.append(bytes(packet))
            packet.clear()
        packet += data
    if packet:
        packets.append(bytes(packet))
    return packets
