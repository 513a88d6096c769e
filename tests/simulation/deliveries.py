"""The deliveries of one broker, as its clients see them, also where there is no oracle.

A FIN is confirmed by the answer to any later command of the same connection, since a broker processes the commands of a
connection in order. After that the message must not be delivered (invariant 9). One delivery has one owner, so no
attempt at a message is delivered twice (invariant 5). And each consumer that is always ready gets its turn
(invariant 27).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from nsqkit.errors import BrokerError, FinishFailed, RequeueFailed, TouchFailed
from nsqkit.wire.frames import HEARTBEAT, MessageFrame, Response
from tests.simulation.broken import Broken, conclude

if TYPE_CHECKING:
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.topics.channel import Channel
    from nsqkit.wire.commands import Command

TURNS_MAX: Final = 4
"""Turns of another consumer that one that is ready waits through at most, for each consumer of the channel."""

HIGH_RATE: Final = 90
SAMPLE_MIN: Final = (20, 4)
"""Messages of which a sample is none or all, or at a high rate less than a half, with a probability of 1e-6 at most."""

ANSWERED: Final = {b"IDENTIFY": 1, b"AUTH": 1, b"SUB": 1, b"CLS": 1, b"MPUB": 1, b"DPUB": 1}

Place: TypeAlias = tuple[bytes, bytes]


@attrs.define(eq=False)
class _Client:
    """One connection: its channel, and its commands without an answer: None, or the id of a FIN."""

    place: Place | None = None
    unanswered: deque[bytes | None] = attrs.field(factory=deque)
    rdy_count: int = 0
    is_closing: bool = False
    held: dict[bytes, None] = attrs.field(factory=dict)
    missed_count: int = 0  # turns of others since it is ready
    sharing_max: int = 0  # the most consumers of the channel since then


class Deliveries:
    """The deliveries of one broker.

    Args:
        is_fair: the broker delivers at once and prefers no consumer, as it does by topology, so turns can be counted.

    Attributes:
        bodies: of all messages that were ever delivered.
        ids: the body of each id that was delivered.
        may_repeat: a crash may have left a message twice, with one id: in a topic and in its channel, for example.
    """

    def __init__(self, *, is_fair: bool) -> None:
        self.bodies: set[bytes] = set()
        self.may_repeat = False
        self._is_fair = is_fair
        self._deferred: set[bytes] = set()  # the bodies of deferred publishes
        self._clients: dict[Session, _Client] = {}
        self._by_place: dict[Place, dict[Session, _Client]] = {}
        self._attempts: dict[Place, dict[bytes, set[int]]] = {}  # of each id
        self._finished: dict[Place, dict[bytes, bytes]] = {}  # with a confirmed FIN: bodies by id
        self.ids: dict[bytes, bytes] = {}
        self._sampled: Counter[Channel] = Counter()  # messages that consumers with a sample rate got
        self._rates: dict[Channel, set[int]] = {}
        self._sent: Counter[Session] = Counter()
        self._unsent: dict[Session, tuple[int, int]] = {}  # since when, and how many messages were sent until then

    def command(self, session: Session, command: Command) -> None:
        """Record a command that the broker receives."""
        client = self._clients.get(session) or self._clients.setdefault(session, _Client())
        verb = command.verb
        if verb == b"FIN":
            for message_id in command.params:
                client.held.pop(message_id, None)
            client.unanswered += command.params
        elif verb == b"RDY" and not client.is_closing:
            client.rdy_count = int(command.params[0]) if command.params else 1
        elif verb == b"REQ":
            client.held.pop(command.params[0], None)
        elif verb == b"PUB":
            client.unanswered += [None] * len(command.bodies)
        elif verb in ANSWERED:
            client.unanswered.append(None)
            if verb == b"DPUB":
                self._deferred.update(command.bodies)
            elif verb == b"SUB":
                place = client.place = (command.params[0], command.params[1])
                self._by_place.setdefault(place, {})[session] = client
            elif verb == b"CLS":
                client.rdy_count = 0
                client.is_closing = True

    def frames(self, session: Session, frames: Sequence[Response | BrokerError | MessageFrame]) -> None:
        """Check the frames that the broker sends to a client."""
        client = self._clients.get(session) or self._clients.setdefault(session, _Client())
        has_messages = False
        for frame in frames:
            if isinstance(frame, MessageFrame):
                has_messages = True
                self._delivered(client, frame)
            elif isinstance(frame, FinishFailed):
                self._confirm(client, frame.description.split()[1].encode())
            elif not isinstance(frame, (RequeueFailed, TouchFailed)) and getattr(frame, "payload", b"") != HEARTBEAT:
                self._confirm(client, None)
        if has_messages and self._is_fair:
            self._count_turn(session, client)
        self._count_sent(session, frames)

    def _confirm(self, client: _Client, answered: bytes | None) -> None:
        """Take all FINs before the command that was answered for confirmed."""
        waiting = client.unanswered
        if answered not in waiting:
            return
        while waiting and (message_id := waiting.popleft()) != answered:
            if message_id is not None and client.place is not None:
                finished = self._finished.setdefault(client.place, {})
                finished[message_id] = self.ids.get(message_id, b"")

    def _delivered(self, client: _Client, frame: MessageFrame) -> None:
        place, message_id = client.place, frame.id
        conclude(7, place is not None, f"{frame.body!r} was delivered without a subscription")
        assert place is not None
        self.bodies.add(frame.body)
        client.held[message_id] = None
        self.ids[message_id] = frame.body
        if self.may_repeat:
            return
        attempts = self._attempts.setdefault(place, {}).setdefault(message_id, set())
        # An earlier attempt may have waited in nsqd's output buffer while a later one was finished.
        if message_id in self._finished.get(place, ()) and frame.attempts > max(attempts, default=0):
            raise Broken(9, f"{frame.body!r} was delivered, attempt {frame.attempts}")
        if frame.attempts in attempts:
            raise Broken(5, f"attempt {frame.attempts} at {frame.body!r} was delivered twice")
        attempts.add(frame.attempts)

    def _count_turn(self, session: Session, client: _Client) -> None:
        assert client.place is not None
        sharing = self._by_place[client.place]
        client.missed_count = 0
        if len(sharing) > 1:
            for other in sharing.values():
                if other is not client:
                    is_ready = other.rdy_count > len(other.held)
                    other.missed_count = other.missed_count + 1 if is_ready else 0
                    other.sharing_max = max(other.sharing_max * is_ready, len(sharing))
                    if other.missed_count > TURNS_MAX * other.sharing_max:
                        raise Broken(27, f"{session.remote_address} got {other.missed_count} turns before another")

    def _count_sent(self, session: Session, frames: Sequence[object]) -> None:
        subscription, channel = session.subscription, session.channel
        if subscription is not None and channel is not None:
            self._rates.setdefault(channel, set()).add(subscription.grant.sample_rate)
            count = sum(isinstance(frame, MessageFrame) for frame in frames)
            self._sampled[channel] += count
            self._sent[session] += count

    def check_unsent(self, sessions: Iterable[Session], now_ns: int) -> None:
        """Check that no message has waited in an output buffer for longer than its client allows."""
        for session in sessions:
            subscription, sent_count = session.subscription, self._sent[session]
            if subscription is None or subscription.message_count == sent_count or session.ended:
                self._unsent.pop(session, None)
                continue
            since_ns, earlier_count = self._unsent.setdefault(session, (now_ns, sent_count))
            if earlier_count != sent_count:
                self._unsent[session] = now_ns, sent_count
            elif (most_ns := subscription.grant.output_buffer_timeout_ns) and now_ns - since_ns > most_ns:
                raise Broken(27, f"{session.remote_address} was sent nothing for {now_ns - since_ns} ns")

    def check_samples(self) -> None:
        """Check that consumers with a sample rate got some such part of the messages."""
        for rate in {rate for rates in self._rates.values() for rate in rates if rate}:
            channels = [channel for channel, rates in self._rates.items() if rates == {rate}]
            taken_count = sum(sum(channel.delivery_counts) for channel in channels)
            sent_count = sum(self._sampled[channel] for channel in channels)
            is_high = rate > HIGH_RATE  # nsqd sends one more in a hundred, so all of them
            if taken_count >= SAMPLE_MIN[is_high]:
                is_right = 2 * sent_count >= taken_count if is_high else 0 < sent_count < taken_count
                conclude(27, is_right, f"of {taken_count} messages {sent_count} are sent at a rate of {rate}")

    def ended(self, session: Session) -> None:
        """Record that a session takes no more messages, though its connection is not closed yet."""
        if (client := self._clients.get(session)) is not None:
            client.rdy_count = 0
            client.is_closing = True

    def closed(self, session: Session) -> None:
        """Record the end of a connection."""
        client = self._clients.pop(session, None)
        self._count_lost(session)
        self._sent.pop(session, None)
        self._unsent.pop(session, None)
        if client is not None and client.place is not None:
            self._by_place[client.place].pop(session, None)

    def _count_lost(self, session: Session) -> None:
        """Count the messages that a session did not send from its output buffer."""
        subscription, channel = session.subscription, session.channel
        if subscription is not None and channel is not None:
            self._sampled[channel] += subscription.message_count - self._sent[session]

    def end_life(self, *, is_clean: bool, is_durable: bool) -> None:
        """Record the end of a life; after a clean stop, finished messages stay finished, and attempts go on.

        With fsync, a deferred message that was finished may come back while others wait before it, and one that was
        delivered stays where it is, with its attempts of before.
        """
        for session in self._clients:
            self._count_lost(session)
        for by_session in (self._clients, self._by_place, self._sent, self._unsent):
            by_session.clear()
        if not is_clean:
            self._finished.clear()
            self._attempts.clear()
        elif is_durable:
            for finished in self._finished.values():
                for message_id in [key for key, body in finished.items() if body in self._deferred]:
                    del finished[message_id]
            for attempts in self._attempts.values():
                for message_id in [key for key in attempts if self.ids[key] in self._deferred]:
                    del attempts[message_id]
