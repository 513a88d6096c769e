"""nsqd's end of a connection to one nsqlookupd: identifies this nsqd, and announces topics and channels.

    connect ─▶ IDENTIFY ─answer─▶ REGISTER for all there is ─▶ REGISTER, UNREGISTER as things change; PING every 15 s

The session keeps the announced names and sends differences only. Each command waits for the answer to the one before
(nsqd/lookup_peer.go), so nothing is sent to an nsqlookupd that does not answer; after a second without an answer the
connection ends. A new connection announces everything, since nsqlookupd drops the registrations of a lost nsqd.

``update`` sets the present names, ``_queue`` holds the commands that wait, and ``_next`` sends one of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from nsqkit.errors import ConnectionLost, HeartbeatTimeout, NSQError, ProtocolError
from nsqkit.wire.lookup import (
    MAGIC_V1,
    OK,
    PING,
    AnswerDecoder,
    LookupdInfo,
    Node,
    decode_info,
    encode_identify,
    encode_register,
    encode_unregister,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["LookupPeerSession"]

ANSWER_TIMEOUT_NS: Final = 1_000_000_000
"""The limit for an answer; nsqd's read deadline."""

PING_INTERVAL_NS: Final = 15_000_000_000
"""nsqd's interval; nsqlookupd drops a node after 300 s without a PING."""


class LookupPeerSession:
    """One connection to one nsqlookupd, a machine as ``nsqkit.transport.machine`` describes it.

    An answer may have ``answer_size_max`` bytes (nsqd: ``max_body_size``).

    Attributes:
        info: the nsqlookupd's description of itself; None before its first answer.
        ended: True once the connection is to be closed.
        error: why it has ended.
    """

    def __init__(
        self,
        node: Node,
        registrations: Mapping[bytes, Collection[bytes]],
        now_ns: int,
        *,
        answer_size_max: int,
    ) -> None:
        self.info: LookupdInfo | None = None
        self.ended = False
        self.error: NSQError | None = None
        self._registrations = registrations
        self._announced: dict[bytes, set[bytes]] = {}  # once the queue is empty
        self._queue: deque[bytes] = deque()
        self._outbox = MAGIC_V1 + encode_identify(node)
        self._answer_deadline_ns: int | None = now_ns + ANSWER_TIMEOUT_NS  # None while no answer is due
        self._ping_ns = now_ns + PING_INTERVAL_NS
        self._decoder = AnswerDecoder(answer_size_max=answer_size_max)
        self._refusal = b""

    def update(self, registrations: Mapping[bytes, Collection[bytes]], now_ns: int) -> None:
        """Announce the differences to these topics, with the channels of each."""
        self._registrations = registrations
        if self.info is None or self.ended:
            return
        for topic in [topic for topic in self._announced if topic not in registrations]:
            self._withdraw(topic)
        for topic, channels in registrations.items():
            self._announce(topic, channels)
        self._next(now_ns)

    def _withdraw(self, topic: bytes) -> None:
        # nsqd unregisters the topic first.
        self._queue.append(encode_unregister(topic))
        self._queue += (encode_unregister(topic, channel) for channel in sorted(self._announced.pop(topic)))

    def _announce(self, topic: bytes, channels: Collection[bytes]) -> None:
        known = self._announced.get(topic)
        if known is None:
            known = self._announced[topic] = set()
            self._queue.append(encode_register(topic))
        if known != (wanted := set(channels)):
            self._queue += (encode_unregister(topic, channel) for channel in sorted(known - wanted))
            self._queue += (encode_register(topic, channel) for channel in channels if channel not in known)
            self._announced[topic] = wanted

    def _announce_all(self) -> None:
        """Announce everything; a channel's REGISTER announces its topic, too."""
        for topic, channels in self._registrations.items():
            self._queue += (encode_register(topic, channel) for channel in channels or (b"",))
            self._announced[topic] = set(channels)

    has_input: Final = False

    def process_input(self, now_ns: int) -> None:
        """Do nothing: ``receive_data`` processes all input."""

    def receive_data(self, data: bytes, now_ns: int) -> None:
        if self.ended:
            return
        if self._answer_deadline_ns is not None:
            self._answer_deadline_ns = now_ns + ANSWER_TIMEOUT_NS
        try:
            for answer in self._decoder.feed(data):
                self._take(answer)
                self._next(now_ns)
        except ProtocolError as error:
            self.end(error)

    def _take(self, answer: bytes) -> None:
        # A command that was not sent yet has no answer; the next one would replace it.
        if self._answer_deadline_ns is None or self._outbox:
            raise ProtocolError(f"an answer came to nothing: {answer[:200]!r}")
        self._answer_deadline_ns = None
        if self.info is None:
            self.info = decode_info(answer)
            self._announce_all()
        else:
            # nsqd continues after an error; nsqlookupd closes the connection.
            self._refusal = b"" if answer == OK else answer

    def receive_eof(self, now_ns: int) -> None:
        """End the session: the nsqlookupd has closed the connection."""
        after = f" after it said {self._refusal[:200]!r}" if self._refusal else ""
        self.end(ConnectionLost(f"the nsqlookupd has closed the connection{after}"))

    has_events: Final = False

    def events(self) -> tuple[()]:
        """Return nothing: the owner reads ``info`` and ``error``."""
        return ()

    def data_to_send(self) -> bytes:
        data, self._outbox = self._outbox, b""
        return data

    def next_deadline(self) -> int | None:
        """Return the time of the next PING, or of the end without an answer."""
        if self.ended:
            return None
        if self._answer_deadline_ns is None:
            return self._ping_ns
        return min(self._ping_ns, self._answer_deadline_ns)

    def handle_deadline(self, now_ns: int) -> None:
        """Send a PING, or end the session."""
        if self.ended:
            return
        if self._answer_deadline_ns is not None and now_ns >= self._answer_deadline_ns:
            self.end(HeartbeatTimeout(f"no answer within {ANSWER_TIMEOUT_NS // 10**9} s"))
        elif now_ns >= self._ping_ns:
            self._ping_ns = now_ns + PING_INTERVAL_NS
            self._queue.append(PING)
            self._next(now_ns)

    @property
    def has_output(self) -> bool:
        return self.ended or bool(self._outbox)

    @property
    def outbox_full(self) -> bool:
        """False: there is one command at a time."""
        return False

    def end(self, error: NSQError) -> None:
        """Have the connection closed; the first error is kept."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._outbox = b""

    def _next(self, now_ns: int) -> None:
        """Send the next command, unless an answer is outstanding."""
        if self._queue and self._answer_deadline_ns is None:
            self._outbox = self._queue.popleft()
            self._answer_deadline_ns = now_ns + ANSWER_TIMEOUT_NS
