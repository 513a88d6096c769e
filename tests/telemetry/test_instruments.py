from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from nsqkit.errors import ConnectionLost, NotConnected
from nsqkit.telemetry.instruments import BOUNDARIES, Instruments, Operation
from tests.telemetry.recorder import Recorder

SHARED: dict[str, str | int] = {"messaging.system": "nsq"}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def operation(recorder: Recorder, kind: SpanKind = SpanKind.PRODUCER, count: int = 1) -> Operation:
    times = iter([1.0, 1.5])
    instruments = Instruments(kind, **recorder.providers, timer=lambda: next(times))
    return Operation(instruments, "publish t", SHARED, {"own": 1}, count=count)


def test_a_span_lasts_from_beginning_to_end(recorder):
    with operation(recorder) as span:
        assert trace.get_current_span() is span
        assert recorder.spans == []
    assert not trace.get_current_span().get_span_context().is_valid
    assert recorder.span.name == "publish t"
    assert recorder.span.kind is SpanKind.PRODUCER
    assert dict(recorder.span.attributes) == {"messaging.system": "nsq", "own": 1}
    assert recorder.span.status.status_code is StatusCode.UNSET
    assert recorder.span.instrumentation_scope.name == "nsqkit"


def test_messages_are_counted_and_durations_measured(recorder):
    with operation(recorder, count=3):
        pass
    points = recorder.points()
    (sent,) = points["messaging.client.sent.messages"]
    (duration,) = points["messaging.client.operation.duration"]
    assert (sent.value, dict(sent.attributes)) == (3, SHARED)
    assert (duration.count, duration.sum, dict(duration.attributes)) == (1, 0.5, SHARED)
    assert tuple(duration.explicit_bounds) == BOUNDARIES


def test_a_consumer_has_metrics_of_its_own(recorder):
    with operation(recorder, SpanKind.CONSUMER):
        pass
    assert recorder.points().keys() == {"messaging.client.consumed.messages", "messaging.process.duration"}


def test_exception_is_passed_on_and_recorded(recorder):
    error = ConnectionLost("gone")
    with pytest.raises(ConnectionLost) as caught:
        with operation(recorder):
            raise error
    assert caught.value is error
    assert recorder.span.attributes["error.type"] == "nsqkit.errors.ConnectionLost"
    assert recorder.span.status.status_code is StatusCode.ERROR
    assert recorder.span.status.description == "gone"
    for (point,) in recorder.points().values():
        assert point.attributes["error.type"] == "nsqkit.errors.ConnectionLost"
    assert not trace.get_current_span().get_span_context().is_valid


def test_publish_that_was_not_sent_is_not_counted(recorder):
    with pytest.raises(NotConnected):
        with operation(recorder):
            raise NotConnected("no listener")
    assert recorder.points().keys() == {"messaging.client.operation.duration"}


def test_a_cancellation_ends_the_span(recorder):
    class Cancelled(BaseException):
        pass

    with pytest.raises(Cancelled):
        with operation(recorder):
            raise Cancelled
    assert recorder.span.attributes["error.type"].endswith("Cancelled")
