from __future__ import annotations

import json

from nsqkit.admin.documents import read
from nsqkit.admin.stats import (
    ChannelStats,
    ClientStats,
    Latency,
    MemoryStats,
    NsqdStats,
    Percentile,
    PubCount,
    TopicStats,
)

# An answer of nsqd 1.3.0 with a value in every field.
CLIENT = {
    "client_id": "vm",
    "hostname": "vm.local",
    "version": "V2",
    "remote_address": "127.0.0.1:50000",
    "state": 3,
    "ready_count": 1,
    "in_flight_count": 2,
    "message_count": 3,
    "finish_count": 4,
    "requeue_count": 5,
    "connect_ts": 1795307145,
    "msg_timeout": 60000,
    "sample_rate": 6,
    "deflate": True,
    "snappy": False,
    "user_agent": "go-nsq/1.1.0",
    "authed": True,
    "auth_identity": "me",
    "auth_identity_url": "http://me",
    "pub_counts": [{"topic": "t", "count": 7}],
    "tls": True,
    "tls_cipher_suite": "TLS_AES_128_GCM_SHA256",
    "tls_version": "TLS1.3",
    "tls_negotiated_protocol": "",
    "tls_negotiated_protocol_is_mutual": False,
}
LATENCY = {"count": 1, "percentiles": [{"quantile": 0.99, "value": 1.5e6}, {"quantile": 0.5, "value": 2}]}
CHANNEL = {
    "channel_name": "c",
    "depth": 1,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 4,
    "message_count": 5,
    "requeue_count": 6,
    "timeout_count": 7,
    "client_count": 1,
    "clients": [CLIENT],
    "paused": True,
    "e2e_processing_latency": LATENCY,
}
TOPIC = {
    "topic_name": "t",
    "channels": [CHANNEL],
    "depth": 1,
    "backend_depth": 2,
    "message_count": 3,
    "message_bytes": 4,
    "paused": False,
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}
DOCUMENT = {
    "version": "1.3.0",
    "health": "OK",
    "start_time": 1795307145,
    "topics": [TOPIC],
    "memory": {"heap_objects": 2285, "gc_total_runs": 1},
    "producers": None,
}


def test_all_keys_of_stats_are_read():
    stats = read(NsqdStats, json.loads(json.dumps(DOCUMENT)))
    assert (stats.version, stats.health, stats.start_time) == ("1.3.0", "OK", 1795307145)
    assert stats.memory == MemoryStats(heap_objects=2285, gc_total_runs=1)
    assert stats.producers == ()
    (topic,) = stats.topics
    assert topic == TopicStats(
        topic_name="t",
        channels=topic.channels,
        depth=1,
        backend_depth=2,
        message_count=3,
        message_bytes=4,
        e2e_processing_latency=Latency(),
    )
    (channel,) = topic.channels
    assert channel == ChannelStats(
        channel_name="c",
        depth=1,
        backend_depth=2,
        in_flight_count=3,
        deferred_count=4,
        message_count=5,
        requeue_count=6,
        timeout_count=7,
        client_count=1,
        clients=channel.clients,
        paused=True,
        e2e_processing_latency=Latency(
            count=1,
            percentiles=(Percentile(quantile=0.99, value=1.5e6), Percentile(quantile=0.5, value=2)),
        ),
    )
    (client,) = channel.clients
    pub_counts = (PubCount(topic="t", count=7),)
    assert client == ClientStats(**(CLIENT | {"pub_counts": pub_counts}))  # type: ignore[arg-type]
