"""An OpenTelemetry SDK that records spans and metrics in memory, with providers for each test."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nsqkit import Message
from tests.consumer.driven import DrivenConsumer, DrivenSession


class Recorder:
    """Providers, and the spans and metrics that they received."""

    def __init__(self) -> None:
        self.tracer_provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader])

    @property
    def providers(self) -> dict[str, Any]:
        return {"tracer_provider": self.tracer_provider, "meter_provider": self.meter_provider}

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def span(self) -> ReadableSpan:
        """The only span."""
        (span,) = self.spans
        return span

    def points(self) -> dict[str, list[Any]]:
        """Return the data points of each metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def deliver(*bodies: bytes, link: DrivenSession | None = None) -> list[Message]:
    """Return messages as a consumer has received them."""
    link = link or DrivenConsumer(max_in_flight=100).connect()
    messages = link.deliver(*range(1, len(bodies) + 1))
    for message, body in zip(messages, bodies, strict=True):
        message.body = body
    return messages
