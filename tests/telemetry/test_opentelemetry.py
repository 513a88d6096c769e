from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nsqkit import (
    BlockingConsumer,
    BlockingMessage,
    BlockingProducer,
    Consumer,
    HTTPProducer,
    Message,
    Producer,
)
from nsqkit.client.serializers import JSON, RAW
from nsqkit.errors import BrokerError, OptionError, WouldWait
from nsqkit.telemetry.envelope import MAGIC, wrap
from nsqkit.telemetry.opentelemetry import (
    ConsumerTracing,
    ContextSerializer,
    TracedBlockingProducer,
    TracedProducer,
)
from tests.peers import message_id
from tests.telemetry.recorder import Recorder, deliver

pytestmark = pytest.mark.anyio

WAIT_LIMIT = 15.0
REMOTE = wrap({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, b"body")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def tracing(recorder: Recorder, **options: Any) -> ConsumerTracing:
    return ConsumerTracing("clicks", "archive", **recorder.providers, **options)


# ---- the producer's side -----------------------------------------------------------------------------------------


async def test_each_publish_has_a_span(nsqd: Any, recorder: Recorder):
    async with Producer(nsqd.tcp_address) as producer:
        traced = TracedProducer(producer, **recorder.providers)
        await traced.publish("clicks", b"one", timeout=WAIT_LIMIT)
        await traced.deferred_publish("clicks", b"later", 60.0)
        await traced.multi_publish("clicks", [b"two", b"three"])
    assert [span.name for span in recorder.spans] == [
        "publish clicks",
        "deferred_publish clicks",
        "multi_publish clicks",
    ]
    host, _, port = nsqd.tcp_address.rpartition(":")
    shared = {
        "messaging.system": "nsq",
        "messaging.operation.type": "send",
        "messaging.destination.name": "clicks",
        "server.address": host,
        "server.port": int(port),
    }
    assert [dict(span.attributes or {}) for span in recorder.spans] == [
        {**shared, "messaging.operation.name": "publish", "messaging.message.body.size": 3},
        {**shared, "messaging.operation.name": "deferred_publish", "messaging.message.body.size": 5},
        {**shared, "messaging.operation.name": "multi_publish", "messaging.batch.message_count": 2},
    ]
    assert {span.kind for span in recorder.spans} == {SpanKind.PRODUCER}
    points = recorder.points()
    assert [point.value for point in points["messaging.client.sent.messages"]] == [1, 1, 2]
    assert [point.count for point in points["messaging.client.operation.duration"]] == [1, 1, 1]


async def test_exception_of_a_publish_is_recorded(nsqd: Any, recorder: Recorder):
    async with Producer(nsqd.tcp_address, max_msg_size=1 << 30) as producer:
        traced = TracedProducer(producer, **recorder.providers)
        with pytest.raises(BrokerError):
            await traced.publish("clicks", bytes(2 << 20))
        with pytest.raises(OptionError):
            await traced.multi_publish("clicks", [])
        with pytest.raises(OptionError):
            await traced.multi_publish("clicks", 5)  # type: ignore[arg-type]
    kinds = [(span.attributes or {})["error.type"] for span in recorder.spans]
    assert kinds == ["E_BAD_MESSAGE", "nsqkit.errors.OptionError", "nsqkit.errors.OptionError"]
    (sent,) = recorder.points()["messaging.client.sent.messages"]
    assert sent.attributes["error.type"] == "E_BAD_MESSAGE"


async def test_server_address_is_omitted_for_several_nsqds(recorder: Recorder):
    async with Producer("a:1", "b:2", connect_timeout=0) as producer:
        with anyio.move_on_after(0):
            await TracedProducer(producer, **recorder.providers).publish("clicks", b"one")
    assert "server.address" not in (recorder.span.attributes or {})


@pytest.mark.parametrize(
    ("traced", "producer"),
    [
        (TracedProducer, lambda: Producer("a:1")),
        (TracedProducer, lambda: HTTPProducer("a:1")),
        (TracedBlockingProducer, lambda: BlockingProducer("a:1")),
    ],
    ids=["async", "http", "blocking"],
)
def test_traced_producer_has_all_members_of_the_producer(recorder: Recorder, traced: Any, producer: Any):
    plain = producer()
    wrapped = traced(plain, **recorder.providers)
    names = {name for name in dir(plain) if not name.startswith("_")}
    entering = {"__aenter__", "__aexit__", "__enter__", "__exit__"} & {*dir(plain)}
    assert [name for name in names | entering if not hasattr(wrapped, name)] == []
    publishing = {name for name in names if "publish" in name}
    assert publishing <= {*dir(traced)}
    assert wrapped.options is plain.options
    assert copy(wrapped).producer is plain


async def test_traced_producer_is_entered_as_the_producer(nsqd: Any, recorder: Recorder):
    async with TracedProducer(Producer(nsqd.tcp_address), **recorder.providers) as traced:
        await traced.wait_connected(WAIT_LIMIT)
        await traced.publish("clicks", b"one")
        assert traced.stats().message_count == 1
        assert traced.is_connected
    assert not traced.is_connected


async def test_span_of_publish_nowait_ends_with_its_answer(nsqd: Any, recorder: Recorder):
    async with TracedProducer(Producer(nsqd.tcp_address), **recorder.providers) as traced:
        with pytest.raises(WouldWait):
            traced.publish_nowait("clicks", b"too soon")
        await traced.wait_connected(WAIT_LIMIT)
        receipts = [
            traced.publish_nowait("clicks", b"one"),
            traced.deferred_publish_nowait("clicks", b"later", 60.0),
            traced.multi_publish_nowait("clicks", [b"two", b"three"]),
        ]
        assert len(recorder.spans) == 1
        assert not trace.get_current_span().get_span_context().is_valid
        for receipt in receipts:
            await receipt
    assert [span.name for span in recorder.spans] == [
        "publish clicks",
        "publish clicks",
        "deferred_publish clicks",
        "multi_publish clicks",
    ]
    assert (recorder.spans[0].attributes or {})["error.type"] == "nsqkit.errors.WouldWait"
    assert [point.value for point in recorder.points()["messaging.client.sent.messages"]] == [1, 1, 2]


def test_a_blocking_producer_is_traced_to_the_handler_of_a_blocking_consumer(nsqd: Any, recorder: Recorder):
    producer = BlockingProducer(nsqd.tcp_address, serializer=ContextSerializer(JSON))
    with TracedBlockingProducer(producer, **recorder.providers) as traced:
        traced.wait_connected(WAIT_LIMIT)
        traced.publish("clicks", 1)
        traced.publish("clicks", 2, timeout=WAIT_LIMIT)
        traced.multi_publish("clicks", [3, 4])
        traced.publish_nowait("clicks", 5).result(WAIT_LIMIT)
        traced.multi_publish_nowait("clicks", [6]).result(WAIT_LIMIT)
        traced.deferred_publish_nowait("clicks", 7, 0.0).result(WAIT_LIMIT)
        traced.deferred_publish("clicks", 8, 0.0)
        with pytest.raises(OptionError):
            traced.publish_nowait("clicks", object()).result(WAIT_LIMIT)
    sent = {span.context.span_id for span in recorder.spans if span.context is not None}
    assert len(sent) == 8

    with BlockingConsumer(
        "clicks", "archive", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10, serializer=JSON
    ) as consumer:
        values: list[int] = []

        def handle(message: BlockingMessage) -> None:
            values.append(message.value)
            if len(values) == 8:
                consumer.stop()

        consumer.run(tracing(recorder, envelope=True).handler(handle))
    assert sorted(values) == [*range(1, 9)]
    processed = [span for span in recorder.spans if span.name == "process clicks"]
    assert len(processed) == 8
    assert {span.parent.span_id for span in processed if span.parent is not None} <= sent
    assert all(span.parent is not None for span in processed)


# ---- the consumer's side -----------------------------------------------------------------------------------------


def test_a_message_has_a_span(recorder: Recorder):
    (message,) = deliver(b"body")
    with tracing(recorder).process(message):
        pass
    assert recorder.span.name == "process clicks"
    assert recorder.span.kind is SpanKind.CONSUMER
    assert dict(recorder.span.attributes or {}) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "clicks",
        "messaging.destination.subscription.name": "archive",
        "messaging.message.id": message_id(1).decode(),
        "messaging.message.body.size": 4,
        "messaging.nsq.message.attempts": 1,
        "server.address": "nsqd",
        "server.port": 4150,
    }
    assert recorder.span.links == ()
    (consumed,) = recorder.points()["messaging.client.consumed.messages"]
    assert consumed.value == 1
    assert not {"messaging.message.id", "messaging.nsq.message.attempts"} & consumed.attributes.keys()


def test_a_batch_has_one_span_with_a_link_to_each_publisher(recorder: Recorder):
    messages = deliver(REMOTE, b"plain", REMOTE)
    with tracing(recorder, envelope=True).process_batch(messages):
        pass
    span = recorder.span
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert (span.attributes or {})["server.address"] == "nsqd"
    assert span.parent is None
    assert [(link.attributes or {})["messaging.message.id"] for link in span.links] == [
        message_id(1).decode(),
        message_id(3).decode(),
    ]
    assert {link.context.span_id for link in span.links} == {0xB7AD6B7169203331}
    assert [message.body for message in messages] == [b"body", b"plain", b"body"]
    (consumed,) = recorder.points()["messaging.client.consumed.messages"]
    assert consumed.value == 3


def test_a_batch_has_no_link_to_a_publisher_without_a_span(recorder: Recorder):
    with tracing(recorder, envelope=True).process_batch(deliver(wrap({"baggage": "tenant=acme"}, b"body"))):
        pass
    assert recorder.span.links == ()


def test_server_address_is_omitted_for_a_batch_of_several_nsqds(recorder: Recorder):
    (one,), (other,) = deliver(b"one"), deliver(b"two")
    other.session.address = "elsewhere:4150"
    with tracing(recorder).process_batch([one, other]):
        pass
    assert "server.address" not in (recorder.span.attributes or {})


def test_the_publishers_span_is_the_parent_of_a_message(recorder: Recorder):
    (message,) = deliver(REMOTE)
    with tracing(recorder, envelope=True).process(message):
        assert message.body == b"body"
    span = recorder.span
    assert span.parent is not None
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert [link.context for link in span.links] == [span.parent]
    assert (span.attributes or {})["messaging.message.body.size"] == 4
    assert (span.attributes or {})["messaging.message.envelope.size"] == len(REMOTE)


def test_envelope_is_kept_without_the_option(recorder: Recorder):
    (message,) = deliver(REMOTE)
    with tracing(recorder).process(message):
        assert message.body == REMOTE
    assert recorder.span.parent is None


def test_baggage_is_in_the_envelope(recorder: Recorder):
    (message,) = deliver(wrap({"baggage": "tenant=acme"}, b"body"))
    with tracing(recorder, envelope=True).process(message):
        assert baggage.get_baggage("tenant") == "acme"
    assert baggage.get_baggage("tenant") is None
    assert recorder.span.links == ()


def test_a_propagator_may_be_named(recorder: Recorder):
    propagator = TraceContextTextMapPropagator()
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    assert ContextSerializer(RAW, propagator=propagator).encode(b"body") == b"body"
    context.detach(token)
    (message,) = deliver(wrap({"baggage": "tenant=acme"}, b"body"))
    with tracing(recorder, envelope=True, propagator=propagator).process(message):
        assert baggage.get_baggage("tenant") is None


# ---- handlers ----------------------------------------------------------------------------------------------------


async def test_handlers_of_every_kind_run_within_their_span(recorder: Recorder):
    seen: list[bool] = []

    def look(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context().is_valid)

    async def wait_and_look(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        look(message)

    def wait_elsewhere(message: Message) -> Any:
        return wait_and_look(message)

    handlers: list[Callable[[Message], Any]] = [look, wait_and_look, wait_elsewhere]
    for handler in handlers:
        (message,) = deliver(b"body")
        result = tracing(recorder).handler(handler)(message)
        if result is not None:
            assert not seen
            await result
        assert seen == [True]
        seen.clear()
        assert not trace.get_current_span().get_span_context().is_valid
    assert len(recorder.spans) == 3


async def test_a_handler_in_a_thread_runs_within_its_span(recorder: Recorder):
    (message,) = deliver(b"body")
    spans = []
    handler = tracing(recorder).handler(lambda message: spans.append(trace.get_current_span()))
    await anyio.to_thread.run_sync(handler, message)
    assert spans[0].get_span_context() == recorder.span.context


async def test_exception_of_a_handler_is_passed_on(recorder: Recorder):
    def fail(message: Message) -> None:
        raise ValueError("no")

    async def fail_later(message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        fail(message)

    for handler in (fail, fail_later):
        (message,) = deliver(b"body")
        with pytest.raises(ValueError, match="no"):
            if (result := tracing(recorder).handler(handler)(message)) is not None:
                await result
    assert [(span.attributes or {})["error.type"] for span in recorder.spans] == ["ValueError", "ValueError"]


def test_a_traced_handler_keeps_its_name(recorder: Recorder):
    def archive(message: Message) -> None:
        """Archive it."""

    traced = tracing(recorder).handler(archive)
    assert (traced.__name__, traced.__doc__) == ("archive", "Archive it.")


# ---- both sides --------------------------------------------------------------------------------------------------


def test_serializer_removes_its_envelope(recorder: Recorder):
    serializer: ContextSerializer[object, Any] = ContextSerializer(JSON)
    with recorder.tracer_provider.get_tracer("t").start_as_current_span("work"):
        body = serializer.encode({"a": 1})
    assert body.startswith(MAGIC)
    assert serializer.decode(body) == {"a": 1}
    assert serializer.decode(b'{"a":1}') == {"a": 1}
    assert serializer.encode({"a": 1}) == b'{"a":1}'
    assert repr(serializer) == "ContextSerializer(JSON)"


@pytest.mark.parametrize("linger", [0.0, 0.01])
async def test_a_trace_goes_through_a_broker(nsqd: Any, recorder: Recorder, linger: float):
    async with (
        Producer(nsqd.tcp_address, serializer=ContextSerializer(JSON), linger=linger) as producer,
        Consumer("clicks", "archive", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10) as consumer,
    ):
        handled: list[object] = []

        async def handle(message: Message) -> None:
            handled.append(JSON.decode(message.body))
            if len(handled) == 2:
                consumer.stop()

        traced = TracedProducer(producer, **recorder.providers)
        with anyio.fail_after(WAIT_LIMIT):
            await traced.publish("clicks", {"n": 1})
            await traced.publish("clicks", {"n": 2})
            await consumer.run(tracing(recorder, envelope=True).handler(handle))
    assert handled == [{"n": 1}, {"n": 2}]
    sent = [span for span in recorder.spans if span.kind is SpanKind.PRODUCER]
    processed = [span for span in recorder.spans if span.kind is SpanKind.CONSUMER]
    assert [_ids(span.parent) for span in processed] == [_ids(span.context) for span in sent]


async def test_batches_are_traced_through_a_broker(nsqd: Any, recorder: Recorder):
    async with (
        Producer(nsqd.tcp_address, serializer=ContextSerializer(RAW)) as producer,
        Consumer("clicks", "archive", nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=10) as consumer,
    ):
        bodies: list[bytes] = []

        def handle(messages: Sequence[Message]) -> None:
            bodies.extend(message.body for message in messages)
            if len(bodies) == 3:
                consumer.stop()

        with anyio.fail_after(WAIT_LIMIT):
            await TracedProducer(producer, **recorder.providers).multi_publish("clicks", [b"1", b"2", b"3"])
            await consumer.run_batches(tracing(recorder, envelope=True).batch_handler(handle))
    assert bodies == [b"1", b"2", b"3"]
    sent, *processed = recorder.spans
    links = [link for span in processed for link in span.links]
    assert [_ids(link.context) for link in links] == [_ids(sent.context)] * 3


def _ids(of: Any) -> tuple[int, int]:
    return of.trace_id, of.span_id
