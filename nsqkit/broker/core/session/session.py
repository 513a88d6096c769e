"""One client of the broker: the broker's side of a connection, without the connection.

``command_rules`` has the states of a session, the commands that are allowed in each, and their words. Here is a method
for each command. A command is checked in nsqd's order (state, number of words, words, body) and refused with nsqd's
texts. A fatal refusal ends the session after it has been sent.

A session changes topics and channels, and records in ``Sessions.to_write`` that it has output or events. It delivers
nothing itself: the broker does so once, after the whole receive buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.disk.queue import PartlyStored
from nsqkit.broker.core.session.authorization import Answer, Authorization
from nsqkit.broker.core.session.command_log import logged
from nsqkit.broker.core.session.command_rules import CommandRules, State, log_text, parse_word, text
from nsqkit.broker.core.session.frame_buffer import Unfinished, Wait
from nsqkit.broker.core.session.heartbeat import Heartbeat
from nsqkit.broker.core.session.sessions import AuthorizationRequested, OutputTaken, SessionEnded, Sessions
from nsqkit.broker.core.session.turns import Turns
from nsqkit.broker.core.topics.batch import PART_COUNT_MAX, Batch
from nsqkit.broker.core.topics.subscription import Subscription
from nsqkit.broker.core.topics.topology import GLOBAL, proximity_of
from nsqkit.errors import (
    AuthDisabled,
    BrokerError,
    DeferredPublishFailed,
    FinishFailed,
    IdentifyFailed,
    InvalidCommand,
    MultiPublishFailed,
    ProtocolError,
    PublishFailed,
    RequeueFailed,
    SubscribeFailed,
    TouchFailed,
)
from nsqkit.wire.commands import MPUB_HEAD, Command, milliseconds_ns, parse_number
from nsqkit.wire.compression import Deflate, Snappy
from nsqkit.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, encode_error, encode_response
from nsqkit.wire.identify import Grant, IdentifyRequest, decode_request, negotiate
from nsqkit.wire.identify import encode_response as encode_identify_response

if TYPE_CHECKING:
    from nsqkit.broker.core.session.sessions import Event
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.transform import SecureTransform, Transform

SHORT_TURNS_NS: Final = 10_000_000
"""For so long after a publish, the turns of consumers are short, since publishers wait for answers."""

CONSUMERS_PER_WORD: Final = 4
"""Consumers of a channel that are searched for a message in the time of a word: see ``TURN_WORDS_MAX``."""

PUBLISH_FAILED: Final = {b"PUB": PublishFailed, b"MPUB": MultiPublishFailed, b"DPUB": DeferredPublishFailed}


class Session(Turns):
    """The broker's side of one connection.

    Args:
        sessions: the things that it shares with the broker's other sessions.
        remote_address: ``host:port`` of the client, for ``/stats``.
        now_ns: the time at which it connected.

    Attributes:
        authorization: its grant by an auth server; None without auth servers.
        ended: True once the connection has to be closed, after the bytes that ``data_to_send`` still returns.
        channel: the channel that it consumes; None before SUB.
        subscription: its place in that channel; None before SUB.
        topic_name: the topic of its channel.
        identity: its last IDENTIFY.
        grant: the answer to that.
        tls: its TLS layer, if it has one.
        compression: ``deflate`` or ``snappy``, empty without compression.
        pub_counts: messages published, by topic.
        due_ns: the deadline of its heartbeat, handshake or output buffer.
    """

    __slots__ = (
        *("_batch", "_events", "_first_grant", "_options", "_rules", "_topics", "authorization", "channel"),
        *("compression", "connect_time_ns", "due_ns", "grant", "has_events", "identity", "pub_counts"),
        *("remote_address", "subscription", "tls", "topic_name"),
    )

    def __init__(self, sessions: Sessions[Session], remote_address: str, now_ns: int) -> None:
        topics, grant = sessions.topics, sessions.grant
        self._topics = topics
        self._options = options = topics.options
        lacks_tls = options.tls_demanded != "false"
        self._rules = CommandRules(max_req_timeout_ns=options.max_req_timeout_ns, lacks_tls=lacks_tls)
        self._rules.has_heartbeats = grant.heartbeat_interval_ns > 0
        heartbeat = Heartbeat(grant.heartbeat_interval_ns, now_ns)
        super().__init__(sessions, sessions.make_buffer(self._rules), heartbeat, now_ns)
        self._buffer.flush_every(grant.output_buffer_timeout_ns, now_ns)
        self.remote_address = remote_address
        self.connect_time_ns = now_ns
        self.channel: Channel | None = None
        self.subscription: Subscription | None = None
        self.topic_name = b""
        host = remote_address.rpartition(":")[0].strip("[]")
        self.identity = IdentifyRequest(client_id=host, hostname=host)
        self.grant = grant
        self.tls: SecureTransform | None = None
        self.compression = ""
        self.pub_counts: dict[bytes, int] = {}
        self.authorization = Authorization() if options.auth_http_addresses else None
        self.due_ns: int | None = None
        self.has_events = False
        self._events: tuple[Event, ...] = ()  # nearly always empty, and then a list would cost memory
        self._batch: Batch | None = None  # of which a part was put
        self._first_grant = grant  # nsqd's message pump uses the first IDENTIFY, all else the last
        self._schedule_heartbeat()

    # ---- input: see Turns ------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state that ``command_rules.TRANSITIONS`` describes."""
        return self._rules.state

    @property
    def _has_short_turns(self) -> bool:
        return self.channel is not None and self._now_ns < self._topics.changes.published_ns + SHORT_TURNS_NS

    def _fail(self, error: BrokerError | ProtocolError) -> None:
        if isinstance(error, BrokerError):
            self._refuse(error)
        elif self._is_in_handshake:
            self._refuse_upgrade(str(error))
        else:
            self._end_in_order(str(error))

    def _end_of_input(self, cut_off: BrokerError | None) -> None:
        if self._is_in_handshake:
            self._refuse_upgrade("EOF")
        elif cut_off is not None:
            self._refuse(cut_off)
        self.end(None)

    # ---- for the driver: its state, output, events and time ----------------------------------------------------------

    @property
    def has_input(self) -> bool:
        """True while input is left for the next turn and can be processed."""
        return self._has_more and not (self.ended or self._buffer.is_full)

    @property
    def outbox_full(self) -> bool:
        """True while nothing more must be read: the client does not read its bytes, or a command waits."""
        return self._buffer.is_full or self._buffer.is_suspended

    @property
    def has_output(self) -> bool:
        """True while there are bytes to send, or the connection has to be closed."""
        buffer = self._buffer
        return self.ended or bool(buffer.sendable) or (not buffer.is_plain and buffer.has_output)

    def events(self) -> tuple[Event, ...]:
        """Return everything that happened since the last call, in order, and forget it."""
        events, self._events = self._events, ()
        self.has_events = False
        return events

    def data_to_send(self) -> bytes:
        """Return the bytes to write and forget them; call again only after they were written."""
        was_full = self.subscription is not None and self._buffer.is_full
        data = self._buffer.take()
        self._heartbeat.has_sent = True
        if was_full and data:  # otherwise all of its bytes wait for a commit
            self._update_ready()
            self._leave(OutputTaken())
        return data

    def next_deadline(self) -> None:
        """Return None: the deadlines of a session are among the broker's."""

    def handle_deadline(self, now_ns: int) -> int | None:
        """Send a heartbeat, or end the session of a client that does not respond; return the next deadline."""
        if self.ended:
            return None
        heartbeat, buffer = self._heartbeat, self._buffer
        if self._is_in_handshake and not heartbeat.continue_handshake(now_ns):
            self._refuse_upgrade(f"read tcp {self.remote_address}: i/o timeout")
            return None
        if buffer.is_suspended:
            heartbeat.received_ns = now_ns  # the client is not silent: as in nsqd, its commands are not read meanwhile
        if reason := heartbeat.timeout_reason(now_ns, has_output=buffer.has_output):
            self.end(reason)
            return None
        if heartbeat.advance(now_ns):
            self._send(HEARTBEAT_FRAME)
        if buffer.flush_ns is not None and now_ns >= buffer.flush_ns:
            buffer.end_interval(now_ns)
            self._record_output()
        return min((ns for ns in (heartbeat.next_deadline(now_ns), buffer.flush_ns) if ns), default=None)

    def end(self, reason: str | None) -> None:
        """See ``Turns``."""
        if not self.ended:
            self.ended = True
            self._rules.move("end")
            self._leave(SessionEnded(reason))
            if self._batch is not None:
                self._batch.put_rest(self._now_ns)
            self._stop_delivery()
            self._record_output()

    def discard(self) -> None:
        """Drop all input and output: the connection is gone, but an old deadline may still refer to the session."""
        self._buffer = self._sessions.make_buffer(self._rules)
        self.tls = None

    # ---- called by the broker --------------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        """Set the deadline of messages in nsqd's output buffer, to which the channel has added some."""
        if (flush_ns := self._buffer.flush_ns) is not None:
            self._topics.timers.schedule(self, flush_ns)

    def flush(self) -> None:
        """Send the messages in nsqd's output buffer: the client can take no more."""
        self._buffer.flush()
        self._record_output()

    def authorize(self, answer: Answer) -> None:
        """Process the command that waits, with the answer of the auth servers."""
        if self.authorization is not None:
            self.authorization.answer(answer)
            self._resume()
            self._record_output()

    def release(self, ticket: int) -> None:
        """Send the answers that have waited for a commit."""
        self._buffer.release(ticket)
        self._record_output()
        # A command that waits for an auth server waits on: processed now, it would send a second request.
        if not self._buffer.is_holding and (self.authorization is None or not self.authorization.is_requested):
            self._resume()
        if self._eof_received:
            self.receive_eof(self._now_ns)

    # ---- one method for each command ------------------------------------------------------------------------------

    def _identify(self, command: Command) -> None:
        if self._buffer.is_holding:
            raise Wait  # an upgrade must not overtake the answers before it
        self.identity = request = decode_request(command.bodies[0])
        limits = self._sessions.limits
        self.grant = grant = negotiate(request, limits, self.grant)
        self._rules.has_heartbeats = grant.heartbeat_interval_ns > 0
        if self.state is State.INIT:
            self._first_grant = grant
            self._buffer.flush_every(grant.output_buffer_timeout_ns, self._now_ns)
            self._heartbeat.start(grant.heartbeat_interval_ns, self._now_ns)
        self._rules.move("IDENTIFY")
        self._heartbeat.limit_silence(grant.heartbeat_interval_ns)
        self._schedule_heartbeat()
        if not request.feature_negotiation:
            self._send(OK_FRAME)
            return
        self._send(encode_response(encode_identify_response(grant, limits)))
        self._upgrade(grant)

    def _upgrade(self, grant: Grant) -> None:
        """Add the layers that were granted, TLS first, so that compression is inside it; each begins with an OK."""
        if grant.tls_v1:
            assert self._sessions.make_tls is not None
            self.tls = self._sessions.make_tls()
            self._rules.lacks_tls = False
            self.compression = ""
            self._topics.timers.schedule(self, self._heartbeat.start_handshake(self._now_ns))
            self._add_layer(self.tls, above=0)
        if grant.snappy or grant.deflate:
            self.compression = "snappy" if grant.snappy else "deflate"
            layer = Snappy() if grant.snappy else Deflate(grant.deflate_level)
            self._add_layer(layer, above=0 if self.tls is None else 1)

    def _add_layer(self, layer: Transform, *, above: int) -> None:
        self._buffer.upgrade(layer, above=above)
        self._send(OK_FRAME)

    @property
    def _is_in_handshake(self) -> bool:
        return self.tls is not None and not self.tls.is_ready

    def _refuse_upgrade(self, reason: str) -> None:
        """End the session because the handshake of TLS has failed; the error is sent outside of TLS, as in nsqd."""
        self._buffer.strip()
        self._refuse(IdentifyFailed(f"IDENTIFY failed {reason}"))

    def _auth(self, command: Command) -> None:
        if self.authorization is None:
            raise AuthDisabled("AUTH disabled")
        answer = self.authorization.authenticate(command.bodies[0])
        if answer is None:
            self._request_authorization(self.authorization)
        else:
            self._send(encode_response(answer))

    def _check_authorization(self, verb: bytes, topic: bytes, channel: bytes = b"") -> None:
        authorization = self.authorization
        if authorization is not None and not authorization.check(verb, topic, channel, self._now_ns):
            self._request_authorization(authorization)

    def _request_authorization(self, authorization: Authorization) -> None:
        authorization.is_requested = True
        self._leave(AuthorizationRequested(authorization.secret))
        raise Wait

    def _subscribe(self, command: Command) -> None:
        topic_name, channel_name = command.params[:2]
        self._check_authorization(b"SUB", topic_name, channel_name)
        try:
            channel = self._topics.get_or_create(topic_name).channel(channel_name, self._now_ns)
        except OSError as error:
            raise SubscribeFailed(f"SUB failed {error_text(error)}") from error
        consumers_max = self._options.max_channel_consumers
        if consumers_max and len(channel.subscriptions) >= consumers_max:
            raise SubscribeFailed(
                f"SUB failed consumers for {text(topic_name)}:{text(channel_name)} exceeds limit of {consumers_max}"
            )
        proximity = proximity_of(self.identity, self._options) if self.state is State.IDENTIFIED else GLOBAL
        sessions, guids = self._sessions, self._topics.storage.guids
        subscription = Subscription(self._buffer, self._first_grant, proximity, guids, sessions.random)
        sessions.by_subscription[subscription] = self
        channel.add(subscription)
        self.subscription, self.channel, self.topic_name = subscription, channel, topic_name
        self._rules.move("SUB")
        if self._eof_received:
            self._stop_delivery()
        self._send(OK_FRAME)

    def _start_batch(self, command: Command) -> None:
        """Check and create the topic of an MPUB before its body is read, as nsqd does."""
        self._check_authorization(b"MPUB", command.params[0])
        try:
            self._topics.get_or_create(command.params[0])
        except OSError as error:
            raise _publish_failure(b"MPUB", error) from error

    def _publish(self, command: Command) -> None:
        verb, topic_name, count = command.verb, command.params[0], len(command.bodies)
        delay_ns = milliseconds_ns(parse_number(command.params[1])) if verb == b"DPUB" else 0
        if self._batch is None:
            self._check_authorization(verb, topic_name)
        try:
            if count > PART_COUNT_MAX:
                self._put_part(command)
            else:
                topic = self._topics.get(topic_name) or self._topics.get_or_create(topic_name)
                topic.put(command.bodies, self._now_ns, delay_ns=delay_ns, one_by_one=verb == b"PUB")
        except OSError as error:
            if verb == b"PUB" and isinstance(error, PartlyStored) and error.stored_count:
                self._acknowledge(verb, topic_name, error.stored_count)  # each one is a command of its own
            raise _publish_failure(verb, error) from error
        self._acknowledge(verb, topic_name, count)

    def _acknowledge(self, verb: bytes, topic_name: bytes, count: int) -> None:
        self.pub_counts[topic_name] = self.pub_counts.get(topic_name, 0) + count
        group_commit = self._sessions.group_commit
        if group_commit is not None:  # the answer waits until the messages are on disk
            self._buffer.hold(group_commit.hold(self))
            self._topics.changes.has_news = True
        self._buffer.send(OK_FRAME if verb == b"MPUB" else OK_FRAME * count)
        self._sessions.to_write[self] = None

    def _put_part(self, command: Command) -> None:
        batch = self._batch or Batch(self._topics, command.params[0], command.bodies, one_by_one=command.verb == b"PUB")
        self._batch = None
        if batch.put_part(self._now_ns):
            self._batch = batch
            if self._sessions.group_commit is not None:  # a commit of this part that fails ends the session
                self._sessions.group_commit.hold(self)
            raise Unfinished

    def _ready(self, command: Command) -> None:
        if self.state is State.CLOSING:
            return
        rdy_count = parse_word(command.params[0], "RDY could not parse count") if command.params else 1
        if not 0 <= rdy_count <= self._options.max_rdy_count:
            raise InvalidCommand(f"RDY count {rdy_count} out of range 0-{self._options.max_rdy_count}")
        assert self.subscription is not None
        self.subscription.rdy_count = rdy_count
        self._update_ready()
        if self.subscription.capacity <= 0:
            self.flush()

    def _finish(self, command: Command) -> int | None:
        channel, subscription = self.channel, self.subscription
        assert channel is not None
        assert subscription is not None
        in_flight = subscription.in_flight
        if channel.needs_finished:
            channel.finish(in_flight.find_all(command.params), self._now_ns)
        missing = in_flight.remove_all(command.params)
        subscription.finish_count += len(command.params) - len(missing)
        channel.update_ready(subscription)
        return self._report_missing(missing, FinishFailed, "FIN") if missing else None

    def _requeue(self, command: Command) -> int | None:
        channel, subscription = self.channel, self.subscription
        assert channel is not None
        assert subscription is not None
        message_id = command.params[0]
        delay_ns = milliseconds_ns(parse_word(command.params[1], "REQ could not parse timeout"))
        frame = subscription.in_flight.remove(message_id)
        if frame is None:
            return self._report_missing([message_id], RequeueFailed, "REQ")
        subscription.requeue_count += 1
        delay_ns = min(max(delay_ns, 0), self._options.max_req_timeout_ns)
        channel.requeue(frame, self._now_ns + delay_ns if delay_ns else None)
        channel.update_ready(subscription)
        return None

    def _touch(self, command: Command) -> int | None:
        channel, subscription = self.channel, self.subscription
        assert channel is not None
        assert subscription is not None
        message_id = command.params[0]
        deadline_ns = subscription.in_flight.touch(
            message_id, self._now_ns, self.grant.msg_timeout_ns, self._options.max_msg_timeout_ns
        )
        if deadline_ns is None:
            return self._report_missing([message_id], TouchFailed, "TOUCH")
        channel.schedule(subscription, deadline_ns)
        return None

    def _report_missing(self, ids: Sequence[bytes], error: type[BrokerError], verb: str) -> int:
        """Refuse to answer messages that this client does not hold; return the words that count for the search."""
        assert self.channel is not None
        held = self.channel.find_held(ids)
        for message_id in ids:
            reason = "client does not own message" if message_id in held else "ID not in flight"
            self._send(encode_error(error(f"{verb} {text(message_id)} failed {reason}")))
        return len(self.channel.subscriptions) // CONSUMERS_PER_WORD

    def _start_close(self, command: Command) -> None:
        self._rules.move("CLS")
        self._stop_delivery()
        self._send(CLOSE_WAIT_FRAME)

    # ---- within -----------------------------------------------------------------------------------------------

    def _schedule_heartbeat(self) -> None:
        if (deadline_ns := self._heartbeat.next_deadline(self._now_ns)) is not None:
            self._topics.timers.schedule(self, deadline_ns)

    def _send(self, frame: bytes) -> None:
        self._buffer.send(frame)
        self._sessions.to_write[self] = None

    def _record_output(self) -> None:
        self._sessions.to_write[self] = None

    def _leave(self, event: Event) -> None:
        self._events += (event,)
        self.has_events = True
        self._record_output()

    def _refuse(self, error: BrokerError) -> None:
        self._send(encode_error(error))
        self._end_in_order(log_text(error))

    def _update_ready(self) -> None:
        if self.channel is not None and self.subscription is not None:
            self.channel.update_ready(self.subscription)

    def _stop_delivery(self) -> None:
        if self.subscription is not None:
            self.subscription.close()
            self._update_ready()


def _publish_failure(verb: bytes, error: OSError) -> BrokerError:
    return PUBLISH_FAILED[verb](f"{verb.decode()} failed {error_text(error)}")


ACTIONS: Final[dict[bytes, Callable[[Session, Command], int | None]]] = {
    b"IDENTIFY": Session._identify,
    b"AUTH": Session._auth,
    b"SUB": Session._subscribe,
    MPUB_HEAD: Session._start_batch,
    **dict.fromkeys(PUBLISH_FAILED, Session._publish),
    b"NOP": lambda session, command: None,
    b"RDY": Session._ready,
    b"FIN": Session._finish,
    b"REQ": Session._requeue,
    b"TOUCH": Session._touch,
    b"CLS": Session._start_close,
}

LOGGED_ACTIONS: Final = {verb: action if verb == MPUB_HEAD else logged(action) for verb, action in ACTIONS.items()}
