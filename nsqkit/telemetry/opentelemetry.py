"""OpenTelemetry: spans and metrics for publishes and for handlers, by its conventions for messaging.

    TracedProducer(producer)  ─▶ publish ─▶ nsqd ─▶ ConsumerTracing(…).handler(handle)
         span  publish clicks                          span  process clicks
             └───────────────── the envelope, if wanted ─────────────────▶┘

The rule it guards: both sides say what they do. Nothing is put into a body unless the producer has a
``ContextSerializer``, and nothing is looked for in a body unless the consumer's side says ``envelope=True``.

How to read it: the producer's side, the consumer's, and the serializer that puts the envelope around a body. It wants
the extra ``opentelemetry``, which is the API alone: without an SDK in the program, nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind

from nsqkit.producer.producer import Producer
from nsqkit.telemetry.attributes import (
    ATTEMPTS,
    BATCH_MESSAGE_COUNT,
    BODY_SIZE,
    ENVELOPE_SIZE,
    MESSAGE_ID,
    Attributes,
    operation_attributes,
)
from nsqkit.telemetry.envelope import unwrap, wrap
from nsqkit.telemetry.instruments import Instruments, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider

    from nsqkit.client.serializers import Serializer
    from nsqkit.consumer.message import Message
    from nsqkit.producer.http_producer import HTTPProducer

__all__ = ["ConsumerTracing", "ContextSerializer", "TracedProducer"]

P = TypeVar("P", bound="Producer | HTTPProducer")
V = TypeVar("V")
R = TypeVar("R")
Work = TypeVar("Work", "Message", "list[Message]")


class TracedProducer(Generic[P]):
    """Publishes through a producer, with a span and metrics for each call.

    Args:
        producer: a ``Producer`` or an ``HTTPProducer``; it is entered and left as if it were alone.
        tracer_provider: where spans go; None is the global one.
        meter_provider: where metrics go; None is the global one.

    Attributes:
        producer: the producer, for all that is not publishing.

    ``server.address`` is told of a ``Producer`` with one nsqd: of several, nobody can tell which one a publish goes to.
    A publish that has not reached an nsqd, as with ``NotConnected``, has its span and its duration, and is not counted
    as sent.
    """

    def __init__(
        self,
        producer: P,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.producer = producer
        addresses = producer.nsqd_tcp_addresses if isinstance(producer, Producer) else ()
        self._nsqd_address = addresses[0] if len(addresses) == 1 else None
        self._instruments = Instruments(
            SpanKind.PRODUCER, tracer_provider=tracer_provider, meter_provider=meter_provider
        )

    async def publish(self, topic: str, body: Any, **keywords: Any) -> None:
        """Publish one message, as the producer's ``publish`` does, with what else that takes.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("publish", topic, _size_of(body), 1):
            await self.producer.publish(topic, body, **keywords)

    async def multi_publish(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> None:
        """Publish messages in one command, as the producer's ``multi_publish`` does; they share one span.

        Raises:
            NSQError: as the producer's.
        """
        count = len(bodies) if isinstance(bodies, Sequence) else 0
        with self._send("multi_publish", topic, {BATCH_MESSAGE_COUNT: count}, count):
            await self.producer.multi_publish(topic, bodies, **keywords)

    async def deferred_publish(self, topic: str, body: Any, delay: float, **keywords: Any) -> None:
        """Publish one message that is delivered later, as the producer's ``deferred_publish`` does.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("deferred_publish", topic, _size_of(body), 1):
            await self.producer.deferred_publish(topic, body, delay, **keywords)

    def _send(self, name: str, topic: str, own: Attributes, count: int) -> Operation:
        shared = operation_attributes(name, "send", topic, nsqd_address=self._nsqd_address)
        return Operation(self._instruments, f"{name} {topic}", shared, own, count=count)


class ConsumerTracing:
    """Spans and metrics for the handlers of one channel.

    Args:
        topic: the consumer's topic.
        channel: the consumer's channel.
        envelope: take bodies out of the envelopes that a ``ContextSerializer`` has put around them, and the spans of
            publishers as parents. A body without an envelope is left as it is.
        propagator: reads what is in an envelope; None is the global one.
        tracer_provider: where spans go; None is the global one.
        meter_provider: where metrics go; None is the global one.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        envelope: bool = False,
        propagator: TextMapPropagator | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._topic = topic
        self._channel = channel
        self._has_envelope = envelope
        self._extract = propagator.extract if propagator is not None else propagate.extract
        self._name = f"process {topic}"
        self._instruments = Instruments(
            SpanKind.CONSUMER, tracer_provider=tracer_provider, meter_provider=meter_provider
        )

    def handler(self, handler: Callable[[Message], R]) -> Callable[[Message], R]:
        """Return a handler for ``Consumer.run`` that calls this one, async or plain, with ``process`` around it."""
        return _traced(handler, self.process)

    def batch_handler(self, handler: Callable[[list[Message]], R]) -> Callable[[list[Message]], R]:
        """Return a handler for ``Consumer.run_batches`` that calls this one with ``process_batch`` around it."""
        return _traced(handler, self.process_batch)

    def process(self, message: Message) -> Operation:
        """Return a context manager around the handling of one message; within it the span is the current one.

        With ``envelope``, the message's body is from now on what is in the envelope, and the publisher's span is the
        parent, and linked to.
        """
        parent, own = self._open(message)
        own[ATTEMPTS] = message.attempts
        return Operation(
            self._instruments,
            self._name,
            self._shared(message.nsqd_address),
            own,
            count=1,
            parent=parent,
            links=_links(parent, {}),
        )

    def process_batch(self, messages: Sequence[Message]) -> Operation:
        """Return a context manager around the handling of a batch: one span, with links to those of the publishers."""
        links: list[Link] = []
        for message in messages:
            parent, own = self._open(message)
            links += _links(parent, own)
        addresses = {message.nsqd_address for message in messages}
        return Operation(
            self._instruments,
            self._name,
            self._shared(addresses.pop() if len(addresses) == 1 else None),
            {BATCH_MESSAGE_COUNT: len(messages)},
            count=len(messages),
            links=links,
        )

    def _shared(self, nsqd_address: str | None) -> Attributes:
        return operation_attributes("process", "process", self._topic, self._channel, nsqd_address)

    def _open(self, message: Message) -> tuple[Context | None, Attributes]:
        """Return the context that came with a message, if one did, and what there is to say of the message."""
        own: Attributes = {MESSAGE_ID: message.id.decode(errors="replace")}
        parent = None
        if self._has_envelope:
            fields, body = unwrap(message.body)
            if body is not message.body:
                own[ENVELOPE_SIZE] = len(message.body)
                message.body = body
                parent = self._extract(fields)
        own[BODY_SIZE] = len(message.body)
        return parent, own


class ContextSerializer(Generic[V, R]):
    """A serializer that puts the current trace's context around what another one makes, for ``serializer=``.

    Args:
        serializer: makes the bodies; see ``nsqkit.client.serializers``.
        propagator: writes what is in an envelope; None is the global one.

    The context is some 80 bytes, and counts towards ``max_msg_size``. See ``nsqkit.telemetry.envelope`` for its form.
    """

    def __init__(
        self,
        serializer: Serializer[V, R],
        *,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._serializer = serializer
        self._inject = propagator.inject if propagator is not None else propagate.inject

    def encode(self, value: V, /) -> bytes:
        """Return the value as a body, in an envelope if there is a context to be told of."""
        fields: dict[str, str] = {}
        self._inject(fields)
        return wrap(fields, self._serializer.encode(value))

    def decode(self, body: bytes, /) -> R:
        """Return the value in a body, whether or not there is an envelope around it.

        Raises:
            ValueError: the serializer cannot decode it.
        """
        return self._serializer.decode(unwrap(body)[1])

    def __repr__(self) -> str:
        return f"ContextSerializer({self._serializer!r})"


def _traced(handler: Callable[[Work], R], operation: Callable[[Work], Operation]) -> Callable[[Work], R]:
    """Return the handler with an operation around each call, and around what it returns to be awaited."""

    @wraps(handler)
    def traced(work: Work) -> Any:
        with ExitStack() as stack:
            stack.enter_context(operation(work))
            result = handler(work)
            # What calls handlers awaits at once, in the same task, so the span stays the current one until then.
            return _finish(stack.pop_all(), result) if isawaitable(result) else result

    return traced


async def _finish(stack: ExitStack, result: Awaitable[object]) -> None:
    with stack:
        await result


def _links(parent: Context | None, attributes: Attributes) -> list[Link]:
    """Return a link to a publisher's span, if it is known."""
    publisher = trace.get_current_span(parent).get_span_context() if parent is not None else None
    return [Link(publisher, attributes)] if publisher is not None and publisher.is_valid else []


def _size_of(body: object) -> Attributes:
    """Return the size of what is published; what a serializer makes of a value is not known here."""
    return {BODY_SIZE: len(body)} if isinstance(body, bytes) else {}
