"""OpenTelemetry's spans and metrics for publishes and handlers, by its conventions for messaging.

    TracedProducer(producer)  ─▶ publish ─▶ nsqd ─▶ ConsumerTracing(…).handler(handle)
         span  publish clicks                          span  process clicks
             └─────────────── the envelope, if configured ───────────────▶┘

Bodies are changed only by a producer with a ``ContextSerializer``, and searched for an envelope only by a consumer with
``envelope=True``. The extra ``opentelemetry`` installs the API only; without an SDK nothing is recorded.
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
    from nsqkit.producer.pool_connection import Receipt
    from nsqkit.producer.producer import Producer

__all__ = ["ConsumerTracing", "ContextSerializer", "TracedBlockingProducer", "TracedProducer"]

P = TypeVar("P", bound="Producer | HTTPProducer | BlockingProducer")
A = TypeVar("A")
M = TypeVar("M", bound="Message | BlockingMessage")
V = TypeVar("V")
R = TypeVar("R")


class _Traced(Generic[P, A]):
    """The common part of both traced producers; ``A`` is the result of ``publish_nowait``."""

    def __init__(
        self,
        producer: P,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.producer = producer
        self._wrapped: Any = producer  # an HTTPProducer does not have all methods
        addresses: tuple[str, ...] = getattr(producer, "nsqd_tcp_addresses", ())
        self._nsqd_address = addresses[0] if len(addresses) == 1 else None
        self._instruments = Instruments(
            SpanKind.PRODUCER, tracer_provider=tracer_provider, meter_provider=meter_provider
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy does not have it yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def publish_nowait(self, topic: str, body: Any, **keywords: Any) -> A:
        """Publish one message without waiting, with the arguments and errors of the producer's method."""
        operation = self._send("publish", topic, body)
        return self._begin(operation, self._wrapped.publish_nowait, topic, body, **keywords)

    def multi_publish_nowait(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> A:
        """Publish messages in one command without waiting, as the producer's method does; they share one span."""
        operation = self._send_all("multi_publish", topic, bodies)
        return self._begin(operation, self._wrapped.multi_publish_nowait, topic, bodies, **keywords)

    def deferred_publish_nowait(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> A:
        """Publish one deferred message without waiting, as the producer's method does."""
        operation = self._send("deferred_publish", topic, body)
        return self._begin(operation, self._wrapped.deferred_publish_nowait, topic, body, delay, **keywords)

    def _begin(self, operation: Operation, publish: Callable[..., A], *what: Any, **keywords: Any) -> A:
        with operation.until_answered():
            answer = publish(*what, **keywords)
        self._call_when_answered(answer, operation.end)
        return answer

    def _call_when_answered(self, answer: A, end: Callable[[BaseException | None], None]) -> None:
        raise NotImplementedError

    def _send(self, name: str, topic: str, body: object) -> Operation:
        return self._operation(name, topic, _size_of(body), 1)

    def _send_all(self, name: str, topic: str, bodies: object) -> Operation:
        count = len(bodies) if isinstance(bodies, Sequence) else 0
        return self._operation(name, topic, {BATCH_MESSAGE_COUNT: count}, count)

    def _operation(self, name: str, topic: str, own: Attributes, count: int) -> Operation:
        shared = operation_attributes(name, "send", topic, nsqd_address=self._nsqd_address)
        return Operation(self._instruments, f"{name} {topic}", shared, own, count=count)


class TracedProducer(_Traced[P, "Receipt"]):
    """Publishes through a producer, with a span and metrics for each call; it has all other members of the producer.

    Args:
        producer: a ``Producer`` or an ``HTTPProducer``; enter either the producer or this.
        tracer_provider: receives spans; None for the global one.
        meter_provider: receives metrics; None for the global one.

    Attributes:
        producer: the producer.

    ``server.address`` is set only for a ``Producer`` with one nsqd. A publish that has not reached an nsqd, as with
    ``NotConnected``, has a span and a duration, but is not counted as sent. The span of a ``publish_nowait`` ends with
    its answer.
    """

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        result: bool | None = await self._wrapped.__aexit__(*exc_info)
        return result

    async def publish(self, topic: str, body: Any, **keywords: Any) -> None:
        """Publish one message, with the arguments and errors of the producer's ``publish``."""
        with self._send("publish", topic, body):
            await self._wrapped.publish(topic, body, **keywords)

    async def multi_publish(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> None:
        """Publish messages in one command, as the producer's ``multi_publish`` does; they share one span."""
        with self._send_all("multi_publish", topic, bodies):
            await self._wrapped.multi_publish(topic, bodies, **keywords)

    async def deferred_publish(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> None:
        """Publish one deferred message, as the producer's ``deferred_publish`` does."""
        with self._send("deferred_publish", topic, body):
            await self._wrapped.deferred_publish(topic, body, delay, **keywords)

    def _call_when_answered(self, answer: Receipt, end: Callable[[BaseException | None], None]) -> None:
        answer.call_back(end)


class TracedBlockingProducer(_Traced["BlockingProducer", "Future[None]"]):
    """Publishes through a ``BlockingProducer``, otherwise as ``TracedProducer``; open either the producer or this."""

    def open(self) -> Self:
        """Open the producer; raise ``Closed`` if it is open already."""
        self._wrapped.open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self._wrapped.close()

    def publish(self, topic: str, body: Any, **keywords: Any) -> None:
        """Publish one message, with the arguments and errors of the producer's ``publish``."""
        with self._send("publish", topic, body):
            self._wrapped.publish(topic, body, **keywords)

    def multi_publish(self, topic: str, bodies: Sequence[Any], **keywords: Any) -> None:
        """Publish messages in one command, as the producer's ``multi_publish`` does; they share one span."""
        with self._send_all("multi_publish", topic, bodies):
            self._wrapped.multi_publish(topic, bodies, **keywords)

    def deferred_publish(self, topic: str, body: Any, delay: Seconds, **keywords: Any) -> None:
        """Publish one deferred message, as the producer's ``deferred_publish`` does."""
        with self._send("deferred_publish", topic, body):
            self._wrapped.deferred_publish(topic, body, delay, **keywords)

    def _call_when_answered(self, answer: Future[None], end: Callable[[BaseException | None], None]) -> None:
        answer.add_done_callback(lambda done: end(done.exception()))


class ConsumerTracing:
    """Spans and metrics for the handlers of one channel.

    Args:
        topic: the consumer's topic.
        channel: the consumer's channel.
        envelope: remove the envelopes of a ``ContextSerializer`` from bodies, and use the publishers' spans as parents.
            A body without an envelope is not changed.
        propagator: decodes the context in an envelope; None for the global one.
        tracer_provider: receives spans; None for the global one.
        meter_provider: receives metrics; None for the global one.
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
        """Return a context manager for the handling of one message; its span is the current one within.

        With ``envelope``, the envelope is removed from the message's body, and the publisher's span becomes the parent
        and is linked.
        """
        parent, own = self._open(message)
        own[ATTEMPTS] = message.attempts
        return self._operation(message.nsqd_address, own, count=1, parent=parent, links=_links(parent, {}))

    def process_batch(self, messages: Sequence[Message | BlockingMessage]) -> Operation:
        """Return a context manager for the handling of a batch: one span, with links to the publishers' spans."""
        links: list[Link] = []
        for message in messages:
            parent, own = self._open(message)
            links += _links(parent, own)
        addresses = {message.nsqd_address for message in messages}
        address, count = addresses.pop() if len(addresses) == 1 else None, len(messages)
        return self._operation(address, {BATCH_MESSAGE_COUNT: count}, count=count, links=links)

    def _operation(self, nsqd_address: str | None, own: Attributes, **rest: Any) -> Operation:
        shared = operation_attributes("process", "process", self._topic, self._channel, nsqd_address)
        return Operation(self._instruments, self._name, shared, own, **rest)

    def _open(self, message: Message | BlockingMessage) -> tuple[Context | None, Attributes]:
        """Return the context in a message's envelope, or None, and the attributes of the message."""
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
    """A serializer that adds the context of the current trace to the bodies of another serializer.

    Args:
        serializer: encodes the bodies; see ``nsqkit.client.serializers``.
        propagator: encodes the context; None for the global one.

    The envelope (``nsqkit.telemetry.envelope``) has about 80 bytes, which count towards ``max_msg_size``.
    """

    def __init__(self, serializer: Serializer[V, R], *, propagator: TextMapPropagator | None = None) -> None:
        self._serializer = serializer
        self._inject = propagator.inject if propagator is not None else propagate.inject

    def encode(self, value: V, /) -> bytes:
        """Return the value as a body, in an envelope if there is a context."""
        fields: dict[str, str] = {}
        self._inject(fields)
        return wrap(fields, self._serializer.encode(value))

    def decode(self, body: bytes, /) -> R:
        """Return the value in a body with or without an envelope.

        Raises:
            ValueError: the serializer cannot decode it.
        """
        return self._serializer.decode(unwrap(body)[1])

    def __repr__(self) -> str:
        return f"ContextSerializer({self._serializer!r})"


def _links(parent: Context | None, attributes: Attributes) -> list[Link]:
    """Return a link to a publisher's span, or nothing if it is unknown."""
    publisher = trace.get_current_span(parent).get_span_context() if parent is not None else None
    return [Link(publisher, attributes)] if publisher is not None and publisher.is_valid else []


def _size_of(body: object) -> Attributes:
    """Return the size of a body; that of a value is unknown before it is serialized."""
    return {BODY_SIZE: len(body)} if isinstance(body, bytes) else {}
