from __future__ import annotations

import re

import anyio
import pytest

from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.lookup.lookupd_client import fetch_nsqds, fetch_topics, lookup_nsqds, lookup_topics
from nsqkit.lookup.options import ANSWER_SIZE_MAX, LookupOptions
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from tests.answering import answering, http_answer, unused_address
from tests.lookupds import BAD, NOT_FOUND, WAIT, Lookupds, entry, hangs, lists, says

pytestmark = pytest.mark.anyio


def options(lookupds: Lookupds, **values) -> LookupOptions:
    return LookupOptions(lookupd_http_request=lookupds, **values)


async def nsqds(lookupds: Lookupds, topic: str | None = "t") -> list[str]:
    return list(await fetch_nsqds(options(lookupds).daemon("l:1"), topic))


@pytest.mark.parametrize("enveloped", [False, True])
async def test_fetch_nsqds_returns_nsqds_of_topic(enveloped):
    lookupds = Lookupds({"l:1": lists("a:1", "b:2", "a:1", enveloped=enveloped)})
    assert await nsqds(lookupds) == ["a:1", "b:2"]
    assert lookupds.requests == [("l:1", "/lookup t")]


async def test_fetch_nsqds_without_topic_returns_all_nsqds():
    lookupds = Lookupds({"l:1": says({"producers": [entry("a:1", topics=["t"], tombstones=[True])]})})
    assert await nsqds(lookupds, None) == ["a:1"]
    assert lookupds.requests == [("l:1", "/nodes")]


async def test_unknown_topic_has_no_nsqds():
    assert await nsqds(Lookupds({"l:1": NOT_FOUND})) == []


@pytest.mark.parametrize("behaviour", BAD.values(), ids=BAD)
async def test_invalid_response_is_an_error(behaviour):
    with pytest.raises(RequestFailed, match=r"^http://l:1") as caught:
        await nsqds(Lookupds({"l:1": behaviour}))
    assert len(str(caught.value)) < 300


async def test_fetch_topics_returns_matching_topics():
    lookupds = Lookupds({"l:1": says({"topics": ["orders.eu", "orders.us", "reorders", "no name"]})})
    daemon = options(lookupds).daemon("l:1")
    assert list(await fetch_topics(daemon, re.compile(r"^orders\."))) == ["orders.eu", "orders.us"]
    assert list(await fetch_topics(daemon, re.compile(""))) == ["orders.eu", "orders.us", "reorders"]
    assert list(await fetch_topics(daemon, re.compile("x"))) == []
    assert lookupds.requests[0] == ("l:1", "/topics")


# ---- all of them, once ----------------------------------------------------------------------------------------


async def test_requests_to_several_nsqlookupds_are_concurrent():
    """Each nsqlookupd responds only after the other has its request."""
    lookupds = Lookupds()

    def waits_for(other: str, *found: str):
        async def answer():
            await lookupds.asked(other, 1)
            return lists(*found)("/lookup")

        return lambda path: answer()

    lookupds.behaviours = {"l:1": waits_for("m:1", "a:1"), "m:1": waits_for("l:1", "b:1", "a:1")}
    found = await lookup_nsqds(["l:1", "m:1"], "t", options=options(lookupds))
    assert sorted(found) == ["a:1", "b:1"]


@pytest.mark.parametrize("bad", [*BAD.values(), None], ids=[*BAD, "down"])
async def test_one_response_is_enough(bad, caplog):
    lookupds = Lookupds({"l:1": lists("a:1")} | ({"m:1": bad} if bad else {}))
    assert await lookup_nsqds(["m:1", "l:1"], "t", options=options(lookupds)) == ["a:1"]
    assert "nsqlookupd http://m:1: http://m:1" in caplog.text


async def test_empty_response_counts_as_response():
    lookupds = Lookupds({"l:1": NOT_FOUND})
    assert await lookup_nsqds(["l:1", "m:1"], "t", options=options(lookupds)) == []


async def test_request_times_out():
    how = options(Lookupds({"l:1": hangs}), lookupd_poll_timeout=0.1)
    with pytest.raises(RequestFailed, match=r"^http://l:1: no answer within 0\.1 seconds$"):
        await lookup_nsqds(["l:1"], "t", options=how)


async def test_no_response_is_an_error():
    lookupds = Lookupds({"l:1": BAD["500"]})
    with pytest.raises(RequestFailed, match=r"l:1/lookup: 500 INTERNAL_ERROR") as caught:
        await lookup_nsqds(["l:1", "m:1"], "t", options=options(lookupds))
    assert "http://m:1: ConnectionRefusedError" in str(caught.value)
    with pytest.raises(RequestFailed, match=r"^there is no nsqlookupd to ask$"):
        await lookup_topics([])


async def test_lookup_applies_filter_and_address_map():
    lookupds = Lookupds({"l:1": lists("a:1", "b:1")})
    how = options(lookupds, discovery_filter=lambda nodes: nodes[1:], address_map={"b:1": "localhost:2"})
    assert await lookup_nsqds(["l:1"], "t", options=how) == ["localhost:2"]


async def test_lookup_merges_topics():
    lookupds = Lookupds({"l:1": says({"topics": ["z", "b"]}), "m:1": says({"topics": ["b", "a"]})})
    assert await lookup_topics(["l:1", "m:1"], options=options(lookupds)) == ["a", "b", "z"]
    assert await lookup_topics(["l:1", "m:1"], "[ab]", options=options(lookupds)) == ["a", "b"]


async def test_invalid_arguments_are_refused_before_any_request():
    lookupds = Lookupds()
    with pytest.raises(OptionError, match="topic name"):
        await lookup_nsqds(["l:1"], "no name", options=options(lookupds))
    with pytest.raises(OptionError, match="address 'l'"):
        await lookup_nsqds(["l"], "t", options=options(lookupds))
    for pattern in ("(", None):
        with pytest.raises(OptionError, match=r"^pattern .* is no regular expression: "):
            await lookup_topics(["l:1"], pattern, options=options(lookupds))  # type: ignore[arg-type]
    assert lookupds.requests == []


# ---- over sockets ---------------------------------------------------------------------------------------------


async def test_lookup_with_real_nsqlookupd_and_nsqd(nsqlookupd: NsqlookupdServer):
    where = [nsqlookupd.http_address]
    assert await lookup_nsqds(where, "t") == []
    with NsqdServer(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await LookupOptions().daemon(nsqd.http_address).request("POST", "/topic/create", {"topic": "t"})
        with anyio.fail_after(WAIT):
            while await lookup_nsqds(where, "t") != [nsqd.tcp_address]:
                await anyio.lowlevel.checkpoint()
        assert await lookup_nsqds(where, None) == [nsqd.tcp_address]
        assert await lookup_topics(where, "^t$") == ["t"]


async def test_other_servers_are_described():
    silent = await unused_address()
    async with (
        answering(lambda request: b"SSH-2.0-OpenSSH\r\n\r\n") as garbage,
        answering(lambda request: b"") as hasty,
        answering(lambda request: http_answer(b" " * (ANSWER_SIZE_MAX + 1))) as talkative,
        answering(lambda request: http_answer(b"{}", status="503 Busy")) as busy,
    ):
        where = [server.address for server in (garbage, hasty, talkative, busy)]
        with pytest.raises(RequestFailed) as caught:
            await lookup_nsqds([*where, silent], "t")
    for address in (*where, silent):
        assert address in str(caught.value)
    for reason in ("illegal status line", "closed", "more than", "503"):
        assert reason in str(caught.value)


async def test_authorization_is_sent():
    async with answering(lambda request: http_answer(b'{"topics":[]}')) as server:
        how = LookupOptions(lookupd_authorization="Bearer token")
        await lookup_topics([server.address], options=how)
        await lookup_topics([f"http://me:pass@{server.address}"])
    assert b"\r\nAuthorization: Bearer token\r\n" in server.requests[0]
    assert b"\r\nAuthorization: Basic bWU6cGFzcw==\r\n" in server.requests[1]


async def test_refusal_differs_from_no_response():
    with pytest.raises(RequestRefused) as caught:
        await nsqds(Lookupds({"l:1": BAD["500"]}))
    assert caught.value.status == 500
