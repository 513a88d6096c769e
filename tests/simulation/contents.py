"""The messages and names of a broker, or of its oracle, in a form in which they can be compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nsqkit.wire.messages import FRAME_HEADER_LENGTH, id_of
from tests.simulation.broken import conclude
from tests.simulation.oracle import Copy, Oracle

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.disk.queue import MessageQueue

ATTEMPTS_AT = 16  # in a frame: behind the size, the type and the timestamp


def copy_of(frame: bytes) -> Copy:
    attempts = int.from_bytes(frame[ATTEMPTS_AT : ATTEMPTS_AT + 2], "big")
    return Copy(frame[FRAME_HEADER_LENGTH:], attempts - 1)


def found_in(broker: Broker) -> Counter[tuple[bytes, bytes, bytes]]:
    """Return the messages of a broker that has just started, by topic, channel (empty for the topic) and body."""
    found: Counter[tuple[bytes, bytes, bytes]] = Counter()
    for name, topic in broker.topics.items():
        found.update((name, b"", frame[FRAME_HEADER_LENGTH:]) for frame in topic.queue.messages())
        for channel_name, channel in topic.channels.items():
            frames = [*channel.queue.messages(), *(frame for _, frame in channel.deferred.messages())]
            found.update((name, channel_name, frame[FRAME_HEADER_LENGTH:]) for frame in frames)
    return found


def check_depths(broker: Broker) -> None:
    """Check that each queue of a broker that has just started counts the messages that it has.

    Call it without kept deferrals: a deferred message that a crash has left twice is put aside once, with two records.
    """
    for queue in queues_of(broker):
        depth, count = len(queue), len(queue.messages())
        conclude(13, depth == count, f"a depth is {depth}, not {count}")


def queues_of(broker: Broker) -> list[MessageQueue]:
    """Return the queues of all topics and channels."""
    queues = [topic.queue for topic in broker.topics.values()]
    return queues + [channel.queue for channel in broker.topics.channels()]


def is_empty(broker: Broker) -> bool:
    """Return whether no message waits, is deferred or is in flight."""
    return not any(
        len(topic.queue)
        or any(len(each.queue) or len(each.deferred) or each.in_flight_count for each in topic.channels.values())
        for topic in broker.topics.values()
    )


Times = Counter[tuple[bytes, bytes, bytes, int]]
"""Deferred messages, by topic, channel (empty for the topic), body and time, or in a topic the delay."""


def times_of(broker: Broker) -> Times:
    """Return the times of the deferred messages of a broker that has just started."""
    times: Times = Counter()
    for name, topic in broker.topics.items():
        places = [(b"", topic.queue, topic.waiting_delays_ns)]
        places += [(each.name, each.queue, each.deferred_times.by_id) for each in topic.channels.values()]
        for place, queue, by_id in places:
            for frame in queue.messages():
                if id_of(frame) in by_id:
                    times[name, place, frame[FRAME_HEADER_LENGTH:], by_id[id_of(frame)]] += 1
        for channel in topic.channels.values():
            for due_ns, frame in channel.deferred.messages():
                times[name, channel.name, frame[FRAME_HEADER_LENGTH:], due_ns] += 1
    return times


def expected_times(oracle: Oracle) -> Times:
    """Return the times that a clean stop has to keep."""
    times: Times = Counter()
    for name, topic in oracle.topics.items():
        if topic.paused or not topic.channels:
            times.update((name, b"", copy.body, delay_ns) for copy, delay_ns in topic.waiting if delay_ns)
        for channel_name, channel in topic.channels.items():
            times.update((name, channel_name, copy.body, copy.due_ns) for copy in channel.deferred)
    return times


def names_of(broker: Broker) -> dict[bytes, object]:
    """Return the topics and channels, and which of them are paused."""
    return {
        name: (topic.paused, {channel.name: channel.paused for channel in topic.channels.values()})
        for name, topic in broker.topics.items()
    }


def expected_after_stop(oracle: Oracle, *, is_started: bool = False) -> Counter[tuple[bytes, bytes, bytes]]:
    """Return the messages that a clean stop has to keep, as its files or the next life (``is_started``) have them."""
    kept: Counter[tuple[bytes, bytes, bytes]] = Counter()
    for name, topic in oracle.topics.items():
        # A topic that waits for the channels of nsqlookupds does so no more after a start.
        places = list(topic.channels) if is_started and topic.channels and not topic.paused else [b""]
        kept.update((name, place, copy.body) for copy, _ in topic.waiting for place in places)
        for channel_name, channel in topic.channels.items():
            copies = [*channel.queued, *channel.deferred, *channel.in_flight.values()]
            kept.update((name, channel_name, copy.body) for copy in copies)
    return kept
