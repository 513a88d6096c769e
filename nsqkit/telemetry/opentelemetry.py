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
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind

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
from nsqkit.telemetry.handlers import surrounded
from nsqkit.telemetry.instruments import Instruments, Operation

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider

    from nsqkit.client.serializers import Serializer
    from nsqkit.consumer.blocking_message import BlockingMessage
    from nsqkit.consumer.message import Message
    from nsqkit.options.durations import Seconds
    from nsqkit.producer.blocking import BlockingProducer
    from nsqkit.producer.http_producer import HTTPProducer
    from nsqkit.producer.producer import Producer
    from nsqkit.producer.receipt import Receipt

__all__ = ["ConsumerTracing", "ContextSerializer", "TracedBlockingProducer", "TracedProducer"]

P = TypeVar("P", bound="Producer | HTTPProducer | BlockingProducer")
M = TypeVar("M", bound="Message | BlockingMessage")
V = TypeVar("V")
R = TypeVar("R")


class _Traced(Generic[P]):
    """What both kinds of producers have in common.

    Args:
        producer: the producer.
        tracer_provider: where spans go; None is the global one.
        meter_provider: where metrics go; None is the global one.

    Attributes:
        producer: the producer.
    """

    def __init__(
        self,
        producer: P,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.producer = producer
        self._wrapped: Any = producer  # one over HTTP has not all methods
        addresses: tuple[str, ...] = getattr(producer, "nsqd_tcp_addresses", ())
        self._nsqd_address = addresses[0] if len(addresses) == 1 else None
        self._instruments = Instruments(
            SpanKind.PRODUCER, tracer_provider=tracer_provider, meter_provider=meter_provider
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # while a copy is made, which has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def _send(self, name: str, topic: str, body: object) -> Operation:
        return self._operation(name, topic, _size_of(body), 1)

    def _send_all(self, name: str, topic: str, bodies: object) -> Operation:
        count = len(bodies) if isinstance(bodies, Sequence) else 0
        return self._operation(name, topic, {BATCH_MESSAGE_COUNT: count}, count)

    def _operation(self, name: str, topic: str, own: Attributes, count: int) -> Operation:
        shared = operation_attributes(name, "send", topic, nsqd_address=self._nsqd_address)
        return Operation(self._instruments, f"{name} {topic}", shared, own, count=count)


class TracedProducer(_Traced[P]):
    """Publishes through a producer, with a span and metrics for each call; it has all else that the producer has.

    Args:
        producer: a ``Producer`` or an ``HTTPProducer``; either of the two, or this, is entered and left.
        tracer_provider: where spans go; None is the global one.
        meter_provider: where metrics go; None is the global one.

    Attributes:
        producer: the producer.

    ``server.address`` is told of a ``Producer`` with one nsqd: of several, it is unknown which one a publish goes to.
    A publish that has not reached an nsqd, as with ``NotConnected``, has its span and its duration, and is not counted
    as sent. The span of a publish that is not waited for ends with its answer.
    """

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        result: bool | None = await self._wrapped.__aexit__(exc_type, exc, traceback)
        return result

    async def publish(self, topic: str, body: Any, **keywords: Any) -> None:
        """Publish one message, as the producer's ``publish`` does, with what else that takes.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("publish", topic, body):
            await self._wrapped.publish(topic, body, **keywords)

    async def multi_publish(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> None:
        """Publish messages in one command, as the producer's ``multi_publish`` does; they share one span.

        Raises:
            NSQError: as the producer's.
        """
        with self._send_all("multi_publish", topic, bodies):
            await self._wrapped.multi_publish(topic, bodies, **keywords)

    async def deferred_publish(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> None:
        """Publish one message that is delivered later, as the producer's ``deferred_publish`` does.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("deferred_publish", topic, body):
            await self._wrapped.deferred_publish(topic, body, delay, **keywords)

    def publish_nowait(self, topic: str, body: Any, **keywords: Any) -> Receipt:
        """Publish one message without waiting, as the producer's ``publish_nowait`` does.

        Raises:
            NSQError: as the producer's.
        """
        return self._begin(
            self._send("publish", topic, body), self._wrapped.publish_nowait, topic, body, **keywords
        )

    def multi_publish_nowait(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> Receipt:
        """Publish messages in one command without waiting, as the producer's ``multi_publish_nowait`` does.

        Raises:
            NSQError: as the producer's.
        """
        operation = self._send_all("multi_publish", topic, bodies)
        return self._begin(operation, self._wrapped.multi_publish_nowait, topic, bodies, **keywords)

    def deferred_publish_nowait(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> Receipt:
        """Publish one message that is delivered later without waiting, as the producer's ``deferred_publish_nowait``.

        Raises:
            NSQError: as the producer's.
        """
        operation = self._send("deferred_publish", topic, body)
        return self._begin(operation, self._wrapped.deferred_publish_nowait, topic, body, delay, **keywords)

    def _begin(
        self, operation: Operation, begin: Callable[..., Receipt], *what: Any, **keywords: Any
    ) -> Receipt:
        with operation.until_answered():
            receipt = begin(*what, **keywords)
        receipt.call_back(operation.end)
        return receipt


class TracedBlockingProducer(_Traced["BlockingProducer"]):
    """As ``TracedProducer``, around a ``BlockingProducer``.

    Args:
        producer: the producer; it or this is opened and closed.
        tracer_provider: where spans go; None is the global one.
        meter_provider: where metrics go; None is the global one.

    Attributes:
        producer: the producer.
    """

    def open(self) -> Self:
        """Begin, as the producer's ``open`` does.

        Raises:
            Closed: it is open already.
        """
        self._wrapped.open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._wrapped.close()

    def publish(self, topic: str, body: Any, **keywords: Any) -> None:
        """Publish one message, as the producer's ``publish`` does, with what else that takes.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("publish", topic, body):
            self._wrapped.publish(topic, body, **keywords)

    def multi_publish(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> None:
        """Publish messages in one command, as the producer's ``multi_publish`` does; they share one span.

        Raises:
            NSQError: as the producer's.
        """
        with self._send_all("multi_publish", topic, bodies):
            self._wrapped.multi_publish(topic, bodies, **keywords)

    def deferred_publish(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> None:
        """Publish one message that is delivered later, as the producer's ``deferred_publish`` does.

        Raises:
            NSQError: as the producer's.
        """
        with self._send("deferred_publish", topic, body):
            self._wrapped.deferred_publish(topic, body, delay, **keywords)

    def publish_nowait(self, topic: str, body: Any, **keywords: Any) -> Future[None]:
        """Publish one message without waiting, as the producer's ``publish_nowait`` does.

        Raises:
            NSQError: as the producer's.
        """
        return self._begin(
            self._send("publish", topic, body), self._wrapped.publish_nowait, topic, body, **keywords
        )

    def multi_publish_nowait(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> Future[None]:
        """Publish messages in one command without waiting, as the producer's ``multi_publish_nowait`` does.

        Raises:
            NSQError: as the producer's.
        """
        operation = self._send_all("multi_publish", topic, bodies)
        return self._begin(operation, self._wrapped.multi_publish_nowait, topic, bodies, **keywords)

    def deferred_publish_nowait(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> Future[None]:
        """Publish one message that is delivered later without waiting, as the producer's ``deferred_publish_nowait``.

        Raises:
            NSQError: as the producer's.
        """
        operation = self._send("deferred_publish", topic, body)
        return self._begin(operation, self._wrapped.deferred_publish_nowait, topic, body, delay, **keywords)

    def _begin(
        self, operation: Operation, begin: Callable[..., Future[None]], *what: Any, **keywords: Any
    ) -> Future[None]:
        with operation.until_answered():
            future = begin(*what, **keywords)
        future.add_done_callback(lambda done: operation.end(done.exception()))
        return future


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

    def handler(self, handler: Callable[[M], R]) -> Callable[[M], R]:
        """Return a handler for ``run`` of a consumer that calls this one, async or plain, within ``process``."""
        return surrounded(handler, self.process)

    def batch_handler(self, handler: Callable[[list[M]], R]) -> Callable[[list[M]], R]:
        """Return a handler for ``Consumer.run_batches`` that calls this one with ``process_batch`` around it."""
        return surrounded(handler, self.process_batch)

    def process(self, message: Message | BlockingMessage) -> Operation:
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

    def process_batch(self, messages: Sequence[Message | BlockingMessage]) -> Operation:
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

    def _open(self, message: Message | BlockingMessage) -> tuple[Context | None, Attributes]:
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


def _links(parent: Context | None, attributes: Attributes) -> list[Link]:
    """Return a link to a publisher's span, if it is known."""
    publisher = trace.get_current_span(parent).get_span_context() if parent is not None else None
    return [Link(publisher, attributes)] if publisher is not None and publisher.is_valid else []


def _size_of(body: object) -> Attributes:
    """Return the size of what is published; what a serializer makes of a value is not known here."""
    return {BODY_SIZE: len(body)} if isinstance(body, bytes) else {}
