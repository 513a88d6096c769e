from __future__ import annotations

import json
import logging
import re
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import EndOfStream

from nsqkit import __version__
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.http_api import ROUTES, HTTPApi
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.transport.memory import memory_pair
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.broker.core.topics.queues import take_all

pytestmark = pytest.mark.anyio

START_NS = 1_704_067_200 * 10**9
JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"


class Api:
    """The routes of a running broker."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        self.broker = nsqd.broker
        self._api = HTTPApi(nsqd)
        self.headers: dict[str, str] = {}

    async def ask(self, method: str, target: str, body: bytes = b"", *, chunked: bool = False):
        """Return status and text of the answer; its headers are kept in ``self.headers``."""
        client, server = memory_pair()
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        if chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{framing}\r\n\r\n"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._api.serve, server, "10.0.0.1:99")
            await client.send(head.encode() + body)
            answer = b""
            try:
                while True:
                    answer += await client.receive()
            except EndOfStream:
                await client.aclose()
        head, _, text = answer.decode().partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), text

    async def post(self, target: str, body: bytes = b""):
        """Return the text of an answer with status 200."""
        status, text = await self.ask("POST", target, body)
        assert status == 200, text
        return text

    async def refusal(self, method: str, target: str, body: bytes = b"", *, chunked: bool = False):
        """Return status and message of a refusal."""
        status, text = await self.ask(method, target, body, chunked=chunked)
        assert self.headers["Content-Type"] == JSON_TYPE
        assert self.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
        assert list(json.loads(text)) == ["message"]
        return status, json.loads(text)["message"]

    def bodies(self, topic: bytes) -> list[bytes]:
        """Remove the queued messages of a topic; return their bodies."""
        return [frame[FRAME_HEADER_LENGTH:] for frame in take_all(self.broker.topics[topic].queue)]


@asynccontextmanager
async def running(**options):
    given = BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", **options)
    async with Nsqd(given, clock=ManualClock()) as nsqd:
        yield Api(nsqd)


def batch(*bodies: bytes) -> bytes:
    size = len(bodies).to_bytes(4, "big")
    return size + b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


# ---- health and stats -----------------------------------------------------------------------------------------


async def test_ping():
    async with running() as api:
        assert await api.ask("GET", "/ping") == (200, "OK")
        assert api.headers["Content-Type"] == TEXT_TYPE
        assert "X-Nsq-Content-Type" not in api.headers


async def test_ping_reports_bad_health():
    async with running() as api:
        api.broker.storage.health = "NOK - no space left on device"
        assert await api.ask("GET", "/ping") == (500, "NOK - no space left on device")
        assert api.headers["Content-Type"] == TEXT_TYPE
        _, text = await api.ask("GET", "/stats?format=json")
        assert json.loads(text)["health"] == "NOK - no space left on device"
        _, text = await api.ask("GET", "/stats")
        assert "\nHealth: NOK - no space left on device\n" in text


async def test_the_header_of_info_names_the_program():
    async with running() as api:
        await api.ask("GET", "/info")
        assert api.headers["Server"] == f"nsqkit/{__version__}"


async def test_unix_sockets_have_no_port(tmp_path):
    options = BrokerOptions(tcp_address=f"{tmp_path}/t", http_address=f"{tmp_path}/h", broadcast_address="b")
    async with Nsqd(options, clock=ManualClock()) as nsqd:
        api = Api(nsqd)
        document = json.loads((await api.ask("GET", "/info"))[1])
        assert (document["tcp_port"], document["http_port"]) == (-1, -1)
        assert await api.ask("GET", "/config/broadcast_tcp_port") == (200, "0")
        assert await api.ask("GET", "/config/broadcast_http_port") == (200, "0")
        assert await api.ask("GET", "/config/statsd_prefix") == (200, "nsq.b_0.")


async def test_config_returns_the_resolved_statsd_prefix():
    async with running(statsd_prefix="a.%s", broadcast_address="1.2.3.4", broadcast_http_port=80) as api:
        assert await api.ask("GET", "/config/statsd_prefix") == (200, "a.1_2_3_4_80.")


async def test_percentiles_are_written_as_in_go():
    async with running(e2e_processing_latency_percentiles=(1.0, 0.99)) as api:
        name = "e2e_processing_latency_percentiles"
        assert await api.ask("GET", f"/config/{name}") == (200, "[1,0.99]")
        await api.post("/topic/create?topic=t")
        await api.post("/channel/create?topic=t&channel=c")
        _, text = await api.ask("GET", "/stats?format=json")
        assert text.count('{"count":0,"percentiles":[{"quantile":1,"value":0},{"quantile":0.99,"value":0}]}') == 2


async def test_requests_for_profiles_are_not_logged(caplog):
    caplog.set_level(logging.INFO)
    async with running() as api:
        assert (await api.ask("GET", "/debug/pprof/"))[0] == 200
        assert (await api.ask("GET", "/debug/pprof/cmdline"))[0] == 200
        assert "/debug" not in caplog.text
        assert await api.refusal("POST", "/debug/freememory") == (500, "INTERNAL_ERROR")
        assert "500 POST /debug/freememory (10.0.0.1:99)" in caplog.text


async def test_info():
    async with running(broadcast_address="b", topology_zone="z") as api:
        status, text = await api.ask("GET", "/info")
        assert status == 200
        assert api.headers["Content-Type"] == JSON_TYPE
        document = json.loads(text)
        assert isinstance(document.pop("hostname"), str)
        assert document == {
            "version": "1.3.0",
            "broadcast_address": "b",
            "http_port": int(api.nsqd.http_address.rpartition(":")[2]),
            "tcp_port": int(api.nsqd.tcp_address.rpartition(":")[2]),
            "start_time": START_NS // 10**9,
            "max_heartbeat_interval": 60_000_000_000,
            "max_output_buffer_size": 65536,
            "max_output_buffer_timeout": 30_000_000_000,
            "max_deflate_level": 6,
            "topology_zone": "z",
            "topology_region": "",
        }


async def test_stats_in_json():
    async with running() as api:
        await api.post("/topic/create?topic=t")
        await api.post("/channel/create?topic=t&channel=c")
        status, text = await api.ask("GET", "/stats?format=json")
        assert status == 200
        assert api.headers["Content-Type"] == JSON_TYPE
        document = json.loads(text)
        assert document["start_time"] == START_NS // 10**9
        assert document["memory"]["heap_objects"] > 0
        assert [topic["topic_name"] for topic in document["topics"]] == ["t"]
        assert text.startswith('{"version":"1.3.0","health":"OK","start_time":1704067200,"topics":[{')


@pytest.mark.parametrize(
    ("query", "has_memory", "clients"),
    [
        ("", True, []),
        ("&include_mem=false&include_clients=false", False, None),
        ("&include_mem=0&include_clients=0", False, None),
        ("&include_mem=1&include_clients=1", True, []),
        ("&include_mem=nonsense&include_clients=nonsense", True, []),
        ("&include_mem=False&include_clients=", True, []),
    ],
)
async def test_stats_include_clients_and_memory_on_request(query, has_memory, clients):
    async with running() as api:
        api.broker.topics.get_or_create(b"t").channel(b"c", START_NS)
        document = json.loads((await api.ask("GET", f"/stats?format=json{query}"))[1])
        assert ("memory" in document) == has_memory
        assert document["topics"][0]["channels"][0]["clients"] == clients


async def test_stats_of_one_topic_and_channel():
    async with running() as api:
        for name in (b"t1", b"t2"):
            api.broker.topics.get_or_create(name).channel(b"c", START_NS)
        stats = json.loads((await api.ask("GET", "/stats?format=json&topic=t1&channel=c"))[1])
        assert [topic["topic_name"] for topic in stats["topics"]] == ["t1"]
        stats = json.loads((await api.ask("GET", "/stats?format=json&channel=none"))[1])
        assert stats["topics"] == []
        stats = json.loads((await api.ask("GET", "/stats?format=json&topic=%ff"))[1])
        assert stats["topics"] is None


async def test_stats_in_text():
    async with running() as api:
        status, text = await api.ask("GET", "/stats?include_mem=false")
        assert (status, api.headers["Content-Type"]) == (200, TEXT_TYPE)
        assert re.fullmatch(
            r"nsqd v1\.3\.0 \(built w/go\S+\)\n"
            r"start_time (2023-12-31|2024-01-01)T\d\d:\d\d:00(Z|[+-](?!00:00)\d\d:\d\d)\n"
            r"uptime 0s\n\nHealth: OK\n\nTopics: None\n\nProducers: None\n",
            text,
        )


# ---- publishing -----------------------------------------------------------------------------------------------


async def test_publish():
    async with running() as api:
        assert await api.post("/pub?topic=t", bytes(range(256))) == "OK"
        assert api.headers["Content-Type"] == TEXT_TYPE
        assert api.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
        assert api.bodies(b"t") == [bytes(range(256))]


async def test_a_published_message_is_delivered():
    async with running() as api:
        consumer = api.nsqd.connect()
        await consumer.send(b"  V2SUB t c\nRDY 1\n")
        assert (await consumer.receive())[8:] == b"OK"
        await api.post("/pub?topic=t", b"hello")
        assert (await consumer.receive()).endswith(b"hello")
        await consumer.aclose()


@pytest.mark.parametrize("defer", ["400", "%2B400", "0400", "0" * 5000 + "400"])
async def test_publish_with_a_delay(defer):
    async with running() as api:
        channel = api.broker.topics.get_or_create(b"t").channel(b"c", START_NS)
        await api.post(f"/pub?topic=t&defer={defer}", b"later")
        assert (len(channel.queue), len(channel.deferred)) == (0, 1)
        assert channel.due_ns == START_NS + 400_000_000


@pytest.mark.parametrize(
    ("target", "body", "status", "message"),
    [
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%24b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=%ff", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t;u", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=t", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/pub?topic=t&defer=", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=abc", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=1_0", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=%201", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=9223372036855", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=18446744073709551616", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=" + "9" * 5000, b"x", 400, "INVALID_DEFER"),
        # Of several errors the first is reported: size, body, topic, delay.
        ("/pub", b"x" * 11, 413, "MSG_TOO_BIG"),
        ("/pub?topic=%zz", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=a%24&defer=abc", b"x", 400, "INVALID_TOPIC"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_publish_refusals(target, body, status, message, chunked):
    async with running(max_msg_size=10) as api:
        assert await api.refusal("POST", target, body, chunked=chunked) == (status, message)
        assert all(topic.message_count == 0 for topic in api.broker.topics.values())


async def test_the_topic_is_created_before_the_delay_is_checked():
    async with running() as api:
        await api.refusal("POST", "/pub?topic=made&defer=abc", b"x")
        assert b"made" in api.broker.topics


async def test_limits_are_inclusive():
    async with running(max_msg_size=10, max_body_size=30) as api:
        await api.post("/pub?topic=t&defer=3600000", b"x" * 10)
        await api.post("/mpub?topic=t", b"x" * 10 + b"\n" + b"y" * 10 + b"\n" + b"z" * 8)
        assert len(api.bodies(b"t")) == 4


@pytest.mark.parametrize(
    ("query", "body", "bodies"),
    [
        ("", b"one\ntwo\n\nthree\n", [b"one", b"two", b"three"]),
        ("", b"one\r\ntwo", [b"one\r", b"two"]),
        ("", b"", []),
        ("&binary=false", b"a\nb", [b"a", b"b"]),
        ("&binary=0", b"a\nb", [b"a", b"b"]),
        ("&binary=true", batch(b"a\nb", b"c"), [b"a\nb", b"c"]),
        ("&binary=1", batch(b"a"), [b"a"]),
        ("&binary=odd", batch(b"a"), [b"a"]),
        ("&binary=", batch(b"a"), [b"a"]),
        ("&binary", batch(b"a"), [b"a"]),
        ("&binary=true", batch(b"a") + b"nothing to nsqd", [b"a"]),
    ],
)
async def test_multi_publish(query, body, bodies):
    async with running() as api:
        assert await api.post(f"/mpub?topic=t{query}", body) == "OK"
        assert api.bodies(b"t") == bodies


async def test_topic_that_is_deleted_while_the_body_comes_is_created_again():
    async with running() as api, anyio.create_task_group() as tasks:
        client, server = memory_pair()
        tasks.start_soon(api._api.serve, server, "10.0.0.1:99")
        await client.send(b"POST /mpub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nx")
        await anyio.wait_all_tasks_blocked()
        await api.post("/topic/delete?topic=t")
        await client.send(b"yz\n")
        assert (await client.receive()).startswith(b"HTTP/1.1 200 OK")
        assert api.bodies(b"t") == [b"xyz"]
        await client.aclose()


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/mpub?topic=t", b"x\n" * 16, "BODY_TOO_BIG"),
        ("/mpub?topic=t", b"ok\n" + b"x" * 11, "MSG_TOO_BIG"),
        ("/mpub?topic=t&binary=1", batch(b"ok", b"x" * 11), "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", batch(b""), "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", batch(b"ok", b"cut off")[:-1], "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", batch(b"ok", b"")[:-1], "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\1\xff\xff\xff\xff", "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\0", "BAD_BODY"),
        ("/mpub?topic=t&binary=1", b"\xff\xff\xff\xff", "BAD_BODY"),
        ("/mpub?topic=t&binary=1", b"\0\0\0\6", "BAD_BODY"),  # at most (30 - 4) / 5 fit
        ("/mpub?topic=t&binary=1", b"\0\0\0", "BAD_BODY"),
        ("/mpub?topic=t&binary=1", b"", "BAD_BODY"),
        ("/mpub?topic=t&binary=1", batch(*[b"x" * 10] * 3), "BODY_TOO_BIG"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_multi_publish_refusals(target, body, message, chunked):
    async with running(max_msg_size=10, max_body_size=30) as api:
        assert await api.refusal("POST", target, body, chunked=chunked) == (413, message)
        assert api.broker.topics.get(b"t") is None or not api.bodies(b"t")


async def test_a_too_long_line_is_reported_before_a_too_long_body():
    # Only without a length in the headers; nsqd then reads line by line.
    async with running(max_msg_size=10, max_body_size=30) as api:
        body = b"x" * 11 + b"\n" + b"y\n" * 20
        assert await api.refusal("POST", "/mpub?topic=t", body) == (413, "BODY_TOO_BIG")
        assert await api.refusal("POST", "/mpub?topic=t", body, chunked=True) == (413, "MSG_TOO_BIG")


@pytest.mark.parametrize(
    ("target", "message"),
    [("/mpub", "MISSING_ARG_TOPIC"), ("/mpub?topic=a%24", "INVALID_TOPIC"), ("/mpub?%", "INVALID_REQUEST")],
)
async def test_multi_publish_needs_a_topic(target, message):
    async with running() as api:
        assert await api.refusal("POST", target, b"x") == (400, message)


# ---- topics and channels --------------------------------------------------------------------------------------


async def test_topics_are_created_and_deleted():
    async with running() as api:
        assert await api.post("/topic/create?topic=t") == ""
        assert api.headers["Content-Length"] == "0"
        await api.post("/topic/create?topic=t")
        assert list(api.broker.topics) == [b"t"]
        await api.post("/topic/delete?topic=t")
        assert not api.broker.topics


async def test_channels_are_created_and_deleted():
    async with running() as api:
        await api.post("/topic/create?topic=t")
        await api.post("/channel/create?topic=t&channel=c%23ephemeral")
        await api.post("/channel/create?topic=t&channel=c%23ephemeral")
        assert list(api.broker.topics[b"t"].channels) == [b"c#ephemeral"]
        await api.post("/channel/delete?topic=t&channel=c%23ephemeral")
        assert not api.broker.topics[b"t"].channels


async def test_consumers_of_a_deleted_channel_are_disconnected():
    async with running() as api:
        consumer = api.nsqd.connect()
        await consumer.send(b"  V2SUB t c\n")
        await consumer.receive()
        await api.post("/channel/delete?topic=t&channel=c")
        with pytest.raises(EndOfStream):
            await consumer.receive()
        await consumer.aclose()


async def test_topics_are_emptied_and_paused():
    async with running() as api:
        await api.post("/mpub?topic=t", b"1\n2")
        topic = api.broker.topics[b"t"]
        await api.post("/topic/empty?topic=t")
        assert not topic.queue
        await api.post("/topic/pause?topic=t")
        assert topic.paused
        await api.post("/pub?topic=t", b"3")
        channel = topic.channel(b"c", START_NS)
        assert (len(topic.queue), len(channel.queue)) == (1, 0)
        await api.post("/topic/unpause?topic=t")
        assert (len(topic.queue), len(channel.queue)) == (0, 1)


async def test_channels_are_emptied_and_paused():
    async with running() as api:
        consumer = api.nsqd.connect()
        await consumer.send(b"  V2SUB t c\nRDY 5\n")
        await consumer.receive()
        await api.post("/channel/pause?topic=t&channel=c")
        channel = api.broker.topics[b"t"].channels[b"c"]
        assert channel.paused
        await api.post("/pub?topic=t", b"1")
        assert len(channel.queue) == 1
        await api.post("/channel/empty?topic=t&channel=c")
        assert not channel.queue
        await api.post("/pub?topic=t", b"2")
        await api.post("/channel/unpause?topic=t&channel=c")
        assert (await consumer.receive()).endswith(b"2")
        await consumer.aclose()


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=a%20b", 400, "INVALID_TOPIC"),
        ("/topic/empty", 400, "MISSING_ARG_TOPIC"),
        ("/topic/empty?topic=a%24", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=t", 404, "TOPIC_NOT_FOUND"),
        # These three do not check names.
        *(
            case
            for verb in ("delete", "pause", "unpause")
            for case in [
                (f"/topic/{verb}", 400, "MISSING_ARG_TOPIC"),
                (f"/topic/{verb}?topic=a%24", 404, "TOPIC_NOT_FOUND"),
                (f"/topic/{verb}?topic=t", 404, "TOPIC_NOT_FOUND"),
                (f"/topic/{verb}?topic=t;", 400, "INVALID_REQUEST"),
            ]
        ),
        *(
            case
            for verb in ("create", "delete", "empty", "pause", "unpause")
            for case in [
                (f"/channel/{verb}?channel=c", 400, "MISSING_ARG_TOPIC"),
                (f"/channel/{verb}?topic=a%24", 400, "INVALID_ARG_TOPIC"),
                (f"/channel/{verb}?topic=t", 400, "MISSING_ARG_CHANNEL"),
                (f"/channel/{verb}?topic=t&channel=%2F", 400, "INVALID_ARG_CHANNEL"),
                (f"/channel/{verb}?topic=t&channel=c", 404, "TOPIC_NOT_FOUND"),
            ]
        ),
        *(
            (f"/channel/{verb}?topic=there&channel=c", 404, "CHANNEL_NOT_FOUND")
            for verb in ("delete", "empty", "pause", "unpause")
        ),
    ],
)
async def test_topic_and_channel_refusals(target, status, message):
    async with running() as api:
        api.broker.topics.get_or_create(b"there")
        assert await api.refusal("POST", target) == (status, message)
        assert list(api.broker.topics) == [b"there"]


# ---- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "content_type"),
    [
        ("nsqlookupd_tcp_addresses", "[]", JSON_TYPE),
        ("max_msg_size", "1048576", JSON_TYPE),
        ("msg_timeout", "60000000000", JSON_TYPE),
        ("snappy", "true", JSON_TYPE),
        ("id", "7", JSON_TYPE),
        ("log_level", "2", JSON_TYPE),
        ("log_prefix", "[nsqd] ", TEXT_TYPE),
        ("tcp_address", "127.0.0.1:0", TEXT_TYPE),
        ("broadcast_http_port", "5", JSON_TYPE),
    ],
)
async def test_config_returns_options(name, text, content_type):
    async with running(node_id=7, broadcast_http_port=5) as api:
        assert await api.ask("GET", f"/config/{name}") == (200, text)
        assert api.headers["Content-Type"] == content_type


async def test_config_returns_a_configured_broadcast_port():
    async with running() as api:
        port = api.nsqd.tcp_address.rpartition(":")[2]
        assert await api.ask("GET", "/config/broadcast_tcp_port") == (200, port)


async def test_two_options_can_be_changed():
    async with running() as api:
        addresses = b'["127.0.0.1:9","b:4160"]'
        answer = await api.ask("PUT", "/config/nsqlookupd_tcp_addresses", addresses)
        assert answer == (200, addresses.decode())
        assert api.nsqd.options.lookupd_tcp_addresses == ("127.0.0.1:9", "b:4160")
        assert await api.ask("PUT", "/config/nsqlookupd_tcp_addresses", b"null") == (200, "[]")
        assert await api.ask("PUT", "/config/log_level", b"ERROR") == (200, "4")
        assert api.nsqd.options.log_level == "error"


@pytest.mark.parametrize(
    ("method", "name", "body", "status", "message"),
    [
        ("GET", "nope", b"", 400, "INVALID_OPTION"),
        ("PUT", "nope", b"5", 400, "INVALID_OPTION"),
        ("PUT", "mem_queue_size", b"5", 400, "INVALID_OPTION"),
        ("PUT", "nope", b"", 413, "INVALID_VALUE"),
        ("PUT", "log_level", b"x" * 100_001, 413, "INVALID_VALUE"),
        ("PUT", "log_level", b"loud", 400, "INVALID_VALUE"),
        ("PUT", "log_level", b"\xff", 400, "INVALID_VALUE"),
        ("PUT", "nsqlookupd_tcp_addresses", b"not json", 400, "INVALID_VALUE"),
        ("PUT", "nsqlookupd_tcp_addresses", b'"a:1"', 400, "INVALID_VALUE"),
        ("PUT", "nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"),
        ("PUT", "nsqlookupd_tcp_addresses", b"false", 400, "INVALID_VALUE"),
        ("PUT", "nsqlookupd_tcp_addresses", b"[" * 100_000, 400, "INVALID_VALUE"),
    ],
)
async def test_config_refusals(method, name, body, status, message):
    async with running(max_msg_size=100_000) as api:
        before = api.nsqd.options
        assert await api.refusal(method, f"/config/{name}", body) == (status, message)
        assert api.nsqd.options is before


# ---- all routes -----------------------------------------------------------------------------------------------


async def test_other_paths_and_methods_are_refused():
    async with running() as api:
        assert await api.refusal("GET", "/nope") == (404, "NOT_FOUND")
        assert await api.refusal("POST", "/put?topic=t", b"x") == (404, "NOT_FOUND")
        assert await api.refusal("POST", "/stats") == (405, "METHOD_NOT_ALLOWED")
        assert api.headers["Allow"] == "GET, OPTIONS"
        for method, path, _ in ROUTES:
            if "config" not in path:
                other = "GET" if method == "POST" else "POST"
                assert await api.refusal(other, path) == (405, "METHOD_NOT_ALLOWED")


async def test_requests_except_publishes_are_logged(caplog):
    caplog.set_level(logging.INFO, "nsqkit.broker")
    async with running() as api:
        caplog.clear()
        await api.post("/pub?topic=t", b"x")
        await api.post("/mpub?topic=t", b"x")
        await api.ask("GET", "/ping")
        await api.ask("POST", "/topic/delete?topic=none")
        assert caplog.messages == [
            "200 GET /ping (10.0.0.1:99) 0s",
            "404 POST /topic/delete?topic=none (10.0.0.1:99) 0s",
        ]
