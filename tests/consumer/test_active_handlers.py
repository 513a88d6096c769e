"""The end of handlers: after a stop, while the consumer is left, and at the time limit."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from nsqkit.consumer.handler_options import HandlerOptions
from nsqkit.consumer.message import Message
from nsqkit.errors import OptionError
from tests.consumer.test_consumer import Bench, consuming, farewell, fin, req
from tests.peers import ADDRESS, BACKENDS, body_of, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]


class Handler:
    """Waits until it may end."""

    def __init__(self) -> None:
        self.may_end = anyio.Event()
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        try:
            await self.may_end.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(message.body)
            raise
        self.ended.append(message.body)


async def test_running_handler_completes_after_stop():
    handler = Handler()
    async with (
        consuming(b"RDY 0", req(2), b"CLS", fin(1)) as (consumer, peer),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.run, handler)
        await peer.deliver(1, 2)
        await settle()
        consumer.stop()
        await settle()
        handler.may_end.set()


@pytest.mark.parametrize("timeout", [None, 3, 0])
async def test_handler_is_cancelled_at_time_limit_of_stop(timeout, caplog):
    handler = Handler()
    bench = Bench([ADDRESS], max_in_flight=2, close_timeout=10)
    async with anyio.create_task_group() as tasks, bench.consumer as consumer:
        peer = await bench.subscribe(2)
        await peer.deliver(1)
        await settle()
        running = anyio.Event()

        async def run() -> None:
            await consumer.run(handler)
            running.set()

        tasks.start_soon(run)
        await settle()
        consumer.stop(timeout)
        consumer.stop()  # the earlier end counts
        await settle()
        for _ in range(10 if timeout is None else timeout):
            assert handler.cancelled == []
            assert not running.is_set()
            bench.clock.advance(1)
            await settle()
        assert running.is_set()
        assert (handler.cancelled, handler.ended) == ([body_of(1)], [])
        tasks.start_soon(lambda: farewell(peer, b"RDY 0", b"CLS", req(1)))
    assert "the stop's time is over, and 1 messages are not answered" in caplog.text


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
async def test_invalid_stop_timeout_is_refused(timeout):
    async with consuming() as (consumer, _):
        with pytest.raises(OptionError, match=r"timeout is .*; allowed is 0 to 1e\+09 seconds"):
            consumer.stop(timeout)


async def test_leaving_waits_for_handlers_of_other_tasks():
    handler = Handler()
    bench = Bench([ADDRESS], max_in_flight=2)
    async with anyio.create_task_group() as tasks:
        async with bench.consumer as consumer:
            peer = await bench.subscribe(2)
            tasks.start_soon(consumer.run, handler)
            await peer.deliver(1)
            await settle()
            tasks.start_soon(lambda: farewell(peer, b"RDY 0", b"CLS", fin(1)))

            async def end_later() -> None:
                await settle()
                handler.may_end.set()

            tasks.start_soon(end_later)
        assert handler.ended == [body_of(1)]


async def test_leaving_requeues_unanswered_messages_of_a_loop():
    async with consuming(b"RDY 0", b"CLS", req(1)) as (consumer, peer):
        await peer.deliver(1)
        message = await anext(consumer)
    assert message.is_answered
    message.finish()  # it was requeued, so this does nothing


async def test_answer_after_requeue_by_consumer_does_nothing():
    answered = []

    async def handle(message: Message) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            message.finish()
            answered.append(message.body)

    bench = Bench([ADDRESS], max_in_flight=2)
    async with anyio.create_task_group() as tasks, bench.consumer as consumer:
        peer = await bench.subscribe(2)
        await peer.deliver(1)
        tasks.start_soon(consumer.run, handle)
        await settle()
        consumer.stop(0)
        tasks.start_soon(lambda: farewell(peer, b"RDY 0", b"CLS", req(1)))
    assert answered == [body_of(1)]


async def test_max_in_flight_follows_the_concurrency_of_all_handlers():
    bench = Bench([ADDRESS])
    async with anyio.create_task_group() as tasks, bench.consumer as consumer:
        peer = await bench.subscribe(1)
        tasks.start_soon(lambda: consumer.run(print, concurrency=20))
        assert await peer.line() == b"RDY 20"
        tasks.start_soon(lambda: consumer.run_batches(print, max_messages=10, concurrency=2))
        assert await peer.line() == b"RDY 40"
        consumer.change_max_in_flight(5)
        assert await peer.line() == b"RDY 5"
        tasks.start_soon(lambda: consumer.run(print, concurrency=50))
        await settle()
        assert consumer.stats().max_in_flight == 5
        consumer.stop()
        tasks.start_soon(lambda: farewell(peer, b"RDY 0", b"CLS"))


async def test_explicit_lower_max_in_flight_is_kept_with_a_warning(caplog):
    async with consuming(max_in_flight=5) as (consumer, _), anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: consumer.run(print, concurrency=20))
        await settle()
        assert consumer.stats().max_in_flight == 5
        tasks.cancel_scope.cancel()
    (warning,) = [message for message in caplog.messages if "max_in_flight" in message]
    assert "max_in_flight is 5, less than the 20 messages that the handlers can take at a time" in warning


@pytest.mark.parametrize("receive", ["iterate", "batches"])
@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"max_attempts": 3}, 1)])
async def test_max_attempts_without_run_logs_a_warning(receive, options: dict[str, Any], count, caplog):
    caplog.set_level(logging.WARNING, "nsqkit.consumer")
    async with consuming(**options) as (consumer, _):
        for _ in range(2):
            consumer.batches() if receive == "batches" else aiter(consumer)
    assert len(caplog.messages) == count


async def test_close_does_not_wait_for_a_handler_that_a_thread_of_the_program_calls():
    async with consuming(b"RDY 0", b"CLS") as (consumer, _):
        handling = consumer.handlers.make(print, HandlerOptions())
        consumer.handlers.add(handling, 1)
        consumer.stop(0)
    consumer.handlers.remove(handling)
