"""A reference nsqd in dicts: it hears every command, sees every frame, and knows where each message has to be.

The rule it guards: it is slow and obvious, and shares no code with the engine beside the wire. What follows from a
command it works out by itself; which of the consumers with room gets a message is the engine's choice, so a delivery
is only asked whether it was allowed: it was queued, there was room, nothing was paused, attempts are one more.

How to read it: ``command``, ``frames`` and ``deadline`` are what happens; the others are what an admin does. A body
is the name of its message and stands for one message in a world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session import Session
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import Command
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import HEARTBEAT, MessageFrame, Response

MS = 1_000_000


@attrs.define(eq=False)
class Copy:
    """A channel's copy of a message; ``due_ns`` is the end of its deferral or its message timeout."""

    body: bytes
    attempts: int = 0
    due_ns: int = 0
    owner: Session | None = None
    delivered_ns: int = 0


@attrs.define(eq=False)
class ChannelOracle:
    """Where the copies are: queued and deferred by body, in flight by message id."""

    ephemeral: bool
    queued: dict[bytes, Copy] = attrs.field(factory=dict)
    deferred: dict[bytes, Copy] = attrs.field(factory=dict)
    in_flight: dict[bytes, Copy] = attrs.field(factory=dict)
    sessions: dict[Session, None] = attrs.field(factory=dict)
    paused: bool = False
    finished_count: int = 0

    def put(self, copy: Copy, delay_ns: int, now_ns: int) -> None:
        copy.owner, copy.due_ns = None, now_ns + delay_ns
        (self.deferred if delay_ns else self.queued)[copy.body] = copy

    def is_empty(self) -> bool:
        return not (self.queued or self.deferred or self.in_flight)


@attrs.define(eq=False)
class TopicOracle:
    """A topic: its channels, what waits for one (body and delay), and whose id is whose."""

    ephemeral: bool
    channels: dict[bytes, ChannelOracle] = attrs.field(factory=dict)
    waiting: list[tuple[bytes, int]] = attrs.field(factory=list)
    bodies: dict[bytes, bytes] = attrs.field(factory=dict)
    paused: bool = False


@attrs.define(eq=False)
class ClientOracle:
    """A connection: what it has asked for, and the answers that it is owed."""

    owed: deque[bytes | None] = attrs.field(factory=deque)  # None: any response
    topic: TopicOracle | None = None
    channel: ChannelOracle | None = None
    channel_names: tuple[bytes, bytes] = (b"", b"")
    rdy_count: int = 0
    held_count: int = 0
    is_closing: bool = False


class Oracle:
    """What one broker has to be like."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.topics: dict[bytes, TopicOracle] = {}
        self.clients: dict[Session, ClientOracle] = {}
        self.accepted: set[bytes] = set()

    def channels(self) -> Iterator[ChannelOracle]:
        for topic in self.topics.values():
            yield from topic.channels.values()

    # ---- what happens --------------------------------------------------------------------------------------------

    def command(self, session: Session, command: Command, now_ns: int) -> None:
        """Take note of what a client says."""
        client, params = self.clients[session], command.params
        match command.verb:
            case b"IDENTIFY":
                client.owed.append(None)
            case b"SUB":
                client.channel_names = (params[0], params[1])
                client.channel = self.make_channel(params[0], params[1], now_ns)
                client.topic = self.topics[params[0]]
                client.channel.sessions[session] = None
                client.owed.append(b"OK")
            case b"PUB" | b"DPUB" | b"MPUB":
                delay_ns = int(params[1]) * MS if command.verb == b"DPUB" else 0
                self._publish(params[0], command.bodies or (command.body,), delay_ns, now_ns)
                client.owed.append(b"OK")
            case b"RDY" if not client.is_closing:
                client.rdy_count = int(params[0])
            case b"CLS":
                client.is_closing = True
                client.owed.append(b"CLOSE_WAIT")
            case b"FIN":
                for message_id in params:
                    self._answer(session, b"FIN", message_id, 0, now_ns)
            case b"REQ" | b"TOUCH":
                delay_ns = int(params[1]) * MS if command.verb == b"REQ" else 0
                self._answer(session, command.verb, params[0], delay_ns, now_ns)

    def _publish(self, topic_name: bytes, bodies: tuple[bytes, ...], delay_ns: int, now_ns: int) -> None:
        topic = self.make_topic(topic_name)
        self.accepted.update(bodies)
        topic.waiting += [(body, delay_ns) for body in bodies]
        self._flush(topic, now_ns)

    def _flush(self, topic: TopicOracle, now_ns: int) -> None:
        if topic.channels and not topic.paused:
            for body, delay_ns in topic.waiting:
                for channel in topic.channels.values():
                    channel.put(Copy(body), delay_ns, now_ns)
            topic.waiting = []

    def _answer(self, session: Session, verb: bytes, message_id: bytes, delay_ns: int, now_ns: int) -> None:
        client = self.clients[session]
        assert client.channel is not None
        copy = client.channel.in_flight.get(message_id)
        if copy is None or copy.owner is not session:
            why = b"client does not own message" if copy else b"ID not in flight"
            client.owed.append(b"E_%b_FAILED %b %b failed %b" % (verb, verb, message_id, why))
            return
        if verb == b"TOUCH":
            most_ns = copy.delivered_ns + self._options.max_msg_timeout_ns
            copy.due_ns = min(now_ns + session.grant.msg_timeout_ns, most_ns)
            return
        del client.channel.in_flight[message_id]
        client.held_count -= 1
        if verb == b"REQ":
            client.channel.put(copy, min(delay_ns, self._options.max_req_timeout_ns), now_ns)
        else:
            client.channel.finished_count += 1

    def frames(self, session: Session, frames: list[Response | BrokerError | MessageFrame], now_ns: int) -> None:
        """Look at what the broker says to a client: is that what it is owed, or may be given?"""
        client = self.clients[session]
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self._delivered(session, client, frame, now_ns)
                continue
            said = frame.payload if isinstance(frame, Response) else encode_error_text(frame)
            if said != HEARTBEAT:
                assert client.owed, f"{said!r} answers nothing"
                owed = client.owed.popleft()
                assert owed in {None, said}, f"{owed!r} was owed, {said!r} was said"

    def _delivered(self, session: Session, client: ClientOracle, frame: MessageFrame, now_ns: int) -> None:
        topic, channel = client.topic, client.channel
        assert topic is not None
        assert channel is not None
        copy = channel.queued.pop(frame.body, None)
        assert copy is not None, f"{frame.body!r} was delivered and is not queued"
        assert not channel.paused, "a paused channel delivers nothing"
        assert not client.is_closing, "nothing is delivered after CLS"
        assert session in channel.sessions, "nothing is delivered to who is gone"
        assert client.held_count < client.rdy_count, f"more than {client.rdy_count} are in flight"
        copy.attempts += 1
        assert frame.attempts == copy.attempts, f"attempts are {frame.attempts}, not {copy.attempts}"
        assert topic.bodies.setdefault(frame.id, frame.body) == frame.body, f"id {frame.id!r} came twice"
        client.held_count += 1
        copy.owner, copy.delivered_ns = session, now_ns
        copy.due_ns = now_ns + session.grant.msg_timeout_ns
        channel.in_flight[frame.id] = copy

    def deadline(self, now_ns: int) -> None:
        """Take note that the broker was told the time."""
        for channel in self.channels():
            for place in (channel.deferred, channel.in_flight):
                for key, copy in [(key, copy) for key, copy in place.items() if copy.due_ns <= now_ns]:
                    del place[key]
                    self._give_up(copy)
                    channel.put(copy, 0, now_ns)

    def _give_up(self, copy: Copy) -> None:
        if copy.owner in self.clients:
            self.clients[copy.owner].held_count -= 1

    def next_due(self) -> int | None:
        """Return when the first message is due."""
        places = [place for channel in self.channels() for place in (channel.deferred, channel.in_flight)]
        return min((copy.due_ns for place in places for copy in place.values()), default=None)

    def opened(self, session: Session) -> None:
        self.clients[session] = ClientOracle()

    def closed(self, session: Session) -> None:
        """Take note that a connection is gone; its messages wait for their timeouts."""
        client = self.clients.pop(session)
        if client.channel is not None:
            client.channel.sessions.pop(session, None)
            topic_name, name = client.channel_names
            topic = self.topics.get(topic_name)
            is_there = topic is not None and topic.channels.get(name) is client.channel
            if is_there and client.channel.ephemeral and not client.channel.sessions:
                self.delete_channel(topic_name, name)

    # ---- what an admin does --------------------------------------------------------------------------------------

    def make_topic(self, name: bytes) -> TopicOracle:
        return self.topics.setdefault(name, TopicOracle(name.endswith(b"#ephemeral")))

    def make_channel(self, topic_name: bytes, name: bytes, now_ns: int) -> ChannelOracle:
        topic = self.make_topic(topic_name)
        channel = topic.channels.setdefault(name, ChannelOracle(name.endswith(b"#ephemeral")))
        self._flush(topic, now_ns)
        return channel

    def pause_topic(self, name: bytes, now_ns: int, *, paused: bool) -> None:
        self.topics[name].paused = paused
        self._flush(self.topics[name], now_ns)

    def empty_channel(self, channel: ChannelOracle) -> None:
        for copy in channel.in_flight.values():
            self._give_up(copy)
        for place in (channel.queued, channel.deferred, channel.in_flight):
            place.clear()

    def delete_channel(self, topic_name: bytes, name: bytes) -> None:
        topic = self.topics[topic_name]
        self.empty_channel(topic.channels.pop(name))
        if topic.ephemeral and not topic.channels:
            del self.topics[topic_name]

    def delete_topic(self, name: bytes) -> None:
        for channel in self.topics.pop(name).channels.values():
            self.empty_channel(channel)
