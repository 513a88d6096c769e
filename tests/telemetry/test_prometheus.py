from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nsqkit import BlockingConsumer, BlockingMessage, BlockingProducer, Consumer, Message, Producer
from nsqkit.consumer.backoff import BackoffState
from nsqkit.consumer.stats import BackoffStats, ConnectionStats, ConsumerStats
from nsqkit.errors import Closed, OptionError
from nsqkit.producer.stats import NsqdStats, ProducerStats
from nsqkit.telemetry.prometheus import HandlerMetrics, StatsCollector
from tests.integration.stage import until
from tests.telemetry.recorder import deliver

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 15.0
LABELS = ["producer", "topic", "channel", "consumer", "nsqd", "state"]


class Client:
    """Has stats, and records the threads that read them."""

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self.threads: list[int] = []

    def stats(self) -> Any:
        self.threads.append(threading.get_ident())
        if isinstance(self._stats, Exception):
            raise self._stats
        return self._stats


def nsqd_stats(address: str, **changes: Any) -> NsqdStats:
    figures: dict[str, Any] = {
        "is_connected": True,
        "message_count": 5,
        "refused_count": 1,
        "lost_count": 2,
        "outstanding_count": 3,
        "error": None,
    }
    return NsqdStats(address=address, **{**figures, **changes})


def connection_stats(address: str, **changes: Any) -> ConnectionStats:
    figures: dict[str, Any] = {
        **dict.fromkeys(["received", "finished", "requeued", "touched", "timed_out", "refused"], 0),
        "connected": True,
        "error": None,
        "version": "1.3.0",
        "rdy_count": 7,
        "in_flight": 2,
    }
    return ConnectionStats(address=address, **{**figures, **changes})


def consumer_stats(*connections: ConnectionStats) -> ConsumerStats:
    return ConsumerStats(
        received=1,
        finished=2,
        requeued=3,
        touched=4,
        timed_out=5,
        given_up=6,
        refused=7,
        in_flight=8,
        waiting=9,
        max_in_flight=10,
        paused=True,
        starved=False,
        backoff=BackoffStats(state=BackoffState.WAITING, counter=2, wait=1.5, seconds_left=0.5),
        connections=connections,
    )


PRODUCER_STATS = ProducerStats(
    nsqds=(nsqd_stats("a:1"), nsqd_stats("b:2", is_connected=False)), outstanding_bytes=70, waiting_count=4
)


def scrape(collector: StatsCollector) -> dict[tuple[str, ...], float]:
    """Return the values of a scrape by name and by the values of the labels, in the order of LABELS."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_producer_shows_its_figures():
    collector = StatsCollector()
    collector.add_producer(Client(PRODUCER_STATS), "web")
    expected: dict[tuple[str, ...], float] = {
        ("nsqkit_producer_outstanding_bytes", "web"): 70,
        ("nsqkit_producer_waiting", "web"): 4,
        ("nsqkit_producer_connected", "web", "a:1"): 1,
        ("nsqkit_producer_connected", "web", "b:2"): 0,
        **{
            (name, "web", nsqd): value
            for nsqd in ("a:1", "b:2")
            for name, value in {
                "nsqkit_producer_messages_total": 5,
                "nsqkit_producer_refused_total": 1,
                "nsqkit_producer_lost_total": 2,
                "nsqkit_producer_outstanding": 3,
            }.items()
        },
    }
    assert scrape(collector) == expected


def test_a_consumer_shows_its_figures():
    collector = StatsCollector()
    collector.add_consumer(Client(consumer_stats(connection_stats("a:1"))), "clicks", "archive", "1")
    key = ("clicks", "archive", "1")
    counters = ["received", "finished", "requeued", "touched", "timed_out", "given_up", "refused"]
    expected: dict[tuple[str, ...], float] = {
        **{(f"nsqkit_consumer_{name}_total", *key): n for n, name in enumerate(counters, 1)},
        ("nsqkit_consumer_in_flight", *key): 8,
        ("nsqkit_consumer_waiting", *key): 9,
        ("nsqkit_consumer_max_in_flight", *key): 10,
        ("nsqkit_consumer_paused", *key): 1,
        ("nsqkit_consumer_starved", *key): 0,
        ("nsqkit_consumer_backoff_counter", *key): 2,
        ("nsqkit_consumer_backoff_seconds", *key): 1.5,
        ("nsqkit_consumer_backoff_state", *key, "running"): 0,
        ("nsqkit_consumer_backoff_state", *key, "waiting"): 1,
        ("nsqkit_consumer_backoff_state", *key, "probing"): 0,
        ("nsqkit_consumer_connection_subscribed", *key, "a:1"): 1,
        ("nsqkit_consumer_connection_rdy", *key, "a:1"): 7,
        ("nsqkit_consumer_connection_in_flight", *key, "a:1"): 2,
    }
    assert scrape(collector) == expected


def test_present_one_of_two_connections_to_an_nsqd_is_shown():
    leaving = connection_stats("a:1", rdy_count=0)
    collector = StatsCollector()
    collector.add_consumer(Client(consumer_stats(connection_stats("a:1"), leaving)), "t", "c")
    assert scrape(collector)["nsqkit_consumer_connection_rdy", "t", "c", "", "a:1"] == 7


def test_describe_reads_no_client():
    client = Client(PRODUCER_STATS)
    collector = StatsCollector()
    collector.add_producer(client)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    assert client.threads == []
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(StatsCollector())


def test_scrape_reads_each_client_once():
    client = Client(PRODUCER_STATS)
    collector = StatsCollector()
    collector.add_producer(client)
    list(collector.collect())
    assert len(client.threads) == 1


def test_a_closed_client_is_left_out():
    collector = StatsCollector()
    collector.add_producer(Client(Closed("closed")))
    assert scrape(collector) == {}


def test_a_removed_client_is_left_out():
    producer, consumer = Client(PRODUCER_STATS), Client(consumer_stats())
    collector = StatsCollector()
    collector.add_producer(producer)
    collector.add_consumer(consumer, "t", "c")
    collector.remove(consumer)
    assert {name for name, *_ in scrape(collector) if "consumer" in name} == set()
    collector.remove(producer)
    collector.remove(producer)
    assert scrape(collector) == {}


def test_name_must_be_unique():
    collector = StatsCollector()
    collector.add_producer(Client(PRODUCER_STATS), "web")
    collector.add_consumer(Client(consumer_stats()), "t", "c")
    with pytest.raises(OptionError, match="there is one with producer 'web' already"):
        collector.add_producer(Client(PRODUCER_STATS), "web")
    with pytest.raises(OptionError, match="topic 't', channel 'c', consumer '' already"):
        collector.add_consumer(Client(consumer_stats()), "t", "c")
    collector.add_consumer(Client(consumer_stats()), "t", "c", "2")


# ---- event loops -------------------------------------------------------------------------------------------------


async def test_client_of_an_event_loop_is_read_there():
    client = Client(PRODUCER_STATS)
    with anyio.fail_after(WAIT_LIMIT):
        async with StatsCollector() as collector:
            collector.add_producer(client)
            assert await anyio.to_thread.run_sync(scrape, collector)
            assert scrape(collector)
        assert set(client.threads) == {threading.get_ident()}
        assert scrape(collector) == {}


async def test_a_collector_is_entered_once():
    async with StatsCollector() as collector:
        with pytest.raises(Closed, match="entered already"):
            await collector.__aenter__()


async def test_real_clients_are_scraped(nsqd: Any):
    with anyio.fail_after(WAIT_LIMIT):
        async with (
            Producer(nsqd.tcp_address) as producer,
            Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer,
            StatsCollector() as collector,
        ):
            collector.add_producer(producer)
            collector.add_consumer(consumer, "t", "c")
            await producer.publish("t", b"body")
            (await anext(consumer)).finish()
            await until(lambda: consumer.stats().finished)
            values = await anyio.to_thread.run_sync(scrape, collector)
    assert values["nsqkit_producer_messages_total", "", nsqd.tcp_address] == 1
    assert values["nsqkit_consumer_finished_total", "t", "c", ""] == 1
    assert values["nsqkit_consumer_connection_subscribed", "t", "c", "", nsqd.tcp_address] == 1


# ---- handlers ----------------------------------------------------------------------------------------------------


class Measuring:
    """Metrics of handlers that take a second each, and a scrape of them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        seconds = iter(range(1000))
        self.metrics = HandlerMetrics(self.registry, buckets=(0.5, 2.0), timer=lambda: float(next(seconds)))

    def value(self, name: str, **labels: str) -> float | None:
        given = {"topic": "t", "channel": "c", "consumer": "", **labels}
        return self.registry.get_sample_value(f"nsqkit_consumer_handler_{name}", given)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_has_durations_and_failures(kind):
    measuring = Measuring()

    def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("bad")

    async def handle_async(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        handle(message)

    handler: Any = measuring.metrics.handler(handle if kind == "plain" else handle_async)
    for message in deliver(b"good", b"bad", b"good"):
        with nullcontext() if message.body == b"good" else pytest.raises(ValueError, match="bad"):
            result = handler(message)
            if kind == "async":
                await result
    assert measuring.value("seconds_count") == 3
    assert measuring.value("seconds_sum") == 3.0
    assert measuring.value("seconds_bucket", le="0.5") == 0
    assert measuring.value("seconds_bucket", le="2.0") == 3
    assert measuring.value("failures_total") == 1


async def test_a_batch_is_measured_as_one():
    measuring = Measuring()

    def handle(messages: list[Message]) -> int:
        return len(messages)

    assert measuring.metrics.batch_handler(handle, "second")(deliver(b"1", b"2")) == 2
    assert measuring.value("seconds_count", consumer="second") == 1
    assert measuring.value("failures_total", consumer="second") is None


async def test_cancelled_handler_has_not_failed():
    measuring = Measuring()

    async def handle(message: Message) -> None:
        await anyio.sleep_forever()

    (message,) = deliver(b"body")
    with anyio.move_on_after(0):
        await measuring.metrics.handler(handle)(message)
    assert measuring.value("seconds_count") == 1
    assert measuring.value("failures_total") is None


def test_handlers_of_blocking_consumers_are_measured(nsqd: Any):
    measuring = Measuring()
    with BlockingProducer(nsqd.tcp_address) as producer:
        producer.publish("t", b"body")
    with BlockingConsumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        handled: list[bytes] = []

        def handle(message: BlockingMessage) -> None:
            handled.append(message.body)
            consumer.stop()

        consumer.run(measuring.metrics.handler(handle))
    assert handled == [b"body"]
    assert measuring.value("seconds_count") == 1
