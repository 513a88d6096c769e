"""A reference nsqd in dicts: it receives every command, checks every frame, and computes where each message must be.

It is slow and obvious, and shares only the wire format with the engine. It computes the effect of each command by
itself. The engine chooses which of the ready consumers gets a message, so the oracle only checks that a delivery was
allowed: queued, within RDY, not paused, not after CLS, with one more attempt.

``command``, ``frames`` and ``deadline`` are the inputs; the functions of an admin follow. A body identifies its
message, since no two messages of a world have the same body.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import attrs

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.session.session import Session
from nsqkit.errors import BrokerError
from nsqkit.wire.commands import MPUB_HEAD, Command
from nsqkit.wire.error_codes import encode_error_text
from nsqkit.wire.frames import HEARTBEAT, MessageFrame, Response
from tests.simulation.broken import Broken
from tests.simulation.foreign import CODES, GRANT_CODES, Refusal, Refused
from tests.simulation.network import MS

INTERVAL_NS = 30_000 * MS  # of the heartbeats of clients that ask for no other
NOT_OWNED, NOT_IN_FLIGHT = REASONS = b" client does not own message", b" ID not in flight"


@attrs.define(eq=False)
class Copy:
    """A channel's copy of a message; ``due_ns`` is the end of its deferral or its message timeout."""

    body: bytes
    attempts: int = 0
    due_ns: int = 0
    owner: Session | None = None
    delivered_ns: int = 0


class Bag:
    """Copies by body; after a power cut there may be several of one body."""

    def __init__(self) -> None:
        self._by_body: dict[bytes, list[Copy]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Copy]:
        for copies in self._by_body.values():
            yield from copies

    def has(self, body: bytes) -> bool:
        return body in self._by_body

    def add(self, copy: Copy) -> None:
        self._by_body.setdefault(copy.body, []).append(copy)
        self._count += 1

    def take(self, body: bytes, attempts: int) -> Copy | None:
        """Remove and return a copy, if there is one with so many attempts; otherwise any."""
        copies = self._by_body.get(body)
        if copies is None:
            return None
        copy = next((copy for copy in copies if copy.attempts == attempts), copies[0])
        self.remove(copy)
        return copy

    def take_restored(self, body: bytes, attempts: int, now_ns: int) -> Copy | None:
        """Remove and return a copy that this life has not delivered, and whose deferral has ended, if there is one."""
        for copy in self._by_body.get(body, ()):
            if copy.attempts == attempts and copy.due_ns <= now_ns and not copy.delivered_ns:
                self.remove(copy)
                return copy
        return None

    def remove(self, copy: Copy) -> None:
        copies = self._by_body[copy.body]
        copies.remove(copy)
        self._count -= 1
        if not copies:
            del self._by_body[copy.body]

    def clear(self) -> None:
        self._by_body.clear()
        self._count = 0


@attrs.define(eq=False)
class ChannelOracle:
    """Where the copies are: queued and deferred by body, in flight by message id."""

    topic: bytes
    name: bytes
    queued: Bag = attrs.field(factory=Bag)
    deferred: Bag = attrs.field(factory=Bag)
    in_flight: dict[tuple[bytes, Session], Copy] = attrs.field(factory=dict)
    held: dict[Session, int] = attrs.field(factory=dict)
    sessions: dict[Session, None] = attrs.field(factory=dict)
    paused: bool = False
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    finished_count: int = 0
    restored_count: int = 0  # found on the disk at the start
    dropped_count: int = 0  # by emptying
    finished_ns: list[int] = attrs.field(factory=list)  # the times of FINs
    delivery_counts: Counter[str] = attrs.field(factory=Counter)  # by proximity

    @property
    def held_count_of_all(self) -> int:
        return len(self.queued) + len(self.deferred) + len(self.in_flight)

    def put(self, copy: Copy, delay_ns: int, now_ns: int) -> None:
        copy.owner, copy.due_ns = None, now_ns + delay_ns
        (self.deferred if delay_ns else self.queued).add(copy)

    def held_count(self, session: Session) -> int:
        return self.held.get(session, 0)

    def deliver(self, copy: Copy, message_id: bytes, session: Session) -> None:
        """Put a copy in flight."""
        if (message_id, session) in self.in_flight:
            raise Broken(5, f"{message_id!r} is in flight already")
        copy.owner = session
        self.in_flight[message_id, session] = copy
        self.held[session] = self.held.get(session, 0) + 1

    def has(self, body: bytes) -> bool:
        """Return whether a message with this body is in any place."""
        return any(copy.body == body for copy in (*self.queued, *self.deferred, *self.in_flight.values()))

    def is_in_flight(self, message_id: bytes) -> bool:
        return any(message_id == key[0] for key in self.in_flight)

    def remove_in_flight(self, message_id: bytes, session: Session) -> Copy:
        copy = self.in_flight.pop((message_id, session))
        self.held[session] -= 1
        if not self.held[session]:
            del self.held[session]
        return copy


@attrs.define(eq=False)
class TopicOracle:
    """A topic: its channels, its waiting messages (with their delays), and the body of each id."""

    channels: dict[bytes, ChannelOracle] = attrs.field(factory=dict)
    waiting: list[tuple[Copy, int]] = attrs.field(factory=list)
    bodies: dict[bytes, bytes] = attrs.field(factory=dict)
    paused: bool = False
    put_count: int = 0  # of messages that wait since it began, was empty or flowed
    message_count: int = 0
    message_bytes: int = 0
    is_started: bool = True  # False until it has the channels that nsqlookupds list

    @property
    def flows(self) -> bool:
        return self.is_started and not self.paused and bool(self.channels)


@attrs.define(eq=False)
class ClientOracle:
    """A connection: the answers that it must receive (None: any response), and its requests."""

    owed: deque[bytes | None] = attrs.field(factory=deque)
    refused: Counter[tuple[bytes, bytes]] = attrs.field(factory=Counter)  # answers and TOUCHes, by verb and message id
    channel: ChannelOracle | None = None
    rdy_count: int = 0
    is_closing: bool = False
    is_at_end: bool = False  # it sends nothing more
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    pub_counts: dict[bytes, int] = attrs.field(factory=dict)
    command_ns: int = 0  # the last one
    silence_ns: int = 2 * INTERVAL_NS  # without a command, for which a session is not ended
    heartbeat_ns: int = 0  # the last one, or the IDENTIFY from which on they are counted
    interval_ns: int = INTERVAL_NS  # of heartbeats; 0 without them
    is_identified: bool = False
    places: tuple[str, ...] = ()  # its zone and region
    timeout_ns: int = 0  # of a message that it touches
    first_timeout_ns: int = 0  # of a message that it gets
    wanted: deque[dict[str, object]] = attrs.field(factory=deque)  # in the answers to IDENTIFY

    def identify(self, body: bytes, options: BrokerOptions, now_ns: int) -> None:
        """Use an IDENTIFY; heartbeats and deliveries have the times of the first one, as in nsqd.

        A time that it does not name stays as it is.
        """
        document = json.loads(body)
        self.timeout_ns = MS * document.get("msg_timeout", 0) or self.timeout_ns
        self.places = tuple(document.get(f"topology_{name}", "") for name in ("zone", "region"))
        wanted_ms = document.get("heartbeat_interval", 0)
        interval_ns = max(wanted_ms, 0) * MS if wanted_ms else self.silence_ns // 2
        self.silence_ns = 2 * interval_ns
        if not self.is_identified:
            self.interval_ns, self.heartbeat_ns = interval_ns, now_ns
            self.first_timeout_ns = self.timeout_ns
            self.is_identified = True
        if document.get("feature_negotiation"):
            self.wanted.append(
                {
                    "max_rdy_count": options.max_rdy_count,
                    "max_msg_timeout": options.max_msg_timeout_ns // MS,
                    "msg_timeout": self.timeout_ns // MS,
                    "sample_rate": document.get("sample_rate", 0),
                }
            )

    def check_answer(self, answer: bytes) -> None:
        """Check the answer to IDENTIFY."""
        document, wanted = json.loads(answer), self.wanted.popleft()
        found = {name: document[name] for name in wanted}
        if found != wanted:
            raise Broken(11, f"IDENTIFY was answered by {found}, not {wanted}")


class Oracle:
    """The expected state of one broker."""

    def __init__(self, options: BrokerOptions, *, has_disk: bool = False) -> None:
        self._options = options
        self.has_disk = has_disk
        self.waits_for_channels = False
        self.is_torn = False  # a power cut may have changed bodies that were not synced
        self.topics: dict[bytes, TopicOracle] = {}
        self.clients: dict[Session, ClientOracle] = {}
        self.orphans: dict[tuple[bytes, bytes], list[Copy]] = {}  # in files whose topic or channel has no name yet

    def channels(self) -> Iterator[ChannelOracle]:
        for topic in self.topics.values():
            yield from topic.channels.values()

    # ---- inputs --------------------------------------------------------------------------------------------------

    def command(self, session: Session, command: Command, now_ns: int) -> None:
        """Process a command of a client."""
        client, params = self.clients[session], command.params
        client.command_ns = now_ns
        match command.verb:
            case b"IDENTIFY" | b"AUTH":
                client.owed.append(None)
                if command.verb == b"IDENTIFY":
                    client.identify(command.bodies[0], self._options, now_ns)
            case b"SUB":
                client.channel = self.channel(params[0], params[1], now_ns)
                client.channel.sessions[session] = None
                client.owed.append(b"OK")
            case b"PUB" | b"DPUB" | b"MPUB":
                delay_ns = int(params[1]) * MS if command.verb == b"DPUB" else 0
                self._publish(self.topic(params[0]), command.bodies, delay_ns, now_ns)
                client.pub_counts[params[0]] = client.pub_counts.get(params[0], 0) + len(command.bodies)
                client.owed += [b"OK"] * (len(command.bodies) if command.verb == b"PUB" else 1)
            case _ if command.verb == MPUB_HEAD:
                self.topic(params[0])
            case b"RDY" if not client.is_closing:
                client.rdy_count = int(params[0]) if params else 1
            case b"CLS":
                client.is_closing = True
                client.owed.append(b"CLOSE_WAIT")
            case b"FIN":
                for message_id in params:
                    self._answer(session, b"FIN", message_id, 0, now_ns)
            case b"REQ" | b"TOUCH":
                delay_ns = int(params[1]) * MS if command.verb == b"REQ" else 0
                delay_ns = min(delay_ns, self._options.max_req_timeout_ns)
                self._answer(session, command.verb, params[0], delay_ns, now_ns)

    def _publish(self, topic: TopicOracle, bodies: Sequence[bytes], delay_ns: int, now_ns: int) -> None:
        topic.message_count += len(bodies)
        topic.message_bytes += sum(map(len, bodies))
        for body in bodies:
            topic.waiting.append((Copy(body), delay_ns if self._keeps_delay(topic) else 0))
        self._flush(topic, now_ns)

    def _keeps_delay(self, topic: TopicOracle) -> bool:
        """Whether a message of this topic keeps its delay while it waits: nsqd has room for some in memory."""
        if topic.flows or self._options.keep_deferred or not self.has_disk:
            return True
        topic.put_count += 1
        return topic.put_count <= self._options.mem_queue_size

    def _flush(self, topic: TopicOracle, now_ns: int) -> None:
        if topic.flows:
            for channel in topic.channels.values():
                channel.message_count += len(topic.waiting)
            for copy, delay_ns in topic.waiting:
                for channel in topic.channels.values():
                    channel.put(Copy(copy.body, copy.attempts), delay_ns, now_ns)
            topic.waiting, topic.put_count = [], 0

    def _answer(self, session: Session, verb: bytes, message_id: bytes, delay_ns: int, now_ns: int) -> None:
        client = self.clients[session]
        assert client.channel is not None
        copy = client.channel.in_flight.get((message_id, session))
        if copy is None:
            if client.channel.is_in_flight(message_id):
                why = NOT_OWNED
            elif self._may_be_delivered(client.channel, session, message_id):
                why = b""  # either reason
            else:
                why = NOT_IN_FLIGHT
            client.refused[verb, message_id] += 1
            client.owed.append(b"E_%b_FAILED %b %b failed%b" % (verb, verb, message_id, why))
        elif verb == b"TOUCH":
            most_ns = copy.delivered_ns + self._options.max_msg_timeout_ns
            copy.due_ns = min(now_ns + client.timeout_ns, most_ns)
        else:
            client.channel.remove_in_flight(message_id, session)
            if verb == b"REQ":
                client.channel.put(copy, delay_ns, now_ns)
                client.channel.requeue_count += 1
                client.requeue_count += 1
            else:
                client.channel.finished_count += 1
                client.channel.finished_ns.append(now_ns)
                client.finish_count += 1

    def _may_be_delivered(self, channel: ChannelOracle, session: Session, message_id: bytes) -> bool:
        """Return whether a message waits, and may be sent to another client before this one's next command."""
        body = self.topics[channel.topic].bodies.get(message_id, b"")
        is_wanted = any(self.clients[other].rdy_count for other in channel.sessions if other is not session)
        return is_wanted and channel.queued.has(body)

    def frames(self, session: Session, frames: list[Response | BrokerError | MessageFrame], now_ns: int) -> None:
        """Check the frames that the broker sends to a client: expected answers or allowed deliveries."""
        client = self.clients[session]
        for frame in frames:
            if isinstance(frame, MessageFrame):
                self._delivered(session, client, frame, now_ns)
                continue
            answer = frame.payload if isinstance(frame, Response) else encode_error_text(frame)
            if answer == HEARTBEAT:
                client.heartbeat_ns = now_ns
            else:
                if not client.owed:
                    raise Broken(11, f"{answer!r} answers nothing")
                owed = client.owed.popleft()
                if owed in CODES:  # of a foreign client, whose errors have no fixed texts here
                    answer = answer.split()[0]
                elif owed is not None and answer.removeprefix(owed) in REASONS:  # either reason is allowed
                    answer = owed
                if owed is None and answer.startswith(b'{"max_rdy_count"'):
                    client.check_answer(answer)
                if owed is None and (b'"deflate":true' in answer or b'"snappy":true' in answer):
                    client.owed.appendleft(b"OK")  # the first frame that is compressed
                if owed not in {None, answer}:
                    if owed in GRANT_CODES:
                        raise Broken(22, f"{owed!r} was owed, {answer!r} was sent")
                    if owed is not None and owed.startswith(b"E_"):
                        raise Broken(10, f"{owed!r} was owed, {answer!r} was sent")
                    raise Broken(11, f"{owed!r} was owed, {answer!r} was sent")

    def _delivered(self, session: Session, client: ClientOracle, frame: MessageFrame, now_ns: int) -> None:
        channel = client.channel
        if channel is None or session not in channel.sessions:
            raise Broken(7, f"{frame.body!r} was delivered to a session without a subscription")
        # A deferral that was restored has no deadline of its own, and is that of the first of two copies.
        copy = channel.deferred.take_restored(frame.body, frame.attempts - 1, now_ns)
        copy = copy or channel.queued.take(frame.body, frame.attempts - 1)
        if copy is None:
            copy = channel.deferred.take(frame.body, frame.attempts - 1)
            if copy is not None and copy.due_ns > now_ns:
                raise Broken(16, f"{frame.body!r} was delivered {copy.due_ns - now_ns} ns early")
        if copy is None:
            raise Broken(3, f"{frame.body!r} was delivered and is not queued")
        if channel.paused or client.is_closing:
            raise Broken(7, f"{frame.body!r} was delivered by a paused channel, or after CLS")
        if channel.held_count(session) >= client.rdy_count:
            raise Broken(6, f"more than {client.rdy_count} messages are in flight")
        copy.attempts += 1
        if frame.attempts != copy.attempts:
            raise Broken(8, f"attempts of {frame.body!r} are {frame.attempts}, not {copy.attempts}")
        body = self.topics[channel.topic].bodies.setdefault(frame.id, frame.body)
        if body != frame.body and not self.is_torn:
            raise Broken(4, f"id {frame.id!r} is that of {body!r} and of {frame.body!r}")
        copy.delivered_ns = now_ns
        copy.due_ns = now_ns + client.first_timeout_ns
        channel.deliver(copy, frame.id, session)
        client.message_count += 1
        channel.delivery_counts[self._proximity(client)] += 1

    def _proximity(self, client: ClientOracle) -> str:
        here = (self._options.topology_zone, self._options.topology_region)
        if client.places and self._options.enable_experiments:
            for name, own, place in zip(("zone_local", "region_local"), here, client.places, strict=True):
                if own == place:
                    return name
        return "global"

    def deadline(self, now_ns: int) -> None:
        """Process that the broker was given the time."""
        for channel in self.channels():
            for copy in [copy for copy in channel.deferred if copy.due_ns <= now_ns]:
                channel.deferred.remove(copy)
                channel.put(copy, 0, now_ns)
            for key in [key for key, copy in channel.in_flight.items() if copy.due_ns <= now_ns]:
                channel.put(channel.remove_in_flight(*key), 0, now_ns)
                channel.timeout_count += 1

    def opened(self, session: Session) -> None:
        now_ns = session.connect_time_ns
        timeout_ns = self._options.msg_timeout_ns
        self.clients[session] = ClientOracle(
            command_ns=now_ns, heartbeat_ns=now_ns, timeout_ns=timeout_ns, first_timeout_ns=timeout_ns
        )

    def refused(self, session: Session, error: Refusal) -> None:
        """Process a command of a foreign client that ends its session."""
        if isinstance(error, Refused):
            self.clients[session].owed.append(error.required)
        elif isinstance(error, BrokerError):
            self.clients[session].owed.append(encode_error_text(error))

    def end(self, session: Session, error: BrokerError | None) -> None:
        """Process the end of a client's input; ``error`` if that cut a body off."""
        self.clients[session].is_at_end = True
        if error is not None:
            self.clients[session].owed.append(encode_error_text(error))

    def closed(self, session: Session, now_ns: int) -> None:
        """Process the loss of a connection; its messages wait for their timeouts, or are requeued."""
        channel = self.clients.pop(session).channel
        if channel is not None and self._options.requeue_on_disconnect:
            for key in [key for key in channel.in_flight if key[1] is session]:
                channel.put(channel.remove_in_flight(*key), 0, now_ns)
                channel.requeue_count += 1
        if channel is not None:
            channel.sessions.pop(session, None)
            is_last = channel.name.endswith(b"#ephemeral") and not channel.sessions
            if is_last and channel in self.channels():
                self.delete_channel(channel)

    def restore(self, name: bytes, *, paused: bool, waiting: list[tuple[Copy, int]], ids: dict[bytes, bytes]) -> None:
        """Add a topic that a restarted broker has found on its disk, with its messages that wait."""
        self.topics[name] = TopicOracle(waiting=waiting, bodies=ids, paused=paused)

    def restore_channel(
        self, topic: bytes, name: bytes, *, paused: bool, copies: list[tuple[Copy, int]], message_count: int
    ) -> None:
        """Add a channel with its messages, each with the time of its deferral, or 0.

        ``message_count`` of them were in the topic, and came to the channel during the start.
        """
        channel = self.topics[topic].channels[name] = ChannelOracle(topic, name, paused=paused)
        for copy, due_ns in copies:
            copy.due_ns = due_ns
            (channel.deferred if due_ns else channel.queued).add(copy)
        channel.message_count = message_count
        channel.restored_count = len(copies) - message_count

    # ---- functions of an admin -----------------------------------------------------------------------------------

    def topic(self, name: bytes) -> TopicOracle:
        if name not in self.topics:
            waiting = [(copy, 0) for copy in self.orphans.pop((name, b""), ())]
            is_started = not self.waits_for_channels
            self.topics[name] = TopicOracle(waiting=waiting, is_started=is_started)
        return self.topics[name]

    def channel(self, topic_name: bytes, name: bytes, now_ns: int) -> ChannelOracle:
        topic = self.topic(topic_name)
        if name not in topic.channels:
            channel = topic.channels[name] = ChannelOracle(topic_name, name)
            for copy in self.orphans.pop((topic_name, name), ()):
                channel.queued.add(copy)
            channel.restored_count = len(channel.queued)
            self._flush(topic, now_ns)
        return topic.channels[name]

    def start_topic(self, name: bytes, channels: list[bytes], now_ns: int) -> None:
        for channel in channels:
            self.channel(name, channel, now_ns)
        self.topics[name].is_started = True
        self._flush(self.topics[name], now_ns)

    def pause_topic(self, topic: TopicOracle, now_ns: int, *, paused: bool) -> None:
        topic.paused = paused
        self._flush(topic, now_ns)

    def empty_channel(self, channel: ChannelOracle) -> None:
        channel.dropped_count += channel.held_count_of_all
        for place in (channel.queued, channel.deferred, channel.in_flight, channel.held):
            place.clear()

    def delete_channel(self, channel: ChannelOracle) -> None:
        self.empty_channel(channel)
        del self.topics[channel.topic].channels[channel.name]
        if channel.topic.endswith(b"#ephemeral") and not self.topics[channel.topic].channels:
            del self.topics[channel.topic]
