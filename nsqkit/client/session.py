"""The client's side of a connection, without the connection.

              greeting                  handshake() ─▶ OK …               end()
        GREETING ─────▶ (a subclass may say more) ─▶ OPEN ─────────────▶ ended

The rule it guards: what every client has to do is done here, before anybody else sees a frame: the greeting, the
layers that it leads to, a NOP for each heartbeat, the silence after which a broker counts as dead, and the difference
between an error that ends the connection and one that does not.

How to read it: a producer's and a consumer's session build on this one. They say what they send after the
handshake (``_on_handshake_done``), and get whole lists of frames (``_on_frames``), never single ones. What the
handshake says is in ``handshake``; what layers are, in ``nsqkit.wire.layers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from nsqkit.client.failure import BEGINNING_LENGTH, explain
from nsqkit.client.handshake import Handshake, Say, Upgrade, handshake
from nsqkit.errors import (
    BrokerError,
    ConnectionLost,
    HeartbeatTimeout,
    NegotiationFailed,
    NSQError,
    ProtocolError,
)
from nsqkit.wire.commands import NOP
from nsqkit.wire.compression import PIECE_SIZE_MAX
from nsqkit.wire.frames import HEARTBEAT, FrameDecoder, Response
from nsqkit.wire.layers import Layers
from nsqkit.wire.messages import RECORD_HEADER_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nsqkit.wire.auth import AuthAnswer
    from nsqkit.wire.frames import Row
    from nsqkit.wire.identify import IdentifyAnswer, IdentifyRequest
    from nsqkit.wire.transform import SecureTransform

M = TypeVar("M")

TURN_SIZE: Final = PIECE_SIZE_MAX
"""Plain bytes after which the rest of what came waits for the next turn; as many as one read brings."""


class ClientSession(Generic[M]):
    """What both kinds of client do on a connection.

    Args:
        identity: what is told and asked in IDENTIFY.
        make_message: makes what a message frame becomes.
        make_messages: the same for many at once, from rows, as ``FrameDecoder`` says.
        read_timeout_ns: silence after which the broker counts as dead, unless it was asked for no heartbeats.
        max_msg_size: bytes that a received message may have; up to 64 KiB are always taken.
        now_ns: the time at which the connection was made.

    Attributes:
        answer: what the broker answered to IDENTIFY; None before the end of the greeting.
        auth: what it answered to AUTH; None as long as it has not, and where it requires none.
        is_open: True between the greeting and the end.
        is_authenticating: True while the broker asks an auth server about us.
        ended: True once the connection is to be closed, after what ``data_to_send`` still returns.
        error: why it has ended, None if by our own will.
    """

    def __init__(
        self,
        identity: IdentifyRequest,
        make_message: Callable[[int, int, bytes, bytes], M],
        *,
        make_messages: Callable[[Iterable[Row]], list[M]] | None = None,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
    ) -> None:
        self.answer: IdentifyAnswer | None = None
        self.auth: AuthAnswer | None = None
        self.is_open = False
        self.is_authenticating = False
        self.ended = False
        self.error: NSQError | None = None
        # A response may be larger than a small max_msg_size: the answer to IDENTIFY is some 400 bytes.
        self._decoder = FrameDecoder(
            make_message,
            make_messages=make_messages,
            frame_size_max=max(max_msg_size, 1 << 16) + 4 + RECORD_HEADER_LENGTH,
        )
        self._read_timeout_ns = read_timeout_ns
        self._has_heartbeats = identity.heartbeat_interval != -1
        self._last_receive_ns = now_ns
        self._events: list[object] = []
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._layers = Layers()
        self._pieces: list[Iterator[bytes]] = []  # what layers have yet to decode, the last first
        self._unread: list[bytes] = []  # what came meanwhile
        self._eof_came = False
        self._is_plain = False  # True once nothing but frames is to be expected, without a layer around them
        self._identity = identity
        self._greeting: Handshake | None = None
        self._is_identified = False
        self._is_upgrading = False
        self._beginning = b""  # of what the broker has said, until it has answered IDENTIFY
        self.secure()

    def secure(self, *, make_tls: Callable[[], SecureTransform] | None = None, auth_secret: str = "") -> None:
        """Say what the greeting may need; to be called before anything is received.

        Args:
            make_tls: makes the layer of TLS; needed where IDENTIFY asks for TLS.
            auth_secret: what AUTH says if the broker requires it.
        """
        self._greeting = handshake(self._identity, make_tls=make_tls, auth_secret=auth_secret)
        self._outbox.clear()
        self._do(next(self._greeting))

    # ---- the five verbs --------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Work through what one read has returned, or begin to; see ``process_input``."""
        self._last_receive_ns = now_ns
        if self.ended:
            return
        try:
            if self._is_plain:
                if frames := self._decoder.feed(data):
                    self._on_frames(frames, now_ns)
            else:
                self._receive_in_layers(data, now_ns)
        except NSQError as error:
            self.end(error)

    @property
    def has_input(self) -> bool:
        """True while a part of what was received is left for ``process_input``."""
        return bool(self._pieces) and not self.ended

    def process_input(self, now_ns: int) -> None:
        """Work on what is left, as far as one turn goes.

        A few bytes can be decompressed to a thousand times as many. So a turn ends when ``TURN_SIZE`` plain bytes have
        been worked on, which is what one read brings where there are no layers.
        """
        if self.ended or not self._pieces:
            return
        try:
            self._take_turn(now_ns)
        except NSQError as error:
            self.end(error)

    def receive_eof(self, now_ns: int) -> None:
        """Take note that the broker has closed the connection."""
        if self.has_input:  # it has said something before
            self._eof_came = True
            return
        text = "the broker closed the connection"
        if not self._is_identified:
            text += " without an answer to IDENTIFY; perhaps it is no nsqd, or wants TLS from the first byte"
        self.end(ConnectionLost(text))

    @property
    def has_events(self) -> bool:
        """True if ``events`` returns anything."""
        return bool(self._events)

    def events(self) -> list[object]:
        """Return everything that happened since the last call, in order, and forget it."""
        events, self._events = self._events, []
        return events

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent."""
        if not self._outbox:
            return self._layers.encode(b"") if self._layers else b""
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_size = 0
        return self._layers.encode(data) if self._layers else data

    def next_deadline(self) -> int | None:
        """Return when the broker counts as dead if it stays silent."""
        if self.ended or not self._has_heartbeats:
            return None
        return self._last_receive_ns + self._read_timeout_ns

    def handle_deadline(self, now_ns: int) -> None:
        """End the session if the broker has been silent for too long."""
        deadline_ns = self.next_deadline()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.end(HeartbeatTimeout(f"the broker was silent for {self._read_timeout_ns / 1e9:g} seconds"))

    # ---- for those who build on it ---------------------------------------------------------------------------

    @property
    def outbox_full(self) -> bool:
        """False: a client never stops reading.

        What it reads makes it say next to nothing, and two ends that both wait to be read would wait for ever.
        """
        return False

    @property
    def has_output(self) -> bool:
        """True while there is something to send, or the end to be carried out."""
        return self.ended or bool(self._outbox) or (bool(self._layers) and self._layers.has_output)

    def send(self, data: bytes) -> None:
        """Add to what is to be sent."""
        self._outbox.append(data)
        self._outbox_size += len(data)

    def end(self, error: NSQError | None) -> None:
        """Take nothing more, and have the connection closed when the outbox is sent; the first reason stays."""
        if not self.ended:
            self.ended = True
            self.is_open = False
            self.error = error
            self._on_end()

    def _on_handshake_done(self, now_ns: int) -> None:
        """Say what follows the greeting."""
        self.is_open = True

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        """Take the frames of one buffer."""
        raise NotImplementedError

    def _on_end(self) -> None:
        """Take note that the session has ended."""

    def _answer_heartbeat(self, frame: Response) -> bool:
        """Answer ``frame`` if it is a heartbeat, and tell whether it was."""
        if frame.payload != HEARTBEAT:
            return False
        # One is enough for all heartbeats that have come since the last write.
        if not self._outbox or self._outbox[-1] is not NOP:
            self._outbox.append(NOP)
        return True

    # ---- the greeting, and the layers --------------------------------------------------------------------------

    def _receive_in_layers(self, data: bytes, now_ns: int) -> None:
        """Work through bytes that are not all frames yet, or not at once."""
        if not self._is_identified:
            self._beginning = (self._beginning + data)[:BEGINNING_LENGTH]
        self._unread.append(data)
        if not self._pieces:
            self._take_turn(now_ns)

    def _take_turn(self, now_ns: int) -> None:
        try:
            self._work(now_ns)
        except ProtocolError as error:
            if self._is_upgrading:
                raise NegotiationFailed(str(error)) from error
            if not self._is_identified:
                raise explain(self._beginning, error) from error
            raise
        if not self._pieces:
            self._is_plain = self._greeting is None and not self._layers
            if self._eof_came or self._layers.at_end:
                self.receive_eof(now_ns)

    def _work(self, now_ns: int) -> None:
        """Take what has come, piece by piece, until it is all or enough for one turn."""
        size = 0
        while size < TURN_SIZE and not self.ended:
            if not self._pieces:
                if not self._unread:
                    return
                self._pieces.append(self._layers.decode(self._unread.pop(0)))
            piece = next(self._pieces[-1], None)
            if piece is None:
                self._pieces.pop()
                continue
            size += len(piece)
            rest = piece if self._greeting is None else self._greet(piece, now_ns)
            if rest and not self.ended and (frames := self._decoder.feed(rest)):
                self._on_frames(frames, now_ns)

    def _greet(self, data: bytes, now_ns: int) -> bytes:
        """Go on with the greeting; return what has come after it."""
        while data and self._greeting is not None and not self.ended:
            frame, data = self._decoder.feed_one(data)
            depth = len(self._layers)
            if frame is not None:
                self._take(self._greeting, frame, now_ns)
            if len(self._layers) > depth:
                self._pieces.append(self._layers.decode(data, depth))
                return b""
        return data

    def _take(self, greeting: Handshake, frame: Response | BrokerError | M, now_ns: int) -> None:
        """Take a frame of the greeting."""
        if isinstance(frame, BrokerError):
            raise frame
        if not isinstance(frame, Response):
            raise ProtocolError(f"the broker said {frame!r} during the greeting")
        if self._is_identified and self._answer_heartbeat(frame):
            return
        try:
            self._do(greeting.send(frame.payload))
        except StopIteration as stop:
            self._greeting = None
            self._is_upgrading = self.is_authenticating = False
            self.answer, self.auth = stop.value.answer, stop.value.auth
            self._on_handshake_done(now_ns)
        self._is_identified = True

    def _do(self, step: Say | Upgrade) -> None:
        if isinstance(step, Say):
            self._outbox.append(step.data)
            self.is_authenticating = step.asks_elsewhere
            self._is_upgrading = False
        else:
            self._layers.add(step.layer, above=len(self._layers), unsent=b"".join(self._outbox))
            self._outbox.clear()
            self._is_upgrading = True
