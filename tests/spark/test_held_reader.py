"""A stream whose driver holds the messages: when they are finished, touched and requeued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest

from nsqkit.errors import OptionError
from nsqkit.spark.held_reader import HeldStream, HeldTask, hold_messages
from nsqkit.spark.options import ConsumerSpec
from nsqkit.spark.source_options import SourceOptions, stream_options
from nsqkit.spark.stream_offset import Offset
from tests.answering import answering, http_answer
from tests.spark.fake_cluster import FakeCluster, Messages

if TYPE_CHECKING:
    from tests.spark.conftest import Broker


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(backlogs=[Messages()])


@pytest.fixture
def open_stream(broker: Broker, cluster: FakeCluster) -> Iterator[Callable[..., HeldStream]]:
    """Make streams, which stop when the test ends."""
    streams = []

    def open_stream(**options: Any) -> HeldStream:
        streams.append(HeldStream(make_options(broker, **options), cluster))
        return streams[-1]

    yield open_stream
    for stream in streams:
        stream.stop()


def make_options(broker: Broker, **options: Any) -> SourceOptions:
    texts = {"subscribe": "t", "channel": "c", "nsqd.addresses": broker.address, "ackMode": "commit"}
    return stream_options({**texts, "nsqd.http.addresses": "unused:4151", **options})


def next_batch(stream: HeldStream, start: Offset) -> Offset:
    """Return the end of the next batch, as soon as there is one."""
    while (end := stream.latest_offset(start, read_all=False)) == start:
        pass
    return end


def bodies(stream: HeldStream, start: Offset, end: Offset) -> list[bytes]:
    found = []
    for task in stream.tasks(start, end):
        assert isinstance(task, HeldTask)
        found += pa.Table.from_batches(task.read(stream_spec(task)))["body"].to_pylist()
    return sorted(found)


def stream_spec(_: HeldTask) -> Any:
    """Return a spec: the rows are in the task, so it is not used."""
    return None


def test_messages_are_finished_when_the_checkpoint_has_their_batch(
    open_stream: Callable[..., HeldStream], broker: Broker
) -> None:
    broker.publish("t", [b"%d" % n for n in range(10)])
    stream = open_stream(maxRecordsPerTrigger="10")
    start = stream.initial_offset()
    end = next_batch(stream, start)
    assert bodies(stream, start, end) == [b"%d" % n for n in range(10)]
    assert bodies(stream, start, end) == [b"%d" % n for n in range(10)]
    assert broker.in_flight("t", "c") == 10
    assert stream.latest_offset(end, read_all=False) == end
    stream.stop()
    assert broker.depth("t", "c") == 0


def test_a_batch_has_at_most_the_rows_of_a_trigger(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"%d" % n for n in range(10)])
    stream = open_stream(maxRecordsPerTrigger="4", partitions="3")
    offset = stream.initial_offset()
    counts: list[int] = []
    while sum(counts) < 10:
        end = next_batch(stream, offset)
        counts.append(len(bodies(stream, offset, end)))
        assert len(stream.tasks(offset, end)) <= 3
        offset = end
    assert max(counts) <= 4


def test_a_batch_ends_at_the_bytes_of_a_trigger(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"%0100d" % n for n in range(9)])
    stream = open_stream(maxBytesPerTrigger="250", lingerMs="86400000")
    offset = stream.initial_offset()
    counts: list[int] = []
    while sum(counts) < 9:
        end = stream.latest_offset(offset, read_all=False)
        counts.append(len(bodies(stream, offset, end)))
        offset = end
    assert counts == [3, 3, 3]


def test_a_trigger_for_all_messages_has_no_limits(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"%0100d" % n for n in range(9)])
    stream = open_stream(maxRecordsPerTrigger="4", maxBytesPerTrigger="250", maxInFlight="9", lingerMs="86400000")
    start = stream.initial_offset()
    assert len(bodies(stream, start, stream.latest_offset(start, read_all=True))) == 9


def test_messages_of_another_run_are_in_a_later_batch(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"one"])
    first = open_stream()
    start = first.initial_offset()
    end = next_batch(first, start)
    first.stop()
    assert broker.in_flight("t", "c") == 0
    second = open_stream()
    assert second.tasks(start, end) == []
    later = next_batch(second, end)
    assert bodies(second, end, later) == [b"one"]


def test_held_messages_are_touched(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"one"])
    stream = open_stream(msgTimeoutMs="4000")  # a busy machine may send a TOUCH late
    start = stream.initial_offset()
    end = next_batch(stream, start)
    # The clock of the broker passes one and a half message timeouts.
    stop_ns = broker.portal.call(broker.nsqd.clock.now_ns) + 6_000_000_000
    while broker.portal.call(broker.nsqd.clock.now_ns) < stop_ns:
        assert broker.in_flight("t", "c") == 1
    assert stream.latest_offset(end, read_all=False) == end
    stream.stop()
    assert broker.depth("t", "c") == 0


def test_available_now_ends_when_nothing_is_left(
    open_stream: Callable[..., HeldStream], broker: Broker, cluster: FakeCluster
) -> None:
    broker.publish("t", [b"%d" % n for n in range(10)])
    cluster.backlogs = [Messages(depth=10), Messages(in_flight=10)]
    stream = open_stream(maxRecordsPerTrigger="10")
    stream.begin_available_now()
    start = stream.initial_offset()
    end = stream.latest_offset(start, read_all=False)
    assert end["n"] == 1
    cluster.backlogs = [Messages()]
    while (later := stream.latest_offset(end, read_all=False)) != end:
        end = later
    assert broker.depth("t", "c") == 0


def test_the_report_has_the_messages_that_are_held(open_stream: Callable[..., HeldStream], broker: Broker) -> None:
    broker.publish("t", [b"one"])
    stream = open_stream()
    assert stream.report() is None
    next_batch(stream, stream.initial_offset())
    assert stream.report() == {"ackMode": "commit", "n": 0, "held": 1, "waiting": 0}


def test_a_message_that_was_delivered_too_often_is_a_dead_letter(
    open_stream: Callable[..., HeldStream], broker: Broker
) -> None:
    broker.publish("t", [b"one"])
    options = {"maxAttempts": "1", "deadLetterTopic": "dead"}
    first = open_stream(**options)
    start = first.initial_offset()
    end = next_batch(first, start)
    first.stop()
    second = open_stream(**options)
    while broker.depth("t", "c"):
        assert second.latest_offset(end, read_all=False) == end
    assert broker.portal.call(lambda: len(broker.nsqd.broker.topics[b"dead"].queue)) == 1


def test_the_checkpoint_of_another_mode_is_an_error(open_stream: Callable[..., HeldStream]) -> None:
    with pytest.raises(OptionError, match="ackMode is 'commit', but the checkpoint is of a query with ackMode 'wal'"):
        open_stream().latest_offset({"wal": "w", "n": 1}, read_all=False)


@pytest.mark.anyio
async def test_nsqlookupds_get_the_options_of_their_requests() -> None:
    def answer(_: bytes) -> bytes:
        asked.set()
        return http_answer(b'{"channels": [], "producers": []}')

    asked = anyio.Event()
    async with answering(answer) as lookupd:
        spec = ConsumerSpec(
            topics="t",
            channel="c",
            lookupd_http_addresses=[lookupd.address],
            connection={"lookupd_authorization": "Bearer token"},
        )
        async with hold_messages(spec):
            await asked.wait()
    assert b"\r\nAuthorization: Bearer token\r\n" in lookupd.requests[0]
