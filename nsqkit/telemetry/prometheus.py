"""Prometheus: the figures of ``stats()``, read at each scrape, and how long handlers take.

The rule it guards: nothing is counted twice: producers and consumers count already, and a scrape reads each of them
once. What is read in an event loop is read there, whichever thread scrapes. Only a handler that is wrapped in
``HandlerMetrics`` costs something for each message.

How to read it: the tables say which figures there are, and what each is called; ``StatsCollector`` is what users
register, ``HandlerMetrics`` what they wrap handlers in. It wants the extra ``prometheus``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs
from anyio.from_thread import BlockingPortal
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from nsqkit.consumer.backoff import BackoffState
from nsqkit.errors import Closed, OptionError
from nsqkit.telemetry.handlers import surrounded

if TYPE_CHECKING:
    from types import TracebackType

    from prometheus_client.core import Metric

    from nsqkit.consumer.blocking_message import BlockingMessage
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.stats import ConsumerStats
    from nsqkit.producer.stats import ProducerStats

__all__ = ["HandlerMetrics", "StatsCollector"]

M = TypeVar("M", bound="Message | BlockingMessage")
R = TypeVar("R")


@attrs.frozen
class Figure:
    """One figure of ``stats()``: its name, what it is, and where it is; one that is named ``…_total`` only grows."""

    name: str
    text: str
    read: Callable[[Any], float]

    def family(self, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
        """Return a family of samples, without any as yet."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(self.name, self.text, labels=labels)


PRODUCER_LABELS: Final = ("producer",)
PRODUCER: Final = (
    Figure(
        "nsqkit_producer_outstanding_bytes",
        "Bytes that count towards max_outstanding_bytes.",
        lambda stats: stats.outstanding_bytes,
    ),
    Figure(
        "nsqkit_producer_waiting",
        "Publishes that wait for a connection, or for max_outstanding_bytes.",
        lambda stats: stats.waiting_count,
    ),
)

NSQD_LABELS: Final = (*PRODUCER_LABELS, "nsqd")
NSQD: Final = (
    Figure(
        "nsqkit_producer_connected",
        "1 while there is a connection to the nsqd.",
        lambda nsqd: nsqd.is_connected,
    ),
    Figure(
        "nsqkit_producer_messages_total",
        "Messages that the nsqd has acknowledged.",
        lambda nsqd: nsqd.message_count,
    ),
    Figure(
        "nsqkit_producer_refused_total",
        "Publishes that the nsqd has refused.",
        lambda nsqd: nsqd.refused_count,
    ),
    Figure(
        "nsqkit_producer_lost_total",
        "Publishes that were sent and never answered.",
        lambda nsqd: nsqd.lost_count,
    ),
    Figure(
        "nsqkit_producer_outstanding",
        "Commands without an answer as yet, and publishes that linger.",
        lambda nsqd: nsqd.outstanding_count,
    ),
)

CONSUMER_LABELS: Final = ("topic", "channel", "consumer")
CONSUMER: Final = (
    Figure("nsqkit_consumer_received_total", "Messages received.", lambda stats: stats.received),
    Figure("nsqkit_consumer_finished_total", "Messages finished.", lambda stats: stats.finished),
    Figure("nsqkit_consumer_requeued_total", "Messages requeued.", lambda stats: stats.requeued),
    Figure(
        "nsqkit_consumer_touched_total", "Times that more time was asked for.", lambda stats: stats.touched
    ),
    Figure(
        "nsqkit_consumer_timed_out_total", "Messages not answered in time.", lambda stats: stats.timed_out
    ),
    Figure("nsqkit_consumer_given_up_total", "Messages delivered too often.", lambda stats: stats.given_up),
    Figure("nsqkit_consumer_refused_total", "Answers that an nsqd has refused.", lambda stats: stats.refused),
    Figure("nsqkit_consumer_in_flight", "Messages received and not answered.", lambda stats: stats.in_flight),
    Figure(
        "nsqkit_consumer_waiting",
        "Messages received that nobody has begun with.",
        lambda stats: stats.waiting,
    ),
    Figure("nsqkit_consumer_max_in_flight", "The limit in force.", lambda stats: stats.max_in_flight),
    Figure("nsqkit_consumer_paused", "1 while the consumer is paused.", lambda stats: stats.paused),
    Figure("nsqkit_consumer_starved", "1 while the consumer is starved.", lambda stats: stats.starved),
    Figure("nsqkit_consumer_backoff_counter", "Counter of the backoff.", lambda stats: stats.backoff.counter),
    Figure(
        "nsqkit_consumer_backoff_seconds",
        "Length of the backoff's present wait.",
        lambda stats: stats.backoff.wait,
    ),
)
BACKOFF_STATE: Final = Figure("nsqkit_consumer_backoff_state", "1 for the state of the backoff.", float)

CONNECTION_LABELS: Final = (*CONSUMER_LABELS, "nsqd")
CONNECTION: Final = (
    Figure(
        "nsqkit_consumer_connection_subscribed",
        "1 while the subscription to the nsqd stands.",
        lambda connection: connection.connected,
    ),
    Figure(
        "nsqkit_consumer_connection_rdy",
        "The RDY last sent to the nsqd.",
        lambda connection: connection.rdy_count,
    ),
    Figure(
        "nsqkit_consumer_connection_in_flight",
        "Messages of the nsqd received and not answered.",
        lambda connection: connection.in_flight,
    ),
)


class TellsProducerStats(Protocol):
    """A producer, async or blocking."""

    def stats(self) -> ProducerStats:
        """Return what there is to be told."""
        ...


class TellsConsumerStats(Protocol):
    """A consumer, async or blocking."""

    def stats(self) -> ConsumerStats:
        """Return what there is to be told."""
        ...


class StatsCollector:
    """Collects the figures of producers and consumers, for ``CollectorRegistry.register``.

    Where clients live in an event loop, enter it there, with ``async with``: scrapes from other threads, such as those
    of ``prometheus_client.start_http_server``, are then answered by the event loop. Without that, and with blocking
    clients, it reads in the thread that scrapes. When it is left it forgets all clients.
    """

    def __init__(self) -> None:
        self._producers: dict[tuple[str, ...], TellsProducerStats] = {}
        self._consumers: dict[tuple[str, ...], TellsConsumerStats] = {}
        self._portal: BlockingPortal | None = None
        self._thread_id: int | None = None

    def add_producer(self, producer: TellsProducerStats, name: str = "") -> None:
        """Tell the figures of a producer from now on.

        Args:
            producer: any that has ``stats()``.
            name: the value of the label ``producer``; needed to tell several apart.

        Raises:
            OptionError: there is a producer of that name.
        """
        _add(self._producers, PRODUCER_LABELS, (name,), producer)

    def add_consumer(self, consumer: TellsConsumerStats, topic: str, channel: str, name: str = "") -> None:
        """Tell the figures of a consumer from now on.

        Args:
            consumer: any that has ``stats()``.
            topic: its topic.
            channel: its channel.
            name: the value of the label ``consumer``; needed to tell several consumers of one channel apart.

        Raises:
            OptionError: there is a consumer of that topic, channel and name.
        """
        _add(self._consumers, CONSUMER_LABELS, (topic, channel, name), consumer)

    def remove(self, client: TellsProducerStats | TellsConsumerStats) -> None:
        """Tell the figures of a producer or a consumer no more; does nothing if it is not known."""
        self._producers = {key: one for key, one in self._producers.items() if one is not client}
        self._consumers = {key: one for key, one in self._consumers.items() if one is not client}

    # ---- for Prometheus ------------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Return the figures without values."""
        return [*_producer_families({}), *_consumer_families({})]

    def collect(self) -> Iterable[Metric]:
        """Return the figures; an event loop that stands still is waited for, so that the scrape fails as it should."""
        if self._portal is None or self._thread_id == threading.get_ident():
            return self._read()
        return self._portal.call(self._read)

    def _read(self) -> list[Metric]:
        return [
            *_producer_families(_stats_of(self._producers)),
            *_consumer_families(_stats_of(self._consumers)),
        ]

    # ---- entering and leaving ------------------------------------------------------------------------------------

    async def __aenter__(self) -> StatsCollector:
        if self._portal is not None:
            raise Closed("the collector is entered already; make another one")
        self._portal = await BlockingPortal().__aenter__()
        self._thread_id = threading.get_ident()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._portal is not None
        portal, self._portal = self._portal, None
        self._producers.clear()
        self._consumers.clear()
        await portal.__aexit__(exc_type, exc, traceback)


class HandlerMetrics:
    """How long handlers take, and how often they fail, by topic, channel and consumer.

    Args:
        registry: where the metrics are registered; by default that of ``prometheus_client``.
        buckets: the upper bounds of the histogram's buckets, in seconds; by default those of ``prometheus_client``.
        timer: tells the time in seconds, from any beginning.

    One object serves any number of consumers. A handler fails when it raises an ``Exception``; one that is cancelled
    has its duration and is no failure. What a batch takes is one duration, and its failure is one.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        registry = REGISTRY if registry is None else registry
        self._timer = timer
        self._seconds = Histogram(
            "nsqkit_consumer_handler_seconds",
            "Seconds that a call of a handler takes.",
            CONSUMER_LABELS,
            buckets=buckets,
            registry=registry,
        )
        self._failures = Counter(
            "nsqkit_consumer_handler_failures_total",
            "Calls of a handler that have raised.",
            CONSUMER_LABELS,
            registry=registry,
        )

    def handler(self, handler: Callable[[M], R], name: str = "") -> Callable[[M], R]:
        """Return a handler for ``run`` of a consumer that calls this one, async or plain, and measures it.

        Args:
            handler: the handler.
            name: the value of the label ``consumer``.
        """
        return surrounded(handler, lambda message: self._measured(message, name))

    def batch_handler(self, handler: Callable[[list[M]], R], name: str = "") -> Callable[[list[M]], R]:
        """Return a handler for ``run_batches`` that calls this one, async or plain, and measures it.

        Args:
            handler: the handler.
            name: the value of the label ``consumer``.
        """
        return surrounded(handler, lambda messages: self._measured(messages[0], name))

    @contextmanager
    def _measured(self, message: Message | BlockingMessage, name: str) -> Iterator[None]:
        labels = (message.topic, message.channel, name)
        began = self._timer()
        try:
            yield
        except Exception:
            self._failures.labels(*labels).inc()
            raise
        finally:
            self._seconds.labels(*labels).observe(self._timer() - began)


def _add(
    clients: dict[tuple[str, ...], Any], labels: Sequence[str], key: tuple[str, ...], client: object
) -> None:
    if key in clients:
        told = ", ".join(f"{label} {value!r}" for label, value in zip(labels, key, strict=True))
        raise OptionError(f"there is one with {told} already; allowed is another name")
    clients[key] = client


def _stats_of(clients: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Return the figures of all clients but those that are closed."""
    found = {}
    for key, client in list(clients.items()):
        try:
            found[key] = client.stats()
        except Closed:
            continue
    return found


def _producer_families(found: dict[tuple[str, ...], ProducerStats]) -> Iterator[Metric]:
    yield from _families(PRODUCER, PRODUCER_LABELS, found.items())
    nsqds = [((*key, nsqd.address), nsqd) for key, stats in found.items() for nsqd in stats.nsqds]
    yield from _families(NSQD, NSQD_LABELS, nsqds)


def _consumer_families(found: dict[tuple[str, ...], ConsumerStats]) -> Iterator[Metric]:
    yield from _families(CONSUMER, CONSUMER_LABELS, found.items())
    states = [
        ((*key, state.value), float(stats.backoff.state is state))
        for key, stats in found.items()
        for state in BackoffState
    ]
    yield from _families([BACKOFF_STATE], (*CONSUMER_LABELS, "state"), states)
    # An nsqd that is left and wanted again has two connections for a while; the present one comes first.
    connections: dict[tuple[str, ...], Any] = {}
    for key, stats in found.items():
        for connection in stats.connections:
            connections.setdefault((*key, connection.address), connection)
    yield from _families(CONNECTION, CONNECTION_LABELS, connections.items())


def _families(
    figures: Iterable[Figure], labels: Sequence[str], found: Iterable[tuple[tuple[str, ...], Any]]
) -> Iterator[Metric]:
    found = list(found)
    for figure in figures:
        family = figure.family(labels)
        for key, stats in found:
            family.add_metric(key, float(figure.read(stats)))
        yield family
