"""One client of the broker: the broker's side of a connection, without the connection.

                    IDENTIFY AUTH          SUB                 CLS
        connect ─▶ CONNECTED ────────▶ SUBSCRIBED ────────▶ CLOSING ─▶ the client disconnects
                       PUB MPUB DPUB NOP in each state; RDY FIN REQ TOUCH once subscribed

The rule it guards: a command is looked at in nsqd's order (state, number of words, words, body) and refused with
nsqd's words; a refusal that is fatal ends the session after it has been sent. Nothing here waits: bytes and time
come in, bytes and deadlines go out.

How to read it: ``admission`` says which command may come when, and with which words; here is a method for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsqkit.broker.core.disk.error_text import error_text
from nsqkit.broker.core.session.authorization import Answer, Authorization
from nsqkit.broker.core.session.command_rules import (
    CLOSING,
    CONNECTED,
    SUBSCRIBED,
    CommandRules,
    log_text,
    parse_word,
    text,
)
from nsqkit.broker.core.session.frame_buffer import Unfinished, Wait
from nsqkit.broker.core.session.heartbeat import Heartbeat
from nsqkit.broker.core.session.turns import Turns
from nsqkit.broker.core.topics.batch import PART_COUNT_MAX, Batch
from nsqkit.broker.core.topics.in_flight import InFlight
from nsqkit.broker.core.topics.queue_scan import make_frame_buffer
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
from nsqkit.wire.messages import id_of

if TYPE_CHECKING:
    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.transform import SecureTransform, Transform

TURNS_NS: Final = 10_000_000
"""How long after a publish the turns of consumers are short, since publishers wait for answers."""

PUBLISH_FAILED: Final = {b"PUB": PublishFailed, b"MPUB": MultiPublishFailed, b"DPUB": DeferredPublishFailed}


class Session(Turns):
    """The broker's side of one connection.

    Args:
        broker: whose client this is.
        remote_address: ``host:port`` of the client, for ``/stats``.
        now_ns: the time at which it connected.

    Attributes:
        access: what it may do; None without auth servers.
        state: CONNECTED, SUBSCRIBED or CLOSING.
        ended: True once the connection is to be closed, after what ``data_to_send`` still returns.
        end_reason: why, for the log; None while it has not ended, or when the client left of itself.
        channel: what it consumes, if it does.
        in_flight: the messages it holds.
        topic_name: the topic of its channel.
        proximity: how near it is, for its channel.
        identity: what it told in IDENTIFY.
        grant: what it was granted.
        tls: its TLS layer, if it has one.
        compression: ``deflate`` or ``snappy``, empty without compression.
        due_ns: kept by the agenda.
    """

    __slots__ = (
        *(
            "_agenda",
            "_batch",
            "_broker",
            "_first_grant",
            "_identified",
            "_options",
            "_rules",
        ),
        *("access", "channel", "compression", "connect_time_ns", "due_ns", "end_reason"),
        *("finish_count", "grant", "identity", "in_flight", "message_count"),
        *("proximity", "pub_counts", "rdy_count", "remote_address", "requeue_count", "state"),
        *("tls", "topic_name"),
    )

    def __init__(self, broker: Broker, remote_address: str, now_ns: int) -> None:
        options = broker.options
        lacks_tls = options.tls_demanded != "false"
        self._rules = CommandRules(max_req_timeout_ns=options.max_req_timeout_ns, lacks_tls=lacks_tls)
        self._rules.has_heartbeats = broker.default_grant.heartbeat_interval_ns > 0
        buffer = make_frame_buffer(self._rules, options)
        heartbeat = Heartbeat(broker.default_grant.heartbeat_interval_ns, now_ns)
        super().__init__(buffer, heartbeat, broker.settle, now_ns)
        self.remote_address = remote_address
        self.connect_time_ns = now_ns
        self.state = CONNECTED
        self.end_reason: str | None = None
        self.channel: Channel | None = None
        self.topic_name = b""
        self.proximity = GLOBAL
        self.in_flight = InFlight(self._time_out, broker.storage.guids)
        self.due_ns: int | None = None
        host = remote_address.rpartition(":")[0].strip("[]")
        self.identity = IdentifyRequest(client_id=host, hostname=host)
        self.grant: Grant = broker.default_grant
        self.tls: SecureTransform | None = None
        self.compression = ""
        self.rdy_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.pub_counts: dict[bytes, int] = {}
        self._broker = broker
        self._agenda = broker.agenda
        self.access = Authorization(lambda: self._agenda.ask(self)) if options.auth_http_addresses else None
        self._options = options
        self._buffer.flush_every(self.grant.output_buffer_timeout_ns, now_ns)
        self._identified = False
        self._batch: Batch | None = None  # of which a part was put
        self._first_grant = self.grant  # nsqd's message pump goes by the first IDENTIFY, all else by the last
        self._schedule_heartbeat()

    # ---- what comes in: see Turns ---------------------------------------------------------------------------------

    @property
    def _actions(self) -> Mapping[bytes, Callable[[Session, Command], None]]:
        return self._broker.actions

    @property
    def _has_short_turns(self) -> bool:
        return self.channel is not None and self._now_ns < self._agenda.published_ns + TURNS_NS

    def _fail(self, error: BrokerError | ProtocolError) -> None:
        if isinstance(error, BrokerError):
            self._refuse(error)
        elif self._is_shaking_hands:
            self._refuse_upgrade(str(error))
        else:
            self.end(str(error))

    def _end_of_input(self, cut_off: BrokerError | None) -> None:
        if self._is_shaking_hands:
            self._refuse_upgrade("EOF")
        elif cut_off is not None:
            self._refuse(cut_off)
        self.end(self.end_reason)
        self._broker.settle(self._now_ns)

    def _write(self) -> None:
        self._agenda.write(self)

    # ---- what goes out, and time (events go to the broker's agenda) -------------------------------------------------

    has_events: Final = False

    def events(self) -> tuple[()]:
        """Return nothing: what happens in a session is seen in the broker."""
        return ()

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent; call again when it has been."""
        was_full = self.channel is not None and self._buffer.is_full
        data = self._buffer.take()
        self._heartbeat.taken = True
        if was_full:
            self._look_for_more()
            self._broker.settle(now_ns)
        return data

    def handle_deadline(self, now_ns: int) -> int | None:
        """Send a heartbeat, or end a session whose client is not there any more; return when to look again."""
        if self.ended:
            return None
        heartbeat, buffer = self._heartbeat, self._buffer
        if self._is_shaking_hands and heartbeat.handshake_is_over(now_ns):
            self._refuse_upgrade(f"read tcp {self.remote_address}: i/o timeout")
            return None
        if reason := heartbeat.why_gone(now_ns, has_output=buffer.has_output):
            self.end(reason)
            return None
        if heartbeat.beats(now_ns):
            self._send(HEARTBEAT_FRAME)
        if buffer.flush_ns is not None and now_ns >= buffer.flush_ns:
            buffer.flush()
            self._agenda.write(self)
        return min((ns for ns in (heartbeat.next_deadline(now_ns), buffer.flush_ns) if ns), default=None)

    # ---- for the channel ----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many messages it can be given now."""
        if self.state != SUBSCRIBED or self.ended or self._eof_came or self._buffer.is_full:
            return 0
        return self.rdy_count - len(self.in_flight)

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or the end to be carried out."""
        return self.ended or self._buffer.has_output

    @property
    def outbox_full(self) -> bool:
        """True while nothing more is to be read: the client does not take what it was sent, or a command waits."""
        return self._buffer.is_full or self._buffer.waits

    def deliver(self, frames: list[bytes], now_ns: int) -> None:
        """Send messages; with a sample rate, the others are gone from this channel."""
        grant = self._first_grant
        assert self.channel is not None
        if grant.sample_rate:
            frames, dropped = self._broker.sample(frames, grant.sample_rate)
            self.channel.discard(dropped)
            if not frames:
                return
        deadline_ns = now_ns + grant.msg_timeout_ns
        frames = self.in_flight.add(list(map(id_of, frames)), frames, now_ns, deadline_ns)
        self.channel.schedule(self.in_flight, deadline_ns)
        self.message_count += len(frames)
        self._buffer.send_messages(frames, grant.output_buffer_size if self.room > 0 else 0, now_ns)
        self._agenda.write(self)
        if self._buffer.flush_ns is not None:
            self._agenda.schedule(self, self._buffer.flush_ns)

    def end(self, reason: str | None) -> None:
        """Take no more commands, and have the connection closed when the outbox is sent."""
        if not self.ended:
            self.ended = True
            self.end_reason = reason
            if self._batch is not None:
                self._batch.put_rest(self._now_ns)
            self._look_for_more()
            self._agenda.write(self)

    def discard(self) -> None:
        """Forget what waits in either direction: the connection is gone, but an old deadline may still name this."""
        self._buffer = make_frame_buffer(self._rules, self._options)
        self.tls = None

    def _check_access(self, verb: bytes, topic: bytes, channel: bytes = b"") -> None:
        if self.access is not None:
            self.access.check(verb, topic, channel, self._now_ns)

    def _enter(self, state: int) -> None:
        self.state = state
        self._rules.enter(state)

    # ---- one method for each command ------------------------------------------------------------------------------

    def _identify(self, command: Command) -> None:
        if self._buffer.is_holding:
            raise Wait  # an upgrade must not overtake the answers before it
        request = decode_request(command.bodies[0])
        limits = self._broker.identify_limits
        self.identity = request
        self.grant = grant = negotiate(request, limits)
        self._rules.has_heartbeats = grant.heartbeat_interval_ns > 0
        if not self._identified:
            self._identified = True
            self._first_grant = grant
            self._buffer.flush_every(grant.output_buffer_timeout_ns, self._now_ns)
            self._heartbeat.begin(grant.heartbeat_interval_ns, self._now_ns)
        self._heartbeat.allow_silence(grant.heartbeat_interval_ns)
        self._schedule_heartbeat()
        if not request.feature_negotiation:
            self._send(OK_FRAME)
            return
        self._send(encode_response(encode_identify_response(grant, limits)))
        self._upgrade(grant)

    def _upgrade(self, grant: Grant) -> None:
        """Add the layers that were granted, TLS first, so that compression is inside it; each begins with an OK."""
        if grant.tls_v1:
            assert self._broker.make_tls is not None
            self.tls = self._broker.make_tls()
            self._rules.lacks_tls = False
            self.compression = ""
            self._agenda.schedule(self, self._heartbeat.shake_hands(self._now_ns))
            self._add_layer(self.tls, above=0)
        if grant.snappy or grant.deflate:
            self.compression = "snappy" if grant.snappy else "deflate"
            layer = Snappy() if grant.snappy else Deflate(grant.deflate_level)
            self._add_layer(layer, above=0 if self.tls is None else 1)

    def _add_layer(self, layer: Transform, *, above: int) -> None:
        self._buffer.upgrade(layer, above=above)
        self._send(OK_FRAME)

    @property
    def _is_shaking_hands(self) -> bool:
        return self.tls is not None and not self.tls.is_ready

    def _refuse_upgrade(self, why: str) -> None:
        """End a session with whose client TLS could not be agreed on; it is told so outside of it, as nsqd does."""
        self._buffer.strip()
        self._refuse(IdentifyFailed(f"IDENTIFY failed {why}"))

    def _auth(self, command: Command) -> None:
        if self.access is None:
            raise AuthDisabled("AUTH disabled")
        self._send(encode_response(self.access.authenticate(command.bodies[0])))

    def authorize(self, answer: Answer) -> None:
        """Go on with the answer of the auth servers."""
        if self.access is not None:
            self.access.answer(answer)
            self._let_go_on()
            self._agenda.write(self)

    def _subscribe(self, command: Command) -> None:
        topic_name, channel_name = command.params[:2]
        self._check_access(b"SUB", topic_name, channel_name)
        try:
            channel = self._broker.topic(topic_name).channel(channel_name, self._now_ns)
        except OSError as error:
            raise SubscribeFailed(f"SUB failed {error_text(error)}") from error
        consumers_max = self._options.max_channel_consumers
        if consumers_max and len(channel.sessions) >= consumers_max:
            raise SubscribeFailed(
                f"SUB failed consumers for {text(topic_name)}:{text(channel_name)} exceeds limit of {consumers_max}"
            )
        if self._identified:
            self.proximity = proximity_of(self.identity, self._options)
        channel.add(self)
        self.channel = channel
        self.topic_name = topic_name
        self._enter(SUBSCRIBED)
        self._send(OK_FRAME)

    def _start_batch(self, command: Command) -> None:
        """Check and create the topic of an MPUB before its body is read, as nsqd does."""
        self._check_access(b"MPUB", command.params[0])
        try:
            self._broker.topic(command.params[0])
        except OSError as error:
            raise _publish_failure(b"MPUB", error) from error

    def _publish(self, command: Command) -> None:
        verb, topic_name, count = command.verb, command.params[0], len(command.bodies)
        delay_ns = milliseconds_ns(parse_number(command.params[1])) if verb == b"DPUB" else 0
        if self._batch is None:
            self._check_access(verb, topic_name)
        try:
            if count > PART_COUNT_MAX:
                self._put_part(command)
            else:
                self._broker.topic(topic_name).put(command.bodies, self._now_ns, delay_ns=delay_ns)
        except OSError as error:
            raise _publish_failure(verb, error) from error
        self.pub_counts[topic_name] = self.pub_counts.get(topic_name, 0) + count
        if self._broker.group_commit is not None:  # it is answered when it is safe
            self._buffer.hold(self._broker.group_commit.hold(self))
            self._agenda.has_news = True
        self._send(OK_FRAME if verb == b"MPUB" else OK_FRAME * count)

    def _put_part(self, command: Command) -> None:
        batch, self._batch = self._batch or Batch(self._broker, command.params[0], command.bodies), None
        if batch.put_part(self._now_ns):
            self._batch = batch
            raise Unfinished

    def release(self, ticket: int) -> None:
        """Send the answers that have waited for this commit."""
        self._buffer.release(ticket)
        self._agenda.write(self)
        if not self._buffer.is_holding:
            self._let_go_on()

    def _ready(self, command: Command) -> None:
        if self.state == CLOSING:
            return
        rdy_count = parse_word(command.params[0], "RDY could not parse count") if command.params else 1
        if not 0 <= rdy_count <= self._options.max_rdy_count:
            raise InvalidCommand(f"RDY count {rdy_count} out of range 0-{self._options.max_rdy_count}")
        self.rdy_count = rdy_count
        self._look_for_more()

    def _finish(self, command: Command) -> None:
        assert self.channel is not None
        if self.channel.wants_finished:
            self.channel.finish(self.in_flight.find_all(command.params), self._now_ns)
        missing = self.in_flight.remove_all(command.params)
        self.finish_count += len(command.params) - len(missing)
        for message_id in missing:
            self._send(encode_error(FinishFailed(self._why_not("FIN", message_id))))
        self._look_for_more()

    def _requeue(self, command: Command) -> None:
        message_id = command.params[0]
        delay_ns = milliseconds_ns(parse_word(command.params[1], "REQ could not parse timeout"))
        frame = self.in_flight.remove(message_id)
        if frame is None:
            self._send(encode_error(RequeueFailed(self._why_not("REQ", message_id))))
            return
        assert self.channel is not None
        self.requeue_count += 1
        delay_ns = min(max(delay_ns, 0), self._options.max_req_timeout_ns)
        self.channel.requeue(frame, self._now_ns + delay_ns if delay_ns else None)
        self._look_for_more()

    def _touch(self, command: Command) -> None:
        message_id = command.params[0]
        deadline_ns = self.in_flight.touch(
            message_id, self._now_ns, self.grant.msg_timeout_ns, self._options.max_msg_timeout_ns
        )
        if deadline_ns is None:
            self._send(encode_error(TouchFailed(self._why_not("TOUCH", message_id))))
            return
        assert self.channel is not None
        self.channel.schedule(self.in_flight, deadline_ns)

    def _start_close(self, command: Command) -> None:
        self._enter(CLOSING)
        self.rdy_count = 0
        self._look_for_more()
        self._send(CLOSE_WAIT_FRAME)

    # ---- within -----------------------------------------------------------------------------------------------

    def _schedule_heartbeat(self) -> None:
        if (deadline_ns := self._heartbeat.next_deadline(self._now_ns)) is not None:
            self._agenda.schedule(self, deadline_ns)

    def _send(self, frame: bytes) -> None:
        self._buffer.send(frame)
        self._agenda.write(self)

    def _refuse(self, error: BrokerError) -> None:
        self._send(encode_error(error))
        self.end(log_text(error))

    def _time_out(self, frames: list[bytes]) -> None:
        assert self.channel is not None
        self.channel.time_out(self.in_flight, frames)
        self._look_for_more()

    def _look_for_more(self) -> None:
        if self.channel is not None:
            self.channel.update_ready(self)

    def _why_not(self, verb: str, message_id: bytes) -> str:
        assert self.channel is not None
        why = "client does not own message" if self.channel.holds(message_id) else "ID not in flight"
        return f"{verb} {text(message_id)} failed {why}"


def _publish_failure(verb: bytes, error: OSError) -> BrokerError:
    return PUBLISH_FAILED[verb](f"{verb.decode()} failed {error_text(error)}")


ACTIONS: Final[dict[bytes, Callable[[Session, Command], None]]] = {
    b"IDENTIFY": Session._identify,
    b"AUTH": Session._auth,
    b"SUB": Session._subscribe,
    MPUB_HEAD: Session._start_batch,
    **dict.fromkeys(PUBLISH_FAILED, Session._publish),
    b"NOP": lambda session, command: None,  # that it was heard is all
    b"RDY": Session._ready,
    b"FIN": Session._finish,
    b"REQ": Session._requeue,
    b"TOUCH": Session._touch,
    b"CLS": Session._start_close,
}
