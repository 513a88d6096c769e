from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqkit import JSON, MSGPACK, TEXT, BlockingProducer, Consumer, HTTPProducer, Producer
from nsqkit.consumer import dead_letter
from nsqkit.consumer.dead_letter import (
    DeadLetter,
    GivenUp,
    LastAttempts,
    check_policy,
    discard,
)
from nsqkit.consumer.policy import policy_of
from nsqkit.errors import OptionError

MESSAGE: Any = SimpleNamespace(body=b"x", nsqd_address="nsqd:4150", id=b"0" * 16)


def given_up_of(body: bytes = b"x", error: Exception | None = None) -> GivenUp:
    return GivenUp(
        topic="t",
        channel="c",
        nsqd_address="nsqd:4150",
        id="0123456789abcdef",
        attempts=3,
        timestamp_ns=1,
        given_up_ns=2,
        body=body,
        error=error,
    )


class Publisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, topic: str, body: bytes, /) -> None:
        self.published.append((topic, body))


class BlockingPublisher:
    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []
        self.threads: set[int] = set()

    def publish(self, topic: str, body: bytes, /) -> None:
        self.threads.add(threading.get_ident())
        self.published.append((topic, body))


class AsyncCallable:
    async def __call__(self, message: object) -> None: ...


class TestGivenUp:
    @given(st.binary(), st.text())
    def test_an_envelope_is_decoded_to_what_was_encoded(self, body, text):
        given_up = given_up_of(body, ValueError(text))
        decoded = GivenUp.decode(given_up.encode())
        assert decoded == given_up
        assert (decoded.error, decoded.error_type, decoded.error_text) == (None, "ValueError", text)

    def test_an_error_without_a_text_has_that_of_tracebacks(self):
        class Broken(Exception):
            def __str__(self) -> str:
                raise AttributeError("detail")

        given_up = given_up_of(error=Broken())
        assert given_up.error_text == "<exception str() failed>"
        assert GivenUp.decode(given_up.encode()) == given_up

    def test_envelope_is_json(self):
        assert json.loads(given_up_of(b"\xff", KeyError("k")).encode()) == {
            "topic": "t",
            "channel": "c",
            "nsqd_address": "nsqd:4150",
            "id": "0123456789abcdef",
            "attempts": 3,
            "timestamp_ns": 1,
            "given_up_ns": 2,
            "body": "/w==",
            "error_type": "KeyError",
            "error_text": "'k'",
        }

    @given(
        st.one_of(
            st.binary(),
            st.builds(lambda value: json.dumps(value).encode(), st.dictionaries(st.text(), st.text())),
        )
    )
    def test_invalid_envelope_raises_value_error(self, body):
        with pytest.raises(ValueError, match="is not the envelope of a dead letter"):
            GivenUp.decode(body)


class TestPolicies:
    def test_invalid_topic_is_refused_by_constructor(self):
        with pytest.raises(OptionError, match="topic name"):
            DeadLetter(Publisher(), "not a topic")

    @pytest.mark.parametrize("producer", ["producer", None, Producer, BlockingProducer])
    def test_a_producer_that_cannot_publish_is_refused(self, producer):
        with pytest.raises(OptionError) as caught:
            DeadLetter(producer, "dead")
        assert str(caught.value) == f"producer is {producer!r}; allowed is a Producer or a BlockingProducer"

    @pytest.mark.parametrize(
        "policy",
        [discard, lambda message: None, lambda message, why: None, print, AsyncCallable()],
        ids=range(5),
    )
    def test_functions_of_one_or_two_arguments_are_accepted(self, policy):
        check_policy(policy)

    @pytest.mark.parametrize("policy", [None, "discard", lambda: None, lambda a, b, c: None], ids=range(4))
    def test_other_policies_are_refused(self, policy):
        with pytest.raises(OptionError, match="giving_up is "):
            check_policy(policy)


@pytest.mark.anyio
@pytest.mark.parametrize("serializer", [JSON, TEXT, MSGPACK], ids=repr)
@pytest.mark.parametrize("envelope", [False, True])
class TestSerializers:
    """The serializer of a producer does not change dead letters."""

    async def test_a_producer_publishes_the_bytes(self, nsqd, serializer, envelope):
        async with Producer(nsqd.tcp_address, serializer=serializer) as producer:
            await self.check(producer, nsqd, envelope)

    async def test_a_producer_over_http_publishes_the_bytes(self, nsqd, serializer, envelope):
        await self.check(HTTPProducer(nsqd.http_address, serializer=serializer), nsqd, envelope)

    async def test_a_blocking_producer_publishes_the_bytes(self, nsqd, serializer, envelope):
        with BlockingProducer(nsqd.tcp_address, serializer=serializer) as producer:
            await self.check(producer, nsqd, envelope)

    @staticmethod
    async def check(producer, nsqd, envelope):
        given_up = given_up_of()
        await policy_of(DeadLetter(producer, "dead", envelope=envelope))(MESSAGE, given_up)  # type: ignore[misc]
        async with Consumer("dead", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            message = await anext(consumer)
            message.finish()
            assert message.body == (given_up.encode() if envelope else b"x")


def test_discard_does_nothing():
    discard(MESSAGE)


class TestLastAttempts:
    def test_a_message_is_begun_once_until_it_is_forgotten(self):
        attempts = LastAttempts()
        assert attempts.begin(MESSAGE)
        assert not attempts.begin(MESSAGE)
        error = ValueError("no")
        attempts.fail(MESSAGE, error)
        assert attempts.error(MESSAGE) is error
        attempts.forget(MESSAGE)
        assert attempts.error(MESSAGE) is None
        assert attempts.begin(MESSAGE)

    def test_last_attempts_are_bounded(self, monkeypatch):
        monkeypatch.setattr(dead_letter, "REMEMBERED_MAX", 2)
        attempts = LastAttempts()
        messages: list[Any] = [SimpleNamespace(id=bytes([n]), nsqd_address="a") for n in range(3)]
        assert all(map(attempts.begin, messages))
        assert [attempts.begin(message) for message in reversed(messages)] == [False, False, True]
