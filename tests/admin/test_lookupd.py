from __future__ import annotations

import anyio
import pytest

from nsqkit.admin.lookupd import Lookup, LookupdAdmin
from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.lookup import Node
from tests.answering import PATIENT
from tests.lookupds import BAD, WAIT, Lookupds, lists

pytestmark = pytest.mark.anyio


async def test_topics_and_channels(nsqlookupd: NsqlookupdServer):
    admin = LookupdAdmin(nsqlookupd.http_address, **PATIENT)
    await admin.ping()
    assert await admin.version() == BROKER_VERSION
    assert await admin.topics() == []
    await admin.create_topic("t")
    await admin.create_channel("u", "c")
    assert sorted(await admin.topics()) == ["t", "u"]
    assert await admin.channels("u") == ["c"]
    assert await admin.channels("unknown") == []
    assert await admin.lookup("u") == Lookup(["c"], [])
    await admin.delete_channel("u", "c")
    await admin.delete_topic("t")
    assert await admin.topics() == ["u"]
    assert await admin.channels("u") == []


async def test_refusals_have_nsqlookupds_message(nsqlookupd: NsqlookupdServer):
    admin = LookupdAdmin(nsqlookupd.http_address, **PATIENT)
    with pytest.raises(RequestRefused) as caught:
        await admin.lookup("t")
    assert (caught.value.status, caught.value.message) == (404, "TOPIC_NOT_FOUND")
    with pytest.raises(RequestRefused, match=r"404 CHANNEL_NOT_FOUND$"):
        await admin.delete_channel("t", "c")


async def test_nodes_and_tombstones(nsqlookupd: NsqlookupdServer):
    admin = LookupdAdmin(nsqlookupd.http_address, **PATIENT)
    with NsqdServer(lookupd_tcp_address=nsqlookupd.tcp_address, topology_zone="z") as nsqd:
        for topic in ("t", "u"):
            await NsqdAdmin(nsqd.http_address, **PATIENT).create_topic(topic)
        with anyio.fail_after(WAIT):
            while sorted(await admin.topics()) != ["t", "u"]:
                await anyio.lowlevel.checkpoint()
        (node,) = (await admin.lookup("t")).nodes
        assert f"{node.broadcast_address}:{node.tcp_port}" == nsqd.tcp_address
        assert f"{node.broadcast_address}:{node.http_port}" == nsqd.http_address
        assert node.topology_zone == "z"
        await admin.tombstone_topic("t", node)
        await admin.tombstone_topic("u", f"127.0.0.1:{node.http_port + 1}")
        assert (await admin.lookup("t")).nodes == []
        assert (await admin.lookup("u")).nodes == [node]
        (registered,) = await admin.nodes()
        assert registered.node == node
        assert registered.topics == {"t": True, "u": False}
        await admin.tombstone_topic("u", nsqd.http_address)
        assert (await admin.lookup("u")).nodes == []


@pytest.mark.parametrize(
    "node",
    [Node(broadcast_address="::1", tcp_port=1, http_port=4151, version=""), "[::1]:4151"],
    ids=["node", "text"],
)
async def test_an_ipv6_address_is_sent_without_brackets(node):
    asked = []

    async def request(method, url, headers, body):
        asked.append((method, url))
        return 200, b""

    await LookupdAdmin("h:1", http_request=request).tombstone_topic("t", node)
    assert asked == [("POST", "http://h:1/topic/tombstone?topic=t&node=%3A%3A1%3A4151")]


async def test_invalid_names_are_not_sent():
    admin = LookupdAdmin("h:1")
    for call in (admin.lookup, admin.channels, admin.create_topic, admin.delete_topic):
        with pytest.raises(OptionError, match="topic name"):
            await call("a b")
    for call_with_channel in (admin.create_channel, admin.delete_channel):
        with pytest.raises(OptionError, match="channel name"):
            await call_with_channel("t", "a b")
    with pytest.raises(OptionError, match="address 'h'"):
        await admin.tombstone_topic("t", "h")


@pytest.mark.parametrize("bad", BAD)
async def test_an_unusable_answer_fails(bad):
    admin = LookupdAdmin("h:1", http_request=Lookupds({"h:1": BAD[bad]}))
    for call in (lambda: admin.lookup("t"), admin.topics, admin.nodes):
        with pytest.raises(RequestFailed, match=r"^http://h:1/"):
            await call()


async def test_an_old_nsqlookupd():
    network = Lookupds({"h:1": lists("a:1", enveloped=True)})
    found = await LookupdAdmin("h:1", http_request=network).lookup("t")
    assert [node.broadcast_address for node in found.nodes] == ["a"]
