"""All limits of brokers and clients follow one controlled clock, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from random import Random

import anyio
import pytest

from nsqkit.consumer import BlockingConsumer, Consumer
from nsqkit.consumer.message import Message
from nsqkit.errors import HeartbeatTimeout
from nsqkit.producer import BlockingProducer, Producer
from nsqkit.testing.auth_server import AuthNsqdServer, AuthServer
from nsqkit.testing.clock import ControlledClock, Mode
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from nsqkit.transport.address import split_address
from nsqkit.wire.commands import MAGIC_V2
from nsqkit.wire.lookup import MAGIC_V1, Node, encode_identify, encode_register

pytestmark = pytest.mark.anyio

CLOCKS = pytest.mark.parametrize("mode", ["running", "manual"])
NODE = Node(broadcast_address="b", tcp_port=4150, http_port=4151, version="1.3.0")


def consumer_of(nsqd: NsqdServer, **options: object) -> Consumer:
    return Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock, **options)  # type: ignore[arg-type]


async def receive(consumer: Consumer) -> Message:
    with anyio.fail_after(20):
        return await anext(aiter(consumer))


async def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened in other threads."""
    with anyio.fail_after(20):
        while not happened():
            await anyio.wait_all_tasks_blocked()
            await anyio.lowlevel.checkpoint()


@contextmanager
def real_seconds_below(limit: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < limit


# ---- messages -------------------------------------------------------------------------------------------------------


@CLOCKS
async def test_message_of_a_connected_consumer_times_out_after_sixty_seconds(mode: Mode) -> None:
    with NsqdServer(clock=mode) as nsqd:
        nsqd.publish("t", b"x")
        async with consumer_of(nsqd) as consumer:
            message = await receive(consumer)
            with real_seconds_below(30):
                await nsqd.clock.advance(58)
                assert not message.is_answered
                await nsqd.clock.advance(2)
                again = await receive(consumer)
            assert (again.body, again.attempts) == (b"x", 2)
            again.finish()


async def test_touch_restarts_the_timeout() -> None:
    with NsqdServer(clock="manual") as nsqd:
        nsqd.publish("t", b"x")
        async with consumer_of(nsqd) as consumer:
            message = await receive(consumer)
            for _ in range(5):
                await nsqd.clock.advance(50)
                message.touch()
            await nsqd.clock.advance(50)
            message.finish()
            await until(lambda: nsqd.topic("t").channel("c").in_flight == 0)
            assert nsqd.topic("t").channel("c").timeout_count == 0


async def test_requeue_by_fifteen_minutes() -> None:
    with NsqdServer(clock="manual") as nsqd:
        nsqd.publish("t", b"x")
        async with consumer_of(nsqd) as consumer:
            for attempts in (1, 2, 3):
                message = await receive(consumer)
                assert message.attempts == attempts
                message.requeue(900, backoff=False)
                with real_seconds_below(30):
                    await nsqd.clock.advance(900)
            (await receive(consumer)).finish()


async def test_deferral_by_one_hour() -> None:
    with NsqdServer(clock="manual") as nsqd:
        async with consumer_of(nsqd) as consumer, Producer(nsqd.tcp_address, clock=nsqd.clock) as producer:
            await producer.deferred_publish("t", b"x", 3600)
            await until(lambda: nsqd.topic("t").channel("c").deferred == 1)
            with real_seconds_below(30):
                await nsqd.clock.advance(3599)
                assert nsqd.topic("t").channel("c").deferred == 1
                await nsqd.clock.advance(1)
            message = await receive(consumer)
            assert message.received_ns == nsqd.clock.now_ns()
            message.finish()


# ---- connections ----------------------------------------------------------------------------------------------------


@CLOCKS
def test_blocking_clients_stay_connected_for_an_hour(mode: Mode) -> None:
    with NsqdServer(clock=mode) as nsqd:
        nsqd.publish("t", b"x")
        with (
            BlockingProducer(nsqd.tcp_address, clock=nsqd.clock) as producer,
            BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock) as consumer,
        ):
            for body in (b"x", b"y", b"z"):
                message = consumer.receive(timeout=20)
                assert message is not None
                assert message.body == body
                message.finish()
                nsqd.clock.advance(3600)
                if body != b"z":
                    producer.publish("t", chr(body[0] + 1).encode())
            assert len({entry.client for entry in nsqd.journal if entry.name == "IDENTIFY"}) == 2


async def test_compressed_connection_lasts_for_an_hour() -> None:
    """The heartbeats of such a connection cannot be seen between both ends."""
    with NsqdServer(clock="manual") as nsqd:
        nsqd.publish("t", b"x")
        async with consumer_of(nsqd, deflate=True) as consumer:
            (await receive(consumer)).finish()
            with real_seconds_below(30):
                await nsqd.clock.advance(3600)
            nsqd.publish("t", b"y")
            (await receive(consumer)).finish()
            assert len({entry.client for entry in nsqd.journal if entry.name == "IDENTIFY"}) == 1


def test_mute_client_is_disconnected_after_two_intervals() -> None:
    with NsqdServer(clock="manual") as nsqd:
        with socket.create_connection(split_address(nsqd.tcp_address), timeout=20) as client:
            client.sendall(MAGIC_V2 + b"SUB t c\nRDY 1\n")
            with real_seconds_below(30):
                nsqd.clock.advance(59)
                assert len(nsqd.connections) == 1
                nsqd.clock.advance(1)
                assert nsqd.connections == ()
            assert client.makefile("rb").read().count(b"_heartbeat_") == 1


async def test_client_gives_up_a_silent_broker() -> None:
    """The broker answers the handshake, and sends nothing more."""
    clock = ControlledClock("manual")
    errors: list[Exception | None] = []
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:

        async def serve(stream: anyio.abc.ByteStream) -> None:
            async with stream:
                while b"SUB" not in await stream.receive():
                    await stream.send(b"\0\0\0\6\0\0\0\0OK")
                await stream.send(b"\0\0\0\6\0\0\0\0OK")
                await anyio.sleep_forever()

        tasks.start_soon(listener.serve, serve)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[f"127.0.0.1:{port}"],
            clock=clock,
            on_connection=lambda address, error: errors.append(error),
        ):
            await until(lambda: errors == [None])
            await clock.advance(59)
            assert errors == [None]
            await clock.advance(2)  # the second one is for the broker, to close the connection
            await until(lambda: len(errors) > 1)
            assert isinstance(errors[1], HeartbeatTimeout)
            tasks.cancel_scope.cancel()


async def test_client_dials_again_after_delays() -> None:
    errors: list[Exception | None] = []
    delays = {"reconnect_delay_min": 60, "reconnect_delay_max": 60, "random": Random(1)}
    with NsqdServer(clock="manual") as nsqd:
        async with consumer_of(nsqd, on_connection=lambda _, error: errors.append(error), **delays):
            await until(lambda: errors == [None])
            nsqd.stop()
            await until(lambda: len(errors) == 2)
            nsqd.start()
            await nsqd.clock.advance(1)
            assert nsqd.connections == ()
            await nsqd.clock.advance(59)
            assert len(nsqd.connections) == 1


# ---- handlers -------------------------------------------------------------------------------------------------------


async def test_backoff_and_requeue_delays_of_handlers() -> None:
    with NsqdServer(clock="manual") as nsqd:
        nsqd.publish("t", b"x")
        times: list[float] = []

        async def handle(message: Message) -> None:
            times.append(nsqd.clock.time)
            if len(times) < 4:
                raise ValueError

        async with consumer_of(nsqd) as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await until(lambda: times)
            with real_seconds_below(30):
                await nsqd.clock.advance(600)
            assert [round(later - earlier) for earlier, later in pairwise(times)] == [90, 180, 270]
            consumer.stop()


async def test_handler_is_cancelled_when_its_message_times_out() -> None:
    with NsqdServer(clock="manual", msg_timeout=30) as nsqd:
        nsqd.publish("t", b"x")
        begun, cancelled = [], []

        async def handle(message: Message) -> None:
            begun.append(message)
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(nsqd.clock.time - begun[0].received_ns / 1e9)

        async with consumer_of(nsqd) as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(consumer.run, handle, cancel_at_timeout=True))
            await until(lambda: begun)
            await nsqd.clock.advance(29)
            assert cancelled == []
            await nsqd.clock.advance(1)
            assert len(cancelled) == 1
            assert 29 < cancelled[0] <= 30
            tasks.cancel_scope.cancel()


# ---- other servers --------------------------------------------------------------------------------------------------


def test_nsqlookupd_forgets_a_mute_nsqd_after_five_minutes() -> None:
    with NsqlookupdServer(clock="manual") as lookupd:

        def count() -> int:
            return lookupd.inspect(lambda registry: len(registry.producers(b"t", lookupd.clock.now_ns())))

        with socket.create_connection(split_address(lookupd.tcp_address), timeout=20) as client:
            client.sendall(MAGIC_V1 + encode_identify(NODE) + encode_register(b"t"))
            while not count():
                pass
            lookupd.clock.advance(300)
            assert count() == 1
            lookupd.clock.advance(1)
            assert count() == 0


def test_living_nsqd_stays_registered_and_its_tombstone_ends_after_45_seconds() -> None:
    clock = ControlledClock("manual")
    with (
        NsqlookupdServer(clock=clock) as lookupd,
        NsqdServer(clock=clock, lookupd_tcp_address=lookupd.tcp_address) as nsqd,
    ):

        def count() -> int:
            return lookupd.inspect(lambda registry: len(registry.producers(b"t", clock.now_ns())))

        nsqd.publish("t", b"x")
        while not count():
            pass
        with real_seconds_below(30):
            clock.advance(3600)
        assert count() == 1
        with socket.create_connection(split_address(lookupd.http_address), timeout=20) as client:
            target = f"/topic/tombstone?topic=t&node=127.0.0.1:{split_address(nsqd.http_address)[1]}"
            client.sendall(f"POST {target} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            assert b" 200 OK" in client.makefile("rb").read()
        assert count() == 0
        clock.advance(44)
        assert count() == 0
        clock.advance(1)
        assert count() == 1


async def test_consumer_polls_nsqlookupd_by_the_clock() -> None:
    clock = ControlledClock("manual")
    with NsqlookupdServer(clock=clock) as lookupd:
        async with Consumer("t", "c", lookupd_http_addresses=[lookupd.http_address], clock=clock) as consumer:
            await clock.advance(1)  # the first request is answered
            with NsqdServer(clock=clock, lookupd_tcp_address=lookupd.tcp_address) as nsqd:
                nsqd.publish("t", b"x")
                await until(lambda: lookupd.inspect(lambda registry: registry.producers(b"t", clock.now_ns())))
                assert nsqd.connections == ()
                await clock.advance(78)  # the interval of 60 seconds, and up to 30 % more
                (await receive(consumer)).finish()
                consumer.stop()


def test_grant_of_an_auth_server_ends_after_its_ttl() -> None:
    with AuthServer(clock="manual") as auth:
        auth.grant("secret", ttl=100)
        with (
            AuthNsqdServer(auth) as nsqd,
            socket.create_connection(split_address(nsqd.tcp_address), timeout=20) as client,
        ):
            answers = client.makefile("rb")

            def ask(command: bytes, body: bytes) -> bytes:
                client.sendall(command + len(body).to_bytes(4, "big") + body)
                return answers.read(int.from_bytes(answers.read(4), "big"))

            client.sendall(MAGIC_V2)
            assert ask(b"IDENTIFY\n", b'{"heartbeat_interval":-1}').endswith(b"OK")
            assert b"identity" in ask(b"AUTH\n", b"secret")
            for request_count in (1, 2):
                for _ in range(2):
                    nsqd.clock.advance(49)
                    assert ask(b"PUB t\n", b"x").endswith(b"OK")
                assert len(auth.requests) == request_count


def test_statsd_gets_a_report_every_interval() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(20)
        address = f"127.0.0.1:{daemon.getsockname()[1]}"
        with NsqdServer(clock="manual", statsd_address=address, statsd_interval=60, statsd_mem_stats=False) as nsqd:
            nsqd.publish("t", b"x")
            nsqd.clock.advance(600)
            reports = [daemon.recv(65536) for _ in range(10)]
            assert [b"message_count:1|c" in report for report in reports] == [True] + 9 * [False]


# ---- many messages --------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_messages_time_out_within_a_second() -> None:
    count, connection_count = 100_000, 40
    with NsqdServer(clock="running", mem_queue_size=count, msg_timeout=20) as nsqd:
        nsqd.publish("t", *[b"x"] * count)
        clients = [
            socket.create_connection(split_address(nsqd.tcp_address), timeout=20) for _ in range(connection_count)
        ]
        for client in clients:
            client.sendall(MAGIC_V2 + b"SUB t c\nRDY %d\n" % (count // connection_count))
        for client in clients:
            left = count // connection_count * (4 + 4 + 8 + 2 + 16 + 1) + 10
            while left:
                left -= len(client.recv(left))
            client.sendall(b"RDY 0\n")
        begun = time.process_time()  # other programs of a busy machine do not count
        nsqd.clock.advance(25)
        assert time.process_time() - begun < 1
        assert nsqd.topic("t").channel("c").timeout_count == count
        for client in clients:
            client.close()
