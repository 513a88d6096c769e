from __future__ import annotations

import json

import pytest

from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.http.daemon import Daemon
from nsqkit.producer.creation import create_channel, create_topic, daemons_at
from tests.answering import answering, http_answer

pytestmark = pytest.mark.anyio


def at(*addresses: str) -> list[Daemon]:
    return daemons_at(addresses, connect_timeout=15, request_timeout=15)


def line(request: bytes) -> bytes:
    return request.partition(b"\r\n")[0]


async def test_every_nsqd_creates_the_topic():
    async with answering(lambda _: http_answer(b"")) as one, answering(lambda _: http_answer(b"")) as two:
        await create_topic(at(one.address, two.address), "t#ephemeral")
        for server in (one, two):
            assert [line(request) for request in server.requests] == [
                b"POST /topic/create?topic=t%23ephemeral HTTP/1.1"
            ]


async def test_channel_is_created_after_its_topic():
    async with answering(lambda _: http_answer(b"")) as server:
        await create_channel(at(server.address), "t", "c")
        assert [line(request) for request in server.requests] == [
            b"POST /topic/create?topic=t HTTP/1.1",
            b"POST /channel/create?topic=t&channel=c HTTP/1.1",
        ]


async def test_refusal_is_raised_with_the_text_of_nsqd():
    refusal = http_answer(json.dumps({"message": "TOPIC_NOT_FOUND"}).encode(), status="404 Not Found")
    async with answering(lambda _: refusal) as server:
        with pytest.raises(RequestRefused) as caught:
            await create_topic(at(server.address), "t")
        assert (caught.value.status, caught.value.message) == (404, "TOPIC_NOT_FOUND")


async def test_lost_connection_to_nsqd_is_an_error():
    async with answering(lambda _: b"") as server:
        with pytest.raises(RequestFailed):
            await create_topic(at(server.address), "t")


def test_refused_list_shows_no_password():
    with pytest.raises(OptionError, match=r"^nsqd_http_addresses is 'http://h:4151'; "):
        daemons_at("http://admin:secret@h:4151", connect_timeout=15, request_timeout=15)


async def test_wrong_name_sends_no_request():
    async with answering(lambda _: http_answer(b"")) as server:
        with pytest.raises(OptionError, match="topic name"):
            await create_topic(at(server.address), "a b")
        with pytest.raises(OptionError, match="channel name"):
            await create_channel(at(server.address), "t", "a b")
        assert server.requests == []


async def test_creation_without_addresses_is_refused():
    with pytest.raises(OptionError, match="nsqd_http_addresses is empty"):
        await create_topic([], "t")


@pytest.mark.parametrize("addresses", ["nsqd:4151", b"nsqd:4151", 5, None], ids=repr)
def test_addresses_are_a_list(addresses):
    with pytest.raises(OptionError, match="nsqd_http_addresses is"):
        daemons_at(addresses, connect_timeout=1, request_timeout=1)


def test_every_item_must_be_an_address():
    with pytest.raises(OptionError, match="nsqd"):
        daemons_at(["ftp://nsqd:4151"], connect_timeout=1, request_timeout=1)
