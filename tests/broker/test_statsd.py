from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random

import anyio
import pytest

from nsqkit.broker import statsd
from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.broker.statsd import StatsdReporter
from nsqkit.clock import ManualClock

pytestmark = pytest.mark.anyio

INTERVAL = 11


@pytest.fixture
def daemon() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        yield sock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    broker = Broker(BrokerOptions(), Random(1))
    broker.topics.get_or_create(b"t").put([b"xy"], clock.now_ns())
    return broker


def options(daemon: socket.socket, **changes: object) -> BrokerOptions:
    values: dict[str, object] = {
        "statsd_address": f"127.0.0.1:{daemon.getsockname()[1]}",
        "statsd_interval_ns": INTERVAL * 10**9,
        "statsd_mem_stats": False,
        **changes,
    }
    return BrokerOptions(**values)  # type: ignore[arg-type]


@asynccontextmanager
async def running(broker: Broker, options: BrokerOptions, clock: ManualClock) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(StatsdReporter(broker, options, "p.", clock).run)
        await anyio.wait_all_tasks_blocked()
        yield
        tasks.cancel_scope.cancel()


async def packet(daemon: socket.socket) -> bytes:
    with anyio.fail_after(60):
        await anyio.wait_readable(daemon)
    return daemon.recv(65536)


@contextmanager
def errors() -> Iterator[Callable[[], Awaitable[str]]]:
    """Yield a function that waits for the next error in the log."""
    put, get = anyio.create_memory_object_stream[str](10)

    class Records(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            put.send_nowait(record.getMessage())

    async def next_error() -> str:
        with anyio.fail_after(60):
            return await get.receive()

    logger, records = logging.getLogger("nsqkit.broker"), Records(logging.ERROR)
    logger.addHandler(records)
    with put, get:
        try:
            yield next_error
        finally:
            logger.removeHandler(records)


def nothing_came(daemon: socket.socket) -> bool:
    try:
        daemon.recv(65536)
    except BlockingIOError:
        return True
    return False


async def elapsed(clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    await anyio.wait_all_tasks_blocked()


FIRST = b"p.topic.t.message_count:1|c\np.topic.t.message_bytes:2|c\np.topic.t.depth:1|g\np.topic.t.backend_depth:0|g\n"


async def test_a_report_is_sent_after_each_interval(broker, daemon, clock):
    async with running(broker, options(daemon), clock):
        await elapsed(clock, INTERVAL - 1)
        assert nothing_came(daemon)
        await elapsed(clock, 1)
        assert await packet(daemon) == FIRST
        broker.topics[b"t"].put([b"z"] * 3, clock.now_ns())
        await elapsed(clock, INTERVAL)
        assert await packet(daemon) == (
            FIRST.replace(b"count:1", b"count:3").replace(b"bytes:2", b"bytes:3").replace(b"depth:1", b"depth:4")
        )


async def test_packets_are_spread_over_the_interval_except_its_last_second(broker, daemon, clock):
    async with running(broker, options(daemon, statsd_udp_packet_size=60), clock):
        await elapsed(clock, INTERVAL)
        assert await packet(daemon) == b"p.topic.t.message_count:1|c\np.topic.t.message_bytes:2|c\n"
        await anyio.wait_all_tasks_blocked()
        await elapsed(clock, (INTERVAL - 1) / 2 - 0.1)
        assert nothing_came(daemon)
        await elapsed(clock, 0.2)
        assert await packet(daemon) == b"p.topic.t.depth:1|g\np.topic.t.backend_depth:0|g\n"


async def test_a_stop_sends_the_remaining_packets_at_once(broker, daemon, clock):
    async with running(broker, options(daemon, statsd_udp_packet_size=1), clock):
        await elapsed(clock, INTERVAL)
        first = await packet(daemon)
    rest = [daemon.recv(65536) for _ in range(3)]
    assert b"".join([first, *rest]) == FIRST
    assert nothing_came(daemon)


async def test_reports_that_were_due_before_a_late_one_are_skipped(broker, daemon, clock):
    async with running(broker, options(daemon), clock):
        await elapsed(clock, INTERVAL * 3.5)
        await packet(daemon)
        await elapsed(clock, INTERVAL * 0.4)
        assert nothing_came(daemon)
        await elapsed(clock, INTERVAL * 0.1)
        await packet(daemon)


@pytest.mark.parametrize(
    "address", ["nowhere", "127.0.0.1:statsd", "unknown.invalid:8125", "stats_d\u00fc.invalid:8125"]
)
async def test_an_unusable_address_is_logged_and_tried_again(broker, daemon, clock, address):
    with errors() as next_error:
        async with running(broker, options(daemon, statsd_address=address), clock):
            for _ in range(2):
                await elapsed(clock, INTERVAL)
                error = await next_error()
                assert error.startswith(f"failed to create UDP socket to statsd({address}) - ")
                await anyio.wait_all_tasks_blocked()


async def test_resolving_an_address_has_a_timeout(broker, daemon, clock, monkeypatch):
    async def never(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, "getaddrinfo", never)
    with errors() as next_error:
        async with running(broker, options(daemon), clock):
            await elapsed(clock, INTERVAL)
            await elapsed(clock, statsd.RESOLVE_TIMEOUT)
            assert (await next_error()).endswith("no address of 127.0.0.1 is found within 1 s")


async def test_the_next_address_is_tried_if_the_first_is_unreachable(broker, daemon, clock, monkeypatch):
    port = daemon.getsockname()[1]
    datagram = socket.SOCK_DGRAM

    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [
            (12345, datagram, 0, "", ("127.0.0.1", port)),  # no such family
            (socket.AF_INET, datagram, 0, "", ("255.255.255.255", port)),  # not allowed
            (socket.AF_INET, datagram, 0, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(anyio, "getaddrinfo", found)
    async with running(broker, options(daemon), clock):
        await elapsed(clock, INTERVAL)
        assert await packet(daemon) == FIRST


async def test_a_missing_statsd_daemon_is_no_error(broker, daemon, clock, caplog):
    caplog.set_level(logging.INFO)
    given = options(daemon, statsd_udp_packet_size=1)
    daemon.close()
    async with running(broker, given, clock):
        await elapsed(clock, INTERVAL)
        with anyio.fail_after(60):
            while "pushing stats" not in caplog.text:
                await anyio.lowlevel.checkpoint()
        await elapsed(clock, INTERVAL)
    assert "STATSD: closing" in caplog.text


async def test_a_broker_reports_under_the_name_of_its_host(daemon):
    clock = ManualClock()
    changes = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0", "broadcast_address": "127.0.0.1"}
    async with Nsqd(options(daemon, **changes, statsd_mem_stats=True), clock=clock) as nsqd:
        await anyio.wait_all_tasks_blocked()
        await elapsed(clock, INTERVAL)
        port = nsqd.http_address.rpartition(":")[2]
        assert (await packet(daemon)).startswith(f"nsq.127_0_0_1_{port}.mem.heap_objects:".encode())
