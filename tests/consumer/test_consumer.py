from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from nsqkit import JSON, Consumer, Message
from nsqkit.client.task_scope import TaskScope
from nsqkit.clock import ManualClock
from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.handling import TIME_SLICE_NS
from nsqkit.consumer.stats import BackoffStats
from nsqkit.errors import (
    BadChannel,
    Closed,
    ConnectionLost,
    ConnectTimeout,
    HeartbeatTimeout,
    NotConnected,
    OptionError,
    ProtocolError,
)
from nsqkit.wire.frames import HEARTBEAT_FRAME, OK_FRAME
from tests.peers import ADDRESS, BACKENDS, Peer, ScriptedBroker, body_of, encode_numbered, message_id, settle

in_memory = pytest.mark.parametrize("anyio_backend", BACKENDS)


def fin(number: int) -> bytes:
    return b"FIN " + message_id(number)


def req(number: int, delay_ms: int = 0) -> bytes:
    return b"REQ %b %d" % (message_id(number), delay_ms)


class Bench:
    """A consumer of scripted brokers, and the broker's end of its first connection."""

    def __init__(self, addresses: list[str], **options: Any) -> None:
        self.brokers = {address: ScriptedBroker() for address in addresses}
        self.broker = self.brokers[addresses[0]]
        self.clock = ManualClock()
        self.consumer = Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=addresses,
            clock=self.clock,
            dial=lambda address: self.brokers[address].dial(address),
            **options,
        )

    async def subscribe(self, rdy_count: int) -> Peer:
        """Return the broker's end of the next connection, after RDY."""
        peer = await self.broker.subscribe()
        assert await peer.line() == b"RDY %d" % rdy_count
        return peer


async def farewell(peer: Peer, *expected: bytes) -> None:
    """Read the lines up to CLS, answer CLOSE_WAIT, and close after the client."""
    lines = [await peer.line()]
    while b"CLS" not in lines or len(lines) < len(expected):
        lines.append(await peer.line())
    await peer.dismiss()
    await peer.wait_end()
    await peer.close()
    assert lines == [*expected]


@asynccontextmanager
async def consuming(*expected: bytes, max_in_flight: int = 10, **options: Any) -> AsyncIterator[tuple[Consumer, Peer]]:
    """Yield a subscribed consumer and its broker's end, which expects the lines at the close."""
    bench = Bench([ADDRESS], max_in_flight=max_in_flight, **options)
    async with anyio.create_task_group() as tasks:
        async with bench.consumer as consumer:
            peer = await bench.subscribe(max_in_flight)
            yield consumer, peer
            tasks.start_soon(lambda: farewell(peer, *(expected or (b"RDY 0", b"CLS"))))


# ---- making one --------------------------------------------------------------------------------------------------


class TestMaking:
    @pytest.mark.parametrize("topic", ["", "a b", "a" * 65])
    def test_invalid_topic_is_refused(self, topic):
        with pytest.raises(OptionError, match=r"topic name .* is not valid"):
            Consumer(topic, "c", nsqd_tcp_addresses=[ADDRESS])

    @pytest.mark.parametrize("channel", ["", "a/b", "a" * 65])
    def test_invalid_channel_is_refused(self, channel):
        with pytest.raises(OptionError, match=r"channel name .* is not valid"):
            Consumer("t", channel, nsqd_tcp_addresses=[ADDRESS])

    @pytest.mark.parametrize(
        ("addresses", "sentence"),
        [
            ([], "nsqd_tcp_addresses and lookupd_http_addresses are empty; one of them must name an address"),
            (ADDRESS, f"nsqd_tcp_addresses is '{ADDRESS}'; allowed is a list such as [\"127.0.0.1:4150\"]"),
            (["nsqd"], "address 'nsqd' is not host:port with a port of 0 to 65535"),
        ],
    )
    def test_invalid_addresses_are_refused(self, addresses, sentence):
        with pytest.raises(OptionError) as caught:
            Consumer("t", "c", nsqd_tcp_addresses=addresses)
        assert str(caught.value) == sentence


pytestmark = pytest.mark.anyio


# ---- three ways of receiving ---------------------------------------------------------------------------------


@in_memory
class TestReceiving:
    async def test_identify_contains_the_options(self):
        bench = Bench([ADDRESS], client_id="me", hostname="h", msg_timeout=5, sample_rate=7)
        async with anyio.create_task_group() as tasks:
            async with bench.consumer:
                peer = await bench.broker.handshake()
                assert await peer.line() == b"SUB t c"
                await peer.send(OK_FRAME)
                assert await peer.line() == b"RDY 1"
                assert (
                    peer.identity.items()
                    >= {
                        "client_id": "me",
                        "hostname": "h",
                        "feature_negotiation": True,
                        "heartbeat_interval": 30_000,
                        "msg_timeout": 5000,
                        "sample_rate": 7,
                    }.items()
                )
                tasks.start_soon(farewell, peer, b"RDY 0", b"CLS")

    async def test_ephemeral_channel_is_allowed(self):
        broker = ScriptedBroker()
        channel = "tail-1#ephemeral"
        async with (
            Consumer("t", channel, nsqd_tcp_addresses=[ADDRESS], dial=broker.dial, close_timeout=0),
            await broker.handshake() as peer,
        ):
            assert await peer.line() == b"SUB t tail-1#ephemeral"

    async def test_messages_are_iterated_in_order(self):
        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2)
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                message.finish()
                if len(bodies) == 2:
                    await peer.deliver(3)
                if len(bodies) == 3:
                    break
            assert bodies == [body_of(1), body_of(2), body_of(3)]
            assert [await peer.line() for _ in range(3)] == [fin(1), fin(2), fin(3)]

    async def test_batch_contains_all_waiting_messages(self):
        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2, 3)
            batches = []
            async for batch in consumer.batches():
                batches.append([message.body for message in batch])
                for message in batch:
                    message.finish()
                if len(batches) == 2:
                    break
                await peer.deliver(4)
            assert batches == [[body_of(1), body_of(2), body_of(3)], [body_of(4)]]
            assert [await peer.line() for _ in range(4)] == [fin(n) for n in (1, 2, 3, 4)]

    @pytest.mark.parametrize("kind", ["plain", "async", "callable", "lambda", "async-callable"])
    async def test_handlers_of_all_kinds_are_called(self, kind):
        seen: list[bytes] = []

        def plain(message: Message) -> None:
            seen.append(message.body)

        async def slow(message: Message) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append(message.body)

        class Handler:
            def __call__(self, message: Message) -> None:
                seen.append(message.body)

        class AsyncHandler:
            async def __call__(self, message: Message) -> None:
                seen.append(message.body)

        handlers: dict[str, Any] = {
            "plain": plain,
            "async": slow,
            "callable": Handler(),
            "lambda": lambda message: slow(message),  # noqa: PLW0108
            "async-callable": AsyncHandler(),
        }
        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handlers[kind])
            await peer.deliver(1, 2)
            assert [await peer.line(), await peer.line()] == [fin(1), fin(2)]
            await peer.deliver(3)
            assert await peer.line() == fin(3)
            assert seen == [body_of(1), body_of(2), body_of(3)]
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("concurrency", [1, 3])
    async def test_concurrency_limits_handlers(self, concurrency):
        running = most = 0
        gate = anyio.Event()

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, concurrency=concurrency))
            await peer.deliver(*range(8))
            await settle()
            assert running == concurrency
            gate.set()
            assert sorted([await peer.line() for _ in range(8)]) == [fin(n) for n in range(8)]
            assert most == concurrency
            tasks.cancel_scope.cancel()

    async def test_a_handler_that_fails_has_its_message_requeued(self, caplog):
        async def handle(message: Message) -> None:
            raise KeyError("broken handler")

        async with consuming(b"CLS") as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await peer.deliver(1, attempts=2)
            assert await peer.line() == req(1, 180_000)
            assert await peer.line() == b"RDY 0"
            tasks.cancel_scope.cancel()
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.name == "nsqkit.consumer"
        assert ADDRESS in record.getMessage()
        assert "broken handler" in str(record.exc_info)

    async def test_undecodable_body_fails_the_handler_that_reads_value(self, caplog):
        def handle(message: Message) -> None:
            assert message.value

        async with (
            consuming(b"CLS", serializer=JSON) as (consumer, peer),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await peer.deliver(1)
            assert [await peer.line(), await peer.line()] == [req(1, 90_000), b"RDY 0"]
            tasks.cancel_scope.cancel()
        assert "JSONDecodeError" in caplog.text

    async def test_handler_may_answer_its_message(self):
        def handle(message: Message) -> None:
            if message.body == body_of(1):
                message.requeue(1.5, backoff=False)
            elif message.body == body_of(2):
                message.finish()
                raise ValueError("afterwards")
            else:
                message.touch()

        async with consuming() as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await peer.deliver(1, 2, 3)
            lines = [await peer.line() for _ in range(4)]
            assert lines == [req(1, 1500), b"TOUCH " + message_id(3), fin(2), fin(3)]
            tasks.cancel_scope.cancel()

    @pytest.mark.parametrize("waits_for", ["handler", "giving up"])
    async def test_finished_messages_are_sent_before_an_await(self, waits_for):
        gate = anyio.Event()

        async def wait(message: Message) -> None:
            await gate.wait()

        def handle(message: Message) -> Any:
            return wait(message) if message.body == body_of(2) else None

        async with consuming(max_attempts=5) as (consumer, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: consumer.run(handle, giving_up=wait))
            await peer.send(encode_numbered(1) + encode_numbered(2, attempts=1 if waits_for == "handler" else 6))
            assert await peer.line() == fin(1)
            gate.set()
            assert await peer.line() == fin(2)
            tasks.cancel_scope.cancel()

    async def test_finished_messages_are_sent_if_the_next_handler_stops_the_program(self):
        class End(BaseException):
            pass

        def handle(message: Message) -> None:
            if message.body == body_of(3):
                raise End

        async with consuming() as (consumer, peer):
            await peer.deliver(1, 2, 3)
            with pytest.raises(End):
                await consumer.run(handle)
            assert sorted([await peer.line() for _ in range(3)]) == [fin(1), fin(2), req(3)]

    async def test_cancelled_handler_requeues_its_message_at_once(self):
        async def handle(message: Message) -> None:
            await anyio.sleep_forever()

        async with consuming(b"RDY 0", req(3), b"CLS") as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: consumer.run(handle, concurrency=2))
                await peer.deliver(1, 2, 3)
                await settle()
                tasks.cancel_scope.cancel()
            # Messages that were begun are requeued; the third one waits for the next receiver.
            assert sorted([await peer.line(), await peer.line()]) == [req(1), req(2)]

    async def test_run_may_be_called_again_after_cancellation(self):
        async def hang(message: Message) -> None:
            await anyio.sleep_forever()

        async with consuming() as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, hang)
                await peer.deliver(1, 2)
                await settle()
                tasks.cancel_scope.cancel()
            assert await peer.line() == req(1)
            async for message in consumer:
                assert message.body == body_of(2)
                message.finish()
                break
            assert await peer.line() == fin(2)

    async def test_other_tasks_run_after_a_time_slice_of_a_plain_handler(self):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        seen_at: list[int] = []
        message_count = 20  # trio lets tasks run in any order, so no other task may run in one iteration

        def handle(message: Message) -> None:
            seen_at.append(turns)
            assert isinstance(consumer.subscription.clock, ManualClock)
            consumer.subscription.clock.advance(TIME_SLICE_NS / 1e9)

        async with consuming(max_in_flight=20) as (consumer, peer), anyio.create_task_group() as tasks:
            await peer.deliver(*range(message_count))
            await settle()
            tasks.start_soon(count)
            tasks.start_soon(consumer.run, handle)
            for n in range(message_count):
                assert await peer.line() == fin(n)
            tasks.cancel_scope.cancel()
        assert seen_at[-1] > seen_at[0]

    @pytest.mark.parametrize("concurrency", [0, -1, 1.5, "2", None], ids=repr)
    async def test_invalid_concurrency_is_refused(self, concurrency):
        consumer = Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS])
        with pytest.raises(OptionError) as caught:
            await consumer.run(print, concurrency=concurrency)
        assert str(caught.value) == (f"concurrency is {concurrency!r}; allowed is a whole number from 1 to 1000000")

    async def test_receiving_outside_of_the_block_raises_closed(self):
        consumer = Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS])
        for receive in (
            lambda: anext(consumer),
            lambda: anext(consumer.batches()),
            lambda: consumer.run(print),
            lambda: consumer.run(print, concurrency=2),
            consumer.wait_connected,
        ):
            with pytest.raises(Closed, match="inside of 'async with Consumer"):
                await receive()


# ---- while it runs -------------------------------------------------------------------------------------------


@in_memory
class TestRunning:
    async def test_heartbeats_are_answered_while_a_handler_is_busy(self):
        async def handle(message: Message) -> None:
            await anyio.sleep_forever()

        async with consuming() as (consumer, peer):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                await peer.deliver(1)
                await settle()
                for _ in range(3):
                    await peer.send(HEARTBEAT_FRAME)
                    assert await peer.line() == b"NOP"
                tasks.cancel_scope.cancel()
            assert await peer.line() == req(1)

    async def test_max_in_flight_can_be_changed(self):
        async with consuming() as (consumer, peer):
            consumer.change_max_in_flight(3)
            assert await peer.line() == b"RDY 3"
            for wrong in (-1, 1.5, "2", None, True, 10**7):
                with pytest.raises(OptionError) as caught:
                    consumer.change_max_in_flight(wrong)  # type: ignore[arg-type]
                assert str(caught.value) == (f"max_in_flight is {wrong!r}; allowed is a whole number from 0 to 1000000")

    async def test_consumer_can_be_paused(self):
        async with consuming() as (consumer, peer):
            consumer.pause()
            assert await peer.line() == b"RDY 0"
            consumer.resume()
            assert await peer.line() == b"RDY 10"

    async def test_is_starved_follows_unanswered_messages(self):
        async with consuming(req(1), b"RDY 0", b"CLS", max_in_flight=2) as (consumer, peer):
            assert not consumer.is_starved
            await peer.deliver(1, 2)
            await settle()
            assert consumer.is_starved
            (await anext(consumer)).requeue(0, backoff=False)
            (await anext(consumer)).finish()
            await settle()
            assert not consumer.is_starved
            assert [await peer.line(), await peer.line()] == [req(1), fin(2)]
            await peer.deliver(1, attempts=2)
            await settle()
            (await anext(consumer)).requeue(0, backoff=False)

    async def test_seats_rotate_across_pause_and_resume(self):
        # Resuming sets a deadline, and no input from a broker would make the timer read it.
        bench = Bench(["one:1", "two:1"], max_in_flight=1, close_timeout=0)
        async with bench.consumer as consumer:
            peers = {address: await broker.subscribe() for address, broker in bench.brokers.items()}
            consumer.pause()
            consumer.resume()
            await settle()
            for _ in range(4):
                bench.clock.advance(5)
                await settle()
        for peer in peers.values():
            lines = await rest(peer)
            assert b"RDY 1" in lines
            await peer.close()

    async def test_backoff_follows_the_clock(self):
        async def handle(message: Message) -> None:
            if message.attempts < 3:
                raise KeyError("not yet")

        bench = Bench([ADDRESS], max_in_flight=5, default_requeue_delay=0)
        async with anyio.create_task_group() as tasks:
            async with bench.consumer as consumer:
                peer = await bench.subscribe(5)
                tasks.start_soon(consumer.run, handle)
                await peer.deliver(1)
                assert [await peer.line(), await peer.line()] == [req(1), b"RDY 0"]
                for wait, attempts, answers in (
                    (2, 2, [b"RDY 0", req(1)]),
                    (4, 3, [b"RDY 0", fin(1)]),
                    (2, 3, [b"RDY 0", fin(1), b"RDY 5"]),
                ):
                    await settle()
                    bench.clock.advance(wait - 0.001)
                    await settle()
                    bench.clock.advance(0.001)
                    assert await peer.line() == b"RDY 1"
                    await peer.deliver(1, attempts=attempts)
                    assert [await peer.line() for _ in answers] == answers
                tasks.start_soon(farewell, peer, b"RDY 0", b"CLS")

    async def test_on_backoff_is_called_for_each_change(self, caplog):
        changes: list[BackoffStats] = []

        def hook(backoff: BackoffStats) -> None:
            changes.append(backoff)
            raise KeyError("broken hook")

        def step(state: BackoffState, counter: int, wait: float, seconds_left: float) -> BackoffStats:
            return BackoffStats(state=state, counter=counter, wait=wait, seconds_left=seconds_left)

        bench = Bench([ADDRESS], max_in_flight=5, on_backoff=hook)
        async with anyio.create_task_group() as tasks:
            async with bench.consumer as consumer:
                peer = await bench.subscribe(5)
                await peer.deliver(1)
                (await anext(consumer)).requeue(0)
                assert [await peer.line(), await peer.line()] == [req(1), b"RDY 0"]
                await settle()
                assert consumer.backoff == changes[-1]
                bench.clock.advance(2)
                assert await peer.line() == b"RDY 1"
                await peer.deliver(1, attempts=2)
                (await anext(consumer)).finish()
                assert [await peer.line() for _ in range(3)] == [b"RDY 0", fin(1), b"RDY 5"]
                tasks.start_soon(farewell, peer, b"RDY 0", b"CLS")
        assert changes == [
            step(BackoffState.WAITING, 1, 2.0, 2.0),
            step(BackoffState.PROBING, 1, 2.0, 0.0),
            step(BackoffState.RUNNING, 0, 0.0, 0.0),
        ]
        failures = [record for record in caplog.records if record.getMessage() == "[t/c] on_backoff failed"]
        assert len(failures) == 3
        assert {(vars(record)["topic"], vars(record)["channel"]) for record in failures} == {("t", "c")}
        assert "[t/c] backing off for 2.000 s, counter 1" in caplog.text

    async def test_lookup_log_lines_name_topic_and_channel(self, caplog):
        async def refuse(*_: object) -> tuple[int, bytes]:
            raise ConnectionRefusedError("refused")

        bench = Bench([ADDRESS], lookupd_http_addresses=["lookupd:4161"], lookupd_http_request=refuse)
        bench.broker.refusal = ConnectionRefusedError("refused")
        async with bench.consumer:
            await settle()
        record = next(record for record in caplog.records if record.name == "nsqkit.lookup")
        assert record.getMessage().startswith("[t/c] nsqlookupd http://lookupd:4161 has failed 1 times in a row")
        assert (vars(record)["topic"], vars(record)["channel"]) == ("t", "c")

    async def test_unconnected_has_the_last_errors(self):
        bench = Bench(["one:1", "two:1"], max_in_flight=2, close_timeout=0)
        bench.brokers["two:1"].refusal = ConnectionRefusedError("refused")
        async with bench.consumer as consumer:
            assert {*consumer.unconnected} == {"one:1", "two:1"}
            async with await bench.broker.subscribe():
                await settle()
                ((address, error),) = consumer.unconnected.items()
                assert address == "two:1"
                assert isinstance(error, NotConnected)
                connected = anyio.Event()
                async with anyio.create_task_group() as tasks:

                    async def wait() -> None:
                        await consumer.wait_connected()
                        connected.set()

                    tasks.start_soon(wait)
                    await settle()
                    assert not connected.is_set()
                    bench.brokers["two:1"].refusal = None
                    bench.clock.advance(1)
                    async with await bench.brokers["two:1"].subscribe():
                        await settle()
                        assert connected.is_set()
                        assert consumer.unconnected == {}

    async def test_wait_connected_respects_its_timeout(self):
        bench = Bench(["one:1", "two:1"])
        bench.brokers["two:1"].refusal = ConnectionRefusedError("refused")
        async with bench.consumer as consumer, anyio.create_task_group() as tasks:
            async with await bench.brokers["one:1"].subscribe():
                refused: list[NotConnected] = []

                async def wait() -> None:
                    with pytest.raises(NotConnected) as caught:
                        await consumer.wait_connected(timedelta(seconds=5))
                    refused.append(caught.value)

                tasks.start_soon(wait)
                await settle()
                bench.clock.advance(4.9)
                await settle()
                assert not refused
                bench.clock.advance(0.1)
                await settle()
                assert [str(error) for error in refused] == [
                    "no connection to two:1 within 5 seconds: cannot connect to two:1: refused"
                ]

    async def test_wait_connected_raises_closed_at_stop(self):
        bench = Bench([ADDRESS])
        bench.broker.hanging = True
        async with bench.consumer as consumer, anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(Closed, match="connects to no nsqd any more"):
                    await consumer.wait_connected()

            tasks.start_soon(wait)
            await settle()
            consumer.stop()


async def rest(peer: Peer) -> list[bytes]:
    """Return the lines of the client up to its close."""
    lines: list[bytes] = []
    try:
        while True:
            lines.append(await peer.line())
    except (anyio.IncompleteRead, anyio.EndOfStream):
        return lines


# ---- bad brokers -----------------------------------------------------------------------------------------------


@in_memory
class TestBadBrokers:
    @pytest.mark.parametrize(
        ("sent", "kind"),
        [
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
            (b"\x7f\xff\xff\xff\0\0\0\x02", ProtocolError),
            (b"\0\0\0\x06\0\0\0\x09OK", ProtocolError),
            (b"\0\0\0\x05\0\0\0\x02x", ProtocolError),
            (b"\0\0\0\x06\0\0\0\0OK", ProtocolError),
        ],
    )
    async def test_protocol_error_is_logged_and_connection_is_dialled_again(self, sent, kind):
        bench = Bench([ADDRESS], max_in_flight=3, close_timeout=0)
        async with bench.consumer as consumer:
            peer = await bench.subscribe(3)
            await peer.deliver(1)
            message = await anext(consumer)
            await peer.send(sent)
            await peer.wait_end()
            await peer.close()
            await settle()
            assert isinstance(consumer.unconnected[ADDRESS], kind)
            message.finish()
            bench.clock.advance(1)
            async with await bench.subscribe(3) as peer:
                await settle()
                assert consumer.unconnected == {}
                await peer.deliver(1, attempts=2)
                again = await anext(consumer)
                assert again.attempts == 2
                again.finish()
                assert await peer.line() == fin(1)

    async def test_truncated_frame_is_a_lost_connection(self):
        bench = Bench([ADDRESS], max_in_flight=3, close_timeout=0)
        async with bench.consumer as consumer:
            peer = await bench.subscribe(3)
            await peer.send(b"\0\0\0\x50\0\0\0\x02half a message")
            await peer.close()
            await settle()
            assert isinstance(consumer.unconnected[ADDRESS], ConnectionLost)
            bench.clock.advance(1)
            async with await bench.subscribe(3):
                pass

    async def test_refused_subscription_is_logged_and_tried_again(self):
        bench = Bench([ADDRESS], close_timeout=0)
        async with bench.consumer as consumer:
            peer = await bench.broker.handshake()
            await peer.line()
            await peer.send(BadChannel("SUB channel name …"))
            await peer.close()
            await settle()
            assert isinstance(consumer.unconnected[ADDRESS], BadChannel)
            bench.clock.advance(1)
            async with await bench.subscribe(1):
                pass

    async def test_silent_broker_is_dialled_again_after_dial_timeout(self):
        bench = Bench([ADDRESS], dial_timeout=0.1, close_timeout=0)
        async with bench.consumer as consumer:
            async with await bench.broker.handshake() as peer:
                assert await peer.line() == b"SUB t c"
                bench.clock.advance(0.1)
                await peer.wait_end()
                await settle()
                assert isinstance(consumer.unconnected[ADDRESS], ConnectTimeout)
            bench.clock.advance(1)
            async with await bench.subscribe(1):
                pass

    async def test_connection_without_heartbeats_is_dialled_again(self):
        bench = Bench([ADDRESS], heartbeat_interval=2, read_timeout=5, close_timeout=0)
        async with bench.consumer as consumer:
            peer = await bench.subscribe(1)
            for _ in range(4):
                bench.clock.advance(2)
                await peer.send(HEARTBEAT_FRAME)
                assert await peer.line() == b"NOP"
            await settle()
            bench.clock.advance(4.9)
            await settle()
            assert consumer.unconnected == {}
            bench.clock.advance(0.1)
            await peer.wait_end()
            await peer.close()
            await settle()
            assert isinstance(consumer.unconnected[ADDRESS], HeartbeatTimeout)
            bench.clock.advance(1)
            async with await bench.subscribe(1):
                pass

    async def test_one_bad_broker_does_not_disturb_another(self):
        bench = Bench(["one:1", "two:1"], max_in_flight=2, close_timeout=0)
        async with bench.consumer as consumer:
            bad = await bench.broker.subscribe()
            async with await bench.brokers["two:1"].subscribe() as good:
                await bad.send(b"\xff" * 20)
                await bad.close()
                await good.deliver(1)
                (await anext(consumer)).finish()
                lines = [await good.line()]
                while lines[-1] != fin(1):
                    lines.append(await good.line())


# ---- leaving ---------------------------------------------------------------------------------------------------


@in_memory
class TestLeaving:
    async def test_unanswered_messages_are_requeued_before_the_end(self):
        async with consuming(b"RDY 0", req(2), req(3), b"CLS", req(1)) as (consumer, peer):
            await peer.deliver(1, 2, 3)
            await anext(consumer)  # begun and not answered

    async def test_messages_received_after_cls_are_requeued(self):
        bench = Bench([ADDRESS], max_in_flight=10)
        async with anyio.create_task_group() as tasks:
            async with bench.consumer:
                peer = await bench.subscribe(10)

                async def close_as_broker() -> None:
                    assert [await peer.line(), await peer.line()] == [b"RDY 0", b"CLS"]
                    await peer.deliver(1)
                    await peer.dismiss()
                    assert await peer.line() == req(1)
                    await peer.wait_end()
                    await peer.close()

                tasks.start_soon(close_as_broker)

    async def test_cancellation_closes_the_consumer_in_order(self):
        bench = Bench([ADDRESS], max_in_flight=3)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with bench.consumer as consumer:
                    peer = await bench.subscribe(3)
                    await peer.deliver(1, 2)
                    await anext(consumer)
                    tasks.start_soon(farewell, peer, b"RDY 0", req(2), b"CLS", req(1))
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught

    async def test_interrupt_closes_the_consumer_in_order(self):
        bench = Bench([ADDRESS], max_in_flight=3)
        async with anyio.create_task_group() as tasks:
            with pytest.raises(KeyboardInterrupt):
                async with bench.consumer as consumer:
                    peer = await bench.subscribe(3)
                    await peer.deliver(1, 2)
                    await anext(consumer)
                    tasks.start_soon(farewell, peer, b"RDY 0", req(2), b"CLS", req(1))
                    raise KeyboardInterrupt

    async def test_exception_of_the_block_is_raised_unchanged(self):
        bench = Bench([ADDRESS], max_in_flight=3)
        async with anyio.create_task_group() as tasks:
            with pytest.raises(KeyError, match="mine"):
                async with bench.consumer as consumer:
                    peer = await bench.subscribe(3)
                    await peer.deliver(1)
                    async for _ in consumer:
                        tasks.start_soon(farewell, peer, b"RDY 0", b"CLS", req(1))
                        raise KeyError("mine")

    async def test_unexpected_dial_error_is_raised_by_the_block(self):
        bench = Bench([ADDRESS])
        bench.broker.refusal = ZeroDivisionError()
        with pytest.raises(ExceptionGroup) as caught:
            async with bench.consumer as consumer:
                await anext(consumer)
        assert caught.group_contains(ZeroDivisionError)

    async def test_missing_close_wait_delays_close_by_close_timeout(self):
        bench = Bench([ADDRESS], max_in_flight=3, close_timeout=3)
        peers: list[Peer] = []
        left = anyio.Event()

        async def leave() -> None:
            async with bench.consumer:
                peers.append(await bench.subscribe(3))
            left.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            await settle()
            bench.clock.advance(2.9)
            await settle()
            assert not left.is_set()
            bench.clock.advance(0.1)
            await left.wait()
        (peer,) = peers
        assert await rest(peer) == [b"RDY 0", b"CLS"]
        await peer.close()

    @pytest.mark.parametrize("state", ["dialling", "handshake", "subscribing", "delayed"])
    async def test_close_does_not_wait_for_unopened_connections(self, state):
        bench = Bench([ADDRESS])
        bench.broker.hanging = state == "dialling"
        bench.broker.refusal = ConnectionRefusedError() if state == "delayed" else None
        peer = None
        async with bench.consumer:
            if state == "handshake":
                peer = await bench.broker.accept()
            elif state == "subscribing":
                peer = await bench.broker.handshake()
            await settle()
        if peer is not None:
            await peer.close()

    async def test_close_does_not_wait_for_lost_connections(self):
        bench = Bench([ADDRESS])
        async with anyio.create_task_group() as tasks:
            async with bench.consumer:
                peer = await bench.subscribe(1)

                async def break_off() -> None:
                    await peer.line()
                    await peer.close()

                tasks.start_soon(break_off)

    async def test_consumer_is_entered_once(self):
        bench = Bench([ADDRESS])
        bench.broker.hanging = True
        async with bench.consumer as consumer:
            with pytest.raises(Closed, match="entered once"):
                await consumer.__aenter__()
        with pytest.raises(Closed, match="entered once"):
            await consumer.__aenter__()


class TestCtrlC:
    """SIGINT as from a terminal, handled by the event loop."""

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_stop_signal_requeues_received_messages(self, backend):
        lines: list[bytes] = []

        async def be_the_broker(peer: Peer) -> None:
            while not lines or not {b"CLS", req(1), req(2)} <= {*lines}:
                lines.append(await peer.line())
            await peer.dismiss()
            await peer.wait_end()
            await peer.close()

        async def main() -> None:
            bench = Bench([ADDRESS], max_in_flight=3, close_timeout=15)
            tasks = TaskScope()  # so that the broker outlives what the signal cancels
            await tasks.start()
            try:
                async with bench.consumer as consumer:
                    peer = await bench.subscribe(3)
                    await peer.deliver(1, 2)
                    tasks.start_soon(be_the_broker, peer)
                    await anext(consumer)
                    signal.raise_signal(signal.SIGINT)
                    await anyio.sleep_forever()
            finally:
                await tasks.end(None, None, None)

        with pytest.raises(KeyboardInterrupt):
            anyio.run(main, backend=backend)
        assert [line for line in lines if not line.startswith(b"REQ")] == [b"RDY 0", b"CLS"]
        assert {*lines} >= {req(1), req(2)}

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_second_stop_signal_cancels_the_handlers_of_a_consumer_that_stops(self, backend):
        lines: list[bytes] = []

        async def main() -> None:
            bench = Bench([ADDRESS], stop_signals=[signal.SIGTERM], close_timeout=3600)
            async with anyio.create_task_group() as tasks, bench.consumer as consumer:
                peer = await bench.subscribe(1)

                async def be_the_broker() -> None:
                    await peer.deliver(1)
                    while lines[-2:] != [b"CLS", req(1)]:
                        lines.append(await peer.line())
                        if lines[-1] == b"CLS":
                            signal.raise_signal(signal.SIGTERM)
                    await peer.dismiss()
                    await peer.close()

                async def handle(message: Message) -> None:
                    signal.raise_signal(signal.SIGTERM)
                    await anyio.sleep_forever()

                tasks.start_soon(be_the_broker)
                await consumer.run(handle)

        anyio.run(main, backend=backend)
        assert lines == [b"RDY 0", b"CLS", req(1)]


# ---- closing from within ---------------------------------------------------------------------------------------


@in_memory
class TestClosing:
    async def test_handler_can_stop_the_consumer(self):
        bench = Bench([ADDRESS], max_in_flight=4)
        gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            async with bench.consumer as consumer:
                peer = await bench.subscribe(4)

                async def handle(message: Message) -> None:
                    if message.body == body_of(2):
                        consumer.stop()
                    else:
                        await gate.wait()

                async def be_the_broker() -> None:
                    await peer.deliver(1, 2, 3)
                    assert [await peer.line() for _ in range(4)] == [b"RDY 0", req(3), b"CLS", fin(2)]
                    await peer.dismiss()
                    await settle()
                    gate.set()
                    assert await peer.line() == fin(1)
                    await peer.wait_end()
                    await peer.close()

                tasks.start_soon(be_the_broker)
                await consumer.run(handle, concurrency=2)
                await settle()
                bench.clock.advance(100)
                await settle()
                assert bench.broker.dial_count == 1  # a closed consumer does not dial again

    async def test_handler_in_a_thread_can_stop_the_consumer(self):
        async with consuming(b"RDY 0", b"CLS", fin(1)) as (consumer, peer):

            def handle(message: Message) -> None:
                consumer.stop()

            await peer.deliver(1)
            await consumer.run(handle, in_threads=True)
            assert consumer.stats().finished == 1

    async def test_stop_ends_iterations(self):
        async with consuming() as (consumer, _):
            ended: list[str] = []

            async def iterate(name: str, iterator: Any) -> None:
                async for _ in iterator:
                    pass
                ended.append(name)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate, "messages", consumer)
                tasks.start_soon(iterate, "batches", consumer.batches())
                tasks.start_soon(consumer.run, print)
                await settle()
                consumer.stop()
            assert sorted(ended) == ["batches", "messages"]
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
            await consumer.run(print)

    async def test_stopped_consumer_cannot_be_entered(self):
        consumer = Consumer("t", "c", nsqd_tcp_addresses=[ADDRESS])
        consumer.stop()
        with pytest.raises(Closed):
            await consumer.__aenter__()
