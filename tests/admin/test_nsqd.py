from __future__ import annotations

import json

import pytest

from nsqkit.admin.nsqd import NsqdAdmin
from nsqkit.admin.stats import MemoryStats, TopicStats
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.http.daemon import Daemon
from nsqkit.testing.servers import NsqdServer
from tests.answering import PATIENT, answering, http_answer
from tests.lookupds import BAD, Lookupds

pytestmark = pytest.mark.anyio


async def publish(server: NsqdServer, topic: str, body: bytes) -> None:
    daemon = Daemon(server.http_address, connect_timeout=15, request_timeout=15, body_max=100)
    assert await daemon.request("POST", "/pub", {"topic": topic}, body=body) == b"OK"


async def topic_stats(admin: NsqdAdmin, topic: str) -> TopicStats:
    (found,) = (await admin.stats(topic)).topics
    return found


async def test_info_of_an_nsqd(nsqd: NsqdServer):
    admin = NsqdAdmin(nsqd.http_address, **PATIENT)
    await admin.ping()
    info = await admin.info()
    assert f"127.0.0.1:{info.tcp_port}" == nsqd.tcp_address
    assert f"127.0.0.1:{info.http_port}" == nsqd.http_address
    assert info.max_heartbeat_interval == 60 * 10**9


async def test_the_life_of_a_topic(nsqd: NsqdServer):
    admin = NsqdAdmin(f"http://{nsqd.http_address}", **PATIENT)
    await admin.create_topic("t")
    await publish(nsqd, "t", b"hello")
    assert await topic_stats(admin, "t") == TopicStats(
        topic_name="t",
        depth=1,
        message_count=1,
        message_bytes=5,
        e2e_processing_latency=(await topic_stats(admin, "t")).e2e_processing_latency,
    )
    await admin.empty_topic("t")
    assert (await topic_stats(admin, "t")).depth == 0
    await admin.pause_topic("t")
    assert (await topic_stats(admin, "t")).paused
    await admin.unpause_topic("t")
    assert not (await topic_stats(admin, "t")).paused
    await admin.delete_topic("t")
    assert (await admin.stats()).topics == ()


async def test_the_life_of_a_channel(nsqd: NsqdServer):
    admin = NsqdAdmin(nsqd.http_address, **PATIENT)
    await admin.create_topic("t")
    await admin.create_channel("t", "c")
    await admin.create_channel("t", "d#ephemeral")
    await publish(nsqd, "t", b"hello")

    async def channels():
        return {channel.channel_name: channel for channel in (await topic_stats(admin, "t")).channels}

    assert {name: channel.depth for name, channel in (await channels()).items()} == {"c": 1, "d#ephemeral": 1}
    await admin.empty_channel("t", "c")
    await admin.pause_channel("t", "d#ephemeral")
    after = await channels()
    assert (after["c"].depth, after["d#ephemeral"].depth) == (0, 1)
    assert (after["c"].paused, after["d#ephemeral"].paused) == (False, True)
    await admin.unpause_channel("t", "d#ephemeral")
    assert not (await channels())["d#ephemeral"].paused
    await admin.delete_channel("t", "c")
    assert list(await channels()) == ["d#ephemeral"]


async def test_stats_of_one_topic_or_channel(nsqd: NsqdServer):
    admin = NsqdAdmin(nsqd.http_address, **PATIENT)
    for topic, channel in (("t", "c"), ("t", "d"), ("u", "d")):
        await admin.create_topic(topic)
        await admin.create_channel(topic, channel)

    async def names(topic: str = "", channel: str = "") -> list[str]:
        stats = await admin.stats(topic, channel, include_clients=False)
        return [f"{t.topic_name}/{c.channel_name}" for t in stats.topics for c in t.channels]

    assert await names() == ["t/c", "t/d", "u/d"]
    assert await names("t") == ["t/c", "t/d"]
    assert await names(channel="d") == ["t/d", "u/d"]
    assert await names("u", "d") == ["u/d"]
    assert await names("unknown") == []
    assert (await admin.stats()).memory is None
    assert isinstance((await admin.stats(include_mem=True)).memory, MemoryStats)


@pytest.mark.parametrize("include_clients", [True, False])
async def test_stats_with_clients_and_without(include_clients):
    asked = []

    async def request(method, url, headers, body):
        asked.append((method, url))
        return 200, b"{}"

    await NsqdAdmin("h:1", http_request=request).stats(include_clients=include_clients)
    query = f"format=json&include_clients={'true' if include_clients else 'false'}&include_mem=false"
    assert asked == [("GET", f"http://h:1/stats?{query}")]


async def test_options(nsqd: NsqdServer):
    admin = NsqdAdmin(nsqd.http_address, **PATIENT)
    assert await admin.get_config("mem_queue_size") == 10_000
    assert await admin.get_config("broadcast_address") == "127.0.0.1"
    assert await admin.put_config("nsqlookupd_tcp_addresses", []) == []
    await admin.put_config("log_level", "error")
    assert await admin.get_config("log_level") == await admin.put_config("log_level", "error")
    with pytest.raises(RequestRefused, match="400 INVALID_OPTION"):
        await admin.put_config("mem_queue_size", 1)
    for wrong in ("", "a b", "a/b", "ö", None):
        with pytest.raises(OptionError, match=r"^option name "):
            await admin.get_config(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "names", "status", "message"),
    [
        ("delete_topic", ["t"], 404, "TOPIC_NOT_FOUND"),
        ("empty_topic", ["t"], 404, "TOPIC_NOT_FOUND"),
        ("pause_topic", ["t"], 404, "TOPIC_NOT_FOUND"),
        ("unpause_topic", ["t"], 404, "TOPIC_NOT_FOUND"),
        ("create_channel", ["t", "c"], 404, "TOPIC_NOT_FOUND"),
        ("delete_channel", ["known", "c"], 404, "CHANNEL_NOT_FOUND"),
        ("empty_channel", ["known", "c"], 404, "CHANNEL_NOT_FOUND"),
        ("pause_channel", ["known", "c"], 404, "CHANNEL_NOT_FOUND"),
        ("unpause_channel", ["known", "c"], 404, "CHANNEL_NOT_FOUND"),
    ],
)
async def test_refusals_have_nsqds_message(nsqd: NsqdServer, method, names, status, message):
    admin = NsqdAdmin(nsqd.http_address, **PATIENT)
    await admin.create_topic("known")
    with pytest.raises(RequestRefused) as caught:
        await getattr(admin, method)(*names)
    assert (caught.value.status, caught.value.message) == (status, message)


@pytest.mark.parametrize("method", ["create_topic", "delete_topic", "empty_topic", "pause_topic", "unpause_topic"])
async def test_a_wrong_topic_is_not_sent(method):
    with pytest.raises(OptionError, match="topic name"):
        await getattr(NsqdAdmin("h:1"), method)("a b")


@pytest.mark.parametrize(
    "method", ["create_channel", "delete_channel", "empty_channel", "pause_channel", "unpause_channel"]
)
async def test_a_wrong_channel_is_not_sent(method):
    with pytest.raises(OptionError, match="channel name"):
        await getattr(NsqdAdmin("h:1"), method)("t", "a b")


async def test_wrong_names_of_stats_are_not_sent():
    for names in (("a b", ""), ("", "a b")):
        with pytest.raises(OptionError, match="name"):
            await NsqdAdmin("h:1").stats(*names)


@pytest.mark.parametrize("bad", ["500", "garbage", "no object", "nothing", "envelope of a refusal", "deep"])
async def test_an_unusable_answer_fails(bad):
    with pytest.raises(RequestFailed, match=r"^http://h:1/stats: "):
        await NsqdAdmin("h:1", http_request=Lookupds({"h:1": BAD[bad]})).stats()


async def test_stats_of_another_shape():
    body = json.dumps({"topics": [{"depth": "deep"}]}).encode()
    async with answering(lambda request: http_answer(body)) as server:
        with pytest.raises(RequestFailed, match=r"/stats: depth is of a kind that cannot be understood, str$"):
            await NsqdAdmin(server.address, **PATIENT).stats()


async def test_an_nsqd_at_a_unix_socket(tmp_path):
    path = str(tmp_path / "nsqd.sock")
    with NsqdServer(http_address=path):
        info = await NsqdAdmin(path, **PATIENT).info()
    assert info.http_port == -1
