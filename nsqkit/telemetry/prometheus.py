"""Prometheus: the figures of ``stats()``, read at each scrape, and the durations of handlers.

Producers and consumers count anyway, and a scrape reads each of them once, in its event loop if it has one. Only
handlers wrapped by ``HandlerMetrics`` have a cost for each message. The tables define all figures. It needs the extra
``prometheus``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
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
    from prometheus_client.core import Metric

    from nsqkit.consumer.blocking_message import BlockingMessage
    from nsqkit.consumer.message import Message
    from nsqkit.consumer.stats import ConsumerStats
    from nsqkit.producer.stats import ProducerStats

__all__ = ["HandlerMetrics", "StatsCollector"]

M = TypeVar("M", bound="Message | BlockingMessage")
R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)


@attrs.frozen
class Figure:
    """One figure: its name, its help text and a function that reads it; ``…_total`` is a counter, others are gauges."""

    name: str
    text: str
    read: Callable[[Any], float]

    def family(self, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
        """Return a family without samples."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        return kind(self.name, self.text, labels=labels)


def _figures(prefix: str, *rows: tuple[str, str, str]) -> tuple[Figure, ...]:
    """Return figures from rows of the end of the name, the help text and the attribute."""
    return tuple(Figure(prefix + name, text, attrgetter(attribute)) for name, text, attribute in rows)


PRODUCER_LABELS: Final = ("producer",)
PRODUCER: Final = _figures(
    "nsqkit_producer_",
    ("outstanding_bytes", "Bytes that count towards max_outstanding_bytes.", "outstanding_bytes"),
    ("waiting", "Publishes that wait for a connection, or for max_outstanding_bytes.", "waiting_count"),
)

NSQD_LABELS: Final = (*PRODUCER_LABELS, "nsqd")
NSQD: Final = _figures(
    "nsqkit_producer_",
    ("connected", "1 while there is a connection to the nsqd.", "is_connected"),
    ("messages_total", "Messages that the nsqd has acknowledged.", "message_count"),
    ("refused_total", "Publishes that the nsqd has refused.", "refused_count"),
    ("lost_total", "Publishes that were sent and never answered.", "lost_count"),
    ("outstanding", "Unanswered commands, and publishes that linger.", "outstanding_count"),
)

CONSUMER_LABELS: Final = ("topic", "channel", "consumer")
CONSUMER: Final = _figures(
    "nsqkit_consumer_",
    ("received_total", "Messages received.", "received"),
    ("finished_total", "Messages finished.", "finished"),
    ("requeued_total", "Messages requeued.", "requeued"),
    ("touched_total", "Messages touched.", "touched"),
    ("timed_out_total", "Messages not answered in time.", "timed_out"),
    ("given_up_total", "Messages delivered too often.", "given_up"),
    ("refused_total", "Answers that an nsqd has refused.", "refused"),
    ("in_flight", "Messages received and not answered.", "in_flight"),
    ("waiting", "Messages received and not yet passed to a handler.", "waiting"),
    ("max_in_flight", "The limit in force.", "max_in_flight"),
    ("paused", "1 while the consumer is paused.", "paused"),
    ("starved", "1 while the consumer is starved.", "starved"),
    ("backoff_counter", "Counter of the backoff.", "backoff.counter"),
    ("backoff_seconds", "Length of the present backoff in seconds.", "backoff.wait"),
)
BACKOFF_STATE: Final = Figure("nsqkit_consumer_backoff_state", "1 for the state of the backoff.", float)

CONNECTION_LABELS: Final = (*CONSUMER_LABELS, "nsqd")
CONNECTION: Final = _figures(
    "nsqkit_consumer_connection_",
    ("subscribed", "1 while the consumer is subscribed at the nsqd.", "connected"),
    ("rdy", "The RDY last sent to the nsqd.", "rdy_count"),
    ("in_flight", "Messages of the nsqd received and not answered.", "in_flight"),
)


class HasStats(Protocol[S_co]):
    """A producer or a consumer, async or blocking."""

    def stats(self) -> S_co: ...


class StatsCollector:
    """Collects the figures of producers and consumers, for ``CollectorRegistry.register``.

    For clients in an event loop, enter the collector there with ``async with``: then the event loop reads the figures,
    also for scrapes from other threads such as those of ``prometheus_client.start_http_server``. Otherwise, and for
    blocking clients, the scraping thread reads them. At the end of the ``with`` all clients are removed.
    """

    def __init__(self) -> None:
        self._producers: dict[tuple[str, ...], HasStats[ProducerStats]] = {}
        self._consumers: dict[tuple[str, ...], HasStats[ConsumerStats]] = {}
        self._portal: BlockingPortal | None = None
        self._thread_id: int | None = None

    def add_producer(self, producer: HasStats[ProducerStats], name: str = "") -> None:
        """Add a producer.

        Args:
            producer: any object with ``stats()``.
            name: the value of the label ``producer``; it must be unique.

        Raises:
            OptionError: there is a producer with that name.
        """
        _add(self._producers, PRODUCER_LABELS, (name,), producer)

    def add_consumer(self, consumer: HasStats[ConsumerStats], topic: str, channel: str, name: str = "") -> None:
        """Add a consumer.

        Args:
            consumer: any object with ``stats()``.
            topic: its topic.
            channel: its channel.
            name: the value of the label ``consumer``; it must be unique for the channel.

        Raises:
            OptionError: there is a consumer with that topic, channel and name.
        """
        _add(self._consumers, CONSUMER_LABELS, (topic, channel, name), consumer)

    def remove(self, client: HasStats[ProducerStats] | HasStats[ConsumerStats]) -> None:
        """Remove a producer or a consumer; do nothing if it was not added."""
        self._producers = {key: one for key, one in self._producers.items() if one is not client}
        self._consumers = {key: one for key, one in self._consumers.items() if one is not client}

    def describe(self) -> Iterable[Metric]:
        return [*_producer_families({}), *_consumer_families({})]

    def collect(self) -> Iterable[Metric]:
        """Return the figures. It waits for a blocked event loop, so that the scrape times out."""
        if self._portal is None or self._thread_id == threading.get_ident():
            return self._read()
        return self._portal.call(self._read)

    def _read(self) -> list[Metric]:
        return [
            *_producer_families(_stats_of(self._producers)),
            *_consumer_families(_stats_of(self._consumers)),
        ]

    async def __aenter__(self) -> StatsCollector:
        if self._portal is not None:
            raise Closed("the collector is entered already; make another one")
        self._portal = await BlockingPortal().__aenter__()
        self._thread_id = threading.get_ident()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        assert self._portal is not None
        portal, self._portal = self._portal, None
        self._producers.clear()
        self._consumers.clear()
        await portal.__aexit__(*exc_info)


class HandlerMetrics:
    """Durations and failures of handlers, by topic, channel and consumer.

    Args:
        registry: registers the metrics; by default that of ``prometheus_client``.
        buckets: the upper bounds of the histogram's buckets, in seconds; by default those of ``prometheus_client``.
        timer: returns the time in seconds, from any beginning.

    One object serves any number of consumers. A handler fails when it raises an ``Exception``; a cancelled one has a
    duration but no failure. A batch has one duration.
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
        """Return a handler for ``run`` that calls and measures this one; ``name`` is the label ``consumer``."""
        return surrounded(handler, lambda message: self._measured(message, name))

    def batch_handler(self, handler: Callable[[list[M]], R], name: str = "") -> Callable[[list[M]], R]:
        """Return a handler for ``run_batches`` that calls and measures this one; ``name`` is the label ``consumer``."""
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


def _add(clients: dict[tuple[str, ...], Any], labels: Sequence[str], key: tuple[str, ...], client: object) -> None:
    if key in clients:
        labelled = ", ".join(f"{label} {value!r}" for label, value in zip(labels, key, strict=True))
        raise OptionError(f"there is one with {labelled} already; allowed is another name")
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
    # An nsqd that was removed and added again has two connections for a while; the present one comes first.
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
