from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import EndOfStream

from nsqkit.clock import ManualClock
from nsqkit.http.messages import Request
from nsqkit.lookupd.http_api import ROUTES, HTTPApi, debug
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.transport.memory import memory_pair
from nsqkit.wire.lookup import Node

pytestmark = pytest.mark.anyio

START_NS = 1_704_067_200 * 10**9
JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"

PEER = {
    "remote_address": "10.0.0.1:1",
    "hostname": "h",
    "broadcast_address": "b",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
TOPOLOGY = {"topology_zone": "z", "topology_region": "r"}


class Api:
    """The routes of a running nsqlookupd."""

    def __init__(self, lookupd: Nsqlookupd, clock: ManualClock) -> None:
        self.lookupd = lookupd
        self.clock = clock
        self.registry = lookupd.registry
        self.api = HTTPApi(lookupd.registry, clock)
        self.headers: dict[str, str] = {}

    def add_peer(self, broadcast_address="b", remote_address="10.0.0.1:1"):
        node = Node(
            broadcast_address=broadcast_address,
            hostname="h",
            tcp_port=4150,
            http_port=4151,
            version="1.3.0",
            topology_zone="z",
            topology_region="r",
        )
        return self.registry.add_peer(remote_address, node, self.clock.now_ns())

    async def ask(self, method, target):
        """Return status and text of the answer; its headers are kept in ``self.headers``."""
        client, server = memory_pair()
        head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.api.serve, server, "10.0.0.1:99")
            await client.send(head.encode())
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

    async def get(self, target):
        """Return the document of a successful answer."""
        status, text = await self.ask("GET", target)
        assert (status, self.headers["Content-Type"]) == (200, JSON_TYPE), text
        assert self.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
        return json.loads(text)

    async def post(self, target):
        """Check that the answer has status 200 and no body."""
        assert await self.ask("POST", target) == (200, "")
        assert "Content-Type" not in self.headers
        assert self.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


@asynccontextmanager
async def running(**options):
    clock = ManualClock()
    given = LookupdOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", **options)
    async with Nsqlookupd(given, clock=clock) as lookupd:
        yield Api(lookupd, clock)


async def test_ping_is_plain_text():
    async with running() as api:
        assert await api.ask("GET", "/ping?;") == (200, "OK")
        assert api.headers["Content-Type"] == TEXT_TYPE
        assert "X-Nsq-Content-Type" not in api.headers


async def test_info_returns_the_version():
    async with running() as api:
        assert await api.ask("GET", "/info") == (200, '{"version":"1.3.0"}')


async def test_without_registrations_every_list_is_empty():
    async with running() as api:
        assert await api.ask("GET", "/topics") == (200, '{"topics":[]}')
        assert await api.ask("GET", "/nodes") == (200, '{"producers":[]}')
        assert await api.ask("GET", "/channels?topic=t") == (200, '{"channels":[]}')
        assert await api.ask("GET", "/debug") == (200, "{}")
        await api.post("/topic/create?topic=t")
        assert await api.ask("GET", "/lookup?topic=t") == (200, '{"channels":[],"producers":[]}')


async def test_lookup_returns_channels_and_producers():
    async with running() as api:
        api.registry.register(api.add_peer(), b"t", b"c")
        api.add_peer("without")
        found = await api.get("/lookup?topic=t")
        assert found == {"channels": ["c"], "producers": [PEER | TOPOLOGY]}
        assert list(found["producers"][0]) == [*PEER, *TOPOLOGY]
        assert await api.get("/lookup?topic=*") == found


async def test_nodes_returns_topics_and_tombstones():
    async with running() as api:
        peer = api.add_peer()
        api.registry.register(peer, b"t")
        api.registry.register(peer, b"u", b"c")
        await api.post("/topic/tombstone?topic=u&node=b:4151")
        (found,) = (await api.get("/nodes"))["producers"]
        assert found == PEER | TOPOLOGY | {"topics": ["t", "u"], "tombstones": [False, True]}
        assert list(found) == [*PEER, "tombstones", "topics", *TOPOLOGY]


async def test_debug_returns_all_registrations_with_a_peer():
    async with running() as api:
        peer = api.add_peer()
        api.registry.register(peer, b"t", b"c")
        api.registry.register(peer, b"a")
        await api.post("/topic/create?topic=unknown")
        await api.post("/topic/tombstone?topic=t&node=b:4151")
        found = await api.get("/debug")
        entry = {
            **{key: value for key, value in PEER.items() if key != "remote_address"},
            **TOPOLOGY,
            "id": "10.0.0.1:1",
            "last_update": START_NS,
            "tombstoned": False,
            "tombstoned_at": -6795364578871345152,
        }
        assert list(found) == sorted(found)
        assert found == {
            "client::": [entry],
            "channel:t:c": [entry],
            "topic:a:": [entry],
            "topic:t:": [entry | {"tombstoned": True, "tombstoned_at": START_NS}],
        }
        assert all(list(each) == sorted(each) for (each,) in found.values())


async def test_activity_and_tombstones_follow_the_clock():
    async with running(inactive_producer_timeout_ns=100 * 10**9, tombstone_lifetime_ns=10**9) as api:
        api.registry.register(api.add_peer(), b"t")
        await api.post("/topic/tombstone?topic=t&node=b:4151")
        assert (await api.get("/lookup?topic=t"))["producers"] == []
        api.clock.advance(1)
        assert len((await api.get("/lookup?topic=t"))["producers"]) == 1
        assert (await api.get("/nodes"))["producers"][0]["tombstones"] == [False]
        api.clock.advance(100)
        assert (await api.get("/lookup?topic=t"))["producers"] == []
        assert (await api.get("/nodes"))["producers"] == []


async def test_a_tombstone_is_for_one_address():
    async with running() as api:
        for n, address in enumerate(["b", "é&", "::1"]):
            api.registry.register(api.add_peer(address, f"10.0.0.1:{n}"), b"t")
        for node in ("b:4150", "%C3%A9&:4151", "[::1]:4151"):
            await api.post(f"/topic/tombstone?topic=t&node={node}")
        assert len((await api.get("/lookup?topic=t"))["producers"]) == 3
        for node in ("%C3%A9%26:4151", "::1:4151"):
            await api.post(f"/topic/tombstone?topic=t&node={node}")
        (left,) = (await api.get("/lookup?topic=t"))["producers"]
        assert left["broadcast_address"] == "b"


async def test_topics_and_channels_come_and_go():
    async with running() as api:
        await api.post("/channel/create?topic=t&channel=c")
        await api.post("/channel/create?topic=t&channel=d%23ephemeral")
        await api.post("/topic/create?topic=u")
        assert await api.get("/topics") == {"topics": ["t", "u"]}
        assert await api.get("/channels?topic=t") == {"channels": ["c", "d#ephemeral"]}
        await api.post("/channel/delete?topic=t&channel=c")
        assert await api.get("/channels?topic=*") == {"channels": ["d#ephemeral"]}
        await api.post("/topic/delete?topic=t")
        assert await api.get("/channels?topic=t") == {"channels": []}
        assert await api.get("/topics") == {"topics": ["u"]}
        await api.post("/topic/delete?topic=*")
        assert await api.get("/topics") == {"topics": []}


@pytest.mark.parametrize(
    ("method", "target", "status", "message"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=t&a;b", 400, "INVALID_REQUEST"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=a%24", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=*", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=*", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?node=b:4151", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=%FF", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=*", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=*&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("GET", "/", 404, "NOT_FOUND"),
    ],
)
async def test_refusals(method, target, status, message):
    async with running() as api:
        assert await api.ask(method, target) == (status, f'{{"message":"{message}"}}')
        assert api.headers["Content-Type"] == JSON_TYPE
        assert api.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


@pytest.mark.parametrize("path", ["/debug/pprof", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1"])
async def test_profiles_have_the_paths_of_nsqlookupd(path, caplog):
    caplog.set_level(logging.INFO, "nsqkit.lookupd")
    async with running() as api:
        status, text = await api.ask("GET", path)
        assert (status, bool(text)) == (200, True)
        assert "X-Nsq-Content-Type" not in api.headers
    assert not any("pprof" in message for message in caplog.messages)


async def test_every_request_is_logged(caplog):
    caplog.set_level(logging.INFO, "nsqkit.lookupd")
    async with running() as api:
        caplog.clear()
        await api.ask("GET", "/ping")
        await api.ask("GET", "/lookup?topic=t")
    assert caplog.messages[:2] == [
        "200 GET /ping (10.0.0.1:99) 0s",
        "404 GET /lookup?topic=t (10.0.0.1:99) 0s",
    ]


async def test_each_route_is_there_once():
    assert len({(method, path) for method, path, _ in ROUTES}) == len(ROUTES)


async def test_debug_is_sent_in_pieces_while_registrations_change():
    async with running() as api:
        peer = api.add_peer()
        for number in range(2000):
            api.registry.register(peer, b"t%d" % number, b"c")
        response = debug(api.api, Request.of("GET", "/debug"))
        found = bytearray()
        for piece in response.pieces:
            found += piece
            api.registry.remove_peer(peer, 100)
        document = json.loads(found)
        assert list(document) == sorted(document)
        assert 100 < len(document) < 4001


async def test_debug_has_go_nsqlookupds_order_of_keys():
    names = [b"a", b"a.b", b"a-b", b"a#ephemeral", b"ab", b"a0", b"b"]
    async with running() as api:
        for topic in names:
            for channel in names:
                api.registry.register(api.add_peer(), topic, channel)
        document = json.loads(b"".join(debug(api.api, Request.of("GET", "/debug")).pieces))
        assert list(document) == sorted(document)
        assert len(document) == 1 + len(names) + len(names) ** 2
