"""Clients that send invalid commands over TCP: the broker answers as nsqd does, and other clients are not affected.

The answers are those of nsqd 1.3.0, word for word. Each test has a witness: a producer and a consumer that connected
before the bad client, and that are on the same connections, with nothing lost, after it has gone.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from typing import TypeAlias

import anyio
import pytest

from nsqkit.broker.server import Nsqd
from nsqkit.wire.frames import MessageFrame
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.stage import CHANNEL, TOPIC, Stage, bodies_of, channel_of, is_empty, take, until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
TWO_GIB = (1 << 31) - 1
ID = b"0123456789abcdef"
NAME_65 = b"a" * 65

Case: TypeAlias = tuple[bytes, bytes]


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def int32(number: int) -> bytes:
    return pack(">i", number)


@asynccontextmanager
async def witnessed() -> AsyncIterator[Nsqd]:
    """Run a broker with a good producer and a good consumer, which its bad clients must not affect."""
    stage = Stage("tcp")
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer, stage.consumer(nsqd) as consumer:
        await consumer.wait_connected()
        await producer.publish(TOPIC, b"before")
        witnesses = list(nsqd.broker.sessions)
        (held,) = await take(consumer, 1)
        yield nsqd
        await producer.publish(TOPIC, b"after")
        (after,) = await take(consumer, 1)
        assert (held.body, after.body, after.attempts) == (b"before", b"after", 1)
        held.finish()
        after.finish()
        await until(lambda: is_empty(channel_of(nsqd)))
        await until(lambda: list(nsqd.broker.sessions) == witnesses)


# ---- input for which nsqd closes the connection --------------------------------------------------------------------

# Input after the magic, and the error that is the only answer. Where a size is wrong, no body follows: nsqd refuses the
# command after the size.
FATAL: dict[str, Case] = {
    # not the protocol
    "binary garbage": (b"\x00\x01\xfe\xff\n", b"E_INVALID invalid command \x00\x01\xfe\xff"),
    "an empty line": (b"\n", b"E_INVALID invalid command "),
    "an unknown command": (b"FOO\n", b"E_INVALID invalid command FOO"),
    "lower case": (b"pub t\n", b"E_INVALID invalid command pub"),
    # 2 GiB
    "IDENTIFY of 2 GiB": (
        b"IDENTIFY\n" + int32(TWO_GIB),
        b"E_BAD_BODY IDENTIFY body too big 2147483647 > 5242880",
    ),
    "PUB of 2 GiB": (b"PUB t\n" + int32(TWO_GIB), b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"),
    "DPUB of 2 GiB": (
        b"DPUB t 1\n" + int32(TWO_GIB),
        b"E_BAD_MESSAGE DPUB message too big 2147483647 > 1048576",
    ),
    "MPUB of 2 GiB": (b"MPUB t\n" + int32(TWO_GIB), b"E_BAD_BODY MPUB body too big 2147483647 > 5242880"),
    "MPUB of 2 G messages": (
        b"MPUB t\n" + int32(100) + int32(TWO_GIB),
        b"E_BAD_BODY MPUB invalid message count 2147483647",
    ),
    "MPUB of a message of 2 GiB": (
        b"MPUB t\n" + int32(100) + int32(1) + int32(TWO_GIB),
        b"E_BAD_MESSAGE MPUB message too big 2147483647 > 1048576",
    ),
    # other sizes
    "PUB of nothing": (b"PUB t\n" + int32(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    "PUB of less": (b"PUB t\n" + int32(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
    "PUB of one byte too many": (
        b"PUB t\n" + int32(MIB + 1),
        b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576",
    ),
    "IDENTIFY without JSON": (
        b"IDENTIFY\n" + sized(b"no"),
        b"E_BAD_BODY IDENTIFY failed to decode JSON body",
    ),
    # names
    "topic with $": (b"PUB a$b\n", b'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    "topic too long": (b"PUB " + NAME_65 + b"\n", b'E_BAD_TOPIC PUB topic name "%b" is not valid' % NAME_65),
    "topic of nothing": (b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    "topic of MPUB": (b"MPUB a$b\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
    "topic of DPUB": (b"DPUB a$b 1\n", b'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
    "topic of SUB": (b"SUB a$b c\n", b'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
    "channel with $": (b"SUB t2 a$b\n", b'E_BAD_CHANNEL SUB channel name "a$b" is not valid'),
    # words
    "PUB alone": (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    "DPUB of the past": (b"DPUB t -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    "DPUB of next year": (b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    "FIN without SUB": (b"FIN " + ID + b"\n", b"E_INVALID cannot FIN in current state"),
}

FATAL_TO_CONSUMERS: dict[str, Case] = {
    "RDY above the range": (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
    "RDY below the range": (b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    "RDY of 2 GiB": (b"RDY 2147483648\n", b"E_INVALID RDY count 2147483648 out of range 0-2500"),
    "RDY of a word": (b"RDY x\n", b"E_INVALID RDY could not parse count x"),
    "FIN of a short id": (b"FIN 123\n", b"E_INVALID invalid message ID"),
    "FIN of no id": (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    "REQ to the past": (b"REQ " + ID + b" -1\n", b"E_INVALID REQ could not parse timeout -1"),
    "TOUCH of a long id": (b"TOUCH " + ID + b"0\n", b"E_INVALID invalid message ID"),
    "a second SUB": (b"SUB t2 c\n", b"E_INVALID cannot SUB in current state"),
    "IDENTIFY too late": (b"IDENTIFY\n" + sized(b"{}"), b"E_INVALID cannot IDENTIFY in current state"),
}

NOT_FATAL: dict[str, Case] = {
    "FIN": (b"FIN " + ID + b"\n", b"E_FIN_FAILED FIN %b failed ID not in flight" % ID),
    "REQ": (b"REQ " + ID + b" 0\n", b"E_REQ_FAILED REQ %b failed ID not in flight" % ID),
    "TOUCH": (b"TOUCH " + ID + b"\n", b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % ID),
}


async def test_fatal_input_is_answered_and_ends_the_connection():
    async with witnessed() as nsqd:
        for name, (data, error) in FATAL.items():
            async with raw_client(nsqd) as client:
                await client.send(data)
                assert await client.answers() == [error], name
        assert set(nsqd.broker.topics) == {TOPIC.encode()}


async def test_fatal_input_of_a_consumer_is_answered_and_ends_the_connection():
    async with witnessed() as nsqd:
        for name, (data, error) in FATAL_TO_CONSUMERS.items():
            async with raw_client(nsqd) as client:
                await client.send(b"SUB other c\n", data)
                assert await client.answers() == [b"OK", error], name


@pytest.mark.parametrize("magic", [b"  V9", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00", b"PUB t\n", b"\0" * 10_000])
async def test_wrong_magic_is_answered_and_ends_the_connection(magic: bytes):
    async with witnessed() as nsqd:
        async with raw_client(nsqd, magic=magic) as client:
            assert await client.answers() == [b"E_BAD_PROTOCOL"]


async def test_line_without_an_end_ends_the_connection_without_an_answer():
    async with witnessed() as nsqd:
        async with raw_client(nsqd) as client:
            await client.send(b"PUB " + b"a" * 20_000)
            assert await client.answers() == []


async def test_commands_before_an_error_are_executed_and_those_after_it_are_not():
    async with witnessed() as nsqd:
        async with raw_client(nsqd) as client:
            await client.send(b"PUB other\n", sized(b"1"), b"FOO\n", b"PUB other\n", sized(b"2"))
            assert await client.answers() == [b"OK", b"E_INVALID invalid command FOO"]
        assert nsqd.broker.topics[b"other"].message_count == 1


# ---- input that nsqd tolerates -------------------------------------------------------------------------------------


async def test_answer_to_an_unknown_message_is_refused_and_the_connection_continues():
    async with witnessed() as nsqd, raw_client(nsqd) as client:
        await client.send(b"SUB other c\n")
        assert await client.answer() == b"OK"
        for data, error in NOT_FATAL.values():
            await client.send(data)
            assert await client.answer() == error
        assert await client.is_alive()


async def test_consumer_cannot_answer_messages_of_another_consumer():
    async with witnessed() as nsqd, raw_client(nsqd) as client:
        (owner,) = channel_of(nsqd).subscriptions
        (message_id,) = owner.in_flight.untouched
        await client.send(f"SUB {TOPIC} {CHANNEL}\n".encode())
        assert await client.answer() == b"OK"
        await client.send(b"FIN " + message_id + b"\n")
        assert await client.answer() == b"E_FIN_FAILED FIN %b failed client does not own message" % message_id
        assert await client.is_alive()


# ---- cut off at any byte -------------------------------------------------------------------------------------------

# A conversation in pieces: the bytes, the answer when all of them have come, and the answer when the stream ends before
# the piece is complete, possibly before its first byte.
CONVERSATION: list[tuple[bytes, list[bytes], list[bytes]]] = [
    (b"  V2", [], []),
    (b"IDENTIFY\n", [], []),
    (int32(2), [], [b"E_BAD_BODY IDENTIFY failed to read body size"]),
    (b"{}", [b"OK"], [b"E_BAD_BODY IDENTIFY failed to read body"]),
    (b"PUB other\n", [], []),
    (int32(5), [], [b"E_BAD_MESSAGE PUB failed to read message body size"]),
    (b"hello", [b"OK"], [b"E_BAD_MESSAGE PUB failed to read message body"]),
    (b"DPUB other 1000\n", [], []),
    (int32(5), [], [b"E_BAD_MESSAGE DPUB failed to read message body size"]),
    (b"later", [b"OK"], [b"E_BAD_MESSAGE DPUB failed to read message body"]),
    (b"MPUB other\n", [], []),
    (int32(15), [], [b"E_BAD_BODY MPUB failed to read body size"]),
    (int32(2), [], [b"E_BAD_BODY MPUB failed to read message count"]),
    (int32(2), [], [b"E_BAD_MESSAGE MPUB failed to read message(0) body size"]),
    (b"ab", [], [b"E_BAD_MESSAGE MPUB failed to read message body"]),
    (int32(1), [], [b"E_BAD_MESSAGE MPUB failed to read message(1) body size"]),
    (b"c", [b"OK"], [b"E_BAD_MESSAGE MPUB failed to read message body"]),
    (b"SUB empty c\n", [b"OK"], []),
    (b"RDY 1\n", [], []),
    (b"FIN " + ID + b"\n", [b"E_FIN_FAILED FIN %b failed ID not in flight" % ID], []),
    (b"CLS\n", [b"CLOSE_WAIT"], []),
]


def cuts() -> list[tuple[bytes, list[bytes]]]:
    """Return each beginning of the conversation, with the answers to it."""
    sent = b""
    answers: list[bytes] = []
    found: list[tuple[bytes, list[bytes]]] = []
    for piece, when_complete, when_cut in CONVERSATION:
        found += [(sent + piece[:length], answers + when_cut) for length in range(len(piece))]
        sent += piece
        answers = answers + when_complete
    return [*found, (sent, answers)]


async def test_stream_may_end_at_any_byte():
    async with witnessed() as nsqd:
        for data, answers in cuts():
            async with raw_client(nsqd, magic=data) as client:
                await client.send_eof()
                assert await client.answers() == answers, data


async def test_connection_may_be_lost_at_any_byte():
    async with witnessed() as nsqd:
        for data, _ in cuts():
            async with raw_client(nsqd, magic=data):
                pass


async def test_bytes_may_come_one_by_one():
    data, answers = cuts()[-1]
    async with witnessed() as nsqd, raw_client(nsqd, magic=b"") as client:
        for n in range(len(data)):
            await client.send(data[n : n + 1])
        await client.send_eof()
        assert await client.answers() == answers


async def test_messages_in_flight_of_a_lost_consumer_time_out_and_are_delivered_to_the_next():
    stage = Stage("tcp")
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.publish(TOPIC, b"x")
        async with raw_client(nsqd) as client:
            await client.send(f"SUB {TOPIC} {CHANNEL}\nRDY 1\n".encode())
            assert await client.answer() == b"OK"
            assert isinstance(await client.answer(), MessageFrame)
        await until(lambda: not channel_of(nsqd).subscriptions)
        async with stage.consumer(nsqd) as consumer:
            await consumer.wait_connected()
            stage.clock.advance(60)
            (message,) = await take(consumer, 1)
            assert (message.body, message.attempts) == (b"x", 2)


# ---- memory --------------------------------------------------------------------------------------------------------


async def flood(client: RawClient, data: bytes) -> None:
    """Send as long as the broker reads."""
    try:
        while True:
            await client.send(data)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


@pytest.mark.parametrize(
    "data", [b"PUB " + b"a" * MIB, b"PUB t\n" + int32(TWO_GIB) + b"a" * MIB, b"\0" * MIB, b"\n" * MIB]
)
async def test_flood_of_garbage_is_not_kept(data: bytes):
    async with witnessed() as nsqd, raw_client(nsqd) as client:
        tracemalloc.start()
        try:
            await flood(client, data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * MIB


async def test_announced_sizes_allocate_nothing():
    async with witnessed() as nsqd:
        tracemalloc.start()
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(announce, nsqd)
                await until(lambda: len(nsqd.broker.sessions) == 22)
                assert tracemalloc.get_traced_memory()[1] < 8 * MIB
                tasks.cancel_scope.cancel()
        finally:
            tracemalloc.stop()


async def announce(nsqd: Nsqd) -> None:
    async with raw_client(nsqd) as client:
        await client.send(b"MPUB other\n", int32(5 * MIB), int32(5), int32(MIB), b"abc")
        await anyio.sleep_forever()


async def test_broker_stops_reading_from_a_client_that_does_not_read():
    # Each refusal has more bytes than its command; the refusals must not accumulate without limit.
    async with witnessed() as nsqd, raw_client(nsqd) as client:
        await client.send(b"SUB other c\n")
        assert await client.answer() == b"OK"
        (subscription,) = nsqd.broker.topics[b"other"].channels[b"c"].subscriptions
        session = nsqd.broker.sessions.by_subscription[subscription]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood, client, (b"FIN " + ID + b"\n") * 1000)
            # The kernel accepts some megabytes of refusals until its buffers are full; then the broker stops reading.
            size_max = still = 0
            while still < 100:
                size = session._buffer.size
                await anyio.lowlevel.checkpoint()
                still = still + 1 if session.outbox_full and session._buffer.size == size else 0
                size_max = max(size_max, size)
            assert size_max < 4 * MIB
            tasks.cancel_scope.cancel()


# ---- many at once --------------------------------------------------------------------------------------------------


async def test_many_bad_clients_do_not_disturb_others():
    stage = Stage("tcp")
    bodies = [b"%d" % n for n in range(200)]
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer, stage.consumer(nsqd) as consumer:
        async with anyio.create_task_group() as tasks:
            for data, error in FATAL.values():
                tasks.start_soon(misbehave, nsqd, data, error)
            messages = []
            for body in bodies:
                await producer.publish(TOPIC, body)
                messages += await take(consumer, 1)
                messages[-1].finish()
        assert bodies_of(messages) == bodies
        assert {message.attempts for message in messages} == {1}
        await until(lambda: is_empty(channel_of(nsqd)))


async def misbehave(nsqd: Nsqd, data: bytes, error: bytes) -> None:
    for _ in range(3):
        async with raw_client(nsqd) as client:
            await client.send(data)
            assert await client.answers() == [error]
