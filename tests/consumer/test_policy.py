from __future__ import annotations

import threading

import pytest

from nsqkit import Producer
from nsqkit.consumer.dead_letter import DeadLetter
from nsqkit.consumer.policy import policy_in_thread, policy_of
from nsqkit.errors import OptionError
from tests.consumer.test_dead_letter import MESSAGE, AsyncCallable, BlockingPublisher, Publisher, given_up_of
from tests.peers import BACKENDS


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", BACKENDS)
class TestDeadLetter:
    async def test_policy_publishes_the_body_or_the_envelope(self):
        publisher = Publisher()
        await policy_of(DeadLetter(publisher, "dead"))(MESSAGE, given_up_of())  # type: ignore[misc]
        await policy_of(DeadLetter(publisher, "dead", envelope=True))(MESSAGE, given_up_of())  # type: ignore[misc]
        assert publisher.published == [("dead", b"x"), ("dead", given_up_of().encode())]

    async def test_a_blocking_producer_publishes_in_a_thread(self):
        publisher = BlockingPublisher()
        await policy_of(DeadLetter(publisher, "dead"))(MESSAGE, given_up_of())  # type: ignore[misc]
        assert publisher.published == [("dead", b"x")]
        assert threading.get_ident() not in publisher.threads

    async def test_blocking_consumer_requires_a_blocking_producer(self):
        publisher = BlockingPublisher()
        policy = policy_in_thread(DeadLetter(publisher, "dead"), lambda message: message)
        await policy(MESSAGE, given_up_of())  # type: ignore[misc]
        assert publisher.published == [("dead", b"x")]
        for producer in (Publisher(), Producer("127.0.0.1:4150")):
            with pytest.raises(OptionError, match="allowed in a BlockingConsumer is one with a BlockingProducer"):
                policy_in_thread(DeadLetter(producer, "dead"), lambda message: message)


def test_async_policy_in_a_blocking_consumer_is_refused():
    async def bury(message: object) -> None: ...

    for policy in (bury, AsyncCallable()):
        with pytest.raises(OptionError, match="is async; allowed is a plain function"):
            policy_in_thread(policy, lambda message: message)
