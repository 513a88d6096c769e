"""The consumers of a partition: connections, touches, limits and dead letters; on asyncio and trio."""

from __future__ import annotations

import pytest

from nsqkit import Consumer
from nsqkit.clock import NS_PER_S, LoopClock
from nsqkit.consumer.dead_letter import GivenUp
from nsqkit.errors import NotConnected, Unauthorized
from nsqkit.spark.batch_plan import PartitionShare, PlannedConnection
from nsqkit.spark.chunker import StopReason
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.reception import Reception, receiving
from nsqkit.testing import NsqdServer
from tests.spark.time_limits import FIRST_DELIVERY_MAX

pytestmark = pytest.mark.anyio

UNREACHABLE = "127.0.0.1:1"


def make_spec(*addresses: str, **options) -> ConsumerSpec:
    options = {"topics": "t", "empty_for": FIRST_DELIVERY_MAX, "linger": 0.01, **options}
    return ConsumerSpec(channel="c", nsqd_tcp_addresses=addresses, **options)


def make_share(*nodes: tuple[str, str], in_flight: int = 10, **limits) -> PartitionShare:
    connections = tuple(PlannedConnection(address, topic, in_flight) for address, topic in nodes)
    return PartitionShare(**{"index": 0, "connections": connections, "records_max": None, "bytes_max": None, **limits})


async def drain(reception: Reception) -> list[bytes]:
    bodies: list[bytes] = []
    while chunk := await reception.next_chunk():
        bodies += [message.body for message in chunk]
        await reception.finish(chunk)
    return bodies


async def test_one_partition_consumes_several_topics_of_several_nsqds():
    with NsqdServer() as one, NsqdServer() as two:
        for number, server in enumerate((one, two)):
            server.publish("a", b"a%d" % number)
            server.publish("b", b"b%d" % number)
        spec = make_spec(one.tcp_address, two.tcp_address, topics=["a", "b"])
        share = make_share(*((server.tcp_address, topic) for server in (one, two) for topic in "ab"))
        async with receiving(spec, share, LoopClock()) as reception:
            assert sorted(await drain(reception)) == [b"a0", b"a1", b"b0", b"b1"]
            assert reception.subscribed_count == 4
        assert reception.counts.finished == 4


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0.2),
        ({"empty_for": 2.0}, 2.0),
        ({"stop_after_linger": True}, 0.2),
        ({"stop_after_linger": True, "connection": {"output_buffer_timeout": 0.25}}, 0.5),
        ({"connection": {"output_buffer_timeout": 0.25}}, 0.5),
        ({"empty_for": None, "deadline": 1.0}, None),
    ],
)
async def test_an_nsqd_is_not_empty_before_it_has_sent_what_it_collects(options: dict[str, object], seconds: float):
    """With 0.25 s, batches of a stream ended after 0.2 s and left the same messages in nsqd's buffer, for ever."""
    spec = make_spec(UNREACHABLE, **{"empty_for": 0.2, **options})
    bounds = Reception(spec, make_share((UNREACHABLE, "t")), LoopClock()).chunker.bounds
    assert bounds.empty_for_ns == (None if seconds is None else seconds * NS_PER_S)


async def test_an_nsqd_that_may_be_lost_is_an_empty_one():
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"one")
        spec = make_spec(nsqd.tcp_address, UNREACHABLE, fail_on_node_loss=False)
        share = make_share((nsqd.tcp_address, "t"), (UNREACHABLE, "t"))
        async with receiving(spec, share, LoopClock()) as reception:
            assert await drain(reception) == [b"one"]
        assert (reception.subscribed_count, reception.stop_reason) == (1, StopReason.EMPTY)


async def test_a_partition_that_may_lose_all_nsqds_is_empty():
    spec = make_spec(UNREACHABLE, fail_on_node_loss=False)
    async with receiving(spec, make_share((UNREACHABLE, "t")), LoopClock()) as reception:
        assert await reception.next_chunk() == []
    assert (reception.subscribed_count, reception.stop_reason) == (0, StopReason.EMPTY)


async def test_an_nsqd_that_must_not_be_lost_fails_the_partition():
    spec = make_spec(UNREACHABLE, connect_timeout=1.5)
    with pytest.raises(NotConnected, match=r"no subscription within 1.5 seconds: 127\.0\.0\.1:1: cannot connect"):
        async with receiving(spec, make_share((UNREACHABLE, "t")), LoopClock()):
            raise AssertionError


@pytest.mark.parametrize("fail_on_node_loss", [False, True])
async def test_a_permanent_error_that_ends_a_partition_is_raised_as_it_is(fail_on_node_loss: bool):
    with NsqdServer() as nsqd:
        nsqd.faults.error("E_UNAUTHORIZED", command="SUB", topic="t")
        connection = {"end_on_permanent_error": True}
        spec = make_spec(nsqd.tcp_address, fail_on_node_loss=fail_on_node_loss, connection=connection)
        with pytest.raises(Unauthorized, match="SUB failed"):
            async with receiving(spec, make_share((nsqd.tcp_address, "t")), LoopClock()) as reception:
                await reception.next_chunk()


async def test_nothing_is_delivered_beyond_the_last_messages_of_a_count():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *(b"%d" % number for number in range(50)))
        share = make_share((nsqd.tcp_address, "t"), records_max=25)
        async with receiving(make_spec(nsqd.tcp_address), share, LoopClock()) as reception:
            assert len(await drain(reception)) == 25
        assert reception.stop_reason is StopReason.COUNT
        stats = reception.consumers["t", nsqd.tcp_address].stats()
        assert (stats.received, stats.finished, stats.requeued) == (25, 25, 0)


async def test_a_message_that_was_delivered_too_often_is_a_dead_letter():
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"poison", b"good")
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=2) as consumer:
            async for message in consumer:
                if message.attempts == 3:
                    message.requeue(0, backoff=False)
                    break
                if message.body == b"poison":
                    message.requeue(0, backoff=False)
        spec = make_spec(nsqd.tcp_address, max_attempts=3, dead_letter_topic="dead")
        async with receiving(spec, make_share((nsqd.tcp_address, "t")), LoopClock()) as reception:
            assert await drain(reception) == [b"good"]
        assert (reception.counts.dead_letters, reception.counts.finished) == (1, 1)
        (letter,) = nsqd.messages("dead")
        given_up = GivenUp.decode(letter.body)
        assert (given_up.body, given_up.topic, given_up.attempts) == (b"poison", "t", 4)
        await nsqd.wait_idle("t")


async def test_a_dead_letter_that_is_not_accepted_is_requeued(caplog: pytest.LogCaptureFixture):
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"poison")
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
            (await anext(consumer)).requeue(0, backoff=False)
        nsqd.faults.error("E_PUB_FAILED", command="PUB", topic="dead")
        spec = make_spec(nsqd.tcp_address, max_attempts=1, dead_letter_topic="dead")
        async with receiving(spec, make_share((nsqd.tcp_address, "t")), LoopClock()) as reception:
            assert await drain(reception) == []
        assert reception.counts.dead_letters == 0
        assert nsqd.topic("t").channel("c").deferred == 1
        assert "1 dead letters of" in caplog.text


async def test_the_messages_of_one_nsqd_of_several_do_not_linger():
    """Its share of max_in_flight is less than a chunk. A chunk that lingered would end the batch of a stream."""
    with NsqdServer() as one, NsqdServer() as two, NsqdServer() as three:
        servers = [one, two, three]
        one.publish("t", *(b"%d" % number for number in range(50)))
        spec = make_spec(*(server.tcp_address for server in servers), linger=5.0, stop_after_linger=True)
        share = make_share(*((server.tcp_address, "t") for server in servers), records_max=40)
        async with receiving(spec, share, LoopClock()) as reception:
            assert len(await drain(reception)) == 40
        assert reception.stop_reason is StopReason.COUNT


async def test_a_batch_that_does_not_linger_waits_for_the_first_delivery():
    with NsqdServer() as nsqd:
        nsqd.publish("t", b"one")
        spec = make_spec(nsqd.tcp_address, linger=0.0, stop_after_linger=True)
        async with receiving(spec, make_share((nsqd.tcp_address, "t")), LoopClock()) as reception:
            assert await drain(reception) == [b"one"]
        assert reception.stop_reason is StopReason.LINGER


async def test_the_bytes_of_two_chunks_are_in_flight():
    with NsqdServer() as nsqd:
        nsqd.publish("t", *[bytes(1000)] * 500)
        spec = make_spec(nsqd.tcp_address, chunk_bytes=50_000)
        share = make_share((nsqd.tcp_address, "t"), in_flight=400)
        in_flight: list[int] = []
        async with receiving(spec, share, LoopClock()) as reception:
            consumer = reception.consumers["t", nsqd.tcp_address]
            while chunk := await reception.next_chunk():
                in_flight.append(consumer.stats().max_in_flight)
                await reception.finish(chunk)
        assert reception.counts.finished == 500
        assert max(in_flight) == 100
