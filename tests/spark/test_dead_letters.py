"""Dead letters: which messages they are, and what happens to those that are not accepted."""

from __future__ import annotations

import pytest

from nsqkit import Consumer, Message
from nsqkit.clock import LoopClock
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.spark.dead_letters import publish_dead_letters
from nsqkit.spark.options import ConsumerSpec
from nsqkit.testing import NsqdServer

pytestmark = pytest.mark.anyio


async def give_up(nsqd: NsqdServer, *poison: bytes) -> list[Message]:
    """Publish the messages of a consumer that exceed one delivery; return those that were accepted."""
    poison = poison or (b"poison",)
    nsqd.publish("t", *poison, b"good")
    spec = ConsumerSpec(
        topics=("t",), channel="c", nsqd_tcp_addresses=(nsqd.tcp_address,), max_attempts=1, dead_letter_topic="dead"
    )
    found: dict[bytes, Message] = {}
    async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10) as consumer:
        async for message in consumer:
            found[message.body] = message
            if message.body != b"good" and message.attempts == 1:
                message.requeue(0, backoff=False)
            elif b"good" in found and all(body in found and found[body].attempts == 2 for body in poison):
                break
        return await publish_dead_letters(spec, list(found.values()), LoopClock())


async def test_a_message_that_was_delivered_too_often_is_published():
    with NsqdServer() as nsqd:
        assert [message.body for message in await give_up(nsqd)] == [b"poison"]
        (letter,) = nsqd.messages("dead")
        given_up = GivenUp.decode(letter.body)
        assert (given_up.body, given_up.topic, given_up.channel, given_up.attempts) == (b"poison", "t", "c", 2)


async def test_a_message_that_is_not_accepted_is_requeued(caplog: pytest.LogCaptureFixture):
    with NsqdServer() as nsqd:
        nsqd.faults.error("E_PUB_FAILED", command="PUB", topic="dead")
        assert await give_up(nsqd) == []
        assert nsqd.topic("t").channel("c").deferred == 1
        assert "1 dead letters of" in caplog.text


@pytest.mark.parametrize(
    ("max_msg_size", "size"),
    [pytest.param(1000, 900, id="limit of nsqd"), pytest.param(2 << 20, 900_000, id="limit of the client")],
)
async def test_a_letter_that_is_too_large_costs_no_other_one(max_msg_size: int, size: int):
    """An envelope is a third longer than its message."""
    with NsqdServer(max_msg_size=max_msg_size) as nsqd:
        assert [message.body for message in await give_up(nsqd, b"p" * size, b"poison")] == [b"poison"]
        (letter,) = nsqd.messages("dead")
        assert GivenUp.decode(letter.body).body == b"poison"
        assert nsqd.topic("t").channel("c").deferred == 1
