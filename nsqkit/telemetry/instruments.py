"""The measurement of an operation by OpenTelemetry: a span, a duration and a count of messages.

A producer or a handler has one ``Instruments``, and one ``Operation`` for each publish, message or batch. Exceptions
pass unchanged, and each span that is started is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

import attrs
from opentelemetry import context, metrics, trace
from opentelemetry.trace import Link, SpanKind, StatusCode

from nsqkit import __version__
from nsqkit.telemetry.attributes import ERROR_TYPE, NEVER_SENT, Attributes, error_type

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The bounds of the buckets of durations, in seconds, by the conventions."""


class Instruments:
    """A tracer, a counter of messages and a histogram of durations.

    The kind is that of the spans, ``PRODUCER`` or ``CONSUMER``; None is for the global provider.
    """

    def __init__(
        self,
        kind: SpanKind,
        *,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self.kind = kind
        self.timer = timer
        self.tracer = trace.get_tracer("nsqkit", __version__, tracer_provider)
        meter = metrics.get_meter("nsqkit", __version__, meter_provider)
        if kind is SpanKind.PRODUCER:
            count = "messaging.client.sent.messages", "{message}", "Messages that were sent to an nsqd."
            time = "messaging.client.operation.duration", "s", "Time until an nsqd has answered."
        else:
            count = (
                "messaging.client.consumed.messages",
                "{message}",
                "Messages that were given to a handler.",
            )
            time = "messaging.process.duration", "s", "Time that handlers take."
        self.messages = meter.create_counter(*count)
        self.duration = meter.create_histogram(*time, explicit_bucket_boundaries_advisory=BOUNDARIES)


@attrs.define(eq=False, slots=False)
class Operation:
    """One operation, for ``with``; its span is the current one within.

    Args:
        shared: attributes of the span and of the metrics.
        own: further attributes of the span.
        count: number of messages.
        parent: the parent context; None for the current one.
        links: links to the contexts of the messages.
    """

    _instruments: Instruments
    _name: str
    _shared: Attributes
    _own: Attributes
    _count: int = attrs.field(kw_only=True)
    _parent: Context | None = attrs.field(default=None, kw_only=True)
    _links: Sequence[Link] = attrs.field(default=(), kw_only=True)

    def __enter__(self) -> Span:
        instruments = self._instruments
        self._span = instruments.tracer.start_span(
            self._name, self._parent, instruments.kind, {**self._shared, **self._own}, self._links
        )
        self._token = context.attach(trace.set_span_in_context(self._span, self._parent))
        self._began = instruments.timer()
        return self._span

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        context.detach(self._token)
        self.end(exc)

    @contextmanager
    def until_answered(self) -> Iterator[None]:
        """Start the span and make it the current one; ``end`` must be called later, unless the block raises."""
        self.__enter__()
        try:
            yield
        except BaseException as error:
            context.detach(self._token)
            self.end(error)
            raise
        context.detach(self._token)

    def end(self, exc: BaseException | None) -> None:
        """End the span and record the metrics; ``exc`` is the exception of the operation, None for success."""
        instruments, shared = self._instruments, self._shared
        seconds = instruments.timer() - self._began
        if exc is not None:
            shared = {**shared, ERROR_TYPE: error_type(exc)}
            self._span.set_attribute(ERROR_TYPE, shared[ERROR_TYPE])
            self._span.set_status(StatusCode.ERROR, str(exc))
        # The span is the parent of the measurements, so that its trace becomes the histogram's exemplar.
        measured = trace.set_span_in_context(self._span)
        instruments.duration.record(seconds, shared, measured)
        if instruments.kind is SpanKind.CONSUMER or not isinstance(exc, NEVER_SENT):
            instruments.messages.add(self._count, shared, measured)
        self._span.end()
