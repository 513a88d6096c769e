"""A reference nsqd in dicts: it receives every command, checks every frame, and computes where each message must be.

It is slow and obvious, and shares only the wire format with the engine. It computes the effect of each command by
itself. The engine chooses which of the ready consumers gets a message, so the oracle only checks that a delivery was
allowed: queued, within RDY, not paused, not after CLS, with one more attempt.

``command``, ``frames`` and ``deadline`` are the inputs; the functions of an admin follow. A body identifies its
message, since no two messages of a world have the same body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import attrs

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import Command
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import HEARTBEAT, MessageFrame, Response
from tests.simulation.network import MS


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

    topic: bytes
    name: bytes
    queued: dict[bytes, Copy] = attrs.field(factory=dict)
    deferred: dict[bytes, Copy] = attrs.field(factory=dict)
    in_flight: dict[bytes, Copy] = attrs.field(factory=dict)
    sessions: dict[Session, None] = attrs.field(factory=dict)
    paused: bool = False
    finished_count: int = 0

    def put(self, copy: Copy, delay_ns: int, now_ns: int) -> None:
        copy.owner, copy.due_ns = None, now_ns + delay_ns
        (self.deferred if delay_ns else self.queued)[copy.body] = copy

    def held_count(self, session: Session) -> int:
        return sum(copy.owner is session for copy in self.in_flight.values())


@attrs.define(eq=False)
class TopicOracle:
    """A topic: its channels, its waiting messages (body and delay), and the body of each id."""

    channels: dict[bytes, ChannelOracle] = attrs.field(factory=dict)
    waiting: list[tuple[bytes, int]] = attrs.field(factory=list)
    bodies: dict[bytes, bytes] = attrs.field(factory=dict)
    paused: bool = False


@attrs.define(eq=False)
class ClientOracle:
    """A connection: the answers that it must receive (None: any response), and its requests."""

    owed: deque[bytes | None] = attrs.field(factory=deque)
    channel: ChannelOracle | None = None
    rdy_count: int = 0
    is_closing: bool = False


class Oracle:
    """The expected state of one broker."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self.topics: dict[bytes, TopicOracle] = {}
        self.clients: dict[Session, ClientOracle] = {}
        self.accepted: set[bytes] = set()

    def channels(self) -> Iterator[ChannelOracle]:
        for topic in self.topics.values():
            yield from topic.channels.values()

    # ---- inputs --------------------------------------------------------------------------------------------------

    def command(self, session: Session, command: Command, now_ns: int) -> None:
        """Process a command of a client."""
        client, params = self.clients[session], command.params
        match command.verb:
            case b"IDENTIFY":
                client.owed.append(None)
            case b"SUB":
                client.channel = self.channel(params[0], params[1], now_ns)
                client.channel.sessions[session] = None
                client.owed.append(b"OK")
            case b"PUB" | b"DPUB" | b"MPUB":
                delay_ns = int(params[1]) * MS if command.verb == b"DPUB" else 0
                self._publish(self.topic(params[0]), command.bodies, delay_ns, now_ns)
                client.owed += [b"OK"] * (len(command.bodies) if command.verb == b"PUB" else 1)
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

    def _publish(self, topic: TopicOracle, bodies: Sequence[bytes], delay_ns: int, now_ns: int) -> None:
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
        elif verb == b"TOUCH":
            most_ns = copy.delivered_ns + self._options.max_msg_timeout_ns
            copy.due_ns = min(now_ns + session.grant.msg_timeout_ns, most_ns)
        else:
            del client.channel.in_flight[message_id]
            if verb == b"REQ":
                client.channel.put(copy, delay_ns, now_ns)
            else:
                client.channel.finished_count += 1

    def frames(self, session: Session, frames: list[Response | BrokerError | MessageFrame], now_ns: int) -> None:
        """Check the frames that the broker sends to a client: expected answers or allowed deliveries."""
        client = self.clients[session]
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self._delivered(session, client, frame, now_ns)
                continue
            answer = frame.payload if isinstance(frame, Response) else encode_error_text(frame)
            if answer != HEARTBEAT:
                assert client.owed, f"{answer!r} answers nothing"
                owed = client.owed.popleft()
                assert owed in {None, answer}, f"{owed!r} was owed, {answer!r} was sent"

    def _delivered(self, session: Session, client: ClientOracle, frame: MessageFrame, now_ns: int) -> None:
        channel = client.channel
        assert channel is not None
        copy = channel.queued.pop(frame.body, None)
        assert copy is not None, f"{frame.body!r} was delivered and is not queued"
        assert not channel.paused, "a paused channel delivers nothing"
        assert not client.is_closing, "nothing is delivered after CLS"
        assert session in channel.sessions, "nothing is delivered to who is gone"
        assert channel.held_count(session) < client.rdy_count, f"more than {client.rdy_count} are in flight"
        copy.attempts += 1
        assert frame.attempts == copy.attempts, f"attempts are {frame.attempts}, not {copy.attempts}"
        body = self.topics[channel.topic].bodies.setdefault(frame.id, frame.body)
        assert body == frame.body, f"id {frame.id!r} came twice"
        copy.owner, copy.delivered_ns = session, now_ns
        copy.due_ns = now_ns + session.grant.msg_timeout_ns
        channel.in_flight[frame.id] = copy

    def deadline(self, now_ns: int) -> None:
        """Process that the broker was given the time."""
        for channel in self.channels():
            for place in (channel.deferred, channel.in_flight):
                for key in [key for key, copy in place.items() if copy.due_ns <= now_ns]:
                    channel.put(place.pop(key), 0, now_ns)

    def opened(self, session: Session) -> None:
        self.clients[session] = ClientOracle()

    def end(self, session: Session, error: BrokerError | None) -> None:
        """Process the end of a client's input; ``error`` if that cut a body off."""
        if error is not None:
            self.clients[session].owed.append(encode_error_text(error))

    def closed(self, session: Session) -> None:
        """Process the loss of a connection; its messages wait for their timeouts."""
        channel = self.clients.pop(session).channel
        if channel is not None:
            channel.sessions.pop(session, None)
            is_last = channel.name.endswith(b"#ephemeral") and not channel.sessions
            if is_last and channel in self.channels():
                self.delete_channel(channel)

    # ---- functions of an admin -----------------------------------------------------------------------------------

    def topic(self, name: bytes) -> TopicOracle:
        return self.topics.setdefault(name, TopicOracle())

    def channel(self, topic_name: bytes, name: bytes, now_ns: int) -> ChannelOracle:
        topic = self.topic(topic_name)
        channel = topic.channels.setdefault(name, ChannelOracle(topic_name, name))
        self._flush(topic, now_ns)
        return channel

    def pause_topic(self, topic: TopicOracle, now_ns: int, *, paused: bool) -> None:
        topic.paused = paused
        self._flush(topic, now_ns)

    def empty_channel(self, channel: ChannelOracle) -> None:
        for place in (channel.queued, channel.deferred, channel.in_flight):
            place.clear()

    def delete_channel(self, channel: ChannelOracle) -> None:
        self.empty_channel(channel)
        del self.topics[channel.topic].channels[channel.name]
        if channel.topic.endswith(b"#ephemeral") and not self.topics[channel.topic].channels:
            del self.topics[channel.topic]
