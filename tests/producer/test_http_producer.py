from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from nsqkit.client.serializers import JSON
from nsqkit.errors import OptionError, RequestFailed, RequestRefused
from nsqkit.options.checks import make_options
from nsqkit.producer.http_producer import HTTPProducer, HTTPProducerKeywords, HTTPProducerOptions
from tests.answering import answering, http_answer
from tests.wrong_options import check_option, declared_types, keyword_types, names

pytestmark = pytest.mark.anyio

OK = http_answer(b"OK")


def ok(request: bytes) -> bytes:
    return OK


def refusing(status: str) -> Callable[[bytes], bytes]:
    return lambda request: http_answer(b'{"message":"NO"}', status=status)


def asked(request: bytes) -> tuple[bytes, bytes]:
    """Return the first line of a request, without the version, and its body."""
    head, _, body = request.partition(b"\r\n\r\n")
    return head.partition(b" HTTP/1.1")[0], body


def producer(*addresses: str, **options: Any) -> HTTPProducer:
    return HTTPProducer(*addresses, connect_timeout=15, publish_timeout=15, **options)


@pytest.mark.parametrize("name", names(HTTPProducerOptions))
def test_a_wrong_option_is_refused_by_name_value_and_limits(name):
    check_option(lambda **options: make_options(HTTPProducerOptions, options), name)


def test_the_keywords_are_the_options():
    assert declared_types(HTTPProducerKeywords) == keyword_types(HTTPProducerOptions)


@pytest.mark.parametrize(
    ("addresses", "sentence"),
    [
        ((), "nsqd_http_addresses is empty"),
        (("nsqd:port",), "nsqd:port"),
        ((5,), "holds 5; allowed are texts"),
    ],
)
def test_a_wrong_address_is_refused(addresses, sentence):
    with pytest.raises(OptionError, match=sentence):
        HTTPProducer(*addresses)


async def test_publish_methods_send_their_requests():
    async with answering(ok) as server:
        http = producer(server.address)
        await http.publish("t#ephemeral", b"hello")
        await http.deferred_publish("t", b"later", 1.2345)
        await http.multi_publish("t", [b"a", b"bb"])
        await http.multi_publish("t", [b"a", b"b"])
        assert [asked(request) for request in server.requests] == [
            (b"POST /pub?topic=t%23ephemeral", b"hello"),
            (b"POST /pub?topic=t&defer=1234", b"later"),
            (b"POST /mpub?topic=t&binary=true", b"\0\0\0\2\0\0\0\1a\0\0\0\2bb"),
            (b"POST /mpub?topic=t&binary=true", b"\0\0\0\2\0\0\0\1a\0\0\0\1b"),
        ]


async def test_other_methods_send_their_requests():
    async with answering(ok) as server:
        http = producer(server.address)
        await http.ping()
        await http.ensure_topic("t")
        await http.ensure_channel("t", "c")
        assert [asked(request)[0] for request in server.requests] == [
            b"GET /ping",
            b"POST /topic/create?topic=t",
            b"POST /topic/create?topic=t",
            b"POST /channel/create?topic=t&channel=c",
        ]


async def test_a_serializer_makes_the_body():
    async with answering(ok) as server:
        await producer(server.address, serializer=JSON).publish("t", {"n": 1})
        assert asked(server.requests[0])[1] == b'{"n":1}'


async def test_nsqds_are_used_in_turn():
    async with answering(ok) as one, answering(ok) as two:
        http = producer(one.address, two.address)
        for _ in range(4):
            await http.publish("t", b"x")
        assert [len(server.requests) for server in (one, two)] == [2, 2]


async def test_wrong_argument_sends_no_request():
    async with answering(ok) as server:
        http = producer(server.address, max_msg_size=10)
        for call in (
            http.publish("a b", b"x"),
            http.publish("t", b""),
            http.publish("t", b"x" * 11),
            http.multi_publish("t", []),
            http.deferred_publish("t", b"x", -1),
        ):
            with pytest.raises(OptionError):
                await call
        assert server.requests == []


async def test_one_attempt_is_one_request():
    async with answering(lambda _: b"") as bad, answering(ok) as good:
        with pytest.raises(RequestFailed):
            await producer(bad.address, good.address).publish("t", b"x")
        assert good.requests == []


@pytest.mark.parametrize(
    "answer", [lambda request: b"", refusing("500 Internal Server Error")], ids=["silent", "at fault"]
)
async def test_another_attempt_uses_the_next_nsqd(answer):
    async with answering(answer) as bad, answering(ok) as good:
        await producer(bad.address, good.address, publish_attempts=2).publish("t", b"x")
        assert [len(server.requests) for server in (bad, good)] == [1, 1]


async def test_another_attempt_uses_the_next_nsqd_beside_other_publishes():
    async with answering(lambda _: b"") as bad, answering(ok) as good:
        http = producer(bad.address, good.address, publish_attempts=2)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(http.publish, "t", b"x")
        assert [len(server.requests) for server in (bad, good)] == [2, 4]


async def test_error_of_the_last_attempt_is_raised():
    async with answering(refusing("500 Internal Server Error")) as bad:
        with pytest.raises(RequestRefused, match="500 NO"):
            await producer(bad.address, publish_attempts=3).publish("t", b"x")
        assert len(bad.requests) == 3


async def test_refusal_after_an_attempt_that_may_have_arrived_is_not_raised():
    async with answering(lambda _: b"") as silent, answering(refusing("413 Request Entity Too Large")) as bad:
        with pytest.raises(RequestFailed) as caught:
            await producer(silent.address, bad.address, publish_attempts=2).publish("t", b"x")
        assert not isinstance(caught.value, RequestRefused)
        assert len(bad.requests) == 1


async def test_an_answer_that_is_not_of_nsqd_is_a_failure():
    async with answering(lambda _: http_answer(b"<html>log in</html>")) as proxy:
        for attempts in (1, 2):
            with pytest.raises(RequestFailed) as caught:
                await producer(proxy.address, publish_attempts=attempts).publish("t", b"x")
            assert str(caught.value) == (
                f"http://{proxy.address}/pub: the answer is '<html>log in</html>'; nsqd's is 'OK'"
            )
        assert len(proxy.requests) == 3


async def test_a_redirect_to_another_page_is_a_failure():
    redirect = http_answer(b"", "Location: /login?secret", status="302 Found")
    async with answering(lambda request: redirect if request.startswith(b"POST") else OK) as proxy:
        with pytest.raises(RequestFailed) as caught:
            await producer(proxy.address).publish("t", b"x")
        start = f"http://{proxy.address}"
        assert str(caught.value) == f"{start}/pub: the POST got response 302, a redirect to {start}/login"
        assert len(proxy.requests) == 1


async def test_refused_publish_is_not_sent_again():
    async with answering(refusing("413 Request Entity Too Large")) as bad, answering(ok) as good:
        with pytest.raises(RequestRefused, match="413 NO"):
            await producer(bad.address, good.address, publish_attempts=2).publish("t", b"x")
        assert good.requests == []
