"""Cases: the HTTP routes, and their effect on topics, channels and clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nsqkit.testing.conformance.case import Subject
from nsqkit.testing.conformance.connection import encode_messages
from nsqkit.testing.conformance.probe import CHANNEL, Probe
from nsqkit.testing.conformance.received import Mismatch

HTTP: Final = Subject("http", "nsqd/http.go", needs_http=True)


def _error(text: str) -> bytes:
    return b'{"message":"%b"}' % text.encode()


def _url(path: str, topic: bytes, channel: bytes = b"", *, more: str = "") -> str:
    query = f"topic={topic.decode()}" + (f"&channel={channel.decode()}" if channel else "") + more
    return f"{path}?{query}".replace("#", "%23")


def _refused(name: str, rule: str, method: str, target: str, status: int, error: str, body: bytes = b"") -> None:
    """Add a case in which a request is refused; ``<topic>`` in the target stands for a name of the case."""

    def check(probe: Probe) -> None:
        topic = probe.topic().decode().replace("#", "%23")
        probe.expect_http(method, target.replace("<topic>", topic), status, _error(error), body=body)

    check.__name__ = name
    check.__doc__ = rule
    HTTP.case()(check)


# ---- the broker --------------------------------------------------------------------------------------------------


@HTTP.case()
def ping(probe: Probe) -> None:
    """GET /ping answers OK while the broker is healthy."""
    probe.expect_http("GET", "/ping", 200, b"OK")


@HTTP.case()
def info(probe: Probe) -> None:
    """GET /info answers an object with version, addresses, ports and the time of the start."""
    document = probe.http("GET", "/info").document()
    for key, kind in (
        ("version", str),
        ("broadcast_address", str),
        ("hostname", str),
        ("http_port", int),
        ("tcp_port", int),
        ("start_time", int),
    ):
        if not isinstance(document.get(key), kind):
            raise Mismatch(f"{key} of type {kind.__name__}", repr(document.get(key)))


@HTTP.case(source="internal/http_api/api_response.go")
def header_of_version(probe: Probe) -> None:
    """Answers of version 1 have the header X-NSQ-Content-Type."""
    answer = probe.http("GET", "/info")
    value = answer.headers.get("x-nsq-content-type")
    if value != "nsq; version=1.0":
        raise Mismatch("X-NSQ-Content-Type: nsq; version=1.0", repr(value))


@HTTP.case(source="nsqd/stats.go")
def stats(probe: Probe) -> None:
    """GET /stats?format=json has version, health, start_time, and the topics with their channels and clients."""
    topic = probe.topic()
    probe.consumer(topic)
    document = probe.http("GET", _url("/stats", topic, more="&format=json")).document()
    missing = {"version", "health", "start_time", "topics"} - document.keys()
    names = [found.get("topic_name") for found in document.get("topics") or ()]
    if missing or names != [topic.decode()]:
        raise Mismatch(f"the topic {topic.decode()}", f"the topics {names}, without the keys {sorted(missing)}")
    probe.wait_for_stats({"client_count": 1, "paused": False}, lambda: probe.channel_stats(topic))


@HTTP.case(source="nsqd/stats.go")
def stats_without_clients(probe: Probe) -> None:
    """GET /stats with include_clients=false has the number of clients and no list of them."""
    topic = probe.topic()
    probe.consumer(topic)
    document = probe.http("GET", _url("/stats", topic, more="&format=json&include_clients=false")).document()
    channel = document["topics"][0]["channels"][0]
    if channel.get("client_count") != 1 or channel.get("clients"):
        raise Mismatch("client_count 1 and no clients", repr(channel))


@HTTP.case()
def stats_as_text(probe: Probe) -> None:
    """GET /stats without a format is a text that names the topics."""
    topic = probe.topic()
    probe.consumer(topic)
    answer = probe.http("GET", _url("/stats", topic))
    if answer.status != 200 or topic not in answer.body:
        raise Mismatch(f"200 and a text with {topic.decode()}", str(answer))


_refused("unknown_path", "An unknown path is answered with 404.", "GET", "/nsqkit", 404, "NOT_FOUND")
_refused("wrong_method", "Another method is answered with 405.", "GET", "/pub", 405, "METHOD_NOT_ALLOWED")
_refused("unknown_option", "An unknown option is refused.", "GET", "/config/nsqkit", 400, "INVALID_OPTION")


# ---- publishing --------------------------------------------------------------------------------------------------


@HTTP.case()
def pub(probe: Probe) -> None:
    """POST /pub publishes the body as one message."""
    topic = probe.topic()
    probe.expect_http("POST", _url("/pub", topic), 200, b"OK", body=b"one\ntwo")
    probe.consumer(topic).expect_message(b"one\ntwo", attempts=1)


@HTTP.case(waits=True)
def pub_with_defer(probe: Probe) -> None:
    """POST /pub with defer publishes a message with a delay in ms."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    elapsed = probe.elapsed()
    probe.expect_http("POST", _url("/pub", topic, more="&defer=700"), 200, b"OK", body=b"x")
    consumer.expect_message(b"x", attempts=1, seconds=probe.within(0.7))
    probe.check_not_early(elapsed(), 0.7)


@HTTP.case()
def pub_too_big(probe: Probe) -> None:
    """POST /pub refuses a body above --max-msg-size."""
    size = probe.option("max_msg_size")
    body = b"x" * (size + 1)
    probe.expect_http("POST", _url("/pub", probe.topic()), 413, _error("MSG_TOO_BIG"), body=body)


@HTTP.case()
def mpub(probe: Probe) -> None:
    """POST /mpub publishes each line that is not empty."""
    topic = probe.topic()
    consumer = probe.consumer(topic, ready=5)
    probe.expect_http("POST", _url("/mpub", topic), 200, b"OK", body=b"a\n\nb\n")
    bodies = sorted(consumer.expect_message().body for _ in range(2))
    if bodies != [b"a", b"b"]:
        raise Mismatch("a and b", str(bodies))
    probe.wait_for_stats({"message_count": 2}, lambda: probe.topic_stats(topic))


@HTTP.case()
def mpub_binary(probe: Probe) -> None:
    """POST /mpub with binary=true has the body of the command MPUB."""
    topic = probe.topic()
    body = encode_messages(b"a\n", b"b")
    probe.expect_http("POST", _url("/mpub", topic, more="&binary=true"), 200, b"OK", body=body)
    consumer = probe.consumer(topic, ready=2)
    bodies = sorted(consumer.expect_message().body for _ in range(2))
    if bodies != [b"a\n", b"b"]:
        raise Mismatch("both messages", str(bodies))


_refused("pub_without_topic", "A topic is required.", "POST", "/pub", 400, "MISSING_ARG_TOPIC", b"x")
_refused("pub_wrong_topic", "A wrong name is refused.", "POST", "/pub?topic=a!", 400, "INVALID_TOPIC", b"x")
_refused("pub_nothing", "A message without bytes is refused.", "POST", "/pub?topic=<topic>", 400, "MSG_EMPTY")
_refused(
    "pub_wrong_defer",
    "A negative delay is refused.",
    *("POST", "/pub?topic=<topic>&defer=-1", 400, "INVALID_DEFER", b"x"),
)
_refused(
    "mpub_wrong_count",
    "A binary body that announces no message is refused.",
    *("POST", "/mpub?topic=<topic>&binary=true", 413, "BAD_BODY", encode_messages()),
)
_refused(
    "mpub_empty_message",
    "A binary body with a message of no bytes is refused.",
    *("POST", "/mpub?topic=<topic>&binary=true", 413, "BAD_MESSAGE", encode_messages(b"")),
)


# ---- topics and channels -----------------------------------------------------------------------------------------


@HTTP.case()
def create_and_delete(probe: Probe) -> None:
    """Topics and channels can be created, also twice, and deleted."""
    topic = probe.topic()
    for _ in range(2):
        probe.post("/topic/create", topic)
        probe.post("/channel/create", topic, CHANNEL)
    probe.wait_for_stats({"depth": 0, "client_count": 0}, lambda: probe.channel_stats(topic))
    probe.post("/topic/delete", topic)
    if probe.topic_stats(topic) is not None:
        raise Mismatch("no such topic in /stats", topic.decode())


def _unknown(path: str, query: str, error: str) -> None:
    name = f"{path.strip('/').replace('/', '_')}_of_an_unknown"
    _refused(name, f"POST {path} of an unknown name is answered with 404.", "POST", f"{path}?{query}", 404, error)


for _path in ("/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause"):
    _unknown(_path, "topic=<topic>", "TOPIC_NOT_FOUND")
for _path in ("/channel/create", "/channel/delete", "/channel/empty", "/channel/pause", "/channel/unpause"):
    _unknown(_path, "topic=<topic>&channel=c", "TOPIC_NOT_FOUND")

_refused("topic_without_name", "A topic is required.", "POST", "/topic/create", 400, "MISSING_ARG_TOPIC")
_refused("topic_wrong_name", "A wrong name is refused.", "POST", "/topic/create?topic=a!", 400, "INVALID_TOPIC")
_refused(
    "channel_without_name",
    "A channel is required.",
    *("POST", "/channel/create?topic=<topic>", 400, "MISSING_ARG_CHANNEL"),
)
_refused(
    "channel_wrong_name",
    "A wrong name of a channel is refused.",
    *("POST", "/channel/create?topic=<topic>&channel=a!", 400, "INVALID_ARG_CHANNEL"),
)


@HTTP.case()
def unknown_channel(probe: Probe) -> None:
    """An unknown channel of a topic is answered with 404."""
    topic = probe.topic()
    probe.post("/topic/create", topic)
    probe.expect_http("POST", _url("/channel/pause", topic, b"c"), 404, _error("CHANNEL_NOT_FOUND"))


# ---- pause, empty, delete ----------------------------------------------------------------------------------------


@HTTP.case(waits=True, source="nsqd/topic.go")
def pause_topic(probe: Probe) -> None:
    """A paused topic keeps its messages from its channels until it is unpaused."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    probe.post("/topic/pause", topic)
    probe.publish(topic, b"x")
    consumer.expect_nothing()
    probe.wait_for_stats({"paused": True, "depth": 1}, lambda: probe.topic_stats(topic))
    probe.post("/topic/unpause", topic)
    consumer.expect_message(b"x")


@HTTP.case(waits=True, source="nsqd/channel.go")
def pause_channel(probe: Probe) -> None:
    """A paused channel gets messages and delivers none until it is unpaused; other channels deliver."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    other = probe.consumer(topic, channel=b"other#ephemeral")
    probe.post("/channel/pause", topic, CHANNEL)
    probe.publish(topic, b"x")
    other.expect_message(b"x")
    consumer.expect_nothing()
    probe.wait_for_stats({"paused": True, "depth": 1}, lambda: probe.channel_stats(topic))
    probe.post("/channel/unpause", topic, CHANNEL)
    consumer.expect_message(b"x")


@HTTP.case(source="nsqd/topic.go")
def empty_topic(probe: Probe) -> None:
    """An emptied topic has lost the messages that waited for a channel."""
    topic = probe.topic()
    probe.publish(topic, b"a", b"b")
    probe.wait_for_stats({"depth": 2}, lambda: probe.topic_stats(topic))
    probe.post("/topic/empty", topic)
    probe.wait_for_stats({"depth": 0, "message_count": 2}, lambda: probe.topic_stats(topic))


@HTTP.case(source="nsqd/channel.go")
def empty_channel(probe: Probe) -> None:
    """An emptied channel has lost its messages, those in flight too."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    probe.publish(topic, b"a", b"b")
    message = consumer.expect_message()
    probe.wait_for_stats({"depth": 1, "in_flight_count": 1}, lambda: probe.channel_stats(topic))
    probe.post("/channel/empty", topic, CHANNEL)
    probe.wait_for_stats({"depth": 0, "in_flight_count": 0}, lambda: probe.channel_stats(topic))
    consumer.send(b"FIN %b\n" % message.id)
    consumer.expect_error(b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id, ends=False)


@HTTP.case(source="nsqd/channel.go")
def delete_channel(probe: Probe) -> None:
    """The consumers of a deleted channel are disconnected."""
    topic = probe.topic()
    consumer = probe.consumer(topic)
    other = probe.consumer(topic, channel=b"other#ephemeral")
    probe.post("/channel/delete", topic, CHANNEL)
    consumer.expect_end()
    probe.publish(topic, b"x")
    other.expect_message(b"x")


@HTTP.case(source="nsqd/topic.go")
def delete_topic(probe: Probe) -> None:
    """The consumers of all channels of a deleted topic are disconnected."""
    topic = probe.topic()
    consumers = [probe.consumer(topic, channel=name) for name in (CHANNEL, b"other#ephemeral")]
    probe.post("/topic/delete", topic)
    for consumer in consumers:
        consumer.expect_end()


# ---- names that end in #ephemeral ------------------------------------------------------------------------------------


@HTTP.case(source="nsqd/channel.go")
def ephemeral_channel(probe: Probe) -> None:
    """An ephemeral channel is deleted with its last consumer, another channel is not."""
    topic = probe.topic()
    kept = probe.consumer(topic, channel=b"kept")
    consumers = [probe.consumer(topic), probe.consumer(topic)]
    consumers[0].close()
    probe.wait_for_stats({"client_count": 1}, lambda: probe.channel_stats(topic))
    consumers[1].close()
    kept.close()
    probe.wait_for_stats({"client_count": 0}, lambda: probe.channel_stats(topic, b"kept"))
    _wait_until_gone(probe, lambda: probe.channel_stats(topic) is None)


@HTTP.case(source="nsqd/topic.go")
def ephemeral_topic(probe: Probe) -> None:
    """An ephemeral topic is deleted with its last channel."""
    topic = probe.topic()
    probe.consumer(topic).close()
    _wait_until_gone(probe, lambda: probe.topic_stats(topic) is None)


def _wait_until_gone(probe: Probe, is_gone: Callable[[], bool]) -> None:
    probe.wait_for_stats({"is_gone": True}, lambda: {"is_gone": is_gone()})
