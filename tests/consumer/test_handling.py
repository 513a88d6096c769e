"""The outcomes of handlers and their options; ``test_consumer`` has the basic ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.clock import ManualClock
from nsqkit.consumer.dead_letter import DeadLetter, GivenUp
from nsqkit.consumer.handling import TOUCH_PARTS
from nsqkit.consumer.message import Message
from nsqkit.consumer.subscription import Subscription
from nsqkit.errors import MessageError, OptionError
from tests.consumer.test_consumer import Bench, consuming, fin, req
from tests.peers import ADDRESS, BACKENDS, Peer, body_of, message_id, settle

pytestmark = pytest.mark.anyio
in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)


@asynccontextmanager
async def timed(**options: Any) -> AsyncIterator[tuple[Consumer, Peer, ManualClock]]:
    """Yield a consumer, its broker's end, and the clock."""
    async with consuming(read_timeout=300, **options) as (consumer, peer):
        assert isinstance(consumer._clock, ManualClock)
        yield consumer, peer, consumer._clock


@in_memory
class TestWorkers:
    async def test_message_wakes_one_handler(self, monkeypatch):
        waits = 0
        arrival = Subscription.arrival

        def count(subscription: Subscription) -> anyio.Event | None:
            nonlocal waits
            waits += 1
            return arrival(subscription)

        monkeypatch.setattr(Subscription, "arrival", count)
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(print, concurrency=8))
            await settle()
            assert waits == 1
            for number in range(5):
                await peer.deliver(number)
                assert await peer.line() == fin(number)
            await settle()
            assert waits == 6
            tasks.cancel_scope.cancel()

    async def test_one_handler_begins_for_each_message(self):
        begun = 0

        async def handle(message: Message) -> None:
            nonlocal begun
            begun += 1
            await anyio.sleep_forever()

        async with consuming() as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.run(handle, concurrency=8))
                await settle()
                await peer.deliver(0, 1, 2)
                await settle()
                assert begun == 3
                await peer.deliver(3, 4)
                await settle()
                assert begun == 5
                tasks.cancel_scope.cancel()
            assert {await peer.line() for _ in range(5)} == set(map(req, range(5)))


@in_memory
class TestLanes:
    async def test_messages_with_one_key_are_handled_in_order(self):
        begun: list[bytes] = []
        may_end = anyio.Event()

        async def handle(message: Message) -> None:
            begun.append(message.body)
            await may_end.wait()

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: consumer.run(handle, concurrency=2, key=lambda message: int(message.body[-1:]) % 2)
            )
            await peer.deliver(1, 3, 2)
            await settle()
            assert sorted(begun) == [body_of(1), body_of(2)]
            may_end.set()
            assert {await peer.line() for _ in range(3)} == {fin(1), fin(2), fin(3)}
            assert begun.index(body_of(1)) < begun.index(body_of(3))
            tasks.cancel_scope.cancel()

    async def test_stop_requeues_messages_in_keyed_queues(self):
        may_end = anyio.Event()

        async def handle(message: Message) -> None:
            await may_end.wait()

        async with consuming(b"RDY 0", req(2), b"CLS", fin(1)) as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.run(handle, key=lambda message: 0))
                await peer.deliver(1, 2)
                await settle()
                waiting = [consumer.stats().waiting]
                consumer.stop()
                waiting.append(consumer.stats().waiting)
                await settle()
                may_end.set()
        assert waiting == [1, 0]

    async def test_a_message_without_a_key_is_requeued(self, caplog):
        def key(message: Message) -> int:
            raise ValueError("no key")

        async with (
            consuming(b"CLS", default_requeue_delay=1) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(print, key=key))
            await peer.deliver(1)
            assert {await peer.line(), await peer.line()} == {b"RDY 0", req(1, 1000)}
            tasks.cancel_scope.cancel()
        assert "the handler failed on <Message" in caplog.text

    async def test_message_that_arrives_while_another_is_given_up_is_handled(self):
        """Also where nothing is sent for that one, as it has timed out."""
        may_end = anyio.Event()
        handled: list[bytes] = []

        def key(message: Message) -> int:
            if message.body == body_of(1):
                raise ValueError("no key")
            return 0

        async def give_up(message: Message) -> None:
            await may_end.wait()

        async with timed(max_attempts=1) as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(
                lambda: consumer.run(lambda message: handled.append(message.body), key=key, giving_up=give_up)
            )
            await peer.deliver(1)
            await settle()
            clock.advance(50)
            await peer.deliver(2)
            await settle()
            clock.advance(20)
            await settle()
            may_end.set()
            await settle()
            assert handled == [body_of(2)]
            assert await peer.line() == fin(2)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])  # a clock that jumps would not wait for a thread
class TestThreads:
    async def test_a_handler_may_block_and_answer_there(self):
        threads: set[int] = set()
        gate = threading.Barrier(2, timeout=60)

        def handle(message: Message) -> None:
            threads.add(threading.get_ident())
            gate.wait()
            message.touch()
            assert message.time_left > 0
            assert not message.is_answered
            message.requeue(2, backoff=False)
            with pytest.raises(MessageError):
                message.finish()

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, concurrency=2, in_threads=True))
            await peer.deliver(1, 2)
            lines = {await peer.line() for _ in range(4)}
            assert lines == {b"TOUCH " + message_id(1), b"TOUCH " + message_id(2), req(1, 2000), req(2, 2000)}
            assert len(threads) == 2
            assert threading.get_ident() not in threads
            tasks.cancel_scope.cancel()

    async def test_outcomes_in_threads_are_the_same(self):
        def handle(message: Message) -> None:
            if message.body == body_of(2):
                raise ValueError("no")

        async with (
            consuming(b"CLS", default_requeue_delay=1) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, in_threads=True))
            await peer.deliver(1)
            assert await peer.line() == fin(1)
            await peer.deliver(2)
            assert {await peer.line(), await peer.line()} == {b"RDY 0", req(2, 1000)}
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("attempts", [1, 5])
    @pytest.mark.parametrize("concurrency", [1, 2])
    @pytest.mark.parametrize("in_threads", [False, True])
    async def test_exit_of_a_handler_requeues_its_message_and_is_raised_by_run(self, attempts, concurrency, in_threads):
        def leave(message: Message) -> None:
            raise SystemExit(3)

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: peer.deliver(1, attempts=attempts))
            with pytest.raises(SystemExit, match="3"):
                await consumer.run(leave, concurrency=concurrency, in_threads=in_threads)
            assert await peer.line() == req(1)


@in_memory
class TestGivingUp:
    async def test_a_message_is_given_up_at_its_last_failure(self, caplog):
        reasons: list[GivenUp] = []
        failure = ValueError("no")

        def fail(message: Message) -> None:
            raise failure

        def give_up(message: Message, given_up: GivenUp) -> None:
            reasons.append(given_up)

        async with timed(max_attempts=3, max_backoff_duration=0, default_requeue_delay=1) as (
            consumer,
            peer,
            clock,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.run(fail, giving_up=give_up))
                await peer.deliver(1)
                assert await peer.line() == req(1, 1000)
                await peer.deliver(1, attempts=2)
                assert await peer.line() == req(1, 2000)
                await peer.deliver(1, attempts=3)
                assert await peer.line() == fin(1)
                (reason,) = reasons
                assert consumer.stats().given_up == 1
                tasks.cancel_scope.cancel()
        assert reason.error is failure
        assert (reason.error_type, reason.error_text, reason.attempts) == ("ValueError", "no", 3)
        assert (reason.topic, reason.channel, reason.nsqd_address) == ("t", "c", ADDRESS)
        assert (reason.id, reason.body) == (message_id(1).decode(), body_of(1))
        assert reason.given_up_ns == clock.now_ns()
        assert "giving up on <Message" in caplog.text

    async def test_a_message_that_no_handler_has_begun_is_not_given_up(self):
        handled: list[int] = []
        async with consuming(max_attempts=2) as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(lambda message: handled.append(message.attempts)))
            await peer.deliver(1, attempts=9)
            assert await peer.line() == fin(1)
            assert (handled, consumer.stats().given_up) == ([9], 0)
            tasks.cancel_scope.cancel()

    async def test_timed_out_handler_has_used_up_its_attempt(self):
        handled: list[int] = []
        reasons: list[GivenUp] = []
        may_end = anyio.Event()

        async def handle(message: Message) -> None:
            handled.append(message.attempts)
            await may_end.wait()

        def give_up(message: Message, given_up: GivenUp) -> None:
            reasons.append(given_up)

        async with consuming(max_attempts=2) as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, giving_up=give_up))
            await peer.deliver(1, attempts=2)
            await settle()
            await peer.deliver(1, attempts=3)  # it has timed out meanwhile
            await settle()
            may_end.set()
            assert await peer.line() == fin(1)
            assert handled == [2]
            assert [(reason.attempts, reason.error) for reason in reasons] == [(3, None)]
            tasks.cancel_scope.cancel()

    async def test_max_attempts_0_is_no_limit(self):
        async with consuming(max_attempts=0) as (consumer, peer), anyio.create_task_group() as tasks:
            handled: list[int] = []
            tasks.start_soon(lambda: consumer.run(lambda message: handled.append(message.attempts)))
            await peer.deliver(1, attempts=65535)
            assert await peer.line() == fin(1)
            assert handled == [65535]
            tasks.cancel_scope.cancel()

    async def test_a_dead_letter_is_published_before_the_message_is_finished(self):
        may_publish = anyio.Event()
        published: list[tuple[str, bytes]] = []

        class Publisher:
            async def publish(self, topic: str, body: bytes, /) -> None:
                await may_publish.wait()
                published.append((topic, body))

        def fail(message: Message) -> None:
            raise ValueError("no")

        policy = DeadLetter(Publisher(), "dead")
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(fail, giving_up=policy))
            await peer.deliver(1, attempts=5)
            await settle()
            assert consumer.stats().in_flight == 1
            may_publish.set()
            assert await peer.line() == fin(1)
            assert published == [("dead", body_of(1))]
            tasks.cancel_scope.cancel()

    async def test_message_is_requeued_if_giving_up_fails(self):
        failures = iter([OSError("the other topic cannot be reached")])
        errors: list[Exception | None] = []

        def fail(message: Message) -> None:
            raise ValueError("no")

        def give_up(message: Message, given_up: GivenUp) -> None:
            errors.append(given_up.error)
            for failure in failures:
                raise failure

        async with (
            consuming(max_backoff_duration=0, default_requeue_delay=1) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(fail, giving_up=give_up))
            await peer.deliver(1, attempts=5)
            assert await peer.line() == req(1, 5000)
            assert consumer.stats().given_up == 0
            await peer.deliver(1, attempts=6)
            assert await peer.line() == fin(1)
            assert list(map(str, errors)) == ["no", "no"]  # the handler was not called again
            tasks.cancel_scope.cancel()

    async def test_message_that_times_out_while_it_is_given_up_is_given_up_again(self):
        handled: list[int] = []
        given_up: list[int] = []
        may_end = anyio.Event()

        def fail(message: Message) -> None:
            handled.append(message.attempts)
            raise ValueError("no")

        async def give_up(message: Message, reason: GivenUp) -> None:
            given_up.append(message.attempts)
            await may_end.wait()

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(fail, giving_up=give_up))
            await peer.deliver(1, attempts=5)
            await settle()
            await peer.deliver(1, attempts=6)
            await settle()
            may_end.set()
            assert await peer.line() == fin(1)
            assert (handled, given_up) == ([5], [5, 6])
            tasks.cancel_scope.cancel()

    async def test_cancelled_giving_up_requeues_the_message(self):
        def fail(message: Message) -> None:
            raise ValueError("no")

        async def hang(message: Message) -> None:
            await anyio.sleep_forever()

        async with consuming() as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.run(fail, giving_up=hang))
                await peer.deliver(1, attempts=5)
                await settle()
                tasks.cancel_scope.cancel()
            assert await peer.line() == req(1)


@in_memory
class TestTime:
    async def test_a_message_is_touched_while_it_is_handled(self):
        may_end = anyio.Event()

        async def handle(message: Message) -> None:
            await may_end.wait()

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, auto_touch=True))
            await peer.deliver(1)
            await settle()
            for _ in range(3):
                for _ in range(TOUCH_PARTS // 2 + 1):
                    clock.advance(60 / TOUCH_PARTS)
                    await settle()
                assert await peer.line() == b"TOUCH " + message_id(1)
            may_end.set()
            assert await peer.line() == fin(1)
            tasks.cancel_scope.cancel()

    async def test_a_message_is_touched_while_it_is_given_up(self):
        """Also if an earlier delivery has used up the last attempt, so that no handler is called."""
        given_up: list[int] = []
        may_end = [anyio.Event(), anyio.Event()]

        def fail(message: Message) -> None:
            raise ValueError("no")

        async def give_up(message: Message, reason: GivenUp) -> None:
            given_up.append(message.attempts)
            await may_end[len(given_up) - 1].wait()

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(fail, giving_up=give_up, auto_touch=True))
            await peer.deliver(1, attempts=5)
            await settle()
            await peer.deliver(1, attempts=6)  # it has timed out meanwhile
            await settle()
            may_end[0].set()
            await settle()
            assert given_up == [5, 6]
            for _ in range(TOUCH_PARTS // 2 + 1):
                clock.advance(60 / TOUCH_PARTS)
                await settle()
            assert await peer.line() == b"TOUCH " + message_id(1)
            may_end[1].set()
            assert await peer.line() == fin(1)
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("auto_touch", [False, True])
    async def test_waiting_messages_are_touched_before_the_next_handler_if_one_blocks_the_event_loop(self, auto_touch):
        lines: list[bytes] = []
        async with timed(write_timeout=300) as (consumer, peer, clock), anyio.create_task_group() as tasks:

            def handle(message: Message) -> None:
                clock.advance(40)

            tasks.start_soon(lambda: consumer.run(handle, auto_touch=auto_touch))
            await peer.deliver(1, 2)
            while fin(2) not in lines:
                lines.append(await peer.line())
            assert b"TOUCH " + message_id(2) in lines
            tasks.cancel_scope.cancel()

    async def test_auto_touch_is_in_time_for_an_nsqd_that_comes_back_with_a_shorter_timeout(self):
        delays = {"reconnect_delay_min": 0.001, "reconnect_delay_max": 0.001}
        bench = Bench(["one:1"], max_in_flight=4, close_timeout=0, **delays)
        async with bench.consumer as consumer, anyio.create_task_group() as tasks:
            one = await bench.broker.subscribe(msg_timeout=60_000, max_msg_timeout=900_000)
            tasks.start_soon(lambda: consumer.run(lambda message: anyio.sleep_forever(), auto_touch=True))
            await settle()
            bench.clock.advance(0.3)
            await settle()
            await one.close()
            await settle()
            bench.clock.advance(0.01)
            await settle()
            async with await bench.broker.subscribe(msg_timeout=4_000, max_msg_timeout=900_000) as two:
                await two.deliver(1)
                await settle()
                for _ in range(10):
                    bench.clock.advance(0.5)
                    await settle()
                stats = consumer.stats()
                consumer.stop(0)
        assert (stats.timed_out, stats.touched > 0) == (0, True)

    async def test_auto_touch_ends_at_nsqds_maximum(self):
        bench = Bench([ADDRESS], read_timeout=300, close_timeout=0)

        async def handle(message: Message) -> None:
            await anyio.sleep_forever()

        async with bench.consumer as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, auto_touch=True))
            async with await bench.broker.subscribe(msg_timeout=20_000, max_msg_timeout=60_000) as peer:
                assert await peer.line() == b"RDY 1"
                await peer.deliver(1)
                await settle()
                for second in range(1, 61):
                    assert consumer.stats().timed_out == 0, f"given up after {second - 1} seconds"
                    bench.clock.advance(1)
                    await settle()
                assert consumer.stats().timed_out == 1
                assert await peer.line() == b"TOUCH " + message_id(1)
                tasks.cancel_scope.cancel()

    async def test_answered_message_is_not_touched(self):
        async def handle(message: Message) -> None:
            message.finish()
            await anyio.sleep_forever()

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, auto_touch=True))
            await peer.deliver(1)
            assert await peer.line() == fin(1)
            for _ in range(TOUCH_PARTS):
                clock.advance(60 / TOUCH_PARTS)
                await settle()
            tasks.cancel_scope.cancel()
            await settle()

    @pytest.mark.parametrize("how", ["timed out", "connection lost", "came again"])
    async def test_handler_is_cancelled_when_its_message_times_out(self, how, caplog):
        cancelled: list[bytes] = []

        async def handle(message: Message) -> None:
            if message.attempts > 1:
                return
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                cancelled.append(message.body)
                raise

        bench = Bench([ADDRESS], max_in_flight=10, read_timeout=300, close_timeout=0)
        async with bench.consumer as consumer, anyio.create_task_group() as tasks:
            peer = await bench.subscribe(10)
            tasks.start_soon(lambda: consumer.run(handle, cancel_at_timeout=True))
            await peer.deliver(1)
            await settle()
            if how == "timed out":
                bench.clock.advance(60)
            elif how == "came again":
                await peer.deliver(1, attempts=2)
            else:
                await peer.close()
            await settle()
            assert cancelled == [body_of(1)]
            if how == "came again":
                assert await peer.line() == fin(1)
            await peer.close()
            tasks.cancel_scope.cancel()
        assert "was cancelled: its time was over" in caplog.text

    async def test_a_handler_that_has_answered_is_not_cancelled(self):
        may_end = anyio.Event()
        ended: list[bytes] = []

        async def handle(message: Message) -> None:
            message.finish()
            await may_end.wait()
            ended.append(message.body)

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, cancel_at_timeout=True))
            await peer.deliver(1)
            assert await peer.line() == fin(1)
            clock.advance(59)
            await peer.deliver(2)
            clock.advance(2)
            await settle()
            may_end.set()
            assert await peer.line() == fin(2)
            assert ended[0] == body_of(1)
            tasks.cancel_scope.cancel()

    async def test_late_answer_of_a_handler_does_nothing(self):
        may_end = anyio.Event()

        async def handle(message: Message) -> None:
            await may_end.wait()

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle))
            await peer.deliver(1)
            await settle()
            clock.advance(60)
            await settle()
            may_end.set()
            await peer.deliver(2)
            assert await peer.line() == fin(2)
            assert consumer.stats().timed_out == 1
            tasks.cancel_scope.cancel()


@in_memory
class TestWarnings:
    @pytest.mark.parametrize("options", [{}, {"auto_touch": True}], ids=["plain", "watched"])
    async def test_blocking_handler_is_logged_once(self, options, caplog):
        def handle(message: Message) -> None:
            clock.advance(3)

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, **options))
            for number in range(3):
                await peer.deliver(number)
                assert await peer.line() == fin(number)
            tasks.cancel_scope.cancel()
        (warning,) = [message for message in caplog.messages if "kept the event loop" in message]
        assert "test_handling.TestWarnings" in warning
        assert "handle kept the event loop for 3.0 s" in warning
        assert "in_threads=True" in warning

    async def test_slow_async_handler_is_not_logged(self, caplog):
        async def handle(message: Message) -> None:
            clock.advance(3)
            await anyio.lowlevel.checkpoint()

        async with timed() as (consumer, peer, clock), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle))
            await peer.deliver(1)
            assert await peer.line() == fin(1)
            tasks.cancel_scope.cancel()
        assert caplog.messages == []

    async def test_cancel_at_timeout_with_plain_handler_logs_a_warning(self, caplog):
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(lambda message: None, cancel_at_timeout=True))
            await peer.deliver(1, 2)
            assert {await peer.line(), await peer.line()} == {fin(1), fin(2)}
            tasks.cancel_scope.cancel()
        assert len([message for message in caplog.messages if "cancel_at_timeout does nothing" in message]) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
class TestResults:
    @pytest.mark.parametrize("in_threads", [False, True])
    async def test_invalid_handler_is_refused(self, in_threads):
        def generate(message: Message):
            yield message

        async def handle(message: Message) -> None: ...

        async with consuming() as (consumer, _):
            for handler in [None, generate, *([handle] if in_threads else [])]:
                with pytest.raises(OptionError, match="handler is "):
                    await consumer.run(handler, in_threads=in_threads)  # type: ignore[arg-type]
            with pytest.raises(OptionError, match="handler is "):
                await consumer.run_batches(None)  # type: ignore[arg-type]

    @pytest.mark.parametrize("in_threads", [False, True])
    async def test_awaitable_result_is_a_failure(self, in_threads, caplog):
        async def asynchronous() -> None: ...

        def handle(message: Message) -> Any:
            return asynchronous() if in_threads else iter_of(message)

        def iter_of(message: Message) -> Any:
            yield message

        async with (
            consuming(b"CLS", default_requeue_delay=1) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle, in_threads=in_threads))
            await peer.deliver(1)
            assert {await peer.line(), await peer.line()} == {b"RDY 0", req(1, 1000)}
            tasks.cancel_scope.cancel()
        assert "handler returned" in caplog.text


@in_memory
async def test_log_lines_have_fields(caplog):
    def handle(message: Message) -> None:
        raise ValueError("no")

    with caplog.at_level(logging.ERROR, "nsqkit.consumer"):
        async with (
            consuming(b"CLS", default_requeue_delay=0) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(lambda: consumer.run(handle))
            await peer.deliver(1)
            assert {await peer.line(), await peer.line()} == {b"RDY 0", req(1)}
            tasks.cancel_scope.cancel()
    (record,) = [record for record in caplog.records if record.name == "nsqkit.consumer"]
    assert {"nsqd_address": ADDRESS, "attempts": 1}.items() <= vars(record).items()
