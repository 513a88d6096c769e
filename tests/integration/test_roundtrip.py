"""Producer, broker and consumer together: every test runs on asyncio and trio, over TCP and in memory."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from nsqkit import Message
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from nsqkit.errors import HeartbeatTimeout, MessageError, NotConnected
from tests.integration.conftest import Received
from tests.integration.stage import (
    FREE_PORT,
    TOPIC,
    Stage,
    bodies_of,
    channel_of,
    consuming,
    is_empty,
    take,
    until,
)

pytestmark = pytest.mark.anyio

BODIES = [b"%d" % n for n in range(100)]


class OutOfOrder(Exception):
    """The error of failing handlers."""


# ---- the environment -----------------------------------------------------------------------------------------------


async def test_signals_are_left_to_the_program(stage: Stage):
    def handlers() -> dict[signal.Signals, object]:
        return {number: signal.getsignal(number) for number in signal.Signals}

    before = handlers()
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer, stage.consumer(nsqd) as consumer:
        await producer.publish(TOPIC, b"one")
        (message,) = await take(consumer, 1)
        assert handlers() == before
        message.finish()
    assert handlers() == before


# ---- publishing ----------------------------------------------------------------------------------------------------


async def test_published_messages_are_consumed(stage: Stage):
    async with stage.broker() as nsqd:
        async with stage.producer(nsqd) as producer:
            await producer.publish(TOPIC, b"one")
            await producer.multi_publish(TOPIC, [b"two", b"three"])
            assert bodies_of_topic(nsqd) == 3
        async with stage.consumer(nsqd) as consumer:
            messages = await take(consumer, 3)
            for message in messages:
                assert message.attempts == 1
                assert message.timestamp_ns == stage.clock.now_ns()
                assert message.nsqd_address == nsqd.tcp_address
                message.finish()
                assert message.is_answered
                with pytest.raises(MessageError, match=message.id.decode()):
                    message.finish()
        assert bodies_of(messages) == [b"one", b"two", b"three"]
        assert is_empty(channel_of(nsqd))
        await until(lambda: not nsqd.broker.sessions)


def bodies_of_topic(nsqd: Nsqd) -> int:
    return nsqd.broker.topics[TOPIC.encode()].message_count


async def test_publishes_of_many_tasks_share_a_connection(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        async with anyio.create_task_group() as tasks:
            for body in BODIES:
                tasks.start_soon(producer.publish, TOPIC, body)
        assert bodies_of_topic(nsqd) == 100
        assert len(nsqd.broker.sessions) == 1
        async with stage.consumer(nsqd, max_in_flight=100) as consumer:
            assert sorted(bodies_of(await take(consumer, 100))) == sorted(BODIES)


async def test_deferred_message_is_delivered_when_due(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer, stage.consumer(nsqd) as consumer:
        await consumer.wait_connected()
        await producer.deferred_publish(TOPIC, b"due in 20 s", delay=20)
        await producer.deferred_publish(TOPIC, b"due in 10 s", delay=10)
        stage.clock.advance(9.999)
        await producer.publish(TOPIC, b"at once")
        assert bodies_of(await take(consumer, 1)) == [b"at once"]
        stage.clock.advance(0.001)
        assert bodies_of(await take(consumer, 1)) == [b"due in 10 s"]
        stage.clock.advance(10)
        (late,) = await take(consumer, 1)
        assert (late.body, late.attempts) == (b"due in 20 s", 1)


async def test_every_channel_gets_every_message(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        topic = nsqd.broker.topics.get_or_create(TOPIC.encode())
        for name in (b"c", b"archive"):
            topic.channel(name, stage.clock.now_ns())
        await producer.multi_publish(TOPIC, BODIES)
        async with stage.consumer(nsqd) as consumer:
            for message in await take(consumer, 10):
                message.finish()
        assert len(channel_of(nsqd).queue) == 90
        assert len(channel_of(nsqd, b"archive").queue) == 100


# ---- three ways of receiving ---------------------------------------------------------------------------------------


async def test_batches(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES)
        bodies = []
        async with stage.consumer(nsqd, max_in_flight=30) as consumer:
            async for batch in consumer.batches():
                assert 0 < len(batch) <= 30
                bodies += bodies_of(batch)
                for message in batch:
                    message.finish()
                if len(bodies) == 100:
                    break
        assert bodies == BODIES
        assert is_empty(channel_of(nsqd))


async def test_async_for_ends_when_the_consumer_is_closed(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES)
        seen = 0
        async with stage.consumer(nsqd) as consumer:
            async for message in consumer:
                seen += 1
                message.finish()
                consumer.stop()
        assert seen == 1
        assert len(channel_of(nsqd).queue) == 99


async def test_run_with_a_plain_handler(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES)
        bodies = []

        def handle(message: Message) -> None:
            bodies.append(message.body)
            if len(bodies) == 100:
                consumer.stop()

        async with stage.consumer(nsqd) as consumer:
            await consumer.run(handle)
        assert bodies == BODIES
        assert is_empty(channel_of(nsqd))


async def test_run_with_concurrent_async_handlers(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:9])
        handling: list[bytes] = []
        handled: list[bytes] = []
        three_are_here = anyio.Event()

        async def handle(message: Message) -> None:
            handling.append(message.body)
            assert len(handling) <= 3
            if len(handling) == 3:
                three_are_here.set()
            await three_are_here.wait()
            handling.remove(message.body)
            handled.append(message.body)
            if len(handled) == 9:
                consumer.stop()

        async with stage.consumer(nsqd) as consumer:
            await consumer.run(handle, concurrency=3)
        assert sorted(handled) == BODIES[:9]
        assert is_empty(channel_of(nsqd))


# ---- answers -------------------------------------------------------------------------------------------------------


async def test_requeued_message_is_delivered_again(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.publish(TOPIC, b"x")
        async with stage.consumer(nsqd) as consumer:
            (first,) = await take(consumer, 1)
            first.requeue(0, backoff=False)
            (second,) = await take(consumer, 1)
            assert (second.id, second.attempts) == (first.id, 2)
            second.requeue(5, backoff=False)
            await until(lambda: channel_of(nsqd).deferred)
            stage.clock.advance(5)
            (third,) = await take(consumer, 1)
            assert (third.id, third.attempts) == (first.id, 3)
            third.finish()
        assert is_empty(channel_of(nsqd))
        assert channel_of(nsqd).requeue_count == 2


async def test_touched_message_has_a_new_timeout(stage: Stage, received: Received):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.publish(TOPIC, b"x")
        async with stage.consumer(nsqd, msg_timeout=10) as consumer:
            (message,) = await take(consumer, 1)
            for touches in (1, 2, 3):
                stage.clock.advance(9)
                message.touch()
                await until(lambda: [verb for _, verb, _ in received].count(b"TOUCH") == touches)  # noqa: B023
            message.finish()
        assert is_empty(channel_of(nsqd))
        assert channel_of(nsqd).timeout_count == 0


async def test_unanswered_message_times_out_and_is_delivered_again(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.publish(TOPIC, b"x")
        async with stage.consumer(nsqd, msg_timeout=10) as consumer:
            (first,) = await take(consumer, 1)
            stage.clock.advance(10)
            (second,) = await take(consumer, 1)
            assert (second.id, second.attempts) == (first.id, 2)
            first.finish()  # too late: it must not finish the second delivery
            assert not second.is_answered
            second.finish()
        assert is_empty(channel_of(nsqd))
        assert channel_of(nsqd).timeout_count == 1


async def test_message_that_one_consumer_does_not_answer_is_delivered_to_another(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.publish(TOPIC, b"x")
        async with stage.consumer(nsqd, max_in_flight=1, msg_timeout=10) as slow:
            (held,) = await take(slow, 1)
            async with stage.consumer(nsqd) as other:
                await other.wait_connected()
                stage.clock.advance(10)
                # The broker may choose the slow consumer again: its message has timed out, so it has room.
                slow.pause()
                message = await first_of(slow, other)
                assert (message.id, message.attempts) == (held.id, 2)


async def first_of(*consumers) -> Message:
    """Return the first message that any of the consumers receives."""
    messages: list[Message] = []
    async with anyio.create_task_group() as tasks:

        async def wait(consumer) -> None:
            messages.append(await anext(consumer))
            tasks.cancel_scope.cancel()

        for consumer in consumers:
            tasks.start_soon(wait, consumer)
    return messages[0]


def fail(message: Message) -> None:
    if message.attempts == 1:
        raise OutOfOrder


async def fail_later(message: Message) -> None:
    await anyio.lowlevel.checkpoint()
    fail(message)


@pytest.mark.parametrize("handler", [fail, fail_later])
async def test_message_whose_handler_fails_is_requeued(
    stage: Stage, handler: Callable[[Message], Awaitable[None] | None], caplog: pytest.LogCaptureFixture
):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, [b"1", b"2", b"3"])
        attempts = []

        def handle(message: Message) -> Any:
            attempts.append(message.attempts)
            if len(attempts) == 6:
                consumer.stop()
            return handler(message)

        async with stage.consumer(nsqd, default_requeue_delay=7, max_backoff_duration=0) as consumer:
            await consumer.wait_connected()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                await until(lambda: len(channel_of(nsqd).deferred) == 3)
                stage.clock.advance(6.999)
                assert len(channel_of(nsqd).deferred) == 3
                stage.clock.advance(0.001)
        assert attempts == [1, 1, 1, 2, 2, 2]
        assert is_empty(channel_of(nsqd))
        assert caplog.text.count("the handler failed on") == 3


# ---- leaving -------------------------------------------------------------------------------------------------------


async def test_leaving_during_delivery_loses_nothing(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:10])
        async with stage.consumer(nsqd, max_in_flight=8) as consumer:
            messages = await take(consumer, 4)
            messages[0].finish()
            messages[2].finish()
        assert [message async for message in consumer] == []
        assert channel_of(nsqd).in_flight_count == 0
        # The broker's clock stands still, so none of these has timed out.
        async with stage.consumer(nsqd) as consumer:
            again = await take(consumer, 8)
        assert {(message.body, message.attempts) for message in again} == {
            *((body, 2) for body in (b"1", b"3", b"4", b"5", b"6", b"7")),
            *((body, 1) for body in (b"8", b"9")),
        }


async def test_closed_consumer_can_still_answer_and_has_requeued_the_rest(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:10])
        async with stage.consumer(nsqd) as closed:
            begun = await take(closed, 3)
            closed.stop()
            async with stage.consumer(nsqd) as other:
                given_back = await take(other, 7)
                assert {(message.body, message.attempts) for message in given_back} == {
                    (body, 2) for body in BODIES[3:10]
                }
                for message in [*begun, *given_back]:
                    message.finish()
        await until(lambda: is_empty(channel_of(nsqd)))


async def test_leaving_by_an_exception_requeues_messages(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:10])
        with pytest.raises(OutOfOrder):
            async with stage.consumer(nsqd) as consumer:
                await take(consumer, 1)
                raise OutOfOrder
        assert len(channel_of(nsqd).queue) == 10
        assert channel_of(nsqd).in_flight_count == 0


async def test_cancelling_the_enclosing_scope_requeues_messages(stage: Stage):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:10])
        with anyio.CancelScope() as scope:
            async with stage.consumer(nsqd) as consumer:
                await take(consumer, 1)
                scope.cancel()
                await anyio.sleep_forever()
        assert len(channel_of(nsqd).queue) == 10
        assert channel_of(nsqd).in_flight_count == 0


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_cancelled_run_requeues_the_messages_of_its_handlers(stage: Stage, concurrency: int):
    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        await producer.multi_publish(TOPIC, BODIES[:5])
        begun: list[bytes] = []

        async def hang(message: Message) -> None:
            begun.append(message.body)
            if len(begun) == concurrency:
                scope.cancel()
            await anyio.sleep_forever()

        async with stage.consumer(nsqd) as consumer:
            with anyio.CancelScope() as scope:
                await consumer.run(hang, concurrency=concurrency)
            assert begun == BODIES[:concurrency]
            # The consumer continues: waiting messages are still there, and begun ones are delivered again.
            messages = await take(consumer, 5)
            assert {message.body: message.attempts for message in messages} == {
                body: 2 if body in begun else 1 for body in BODIES[:5]
            }
            for message in messages:
                message.finish()
        assert is_empty(channel_of(nsqd))


async def test_waiting_run_can_be_cancelled(stage: Stage):
    async with stage.broker() as nsqd, stage.consumer(nsqd) as consumer:
        await consumer.wait_connected()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, fail)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert len(channel_of(nsqd).subscriptions) == 1


# ---- lost and new brokers ------------------------------------------------------------------------------------------


async def test_clients_reconnect_to_a_restarted_broker(stage: Stage):
    async with anyio.create_task_group() as tasks:
        end, ended = anyio.Event(), anyio.Event()

        async def run_first(*, task_status: TaskStatus[Nsqd]) -> None:
            await stage.run_broker(FREE_PORT, end, task_status=task_status)
            ended.set()

        first: Nsqd = await tasks.start(run_first)
        async with stage.producer(first) as producer, stage.consumer(first) as consumer:
            await producer.publish(TOPIC, b"before")
            (before,) = await take(consumer, 1)
            end.set()
            await until(lambda: not producer.is_connected and consumer.unconnected)
            before.finish()  # no effect: its connection is gone, and so is its broker
            tasks.start_soon(producer.publish, TOPIC, b"meanwhile")  # waits for a connection
            await until(lambda: consumer.unconnected[first.tcp_address])
            await ended.wait()  # its port is free
            end = anyio.Event()
            second: Nsqd = await tasks.start(stage.run_broker, first.tcp_address, end)
            assert second.tcp_address == first.tcp_address
            await consumer.wait_connected()
            await producer.publish(TOPIC, b"after")
            messages = await take(consumer, 2)
            assert set(bodies_of(messages)) == {b"meanwhile", b"after"}
            for message in messages:
                message.finish()
        assert is_empty(channel_of(second))
        end.set()


async def test_consumer_receives_from_several_brokers(stage: Stage):
    async with stage.broker() as a, stage.broker() as b, stage.broker() as c:
        async with stage.consumer(a, b, c, max_in_flight=9) as consumer:
            await consumer.wait_connected()
            await until(lambda: [consuming(nsqd).rdy_count for nsqd in (a, b, c)] == [3, 3, 3])
            for nsqd in (a, b, c):
                async with stage.producer(nsqd) as producer:
                    await producer.multi_publish(TOPIC, BODIES[:20])
            messages: list[Message] = []
            while len(messages) < 60:
                message = await anext(consumer)
                assert sum(channel_of(nsqd).in_flight_count for nsqd in (a, b, c)) <= 9
                messages.append(message)
                message.finish()
        for nsqd in (a, b, c):
            mine = [message for message in messages if message.nsqd_address == nsqd.tcp_address]
            assert bodies_of(mine) == BODIES[:20]
            assert is_empty(channel_of(nsqd))


async def test_other_brokers_get_the_share_of_a_lost_broker(stage: Stage):
    async with stage.broker() as a, anyio.create_task_group() as tasks:
        end = anyio.Event()
        b: Nsqd = await tasks.start(stage.run_broker, FREE_PORT, end)
        async with stage.consumer(a, b, max_in_flight=9) as consumer:
            await consumer.wait_connected()
            await until(lambda: consuming(a).rdy_count + consuming(b).rdy_count == 9)
            assert consuming(a).rdy_count in {4, 5}
            end.set()
            await until(lambda: consuming(a).rdy_count == 9)
            assert list(consumer.unconnected) == [b.tcp_address]


async def test_single_message_in_flight_rotates_among_brokers(stage: Stage):
    async with stage.broker() as a, stage.broker() as b:
        async with stage.consumer(a, b, max_in_flight=1, clock=stage.clock) as consumer:
            await consumer.wait_connected()
            await until(lambda: consuming(a).rdy_count + consuming(b).rdy_count == 1)
            unasked = a if consuming(b).rdy_count else b
            async with stage.producer(unasked) as producer:
                await producer.publish(TOPIC, b"x")
            stage.clock.advance(10)  # low_rdy_idle_timeout
            (message,) = await take(consumer, 1)
            assert message.nsqd_address == unasked.tcp_address


# ---- heartbeats ----------------------------------------------------------------------------------------------------


async def test_idle_clients_stay_connected_by_heartbeats(stage: Stage, received: Received):
    async with stage.broker() as nsqd:
        clients = (stage.producer(nsqd, clock=stage.clock), stage.consumer(nsqd, clock=stage.clock))
        async with clients[0] as producer, clients[1] as consumer:
            await consumer.wait_connected()
            await until(lambda: producer.is_connected)
            await until(lambda: [verb for _, verb, _ in received].count(b"RDY") == 1)
            sessions = list(nsqd.broker.sessions)
            received.clear()
            for _ in range(6):
                stage.clock.advance(30)
                await until(lambda: len(received) == 2)
                assert {session for session, _, _ in received} == set(sessions)
                assert {verb for _, verb, _ in received} == {b"NOP"}
                received.clear()
            await producer.publish(TOPIC, b"x")
            assert bodies_of(await take(consumer, 1)) == [b"x"]
            assert list(nsqd.broker.sessions) == sessions


async def test_clients_leave_a_silent_broker(stage: Stage):
    # The clients' clock advances and the broker's does not, so it sends no heartbeat.
    clock = ManualClock()
    async with stage.broker() as nsqd:
        producing = stage.producer(nsqd, clock=clock, connect_timeout=0)
        async with producing as producer, stage.consumer(nsqd, clock=clock) as consumer:
            await consumer.wait_connected()
            await until(lambda: producer.is_connected)
            await producer.publish(TOPIC, b"before")
            (held,) = await take(consumer, 1)
            sessions = set(nsqd.broker.sessions)
            clock.advance(59.999)
            assert producer.is_connected
            clock.advance(0.001)
            await until(lambda: isinstance(consumer.unconnected.get(nsqd.tcp_address), HeartbeatTimeout))
            await until(lambda: not producer.is_connected and not nsqd.broker.sessions)
            assert held.is_answered
            with pytest.raises(NotConnected) as caught:
                await producer.publish(TOPIC, b"meanwhile")
            assert isinstance(caught.value.__cause__, HeartbeatTimeout)
            assert "60 seconds" in str(caught.value.__cause__)
            clock.advance(0.1)  # reconnect_delay_min
            await consumer.wait_connected()
            await until(lambda: producer.is_connected)
            await producer.publish(TOPIC, b"after")
            assert bodies_of(await take(consumer, 1)) == [b"after"]
            assert not sessions & set(nsqd.broker.sessions)


# ---- backoff -------------------------------------------------------------------------------------------------------


async def test_backoff_lets_one_message_through_before_it_resumes(stage: Stage, received: Received):
    # Only the consumer's clock advances: two seconds of backoff after one failure, four after two.
    clock = ManualClock()
    failing = {b"0", b"1"}
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body in failing:
            raise OutOfOrder

    def rdy_counts() -> list[int]:
        return [int(params[0]) for _, verb, params in received if verb == b"RDY"]

    async with stage.broker() as nsqd, stage.producer(nsqd) as producer:
        async with (
            stage.consumer(nsqd, max_in_flight=5, clock=clock) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await consumer.wait_connected()
            await producer.publish(TOPIC, b"0")
            await until(lambda: rdy_counts() == [5, 0])
            await producer.multi_publish(TOPIC, [b"1", b"2", b"3"])
            clock.advance(1.999)
            await producer.publish(TOPIC, b"4")
            assert consuming(nsqd).rdy_count == 0
            assert handled == [b"0"]

            clock.advance(0.001)  # the test message fails
            await until(lambda: rdy_counts() == [5, 0, 1, 0])
            await until(lambda: channel_of(nsqd).requeue_count == 2)
            assert handled == [b"0", b"1"]

            clock.advance(4)  # the next succeeds: one of two
            await until(lambda: rdy_counts() == [5, 0, 1, 0, 1, 0])
            await until(lambda: consuming(nsqd).finish_count == 1)
            assert handled == [b"0", b"1", b"2"]

            clock.advance(2)  # and so does this: backoff is over
            await until(lambda: rdy_counts() == [5, 0, 1, 0, 1, 0, 1, 0, 5])
            await until(lambda: consuming(nsqd).finish_count == 3)
            assert handled == [b"0", b"1", b"2", b"3", b"4"]
            consumer.stop()
        assert len(channel_of(nsqd).deferred) == 2  # requeued with a delay
