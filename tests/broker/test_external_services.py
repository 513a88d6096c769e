"""A broker with auth servers and nsqlookupds, all over real sockets."""

from __future__ import annotations

import errno
import json
import logging
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.errors import OptionError
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.server import Nsqlookupd
from tests.answering import answering, http_answer

pytestmark = pytest.mark.anyio

ADDRESSES: dict[str, Any] = {
    "tcp_address": "127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "broadcast_address": "127.0.0.1",
}
GRANT = {
    "ttl": 60,
    "identity": "me",
    "authorizations": [{"topic": "^good$", "channels": [".*"], "permissions": ["publish", "subscribe"]}],
}


def body(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


async def frame(stream) -> bytes:
    data = b""
    with anyio.fail_after(60):
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += await stream.receive(1 if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data))
    return data[8:]


@asynccontextmanager
async def lookupd():
    async with Nsqlookupd(LookupdOptions(**ADDRESSES)) as server:
        yield server


async def until(happened):
    with anyio.fail_after(60):
        while not happened():
            await anyio.wait_all_tasks_blocked()
            await anyio.lowlevel.checkpoint()


async def test_a_client_gets_the_grant_of_the_auth_server():
    async with answering(lambda request: http_answer(json.dumps(GRANT).encode())) as server:
        options = BrokerOptions(**ADDRESSES, auth_http_addresses=(server.address,))
        async with Nsqd(options) as nsqd, nsqd.connect("10.0.0.1:5") as client:
            await client.send(b"  V2AUTH\n" + body(b"the secret") + b"PUB good\n" + body(b"x"))
            assert json.loads(await frame(client))["identity"] == "me"
            assert await frame(client) == b"OK"
            await client.send(b"PUB bad\n" + body(b"x"))
            assert await frame(client) == b'E_UNAUTHORIZED AUTH failed for PUB on "bad" ""'
    (request,) = server.requests
    assert b"secret=the+secret" in request
    assert b"remote_ip=10.0.0.1" in request


async def test_a_refusal_of_the_auth_server_is_a_failed_auth():
    async with answering(lambda request: http_answer(b"{}", status="403 Forbidden")) as server:
        options = BrokerOptions(**ADDRESSES, auth_http_addresses=(server.address,))
        async with Nsqd(options) as nsqd, nsqd.connect() as client:
            await client.send(b"  V2AUTH\n" + body(b"s"))
            assert await frame(client) == b"E_AUTH_FAILED AUTH failed"


async def test_a_failed_auth_is_one_line_of_the_log_without_secrets(caplog):
    caplog.set_level(logging.INFO, "nsqkit.broker")
    async with answering(lambda request: http_answer(b"who?\n", status="403 Forbidden")) as server:
        options = BrokerOptions(**ADDRESSES, auth_http_addresses=(f"http://user:hush@{server.address}/auth?k=v",))
        async with Nsqd(options) as nsqd, nsqd.connect("10.0.0.1:5") as client:
            await client.send(b"  V2AUTH\n" + body(b"my secret"))
            assert await frame(client) == b"E_AUTH_FAILED AUTH failed"
            await until(lambda: "exiting" in caplog.text)
    reason = f"failed to auth against http://{server.address}/auth - got response 403 who?"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"[10.0.0.1:5] - E_AUTH_FAILED AUTH failed - {reason}"
    ]


async def test_a_failed_auth_of_a_disconnected_client_is_logged(caplog):
    async with answering(lambda request: http_answer(b"", status="403 Forbidden")) as server:
        options = BrokerOptions(**ADDRESSES, auth_http_addresses=(server.address,))
        async with Nsqd(options) as nsqd:
            session = nsqd.broker.open_session("10.0.0.1:5", nsqd.clock.now_ns())
            session.receive_data(b"  V2AUTH\n" + body(b"s"), nsqd.clock.now_ns())
            nsqd.broker.close_session(session, nsqd.clock.now_ns())
            nsqd.process_changes()
            await until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.getMessage().startswith("PROTOCOL(V2): [10.0.0.1:5] AUTH failed failed to auth against ")


async def test_a_broker_with_auth_servers_does_not_start_without_google_re2(monkeypatch):
    monkeypatch.setattr("nsqkit.broker.auth.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'nsqkit\[server\]'$"):
        async with Nsqd(BrokerOptions(**ADDRESSES, auth_http_addresses=("a:1",))):
            pass


async def test_topics_and_channels_are_announced_and_withdrawn():
    async with lookupd() as other:
        options = BrokerOptions(**ADDRESSES, lookupd_tcp_addresses=(other.tcp_address,))
        async with Nsqd(options) as nsqd:
            nsqd.broker.topics.get_or_create(b"t").channel(b"c", nsqd.clock.now_ns())
            nsqd.process_changes()
            await until(lambda: other.registry.channels(b"t") == [b"c"])
            nsqd.broker.delete_topic(b"t")
            nsqd.process_changes()
            await until(lambda: not other.registry.producers(b"t", nsqd.clock.now_ns()))


async def test_an_nsqlookupd_may_be_added_while_the_broker_runs():
    async with lookupd() as other, Nsqd(BrokerOptions(**ADDRESSES)) as nsqd:
        nsqd.broker.topics.get_or_create(b"t")
        nsqd.options = attrs.evolve(nsqd.options, lookupd_tcp_addresses=(other.tcp_address,))
        nsqd.process_changes()
        await until(lambda: other.registry.topics() == [b"t"])


async def test_a_new_topic_starts_with_the_channels_of_the_nsqlookupds():
    async with lookupd() as other:
        options = BrokerOptions(**ADDRESSES, lookupd_tcp_addresses=(other.tcp_address,))
        async with Nsqd(options) as nsqd, nsqd.connect() as client:
            other.registry.create_channel(b"t", b"c")
            other.registry.create_channel(b"t", b"d#ephemeral")
            announcer = nsqd._external_services and nsqd._external_services._announcer
            assert announcer
            await until(lambda: announcer.http_addresses)
            await client.send(b"  V2PUB t\n" + body(b"x"))
            assert await frame(client) == b"OK"
            topic = nsqd.broker.topics[b"t"]
            await until(lambda: list(topic.channels) == [b"c"])
            assert len(topic.channels[b"c"].queue) == 1


async def test_a_new_topic_starts_without_a_listed_channel_that_cannot_be_opened(tmp_path, monkeypatch, caplog):
    async with lookupd() as other:
        options = BrokerOptions(
            **ADDRESSES, data_path=str(tmp_path), durability="fsync", lookupd_tcp_addresses=(other.tcp_address,)
        )
        async with Nsqd(options) as nsqd, nsqd.connect() as client:
            for name in (b"c", b"d"):
                other.registry.create_channel(b"t", name)
            announcer = nsqd._external_services and nsqd._external_services._announcer
            assert announcer
            await until(lambda: announcer.http_addresses)
            open_queue = nsqd.broker.storage.open_queue

            def open_or_fail(name, *, ephemeral):
                if name == b"t:c":
                    raise OSError(errno.EMFILE, "Too many open files")
                return open_queue(name, ephemeral=ephemeral)

            monkeypatch.setattr(nsqd.broker.storage, "open_queue", open_or_fail)
            await client.send(b"  V2PUB t\n" + body(b"x"))
            assert await frame(client) == b"OK"
            topic = nsqd.broker.topics[b"t"]
            await until(lambda: list(topic.channels) == [b"d"])
            assert len(topic.channels[b"d"].queue) == 1
            await client.send(b"SUB t d\n")
            assert await frame(client) == b"OK"
    assert "channel t:c, which an nsqlookupd lists, cannot be opened: Too many open files" in caplog.text
