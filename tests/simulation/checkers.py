"""The invariants of a world, checked after every step; the oracle checks others at each delivery.

1. Conservation: each message is, in each channel, exactly where the oracle has it. So none is lost and none returns.
2. Ownership: a session holds as many messages as the oracle assigns to it.
3. Flow: messages wait in a channel only while it is paused or no consumer can receive more.
4. Deadlines: the broker's next deadline is not after the first message that is due.
5. Answers: every command of a client was answered.
"""

from __future__ import annotations

from collections import Counter

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.disk.queue import MemoryBackend
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.simulation.oracle import ChannelOracle, Oracle


def check(broker: Broker, oracle: Oracle) -> None:
    """Compare a broker with its oracle; cheap enough for every step."""
    assert broker.topics.keys() == oracle.topics.keys()
    for name, topic in broker.topics.items():
        assert topic.channels.keys() == oracle.topics[name].channels.keys()
        assert len(topic.queue) == len(oracle.topics[name].waiting)
        for channel_name, channel in topic.channels.items():
            _check_channel(broker, channel, oracle.topics[name].channels[channel_name])
    assert broker.sessions.keys() == oracle.clients.keys()
    assert not any(client.owed for client in oracle.clients.values()), "the broker owes an answer"
    places = [place for channel in oracle.channels() for place in (channel.deferred, channel.in_flight)]
    due_ns = min((copy.due_ns for place in places for copy in place.values()), default=None)
    deadline_ns = broker.next_deadline()
    assert due_ns is None or (deadline_ns is not None and deadline_ns <= due_ns)


def _check_channel(broker: Broker, channel: Channel, expected: ChannelOracle) -> None:
    counts = (len(channel.queue), len(channel.deferred), channel.in_flight_count)
    assert counts == (len(expected.queued), len(expected.deferred), len(expected.in_flight))
    sessions = {broker.sessions.by_subscription[subscription]: subscription for subscription in channel.subscriptions}
    assert (channel.paused, sessions.keys()) == (expected.paused, expected.sessions.keys())
    for session, subscription in sessions.items():
        assert len(subscription.in_flight) == expected.held_count(session)
        assert subscription.capacity <= 0 or channel.paused or not expected.queued, "a ready consumer was left out"


def check_bodies(broker: Broker, oracle: Oracle) -> None:
    """Compare message by message."""
    for expected in oracle.channels():
        channel = broker.topics[expected.topic].channels[expected.name]
        backend = channel.queue.backend
        queued = [*channel.queue._memory, *(backend if isinstance(backend, MemoryBackend) else ())]
        deferred = [frame for _, _, frame in channel.deferred._heap]
        for frames, bodies in ((queued, expected.queued), (deferred, expected.deferred)):
            assert Counter(frame[FRAME_HEADER_LENGTH:] for frame in frames) == Counter([*bodies])
