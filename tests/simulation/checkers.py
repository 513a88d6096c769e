"""The invariants of a world, asserted after every step.

1. Conservation: each message is, in each channel, where the oracle has it, once.
2. Ownership: a session holds as many messages as the oracle says it owns.
3. Flow: what waits in a channel waits because it is paused or nobody has room; the oracle refuses the rest.
4. Deadlines: the broker wants to be called no later than the first message is due.
5. Answers: a client is owed nothing, and each publish was answered once; OK means accepted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nsqkit.wire.messages import FRAME_HEADER_LENGTH

if TYPE_CHECKING:
    from nsqkit.broker.core.channel import Channel
    from tests.simulation.oracle import ChannelOracle
    from tests.simulation.world import Node


def check(node: Node) -> None:
    """Compare one broker with its oracle; cheap enough for every step."""
    broker, oracle = node.broker, node.oracle
    assert broker.topics.keys() == oracle.topics.keys()
    for name, topic in broker.topics.items():
        assert topic.channels.keys() == oracle.topics[name].channels.keys()
        assert len(topic.queue) == len(oracle.topics[name].waiting)
        for channel_name, channel in topic.channels.items():
            _check_channel(channel, oracle.topics[name].channels[channel_name])
    assert broker.sessions.keys() == oracle.clients.keys()
    for session, client in oracle.clients.items():
        assert len(session.in_flight) == client.held_count
        assert not client.owed, f"the broker owes {client.owed}"
    due_ns, deadline_ns = oracle.next_due(), broker.next_deadline()
    assert due_ns is None or (deadline_ns is not None and deadline_ns <= due_ns)


def _check_channel(channel: Channel, expected: ChannelOracle) -> None:
    counts = (len(channel.queue), len(channel.deferred), channel.in_flight_count)
    assert counts == (len(expected.queued), len(expected.deferred), len(expected.in_flight))
    assert channel.paused == expected.paused
    assert channel.sessions.keys() == expected.sessions.keys()
    if expected.queued and not channel.paused:
        assert all(session.room <= 0 for session in channel.sessions), "somebody with room was forgotten"


def check_bodies(node: Node) -> None:
    """Compare message by message."""
    for name, topic in node.broker.topics.items():
        for channel_name, channel in topic.channels.items():
            expected = node.oracle.topics[name].channels[channel_name]
            backend = getattr(channel.queue.backend, "_frames", ())
            assert _bodies([*channel.queue._memory, *backend]) == Counter([*expected.queued])
            assert _bodies([frame for _, _, frame in channel.deferred._heap]) == Counter([*expected.deferred])


def _bodies(frames: list[bytes]) -> Counter[bytes]:
    return Counter(frame[FRAME_HEADER_LENGTH:] for frame in frames)
