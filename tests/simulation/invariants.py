"""The invariants of a broker at rest; the oracle checks others at each delivery and answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.session.sessions import SessionEnded
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.wire.messages import FRAME_HEADER_LENGTH
from tests.simulation.broken import Broken, conclude
from tests.simulation.oracle import ChannelOracle, ClientOracle, Oracle

SILENT: Final = "no command for two heartbeat intervals"
INNOCENT: Final = ("channel ", "commit failed", SILENT, "took nothing for a heartbeat interval")
"""How the reasons begin for which a session may end without a mistake of its client: deletion, the disk, silence."""


class Timed(Protocol):
    """A machine with deadlines."""

    def next_deadline(self) -> int | None: ...


def check_end(
    name: str, events: Iterable[object], client: ClientOracle | None, now_ns: int, *, is_guilty: bool
) -> None:
    """Check why a session was ended; ``client`` is that of the oracle.

    One whose client has made a mistake has all of its answers before.
    """
    for reason in (event.reason for event in events if isinstance(event, SessionEnded)):
        is_innocent = reason is not None and reason.startswith(INNOCENT)
        if is_guilty and not is_innocent and client is not None and client.owed and not client.is_at_end:
            raise Broken(11, f"{name} was ended by {reason!r} before {client.owed} were sent")
        conclude(25, is_guilty or is_innocent, f"{name} was ended by {reason!r}")
        if not is_guilty and client is not None and reason is not None and reason.startswith(SILENT):
            silence_ns = now_ns - client.command_ns
            conclude(25, silence_ns >= client.silence_ns, f"{name} was ended after a silence of {silence_ns} ns")


def check_node(broker: Broker, oracle: Oracle, now_ns: int, *, may_owe: bool) -> None:
    """Compare a broker with its oracle.

    Args:
        broker: the broker.
        oracle: its required state.
        now_ns: the time of the broker.
        may_owe: a commit runs, for which answers may wait.
    """
    conclude(14, broker.topics.keys() == oracle.topics.keys(), "topics")
    has_restored = False
    for name, topic in broker.topics.items():
        expected = oracle.topics[name]
        conclude(14, topic.channels.keys() == expected.channels.keys(), f"channels of {name!r}")
        if len(topic.queue) != len(expected.waiting):
            raise Broken(1, f"{len(topic.queue)} messages wait in topic {name!r}, not {len(expected.waiting)}")
        for channel_name, channel in topic.channels.items():
            has_restored |= bool(channel.deferred_times.by_id)
            _check_channel(broker, channel, expected.channels[channel_name])
    conclude(11, broker.sessions.keys() == oracle.clients.keys(), "sessions")
    owing = [client.owed for client in oracle.clients.values() if client.owed]
    if owing and not may_owe:
        raise Broken(11, f"{owing} were not sent")
    due_ns = broker.next_deadline()
    if not may_owe and (due_ns is None or due_ns > now_ns):
        _check_heartbeats(oracle, now_ns, may_be_silent=bool(broker.options.auth_http_addresses))
    if not has_restored:
        _check_deadlines(broker, oracle, now_ns)


def _check_heartbeats(oracle: Oracle, now_ns: int, *, may_be_silent: bool) -> None:
    """Check the times of heartbeats and commands; a client is not silent while a command waits for an auth server."""
    for session, client in oracle.clients.items():
        if client.is_at_end and not session.ended:
            raise Broken(24, f"{session.remote_address} has closed its end, and its session stays")
        late_ns = now_ns - client.heartbeat_ns - client.interval_ns
        if client.interval_ns and late_ns > 0 and not session.ended:
            raise Broken(25, f"{session.remote_address} has had no heartbeat for {late_ns} ns too long")
        late_ns = now_ns - client.command_ns - client.silence_ns
        if client.silence_ns and late_ns > 0 and not (session.ended or may_be_silent):
            raise Broken(29, f"{session.remote_address} has sent nothing for {late_ns} ns too long, and stays")


def _check_deadlines(broker: Broker, oracle: Oracle, now_ns: int) -> None:
    """Check that a deadline is set for all messages that are deferred or in flight."""
    due_ns = None
    for expected in oracle.channels():
        deferred_ns = min((copy.due_ns for copy in expected.deferred), default=None)
        if deferred_ns is not None and broker.options.timing == "exact":
            channel = broker.topics[expected.topic].channels[expected.name]
            is_scheduled = channel.due_ns is not None and channel.due_ns <= deferred_ns
            conclude(12, is_scheduled, f"{channel.name!r} is due at {channel.due_ns}, its first at {deferred_ns}")
        in_flight_ns = min((copy.due_ns for copy in expected.in_flight.values()), default=None)
        due_ns = min((ns for ns in (due_ns, deferred_ns, in_flight_ns) if ns is not None), default=None)
    if due_ns is not None:
        deadline_ns = broker.next_deadline()
        if deadline_ns is None or deadline_ns > due_ns:
            raise Broken(12, f"the next deadline is {deadline_ns}, at {due_ns} a message is due, now is {now_ns}")


def _check_channel(broker: Broker, channel: Channel, expected: ChannelOracle) -> None:
    counts = (len(channel.queue) + len(channel.deferred), channel.in_flight_count)
    wanted = (len(expected.queued) + len(expected.deferred), len(expected.in_flight))
    if counts != wanted:
        raise Broken(1, f"{channel.name!r} has {counts} messages waiting and in flight, not {wanted}")
    if not channel.deferred_times.by_id and len(channel.deferred) != len(expected.deferred):
        raise Broken(1, f"{channel.name!r} has {len(channel.deferred)} deferred messages, not {len(expected.deferred)}")
    conclude(14, channel.paused == expected.paused, f"{channel.name!r} is paused, or not")
    if len(channel.subscriptions) != len(expected.sessions):
        raise Broken(14, f"consumers of {channel.name!r}")
    holder_count = len(expected.sessions.keys() | expected.held.keys())
    if len(channel.holders()) != holder_count:
        raise Broken(
            24, f"{channel.name!r} has {len(channel.holders())} sets of messages in flight, not {holder_count}"
        )
    for subscription in channel.subscriptions:
        session = broker.sessions.by_subscription[subscription]
        if session not in expected.sessions or len(subscription.in_flight) != expected.held_count(session):
            raise Broken(5, f"{session.remote_address} holds {len(subscription.in_flight)} messages")
        if subscription.capacity > 0 and not channel.paused and expected.queued:
            raise Broken(27, f"{session.remote_address} is ready, and {len(expected.queued)} messages wait")


def check_later(machine: Timed, now_ns: int) -> None:
    """Check that nothing is due any more after a deadline was handled."""
    due_ns = machine.next_deadline()
    if due_ns is not None and due_ns <= now_ns:
        raise Broken(12, f"{type(machine).__name__} has handled its deadlines until {now_ns}, and the next is {due_ns}")


def check_bodies(broker: Broker, oracle: Oracle) -> None:
    """Compare message by message."""
    for expected in oracle.channels():
        channel = broker.topics[expected.topic].channels[expected.name]
        try:
            frames = [*channel.queue.messages(), *(frame for _, frame in channel.deferred.messages())]
        except FileNotFoundError:  # until the queue is read to there, and skips the file
            continue
        bodies = Counter(copy.body for copy in (*expected.queued, *expected.deferred))
        conclude(1, Counter(frame[FRAME_HEADER_LENGTH:] for frame in frames) == bodies, f"bodies of {expected.name!r}")
