"""The answers of nsqd to ``/info`` and ``/stats``, as values with nsqd's own names.

A field that an nsqd does not send is empty, 0, False or None. Points in time are seconds since the Unix epoch, and
durations are nanoseconds, as nsqd sends them.
"""

from __future__ import annotations

import attrs

from nsqkit.admin.documents import part, parts


@attrs.frozen(kw_only=True)
class Percentile:
    """One percentile of the latencies: ``quantile`` of them took at most ``value`` nanoseconds."""

    quantile: float = 0.0
    value: float = 0.0


@attrs.frozen(kw_only=True)
class Latency:
    """The time from publishing a message to finishing it; only where nsqd measures it."""

    count: int = 0
    percentiles: tuple[Percentile, ...] = attrs.field(default=(), metadata=parts(Percentile))


@attrs.frozen(kw_only=True)
class PubCount:
    """The number of messages that a client has published to a topic."""

    topic: str = ""
    count: int = 0


@attrs.frozen(kw_only=True)
class ClientStats:
    """One connection; ``pub_counts`` is for producers.

    Attributes:
        state: 0 to 4: new, disconnected, connected, subscribed, closing.
        connect_ts: the time of the connection, in seconds since the Unix epoch.
    """

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    msg_timeout: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    pub_counts: tuple[PubCount, ...] = attrs.field(default=(), metadata=parts(PubCount))
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


@attrs.frozen(kw_only=True)
class ChannelStats:
    """One channel.

    Attributes:
        depth: the number of queued messages; ``backend_depth`` of them are on disk.
        message_count: the number of messages since the start.
        client_count: the number of consumers; ``clients`` lists them if the request included clients.
    """

    channel_name: str = ""
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    clients: tuple[ClientStats, ...] = attrs.field(default=(), metadata=parts(ClientStats))
    paused: bool = False
    e2e_processing_latency: Latency | None = attrs.field(default=None, metadata=part(Latency))


@attrs.frozen(kw_only=True)
class TopicStats:
    """One topic with its channels.

    Attributes:
        depth: the number of messages that no channel has yet; ``backend_depth`` of them are on disk.
        message_count: the number of messages since the start; ``message_bytes`` is their total size.
    """

    topic_name: str = ""
    channels: tuple[ChannelStats, ...] = attrs.field(default=(), metadata=parts(ChannelStats))
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    e2e_processing_latency: Latency | None = attrs.field(default=None, metadata=part(Latency))


@attrs.frozen(kw_only=True)
class MemoryStats:
    """The memory of the process, under the names of Go's runtime."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


@attrs.frozen(kw_only=True)
class NsqdStats:
    """The state of an nsqd.

    Attributes:
        health: ``OK``, or the reason why it is not healthy.
        start_time: the time of its start, in seconds since the Unix epoch.
        memory: None unless the request included memory.
        producers: the clients that publish, if the request included clients.
    """

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: tuple[TopicStats, ...] = attrs.field(default=(), metadata=parts(TopicStats))
    memory: MemoryStats | None = attrs.field(default=None, metadata=part(MemoryStats))
    producers: tuple[ClientStats, ...] = attrs.field(default=(), metadata=parts(ClientStats))


@attrs.frozen(kw_only=True)
class NsqdInfo:
    """The identity and some limits of an nsqd; a port is -1 for a Unix socket."""

    version: str = ""
    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    start_time: int = 0
    max_heartbeat_interval: int = 0
    max_output_buffer_size: int = 0
    max_output_buffer_timeout: int = 0
    max_deflate_level: int = 0
    topology_zone: str = ""
    topology_region: str = ""
