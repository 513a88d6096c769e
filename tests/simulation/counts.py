"""The counts of a broker at rest: ``/stats`` has to show what the oracle has counted (invariant 13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nsqkit.broker.core.options import OPTIONS, BrokerOptions
from nsqkit.broker.core.report.stats import collect, to_document, to_text
from nsqkit.broker.core.report.statsd import NOTHING, cut_packets, report
from tests.simulation.broken import Broken, conclude

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.session.session import Session
    from tests.simulation.oracle import ChannelOracle, ClientOracle, Oracle, TopicOracle

STATSD_SIZE: Final = 100
STATES: Final = {"init": 0, "subscribed": 3, "closing": 4}
COUNTERS: Final = ("message_count", "requeue_count", "timeout_count")
GAUGES: Final = ("depth", "backend_depth", "in_flight_count", "deferred_count")
PROXIMITIES: Final = ("zone_local", "region_local", "global")


def check_counts(broker: Broker, oracle: Oracle, now_ns: int) -> None:
    """Compare the document of ``/stats`` with the oracle, and the sum over all places with the puts."""
    stats = collect(broker, now_ns)
    found = [topic["topic_name"].encode() for topic in stats["topics"]]
    conclude(13, found == sorted(oracle.topics), f"/stats has the topics {found}")
    for topic in stats["topics"]:
        _check_topic(topic, oracle.topics[topic["topic_name"].encode()], oracle, broker)
        _check_latencies(topic, oracle.topics[topic["topic_name"].encode()], broker.options, now_ns)
    producers = sorted(client["remote_address"] for client in stats["producers"] or ())
    wanted = {session.remote_address: client for session, client in oracle.clients.items() if client.pub_counts}
    conclude(13, producers == sorted(wanted), f"/stats has the producers {producers}, not {sorted(wanted)}")
    for document in stats["producers"] or ():
        address, counts = document["remote_address"], document["pub_counts"]
        published = wanted[address].pub_counts
        right = [{"topic": topic.decode(), "count": count} for topic, count in published.items()]
        conclude(13, len(counts) == 1 and counts[0] in right, f"/stats of {address} has {counts}, not one of {right}")
    to_document(stats, health=broker.health, start_time_ns=now_ns, memory=None)
    to_text(stats, version_line="", health="", start_time="", start_time_ns=now_ns, now_ns=now_ns, memory={"heap": 1})


def check_reports(broker: Broker, now_ns: int) -> None:
    """Compare parts of ``/stats``, ``GET /config`` and the reports to statsd with the whole document."""
    whole = collect(broker, now_ns)
    for topic in whole["topics"]:
        name = topic["topic_name"].encode()
        found = collect(broker, now_ns, topic=name, include_clients=False)["topics"]
        channels = [channel | {"clients": None} for channel in topic["channels"]]
        conclude(13, found == [topic | {"channels": channels}], f"/stats of {name!r} alone has {found}")
        for channel in topic["channels"]:
            found = collect(broker, now_ns, topic=name, channel=channel["channel_name"].encode())["topics"]
            names = [each["channel_name"] for each in found[0]["channels"]]
            conclude(13, names == [channel["channel_name"]], f"/stats of one channel has {names}")
    conclude(13, collect(broker, now_ns, topic=b"none")["topics"] is None, "/stats has a topic that does not exist")
    document = to_document(whole, health=broker.health, start_time_ns=now_ns, memory={"heap": 1})
    conclude(13, document["topics"] is whole["topics"] and document["memory"] == {"heap": 1}, f"/stats is {document}")
    _check_statsd(whole | {"memory": {"gc_total_runs": 3}})
    for field, option in OPTIONS.items():
        found, wanted = broker.options.config_value(option.config_name), getattr(broker.options, field)
        if option.choices is None and isinstance(wanted, int | str):
            conclude(13, found == wanted, f"the option {field} is {found!r}, not {wanted!r}")


def _check_statsd(stats: dict[str, Any]) -> None:
    """Check that the first report has all counts, and one without a change since then has none."""
    lines, again = list(report(stats, NOTHING)), list(report(stats, stats))
    for topic in stats["topics"]:
        key = f"topic.{topic['topic_name']}"
        wanted = [f"{key}.{name}:{topic[name]}|c" for name in ("message_count", "message_bytes")]
        wanted += [f"{key}.{name}:{topic[name]}|g" for name in ("depth", "backend_depth")]
        for channel in topic["channels"]:
            place = f"{key}.channel.{channel['channel_name']}"
            wanted += [f"{place}.{name}:{channel[name]}|c" for name in COUNTERS]
            wanted += [f"{place}.{name}:{channel[name]}|g" for name in GAUGES]
            wanted.append(f"{place}.clients:{channel['client_count']}|g")
        conclude(13, set(wanted) <= set(lines), f"{wanted} are reported to statsd as {lines}")
    counters = [line for line in again if line.endswith("|c")]
    conclude(13, all(line.endswith(":0|c") for line in counters), f"{counters} have not changed")
    packets = cut_packets(lines, STATSD_SIZE)
    conclude(13, b"".join(packets).decode().split("\n") == [*lines, ""], f"packets of statsd: {packets}")
    is_small = all(len(packet) <= STATSD_SIZE or packet.count(b"\n") == 1 for packet in packets)
    conclude(13, is_small, f"packets of statsd: {packets}")
    durable = [line for line in report(stats, NOTHING, exclude_ephemeral=True) if "#ephemeral" in line]
    conclude(13, not durable, f"{durable} are ephemeral")


def _check(where: object, document: dict[str, Any], wanted: Mapping[str, object]) -> None:
    found = {key: document.get(key) for key in wanted}
    if found != wanted:
        raise Broken(13, f"/stats of {where} has {found}, not {wanted}")


def _check_topic(document: dict[str, Any], topic: TopicOracle, oracle: Oracle, broker: Broker) -> None:
    wanted = {
        "depth": len(topic.waiting),
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
    }
    _check(document["topic_name"], document, wanted)
    conclude(13, document["backend_depth"] <= document["depth"], f"{document['topic_name']}: backend_depth")
    names = [channel["channel_name"].encode() for channel in document["channels"]]
    conclude(13, names == sorted(topic.channels), f"/stats of {document['topic_name']} has the channels {names}")
    sessions = {session.remote_address: session for session in broker.sessions}
    for channel in document["channels"]:
        _check_channel(channel, topic.channels[channel["channel_name"].encode()])
        for client in channel["clients"]:
            session = sessions[client["remote_address"]]
            if not session.ended:  # and not closed yet
                _check_client(client, session, oracle.clients[session])


def _check_latencies(document: dict[str, Any], topic: TopicOracle, options: BrokerOptions, now_ns: int) -> None:
    """Check how many messages the latencies are about: those of the last half of the window, or of up to the whole."""
    if not options.e2e_processing_latency_percentiles:
        return
    whole_ns = options.e2e_processing_latency_window_time_ns
    sums = [0, 0]
    for channel in document["channels"]:
        ages_ns = [now_ns - time_ns for time_ns in topic.channels[channel["channel_name"].encode()].finished_ns]
        limits = [sum(age_ns < span_ns for age_ns in ages_ns) for span_ns in (whole_ns // 2, whole_ns + 1)]
        sums = [sums[0] + limits[0], sums[1] + limits[1]]
        _check_latency_count(channel["channel_name"], channel["e2e_processing_latency"]["count"], limits)
    _check_latency_count(document["topic_name"], document["e2e_processing_latency"]["count"], sums)


def _check_latency_count(name: str, count: int, limits: list[int]) -> None:
    conclude(13, limits[0] <= count <= limits[1], f"the latencies of {name} are about {count} messages, not {limits}")


def _check_channel(document: dict[str, Any], channel: ChannelOracle) -> None:
    waiting = document["depth"] + document["deferred_count"]
    wanted = {
        "in_flight_count": len(channel.in_flight),
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.sessions),
        "paused": channel.paused,
    }
    _check(document["channel_name"], document, wanted)
    expected = len(channel.queued) + len(channel.deferred)
    conclude(13, waiting == expected, f"{channel.name!r}: {waiting} messages wait or are deferred, not {expected}")
    conclude(13, document["backend_depth"] <= document["depth"], f"{channel.name!r}: backend_depth")
    delivered = Counter({name: document.get(f"{name}_msg_count", 0) for name in PROXIMITIES})
    conclude(13, delivered == channel.delivery_counts, f"{channel.name!r} has {delivered} deliveries")
    put = document["message_count"] + channel.restored_count
    places = waiting + document["in_flight_count"] + channel.finished_count + channel.dropped_count
    conclude(13, places == put, f"{channel.name!r}: of {put} messages {places} are somewhere")


def _check_client(document: dict[str, Any], session: Session, client: ClientOracle) -> None:
    channel = client.channel
    assert channel is not None
    wanted = {
        "state": STATES["closing" if client.is_closing else "subscribed"],
        "in_flight_count": channel.held_count(session),
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
    }
    if not client.is_closing:
        wanted["ready_count"] = client.rdy_count
    _check(document["remote_address"], document, wanted)
