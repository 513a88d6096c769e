"""Brokers that send invalid, incomplete or no answers: clients report why, reconnect, and lose nothing.

The broker is scripted and in memory. The clients reconnect after a millisecond. Until the next handshake succeeds, the
last error is in ``Consumer.unconnected``, and is the cause of the errors that publishes raise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import anyio
import pytest

from nsqkit import Consumer, Producer
from nsqkit.clock import ManualClock
from nsqkit.errors import (
    BadTopic,
    BrokerError,
    ConnectionLost,
    ConnectTimeout,
    FinishFailed,
    HeartbeatTimeout,
    InvalidCommand,
    NegotiationFailed,
    NotConnected,
    NSQError,
    ProtocolError,
    PublishFailed,
    SubscribeFailed,
    Unauthorized,
)
from nsqkit.wire.compression import Deflate
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.messages import encode_message
from tests.integration.stage import CHANNEL, TOPIC, bodies_of, take, until
from tests.peers import ADDRESS, Peer, ScriptedBroker, body_of, message_id, settle
from tests.producer.stage import advancing

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 60.0
DIALLING: dict[str, Any] = {"dial_timeout": 10.0, "reconnect_delay_min": 0.001, "reconnect_delay_max": 0.001}

MESSAGE = encode_message(0, 1, message_id(1), body_of(1))

GARBAGE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeros": bytes(64),
    "a frame of 2 GiB": pack(">ii", (1 << 31) - 1, 2),
    "no more than a size of 2 GiB": pack(">i", (1 << 31) - 1),
    "a frame of one byte above max_msg_size": pack(">ii", 4 + 26 + (1 << 20) + 1, 2),
    "a frame of negative size": pack(">ii", -1, 0),
    "a frame without room for its type": pack(">ii", 3, 0),
    "a frame of an unknown type": pack(">ii", 8, 7) + b"abcd",
    "a message without room for its id": pack(">ii", 29, 2) + bytes(25),
}

DEFLATED_OK = Deflate(6).encode(OK_FRAME)

garbage = pytest.mark.parametrize("data", GARBAGE.values(), ids=list(GARBAGE))


@asynccontextmanager
async def consuming(**options: Any) -> AsyncIterator[tuple[Consumer, ScriptedBroker]]:
    broker = ScriptedBroker()
    options = {"max_in_flight": 10, "close_timeout": 0, **DIALLING, **options}
    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer(TOPIC, CHANNEL, nsqd_tcp_addresses=[ADDRESS], dial=broker.dial, **options) as consumer:
            yield consumer, broker
        await broker.close()


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[tuple[Producer, ScriptedBroker]]:
    broker = ScriptedBroker()
    with anyio.fail_after(WAIT_LIMIT):
        async with Producer(ADDRESS, dial=broker.dial, **DIALLING, **options) as producer:
            yield producer, broker
        await broker.close()  # the producer may have connected once more


async def left(peer: Peer) -> None:
    """Wait until the client closes the connection, and close it."""
    await peer.wait_end()
    await peer.close()


async def why(consumer: Consumer) -> Exception:
    """Return why the consumer has no connection."""
    await until(lambda: consumer.unconnected.get(ADDRESS))
    error = consumer.unconnected[ADDRESS]
    assert error is not None
    return error


async def check_consumes(consumer: Consumer, broker: ScriptedBroker) -> None:
    """Let the consumer receive and finish two messages over its next connection."""
    async with await broker.subscribe() as peer:
        assert await peer.line() == b"RDY 10"
        await peer.deliver(8, 9, attempts=2)
        messages = await take(consumer, 2)
        assert bodies_of(messages) == [body_of(8), body_of(9)]
        for message in messages:
            message.finish()
        assert [await peer.line(), await peer.line()] == [b"FIN " + message_id(n) for n in (8, 9)]
        assert consumer.unconnected == {}


async def check_publishes(producer: Producer, broker: ScriptedBroker) -> None:
    """Let the producer publish over its next connection."""
    async with await broker.handshake() as peer, anyio.create_task_group() as tasks:
        tasks.start_soon(producer.publish, TOPIC, b"again")
        assert await peer.command() == (b"PUB t", b"again")
        await peer.send(OK_FRAME)


# ---- during the handshake ------------------------------------------------------------------------------------------


@garbage
async def test_garbage_instead_of_the_handshake(data: bytes):
    async with consuming() as (consumer, broker):
        peer = await broker.accept()
        await peer.send(data)
        await peer.close()
        assert isinstance(await why(consumer), ProtocolError)
        await check_consumes(consumer, broker)


@pytest.mark.parametrize("answer", [OK_FRAME, encode_response(b"[]"), encode_response(b"{"), MESSAGE])
async def test_invalid_answer_to_identify(answer: bytes):
    async with consuming() as (consumer, broker):
        peer = await broker.accept()
        await peer.send(answer)
        if answer == OK_FRAME:  # from an nsqd that negotiates nothing
            assert (await peer.take(4), (await peer.command())[0]) == (b"  V2", b"IDENTIFY")
            assert await peer.line() == b"SUB t c"
        await peer.close()
        assert isinstance(await why(consumer), ConnectionLost if answer == OK_FRAME else ProtocolError)
        await check_consumes(consumer, broker)


@pytest.mark.parametrize("error", [InvalidCommand("no"), Unauthorized("AUTH failed"), BrokerError("E_NEW what")])
async def test_identify_is_refused(error: BrokerError):
    async with consuming() as (consumer, broker):
        peer = await broker.accept()
        await peer.send(error)
        await peer.close()
        assert type(await why(consumer)) is type(error)


@pytest.mark.parametrize("error", [SubscribeFailed("too many"), BadTopic("no")])
async def test_subscription_is_refused(error: BrokerError):
    async with consuming() as (consumer, broker):
        peer = await broker.handshake()
        assert await peer.line() == b"SUB t c"
        await peer.send(error)
        await left(peer)
        found = await why(consumer)
        assert (type(found), str(found)) == (type(error), str(error))
        await check_consumes(consumer, broker)


async def test_message_before_the_subscription():
    async with consuming() as (consumer, broker):
        peer = await broker.handshake()
        await peer.send(MESSAGE)
        await peer.close()
        assert isinstance(await why(consumer), ProtocolError)
        await check_consumes(consumer, broker)


@pytest.mark.parametrize("greeted", [False, True])
async def test_broker_that_never_answers_a_consumer(greeted: bool):
    clock = ManualClock()
    async with consuming(dial_timeout=1, clock=clock) as (consumer, broker):
        peer = await broker.accept()
        if greeted:
            await peer.handshake()  # but not the subscription
        await settle()
        clock.advance(1)
        assert isinstance(await why(consumer), ConnectTimeout)
        await peer.close()
        clock.advance(1)
        await check_consumes(consumer, broker)


async def test_broker_that_sends_a_byte_at_a_time_and_never_all():
    clock = ManualClock()
    async with consuming(dial_timeout=1, clock=clock) as (consumer, broker):
        peer = await broker.accept()
        await peer.send(b"\0\0\xff\xff")
        for _ in range(10):
            await peer.send(b"\0")
            await settle()
            assert consumer.unconnected == {ADDRESS: None}
            clock.advance(0.1)
        assert isinstance(await why(consumer), ConnectTimeout)
        await peer.close()
        clock.advance(1)
        await check_consumes(consumer, broker)


# The requested options, and the correct answer at each step of the handshake after IDENTIFY.
STEPS: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "the answer": ({}, []),
    "deflate": ({"deflate": True}, [encode_response(b'{"deflate":true}')]),
    "AUTH": ({"auth_secret": "hush"}, [encode_response(b'{"auth_required":true}')]),
    "AUTH in deflate": (
        {"deflate": True, "auth_secret": "hush"},
        [encode_response(b'{"deflate":true,"auth_required":true}'), DEFLATED_OK],
    ),
    "SUB": ({}, [encode_response(b"{}")]),
    "SUB in deflate": ({"deflate": True}, [encode_response(b'{"deflate":true}'), DEFLATED_OK]),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ConnectionLost),
        (b"\0\0\0", ConnectionLost),
        (GARBAGE["another protocol"], ProtocolError),
        (encode_error(InvalidCommand("not you")), InvalidCommand),
        (encode_error(Unauthorized("not you")), Unauthorized),
        (encode_error(BrokerError("E_NEW what")), BrokerError),
    ],
)
async def test_handshake_fails_at_any_step(step: str, data: bytes, expected: type[NSQError]):
    options, sent = STEPS[step]
    async with consuming(**options) as (consumer, broker):
        peer = await broker.accept()
        for frames in sent:
            await peer.send(frames)
        in_deflate = len(sent) > 1
        if in_deflate and data:
            compressor = Deflate(6)
            compressor.encode(OK_FRAME)
            data = compressor.encode(data)
        await peer.send(data)
        await peer.close()
        error = await why(consumer)
        if step == "deflate" and expected is not ConnectionLost:
            assert isinstance(error, NegotiationFailed), "what came is no deflate"
        else:
            assert type(error) is expected


async def test_tls_is_answered_with_other_bytes():
    options = {"tls_v1": True, "tls_insecure_skip_verify": True}
    async with consuming(**options) as (consumer, broker):
        peer = await broker.handshake(tls_v1=True)
        assert peer.identity["tls_v1"] is True
        await peer.send(OK_FRAME)
        await peer.close()
        assert isinstance(await why(consumer), NegotiationFailed)


async def test_nothing_is_sent_to_a_broker_without_tls_after_identify():
    options = {"tls_v1": True, "tls_insecure_skip_verify": True, "auth_secret": "hush"}
    async with consuming(**options) as (consumer, broker):
        peer = await broker.handshake(auth_required=True)
        await left(peer)  # nothing was sent after IDENTIFY
        assert isinstance(await why(consumer), NegotiationFailed)


async def test_broker_that_refuses_connections():
    clock = ManualClock()
    async with producing(connect_timeout=1, clock=clock) as (producer, broker):
        broker.refusal = ConnectionRefusedError("no listener")
        await settle()
        clock.advance(1)
        async with advancing(clock, 1):
            with pytest.raises(NotConnected) as caught:
                await producer.publish(TOPIC, b"x")
        assert "no listener" in str(caught.value.__cause__)
        assert broker.dial_count > 1
        await settle()
        broker.refusal = None
        clock.advance(1)
        await check_publishes(producer, broker)


async def test_publish_waits_until_a_handshake_succeeds():
    async with producing() as (producer, broker), anyio.create_task_group() as tasks:
        tasks.start_soon(producer.publish, TOPIC, b"x")
        for data in GARBAGE.values():
            peer = await broker.accept()
            await peer.send(data)
            await peer.close()
        async with await broker.handshake() as peer:
            assert await peer.command() == (b"PUB t", b"x")
            await peer.send(OK_FRAME)


# ---- to a producer -------------------------------------------------------------------------------------------------


class Publishes:
    """Running publishes, and how each ended."""

    def __init__(self) -> None:
        self.ends: dict[bytes, NSQError | None] = {}

    async def publish(self, producer: Producer, body: bytes) -> None:
        try:
            await producer.publish(TOPIC, body)
        except NSQError as error:
            self.ends[body] = error
        else:
            self.ends[body] = None


async def check_ends(data: bytes, acknowledged: int, cause: type[NSQError], **options: Any) -> None:
    """Publish five messages, of which the broker acknowledges some before it sends ``data`` and closes."""
    bodies = [b"%d" % n for n in range(5)]
    publishes = Publishes()
    async with producing(**options) as (producer, broker):
        peer = await broker.handshake()
        async with anyio.create_task_group() as tasks:
            for body in bodies:
                tasks.start_soon(publishes.publish, producer, body)
            received = [(await peer.command())[1] for _ in bodies]
            await peer.send(OK_FRAME * acknowledged)
            await peer.send(data)
            await peer.close()
        for body in received[:acknowledged]:
            assert publishes.ends[body] is None
        for body in received[acknowledged:]:
            error = publishes.ends[body]
            assert isinstance(error, ConnectionLost)
            assert isinstance(error.__cause__, cause)
        # The caller that received this error may publish again; the producer sends nothing twice by itself.
        await check_publishes(producer, broker)


@garbage
async def test_garbage_instead_of_an_answer_to_a_publish(data: bytes):
    await check_ends(data, 3, ProtocolError)


async def test_message_to_a_producer():
    await check_ends(MESSAGE, 2, ProtocolError)


async def test_more_answers_than_publishes():
    async with producing() as (producer, broker):
        peer = await broker.handshake()
        await peer.send(OK_FRAME)
        await left(peer)
        await check_publishes(producer, broker)


@pytest.mark.parametrize("length", range(len(OK_FRAME)))
async def test_answer_is_cut_off(length: int):
    await check_ends(OK_FRAME[:length], 3, ConnectionLost)


async def test_answer_that_never_comes():
    clock = ManualClock()
    publishes = Publishes()
    async with producing(clock=clock, read_timeout=30) as (producer, broker):
        peer = await broker.handshake()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publishes.publish, producer, b"x")
            await peer.command()
            clock.advance(20)
            await peer.send(HEARTBEAT_FRAME)  # slow is not dead
            assert await peer.line() == b"NOP"
            clock.advance(20)
            assert producer.is_connected
            clock.advance(10)
        error = publishes.ends[b"x"]
        assert isinstance(error, ConnectionLost)
        assert isinstance(error.__cause__, HeartbeatTimeout)
        await left(peer)
        await settle()
        clock.advance(0.001)
        await check_publishes(producer, broker)


async def test_error_fails_one_publish_and_unread_publishes_are_sent_again():
    publishes = Publishes()
    async with producing() as (producer, broker):
        peer = await broker.handshake()
        async with anyio.create_task_group() as tasks:
            for n in range(4):
                tasks.start_soon(publishes.publish, producer, b"%d" % n)
            received = [(await peer.command())[1] for _ in range(4)]
            await peer.send(OK_FRAME, PublishFailed("disk full"))
            await left(peer)
            peer = await broker.handshake()
            assert {(await peer.command())[1] for _ in range(2)} == {*received[2:]}
            await peer.send(OK_FRAME * 2)
        ends = [publishes.ends[body] for body in received]
        assert [type(end) for end in ends] == [type(None), PublishFailed, type(None), type(None)]
        await peer.close()
        await check_publishes(producer, broker)


# ---- to a consumer -------------------------------------------------------------------------------------------------


async def check_survives(data: bytes, expected: type[NSQError], *, close: bool = True) -> None:
    """Deliver three messages, read the FIN of one, send ``data``; the other two must be delivered again."""
    async with consuming() as (consumer, broker):
        peer = await broker.subscribe()
        assert await peer.line() == b"RDY 10"
        await peer.deliver(7, 8, 9)
        done, *held = await take(consumer, 3)
        done.finish()
        assert await peer.line() == b"FIN " + message_id(7)
        await peer.send(data)
        await (peer.close() if close else left(peer))
        assert isinstance(await why(consumer), expected)
        for message in held:
            assert message.is_answered
            message.finish()  # too late: it sends nothing
        await check_consumes(consumer, broker)


@garbage
@pytest.mark.parametrize("close", [False, True])
async def test_garbage_instead_of_a_message(data: bytes, close: bool):
    await check_survives(data, ProtocolError, close=close)


@pytest.mark.parametrize("data", [OK_FRAME, CLOSE_WAIT_FRAME, encode_response(b"what")])
async def test_answer_without_a_command(data: bytes):
    await check_survives(data, ProtocolError, close=False)


async def test_message_is_cut_off_at_any_byte():
    for length in range(len(MESSAGE)):
        await check_survives(MESSAGE[:length], ConnectionLost)


async def test_messages_before_garbage_are_not_acknowledged():
    async with consuming() as (consumer, broker):
        peer = await broker.subscribe()
        await peer.send(MESSAGE, GARBAGE["zeros"])
        await peer.close()
        assert isinstance(await why(consumer), ProtocolError)
        await check_consumes(consumer, broker)


async def test_fatal_errors_end_the_connection_and_others_do_not():
    async with consuming() as (consumer, broker):
        peer = await broker.subscribe()
        assert await peer.line() == b"RDY 10"
        await peer.send(FinishFailed("FIN of what?"))
        await peer.deliver(1)
        (message,) = await take(consumer, 1)
        message.finish()
        assert await peer.line() == b"FIN " + message_id(1)
        await peer.send(InvalidCommand("RDY count 10 out of range 0-5"))
        await left(peer)
        error = await why(consumer)
        assert (type(error), str(error)) == (InvalidCommand, "E_INVALID RDY count 10 out of range 0-5")
        await check_consumes(consumer, broker)


async def test_bad_broker_does_not_disturb_the_others():
    bad, good = ScriptedBroker(), ScriptedBroker()
    addresses = {"bad:4150": bad, "good:4150": good}

    async def dial(address: str) -> anyio.abc.ByteStream:
        return await addresses[address].dial(address)

    with anyio.fail_after(WAIT_LIMIT):
        async with Consumer(
            TOPIC,
            CHANNEL,
            nsqd_tcp_addresses=list(addresses),
            dial=dial,
            max_in_flight=10,
            close_timeout=0,
            **DIALLING,
        ) as consumer:
            async with await good.subscribe() as peer:
                assert await peer.line() == b"RDY 10"
                for n, data in enumerate(GARBAGE.values()):
                    evil = await bad.accept()
                    await evil.send(data)
                    await evil.close()
                    await peer.deliver(n)
                    (message,) = await take(consumer, 1)
                    message.finish()
                    assert await peer.line() == b"FIN " + message_id(n)
                assert list(consumer.unconnected) == ["bad:4150"]
                assert good.dial_count == 1
        await bad.close()
