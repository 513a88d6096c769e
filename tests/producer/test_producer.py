from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from nsqkit import Producer
from nsqkit.client.serializers import JSON
from nsqkit.clock import ManualClock
from nsqkit.errors import (
    BadMessage,
    BrokerError,
    Closed,
    ConnectionLost,
    ConnectTimeout,
    NotConnected,
    OptionError,
)
from nsqkit.producer.session import OUTBOX_SIZE_MAX
from nsqkit.wire.commands import encode_deferred_publish, encode_multi_publish
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME
from tests.answering import answering, http_answer
from tests.peers import ADDRESS, BACKENDS, WAIT_LIMIT, Peer, ScriptedBroker, settle
from tests.producer.stage import Call, PlayingBroker, advancing

pytestmark = pytest.mark.anyio
in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)


def make(**options: Any) -> Producer:
    return Producer(ADDRESS, **options)


@asynccontextmanager
async def producing(**options: Any) -> AsyncIterator[tuple[Producer, ScriptedBroker, ManualClock]]:
    broker, clock = ScriptedBroker(), ManualClock()
    async with Producer(ADDRESS, dial=broker.dial, clock=clock, **options) as producer:
        yield producer, broker, clock


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[Producer, Peer]]:
    """Give a producer and the broker's end of its connection, which closes when the producer does."""
    broker = ScriptedBroker()
    async with anyio.create_task_group() as tasks:
        async with Producer(ADDRESS, dial=broker.dial, clock=ManualClock(), **options) as producer:
            peer = await broker.handshake()
            await settle()
            yield producer, peer
            tasks.start_soon(follow, peer)
        tasks.cancel_scope.cancel()
    await peer.close()


async def follow(peer: Peer) -> None:
    """Close when the other side does, as a broker."""
    try:
        while True:
            await peer.take(1)
    except (anyio.IncompleteRead, anyio.EndOfStream, TimeoutError):
        await peer.close()


# ---- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["nsqd:port", "nsqd:65536", None, 4150])
def test_a_wrong_address_is_refused(address):
    with pytest.raises(OptionError, match=re.escape(repr(address))):
        Producer(ADDRESS, address)


def test_producer_without_an_address_is_refused():
    with pytest.raises(OptionError, match="nsqd_tcp_addresses is empty; allowed is one address or more"):
        Producer()


# ---- refusals before anything is sent ------------------------------------------------------------------------


@in_memory
class TestArguments:
    @pytest.mark.parametrize("topic", ["", "a b", "a" * 65, "täglich", "#ephemeral"])
    async def test_a_topic(self, topic):
        producer = make()
        with pytest.raises(OptionError, match="topic name"):
            await producer.publish(topic, b"x")
        with pytest.raises(OptionError, match="topic name"):
            await producer.multi_publish(topic, [b"x"])
        with pytest.raises(OptionError, match="topic name"):
            await producer.deferred_publish(topic, b"x", delay=1)

    @pytest.mark.parametrize(
        ("body", "sentence"),
        [
            (b"", "has 0 bytes; allowed are 1 to max_msg_size, 10"),
            (b"x" * 11, "has 11 bytes; allowed are 1 to max_msg_size, 10"),
            ("text", "is a str; allowed is bytes"),
            (None, "is a NoneType; allowed is bytes"),
            ([b"x"], "is a list; allowed is bytes"),
        ],
    )
    async def test_a_body(self, body, sentence):
        producer = make(max_msg_size=10)
        with pytest.raises(OptionError) as caught:
            await producer.publish("t", body)
        assert str(caught.value) == f"body {sentence}"
        with pytest.raises(OptionError) as caught:
            await producer.deferred_publish("t", body, delay=0)
        assert str(caught.value) == f"body {sentence}"
        with pytest.raises(OptionError) as caught:
            await producer.multi_publish("t", [b"x", body])
        assert str(caught.value) == f"bodies[1] {sentence}"

    @pytest.mark.parametrize(
        "bodies", [[], (), b"body", "body", None, 5, {b"x"}, zip()], ids=lambda value: type(value).__name__
    )
    async def test_bodies_that_are_not_a_list(self, bodies):
        with pytest.raises(OptionError, match=r"^bodies is .*; allowed is a list of at least one bytes$"):
            await make().multi_publish("t", bodies)

    async def test_bodies_that_are_too_large_together(self):
        # 4 bytes for the count, and 4 for each size
        producer = make(max_body_size=4 + 3 * (4 + 10) - 1, max_msg_size=10)
        with pytest.raises(OptionError) as caught:
            await producer.multi_publish("t", [b"x" * 10] * 3)
        assert str(caught.value) == "3 bodies are 46 bytes on the wire; allowed are max_body_size, 45"

    @pytest.mark.parametrize("delay", [-0.001, 61, float("nan"), float("inf"), "5", None], ids=repr)
    async def test_a_delay(self, delay):
        producer = make(max_defer_timeout=60)
        with pytest.raises(OptionError) as caught:
            await producer.deferred_publish("t", b"x", delay=delay)
        assert str(caught.value) == f"delay is {delay!r}; allowed is 0 to 60 seconds"

    async def test_wrong_arguments_are_refused_before_the_connection(self):
        producer = make()
        with pytest.raises(Closed, match="publish inside of 'async with Producer"):
            await producer.publish("t", b"x")
        assert not producer.is_connected


# ---- publishing ----------------------------------------------------------------------------------------------


@in_memory
class TestPublishing:
    async def test_identify_has_the_host_name(self):
        async with connected(client_id="me", hostname="h", user_agent="ua/1", heartbeat_interval=7.5) as (
            _,
            peer,
        ):
            sent = {
                "client_id": "me",
                "hostname": "h",
                "user_agent": "ua/1",
                "feature_negotiation": True,
                "heartbeat_interval": 7500,
            }
            assert peer.identity == peer.identity | sent

    async def test_a_publish_returns_when_the_broker_has_answered(self):
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            call = Call()
            tasks.start_soon(call.run, producer.publish, "t", b"hello")
            assert await peer.command() == (b"PUB t", b"hello")
            await settle()
            assert not call.done
            await peer.send(OK_FRAME)
            await settle()
            assert call.done
            assert call.error is None

    async def test_the_three_commands(self):
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(producer.multi_publish, "t", [b"a", b"bb"])
            assert await peer.command() == (b"MPUB t", b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bb")
            await peer.send(OK_FRAME)
            tasks.start_soon(lambda: producer.deferred_publish("t", b"later", delay=1.2345))
            assert await peer.command() == (b"DPUB t 1234", b"later")
            await peer.send(OK_FRAME)
            tasks.start_soon(producer.publish, "t#ephemeral", b"x" * (1 << 20))
            assert await peer.command() == (b"PUB t#ephemeral", b"x" * (1 << 20))
            await peer.send(OK_FRAME)

    async def test_many_calls_share_the_connection(self):
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            calls = [Call() for _ in range(100)]
            for n, call in enumerate(calls):
                tasks.start_soon(call.run, producer.publish, "t", b"%d" % n)
            bodies = [(await peer.command())[1] for _ in calls]
            assert sorted(bodies) == sorted(b"%d" % n for n in range(100))
            assert not any(call.done for call in calls)
            await peer.send(*[OK_FRAME] * 99)
            await settle()
            assert sum(call.done for call in calls) == 99
            await peer.send(OK_FRAME)

    @pytest.mark.parametrize("kind", [BrokerError, *BrokerError.__subclasses__()])
    async def test_refusal_is_raised_as_its_class(self, kind):
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            call = Call()
            tasks.start_soon(call.run, producer.publish, "t", b"x")
            await peer.command()
            await peer.send(kind("why not"))
            await settle()
            assert str(call.error).endswith(f"{kind.code} why not")
            assert type(call.error) is kind

    async def test_a_heartbeat_is_answered(self):
        async with connected() as (_, peer):
            await peer.send(HEARTBEAT_FRAME)
            assert await peer.line() == b"NOP"

    async def test_a_cancelled_publish_keeps_its_place(self):
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(cancel_soon, scope)
                await producer.publish("t", b"gone")
            assert await peer.command() == (b"PUB t", b"gone")
            call = Call()
            tasks.start_soon(call.run, producer.publish, "t", b"next")
            assert await peer.command() == (b"PUB t", b"next")
            await peer.send(OK_FRAME)
            await settle()
            assert not call.done
            await peer.send(BadMessage("this one is for the second"))
            await settle()
            assert isinstance(call.error, BadMessage)


async def cancel_soon(scope: anyio.CancelScope) -> None:
    await settle()
    scope.cancel()


@in_memory
class TestTheRest:
    async def test_ping_waits_for_a_connection_and_sends_a_nop(self):
        async with connected() as (producer, peer):
            await producer.ping()
            assert await peer.line() == b"NOP"

    async def test_ping_without_a_connection_raises_not_connected(self):
        async with producing(connect_timeout=0.01) as (producer, broker, clock):
            broker.hanging = True
            async with advancing(clock, 0.01):
                with pytest.raises(NotConnected):
                    await producer.ping()

    async def test_methods_outside_of_the_async_block_raise_closed(self):
        producer = make()
        with pytest.raises(Closed):
            await producer.ping()
        with pytest.raises(Closed):
            producer.publish_nowait("t", b"x")
        assert producer.stats().nsqds == ()

    async def test_serializer_makes_bodies_and_refuses_other_objects(self):
        async with connected(serializer=JSON) as (producer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(producer.publish, "t", {"n": 1})
            assert await peer.command() == (b"PUB t", b'{"n":1}')
            tasks.start_soon(producer.multi_publish, "t", [1, None])
            assert await peer.command() == (b"MPUB t", b"\0\0\0\2\0\0\0\1" + b"1\0\0\0\4null")
            tasks.start_soon(producer.deferred_publish, "t", "x", 1)
            assert await peer.command() == (b"DPUB t 1000", b'"x"')
            await peer.send(OK_FRAME * 3)
            with pytest.raises(OptionError, match="allowed is a value that JSON can represent"):
                await producer.publish("t", b"bytes")

    @pytest.mark.parametrize("timeout", [-1, 3601, float("nan"), "5"], ids=repr)
    async def test_a_wrong_timeout_is_refused(self, timeout):
        async with connected() as (producer, _):
            with pytest.raises(OptionError, match=r"timeout is .*; allowed is 0 to 3600 seconds"):
                await producer.publish("t", b"x", timeout=timeout)

    async def test_a_wrong_key_is_refused(self):
        async with connected() as (producer, _):
            with pytest.raises(OptionError, match="key is 5"):
                await producer.publish("t", b"x", key=5)  # type: ignore[arg-type]

    async def test_creation_without_http_addresses_is_refused(self):
        async with connected() as (producer, _):
            for call in (producer.ensure_topic("t"), producer.ensure_channel("t", "c")):
                with pytest.raises(OptionError, match="nsqd_http_addresses is empty"):
                    await call


async def test_topics_and_channels_are_created_over_http():
    async with answering(lambda _: http_answer(b"")) as server:
        producer = Producer(ADDRESS, nsqd_http_addresses=[server.address], dial_timeout=15)
        await producer.ensure_topic("t")
        await producer.ensure_channel("t", "c")
        assert [request.split(b" ")[1] for request in server.requests] == [
            b"/topic/create?topic=t",
            b"/topic/create?topic=t",
            b"/channel/create?topic=t&channel=c",
        ]


@in_memory
@pytest.mark.parametrize("more", [{}, {"max_outstanding_bytes": 500}])
async def test_messages_that_linger_arrive_once_in_few_commands(more):
    broker = PlayingBroker()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker.run)
        async with Producer(
            ADDRESS, dial=broker.broker.dial, clock=ManualClock(), linger=60, linger_max_messages=50, **more
        ) as producer:
            await producer.ping()

            async def work(number: int) -> None:
                for n in range(5):
                    await producer.publish(f"t{number % 2}", b"%d-%d" % (number, n))

            with anyio.fail_after(15):
                async with anyio.create_task_group() as workers:
                    for number in range(100):
                        workers.start_soon(work, number)
            assert producer.stats().message_count == 500
        tasks.cancel_scope.cancel()
    assert len(broker.arrived) == len({*broker.arrived}) == 500
    assert broker.command_count < 250


# ---- without a connection ------------------------------------------------------------------------------------


@in_memory
class TestConnecting:
    async def test_entering_does_not_wait_for_the_broker_and_publishing_does(self):
        async with producing() as (producer, broker, _), anyio.create_task_group() as tasks:
            assert not producer.is_connected
            call = Call()
            tasks.start_soon(call.run, producer.publish, "t", b"x")
            async with await broker.handshake() as peer:
                assert await peer.command() == (b"PUB t", b"x")
                assert producer.is_connected
                await peer.send(OK_FRAME)
                await settle()
                assert call.done

    async def test_publish_without_a_connection_raises_the_reason_after_connect_timeout(self):
        async with producing(connect_timeout=0.01) as (producer, broker, clock):
            broker.refusal = ConnectionRefusedError("refused")
            async with advancing(clock, 0.01):
                with pytest.raises(NotConnected) as caught:
                    await producer.publish("t", b"x")
            assert str(caught.value) == (
                f"no connection to {ADDRESS} within 0.01 seconds: cannot connect to {ADDRESS}: refused"
            )
            assert "refused" in str(caught.value.__cause__)

    async def test_broker_that_never_answers_is_not_connected(self):
        async with producing(connect_timeout=0.2, dial_timeout=0.1) as (producer, broker, clock):
            async with await broker.accept():
                await settle()
                broker.hanging = True
                clock.advance(0.1)
                async with advancing(clock, 0.2):
                    with pytest.raises(NotConnected) as caught:
                        await producer.publish("t", b"x")
                assert isinstance(caught.value.__cause__, ConnectTimeout)

    async def test_wait_connected_returns_after_the_handshake(self):
        async with producing() as (producer, broker, clock), anyio.create_task_group() as tasks:
            calls = [Call(), Call()]
            tasks.start_soon(calls[0].run, producer.wait_connected)
            tasks.start_soon(calls[1].run, producer.wait_connected, timedelta(seconds=5))
            await settle()
            clock.advance(0.9)
            await settle()
            assert not any(call.done for call in calls)
            async with await broker.handshake():
                await settle()
                assert all(call.done for call in calls)
                await producer.wait_connected(0)
            assert [call.error for call in calls] == [None, None]

    async def test_wait_connected_raises_after_its_timeout_by_the_clock(self):
        async with producing() as (producer, broker, clock), anyio.create_task_group() as tasks:
            broker.refusal = ConnectionRefusedError("refused")
            call = Call()
            tasks.start_soon(call.run, producer.wait_connected, 5)
            await settle()
            clock.advance(4.9)
            await settle()
            assert not call.done
            clock.advance(0.1)
            await settle()
            assert isinstance(call.error, NotConnected)
            assert str(call.error) == (
                f"no connection to {ADDRESS} within 5 seconds: cannot connect to {ADDRESS}: refused"
            )

    async def test_wait_connected_raises_closed_at_the_end(self):
        async with anyio.create_task_group() as tasks:
            call = Call()
            async with producing() as (producer, broker, _):
                broker.refusal = ConnectionRefusedError("refused")
                tasks.start_soon(call.run, producer.wait_connected)
                await settle()
        assert isinstance(call.error, Closed)
        with pytest.raises(Closed):
            await make().wait_connected()

    async def test_connect_timeout_may_be_zero(self):
        async with producing(connect_timeout=0) as (producer, broker, _):
            with pytest.raises(NotConnected):
                await producer.publish("t", b"x")
            async with await broker.handshake() as peer, anyio.create_task_group() as tasks:
                await settle()
                tasks.start_soon(producer.publish, "t", b"x")
                await peer.command()
                await peer.send(OK_FRAME)

    async def test_lost_connection_fails_publishes_and_is_made_again(self):
        async with producing() as (producer, broker, clock), anyio.create_task_group() as tasks:
            peer = await broker.handshake()
            lost, later = Call(), Call()
            tasks.start_soon(lost.run, producer.publish, "t", b"lost")
            await peer.command()
            await peer.close()
            await settle()
            assert isinstance(lost.error, ConnectionLost)
            assert not producer.is_connected
            tasks.start_soon(later.run, producer.publish, "t", b"later")
            await settle()
            clock.advance(1)
            async with await broker.handshake() as peer:
                assert await peer.command() == (b"PUB t", b"later")
                await peer.send(OK_FRAME)
                await settle()
                assert later.done
                assert later.error is None

    async def test_publish_that_nsqd_did_not_read_after_a_fatal_error_is_sent_again(self):
        async with producing() as (producer, broker, clock), anyio.create_task_group() as tasks:
            peer = await broker.handshake()
            refused, unread = Call(), Call()
            tasks.start_soon(refused.run, producer.publish, "t", b"1")
            await settle()
            tasks.start_soon(unread.run, producer.publish, "t", b"2")
            await settle()
            await peer.send(BadMessage("PUB message too big"))
            await settle()
            assert isinstance(refused.error, BadMessage)
            assert not unread.done
            await peer.close()
            await settle()
            clock.advance(1)
            async with await broker.handshake() as peer:
                assert await peer.command() == (b"PUB t", b"2")
                await peer.send(OK_FRAME)
                await settle()
                assert unread.done
                assert unread.error is None

    async def test_publishes_wait_while_the_broker_does_not_read(self):
        size = 1 << 20
        async with (
            producing(write_timeout=300) as (producer, broker, clock),
            anyio.create_task_group() as tasks,
        ):
            peer = await broker.handshake()
            await settle()
            calls = [Call() for _ in range(30 + OUTBOX_SIZE_MAX // size)]
            for n, call in enumerate(calls):
                tasks.start_soon(call.run, producer.publish, "t", b"%0*d" % (size, n))
                await settle()
            assert not any(call.done for call in calls)
            stats = producer.stats()
            assert 0 < stats.waiting_count < len(calls)
            # Those whose bytes were not taken have sent nothing: with the next connection they go on.
            await peer.close()
            await settle()
            lost_count = sum(call.done for call in calls)
            assert 0 < lost_count <= stats.nsqds[0].outstanding_count
            clock.advance(1)
            async with await broker.handshake() as peer:
                for _ in range(len(calls) - lost_count):
                    await peer.command()
                    await peer.send(OK_FRAME)
                await settle()
            assert all(call.done for call in calls)
            assert sum(isinstance(call.error, ConnectionLost) for call in calls) == lost_count
            assert producer.stats().lost_count == lost_count

    async def test_publishes_go_on_when_the_broker_reads_again(self):
        size = 1 << 20
        async with connected() as (producer, peer), anyio.create_task_group() as tasks:
            calls = [Call() for _ in range(30 + OUTBOX_SIZE_MAX // size)]
            for call in calls:
                tasks.start_soon(call.run, producer.publish, "t", bytes(size))
            await settle()
            for _ in calls:
                await peer.command()
                await peer.send(OK_FRAME)
            await settle()
            assert [call.error for call in calls] == [None] * len(calls)
            assert all(call.done for call in calls)


# ---- leaving -------------------------------------------------------------------------------------------------


@in_memory
class TestLeaving:
    async def test_exception_of_the_block_is_not_wrapped(self):
        with pytest.raises(KeyError, match="mine"):
            async with producing() as (_, broker, _):
                broker.hanging = True
                raise KeyError("mine")

    async def test_exception_of_the_block_is_not_wrapped_with_a_connection(self):
        broker = ScriptedBroker()
        async with anyio.create_task_group() as tasks:
            with pytest.raises(KeyError, match="mine"):
                async with Producer(ADDRESS, dial=broker.dial):
                    peer = await broker.handshake()
                    tasks.start_soon(follow, peer)
                    await settle()
                    raise KeyError("mine")

    async def test_unexpected_error_of_the_dial_leaves_the_block(self):
        broker = ScriptedBroker()
        broker.refusal = ZeroDivisionError()
        with pytest.raises(ExceptionGroup) as caught:
            async with Producer(ADDRESS, dial=broker.dial) as producer:
                await producer.publish("t", b"x")
        assert caught.group_contains(ZeroDivisionError)

    async def test_leaving_waits_for_answers(self):
        async with anyio.create_task_group() as tasks:
            call, left = Call(), anyio.Event()
            broker = ScriptedBroker()

            async def publish_and_leave() -> None:
                async with Producer(ADDRESS, dial=broker.dial) as producer:
                    await producer.ping()
                    tasks.start_soon(call.run, producer.publish, "t", b"x")
                    await settle()
                left.set()

            tasks.start_soon(publish_and_leave)
            peer = await broker.handshake()
            assert await peer.line() == b"NOP"
            assert await peer.command() == (b"PUB t", b"x")
            await settle()
            assert not left.is_set()
            await peer.send(OK_FRAME)
            await peer.wait_end()
            await peer.close()
            with anyio.fail_after(WAIT_LIMIT):
                await left.wait()
            assert call.done
            assert call.error is None

    @pytest.mark.parametrize("state", ["dialling", "handshake", "delayed"])
    async def test_leaving_without_a_connection_does_not_wait(self, state):
        async with producing() as (_, broker, _):
            broker.hanging = state == "dialling"
            broker.refusal = ConnectionRefusedError() if state == "delayed" else None
            peer = await broker.accept() if state == "handshake" else None
            await settle()
        if peer is not None:
            await peer.close()

    async def test_publish_that_waits_for_a_connection_raises_closed_at_the_end(self):
        broker = ScriptedBroker()
        broker.hanging = True
        async with anyio.create_task_group() as tasks:
            call = Call()
            async with Producer(ADDRESS, dial=broker.dial) as producer:
                tasks.start_soon(call.run, producer.publish, "t", b"x")
                await settle()
            await settle()
            assert isinstance(call.error, Closed)
            with pytest.raises(Closed):
                await producer.publish("t", b"x")

    async def test_publish_that_waits_for_an_answer_raises_connection_lost_at_the_end(self, monkeypatch):
        monkeypatch.setattr("nsqkit.producer.pool.DRAIN_TIMEOUT", 0)
        async with anyio.create_task_group() as tasks:
            call = Call()
            async with connected() as (producer, peer):
                tasks.start_soon(call.run, producer.publish, "t", b"x")
                await peer.command()
            assert isinstance(call.error, ConnectionLost)

    async def test_producer_cannot_be_entered_twice_at_a_time(self):
        async with producing() as (producer, broker, _):
            broker.hanging = True
            with pytest.raises(Closed, match="entered already"):
                await producer.__aenter__()

    async def test_producer_can_be_entered_again_after_its_end(self):
        broker = ScriptedBroker()
        producer = Producer(ADDRESS, dial=broker.dial)
        for _ in range(2):
            async with anyio.create_task_group() as tasks, producer:
                peer = await broker.handshake()
                tasks.start_soon(producer.publish, "t", b"x")
                await peer.command()
                await peer.send(OK_FRAME)
                await settle()
                await peer.close()


@pytest.mark.parametrize("anyio_backend", BACKENDS[1:])  # the clock jumps: a peer may linger for a second
async def test_leaving_does_not_wait_forever_for_the_broker_to_close():
    broker = ScriptedBroker()
    with anyio.fail_after(3):
        async with Producer(ADDRESS, dial=broker.dial):
            peer = await broker.handshake()
            await settle()
    await peer.close()


@in_memory
async def test_every_nowait_method_publishes():
    async with connected() as (producer, peer):
        many = producer.multi_publish_nowait("t", [b"1", b"2"])
        late = producer.deferred_publish_nowait("t", b"3", 1.5, key="k")
        expected = encode_multi_publish(b"t", [b"1", b"2"]) + encode_deferred_publish(b"t", b"3", 1500)
        assert await peer.take(len(expected)) == expected
        await peer.send(OK_FRAME + OK_FRAME)
        await many
        await late
        assert producer.stats().message_count == 3
        with pytest.raises(OptionError, match="delay"):
            producer.deferred_publish_nowait("t", b"3", -1)
        with pytest.raises(OptionError, match="bodies"):
            producer.multi_publish_nowait("t", [])
