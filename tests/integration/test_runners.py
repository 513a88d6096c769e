"""Programs as users write them, an ``async def main()`` each, under every way to run one.

The brokers run in separate threads, so each program has an event loop that only its clients use.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from nsqkit import BlockingConsumer, BlockingProducer, Consumer, Message, Producer
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from tests.certificates import HOST, write_files
from tests.integration.stage import until
from tests.runners import Run

DIALLING: dict[str, Any] = {"dial_timeout": 10.0, "reconnect_delay_max": 0.01, "reconnect_delay_min": 0.01}
BODIES = [b"%d" % n for n in range(20)]


async def check_roundtrip(address: str, **options: Any) -> None:
    """Publish, consume, and check that no message is left."""
    async with (
        Producer(address, **DIALLING, **options) as producer,
        Consumer("t", "c", nsqd_tcp_addresses=[address], max_in_flight=5, **DIALLING, **options) as consumer,
    ):
        await consumer.wait_connected()
        await producer.publish("t", BODIES[0])
        await producer.multi_publish("t", BODIES[1:])
        received = []
        async for message in consumer:
            received.append(message.body)
            message.finish()
            if len(received) == len(BODIES):
                break
        assert sorted(received) == sorted(BODIES)


@contextmanager
def auth_server() -> Iterator[str]:
    """Run an auth server that grants everything; yield its address."""

    class Grants(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            everything = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
            body = json.dumps({"ttl": 60, "identity": "me", "authorizations": [everything]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Grants) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_messages_are_published_and_consumed(run: Run, nsqd: NsqdServer) -> None:
    async def main() -> None:
        await check_roundtrip(nsqd.tcp_address)

    run(main)


def test_client_with_a_secret_is_authorized(run: Run) -> None:
    with auth_server() as auth, NsqdServer(auth_http_address=auth) as nsqd:

        async def main() -> None:
            await check_roundtrip(nsqd.tcp_address, auth_secret="hush")

        run(main)


@pytest.mark.parametrize("compression", [{}, {"deflate": True}])
def test_clients_connect_with_tls(run: Run, tmp_path: Path, compression: dict[str, Any]) -> None:
    files = write_files(tmp_path)

    with NsqdServer(https_address="", tls_cert=files.certificate, tls_key=files.key) as nsqd:

        async def main() -> None:
            options = {"tls_v1": True, "tls_root_ca_file": files.authority, "tls_server_name": HOST}
            await check_roundtrip(nsqd.tcp_address, **options, **compression)

        run(main)


@pytest.mark.parametrize("kind", ["async", "plain", "threads"])
def test_handlers_are_called_until_the_consumer_is_stopped(run: Run, nsqd: NsqdServer, kind: str) -> None:
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.body)
        if message.attempts == 1 and message.body == BODIES[0]:
            raise ValueError("the first attempt fails")

    async def async_handle(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        handle(message)

    async def main() -> None:
        async with Producer(nsqd.tcp_address, linger=0.001) as producer, anyio.create_task_group() as tasks:
            for body in BODIES:
                tasks.start_soon(producer.publish, "t", body)
        async with (
            Consumer(
                "t",
                "c",
                nsqd_tcp_addresses=[nsqd.tcp_address],
                max_in_flight=5,
                default_requeue_delay=0,
                backoff_multiplier=0.01,
            ) as consumer,
            anyio.create_task_group() as tasks,
        ):

            async def stop_when_done() -> None:
                await until(lambda: len(handled) > len(BODIES))
                consumer.stop()

            tasks.start_soon(stop_when_done)
            await consumer.run(
                async_handle if kind == "async" else handle,
                concurrency=3,
                in_threads=kind == "threads",
                auto_touch=True,
            )
            assert consumer.stats().requeued == 1

    run(main)
    assert sorted(handled) == sorted([BODIES[0], *BODIES])


def test_batches_are_handled(run: Run, nsqd: NsqdServer) -> None:
    async def main() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.multi_publish("t", BODIES)
        count = 0
        async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10) as consumer:
            async for batch in consumer.batches(max_messages=7, max_wait=0.05):
                count += len(batch)
                batch.finish()
                if count == len(BODIES):
                    break

    run(main)


def test_an_nsqd_is_found_by_nsqlookupd(run: Run) -> None:
    async def main() -> None:
        with NsqlookupdServer() as lookupd:
            with NsqdServer(lookupd_tcp_address=lookupd.tcp_address) as nsqd:
                async with Producer(nsqd.tcp_address) as producer:
                    await producer.publish("t", b"found")
                async with Consumer(
                    "t", "c", lookupd_http_addresses=[lookupd.http_address], lookupd_poll_interval=0.05
                ) as consumer:
                    message = await anext(consumer)
                    assert message.body == b"found"
                    message.finish()

    run(main)


def test_clients_reconnect_to_a_restarted_broker(run: Run) -> None:
    async def main() -> None:
        with ExitStack() as first:
            address = first.enter_context(NsqdServer()).tcp_address
            async with (
                Producer(address, publish_attempts=100, **DIALLING) as producer,
                Consumer("t", "c", nsqd_tcp_addresses=[address], **DIALLING) as consumer,
            ):
                await producer.publish("t", b"one")
                (await anext(consumer)).finish()
                first.close()
                with NsqdServer(tcp_address=address):
                    await producer.publish("t", b"two")
                    message = await anext(consumer)
                    assert message.body == b"two"
                    message.finish()

    run(main)


def test_silent_broker_times_out(run: Run) -> None:
    async def main() -> None:
        async def say_nothing(stream: Any) -> None:
            async with stream:
                await anyio.sleep_forever()

        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        address = "{}:{}".format(*listener.extra(anyio.abc.SocketAttribute.local_address))
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, say_nothing)
            async with Consumer("t", "c", nsqd_tcp_addresses=[address], dial_timeout=0.1) as consumer:
                await until(lambda: consumer.unconnected[address])
                assert "did not answer within 0.1 seconds" in str(consumer.unconnected[address])
            tasks.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"], indirect=True)
def test_a_consumer_is_changed_and_stopped_by_callbacks(run: Run, nsqd: NsqdServer) -> None:
    """Such as signal handlers of asyncio's loops, in which anyio finds no task."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with NsqlookupdServer() as lookupd:
            async with (
                Producer(nsqd.tcp_address) as producer,
                Consumer("t", "c", lookupd_http_addresses=[lookupd.http_address]) as consumer,
            ):
                await producer.publish("t", b"one")
                loop.call_soon(consumer.connect_to_nsqd, nsqd.tcp_address)
                loop.call_soon(consumer.disconnect_from_lookupd, lookupd.http_address)
                loop.call_soon(consumer.connect_to_lookupd, lookupd.http_address)
                (await anext(consumer)).finish()
                loop.call_soon(consumer.pause)
                loop.call_soon(consumer.resume)
                loop.call_soon(consumer.change_max_in_flight, 5)
                loop.call_soon(producer.publish_nowait, "t", b"two")
                (await anext(consumer)).finish()
                loop.call_soon(consumer.disconnect_from_nsqd, nsqd.tcp_address)
                loop.call_soon(consumer.connect_to_nsqd, nsqd.tcp_address)
                await producer.publish("t", b"three")
                (await anext(consumer)).finish()
                loop.add_signal_handler(signal.SIGUSR1, consumer.stop)
                loop.call_soon(signal.raise_signal, signal.SIGUSR1)
                assert [message async for message in consumer] == []

    run(main)


def test_a_client_is_made_before_the_event_loop_runs(run: Run, nsqd: NsqdServer) -> None:
    producer = Producer(nsqd.tcp_address)
    consumer = Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], lookupd_http_addresses=["127.0.0.1:1"])

    async def main() -> None:
        async with producer, consumer:
            await producer.publish("t", b"one")
            (await anext(consumer)).finish()

    run(main)


def test_a_blocking_consumer_finds_its_nsqd_by_nsqlookupd() -> None:
    with NsqlookupdServer() as lookupd, NsqdServer(lookupd_tcp_address=lookupd.tcp_address) as nsqd:
        with BlockingProducer(nsqd.tcp_address) as producer:
            producer.publish("t", b"one")
        with BlockingConsumer(
            "t", "c", lookupd_http_addresses=[lookupd.http_address], lookupd_poll_interval=0.05
        ) as consumer:
            message = next(iter(consumer))
            assert message.body == b"one"
            message.finish()
