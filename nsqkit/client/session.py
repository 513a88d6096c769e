"""The client's side of a connection, as a machine without I/O (see ``nsqkit.transport.machine``).

It does what producers and consumers have in common: the handshake (``nsqkit.client.handshake``), the layers that the
handshake adds (``nsqkit.wire.layers``), a NOP for each heartbeat, and the end of a connection on which the broker has
been silent for too long. ``TRANSITIONS`` has the states of both kinds of client.

``nsqkit.producer.session`` and ``nsqkit.consumer.session`` are subclasses. They override ``_on_handshake_done``,
``_on_frames``, which gets all frames of a buffer in one call, and ``_on_end``.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from nsqkit.client.failure import BEGINNING_LENGTH, explain
from nsqkit.client.handshake import Handshake, Send, Upgrade, handshake
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
"""Plain bytes after which the rest of a buffer waits for ``process_input``; as many as one read returns."""


class State(Enum):
    """The states of a client's session."""

    CONNECTED = auto()
    IDENTIFYING = auto()
    UPGRADING = auto()
    AUTHENTICATING = auto()
    SUBSCRIBING = auto()
    OPEN = auto()
    CLOSING = auto()
    DISMISSED = auto()
    ENDED = auto()


TRANSITIONS: Final[dict[State, dict[str, State]]] = {
    State.CONNECTED: {"IDENTIFY": State.IDENTIFYING, "end": State.ENDED},
    State.IDENTIFYING: {
        "upgrade": State.UPGRADING,
        "AUTH": State.AUTHENTICATING,
        "SUB": State.SUBSCRIBING,
        "open": State.OPEN,
        "end": State.ENDED,
    },
    State.UPGRADING: {
        "upgrade": State.UPGRADING,
        "AUTH": State.AUTHENTICATING,
        "SUB": State.SUBSCRIBING,
        "open": State.OPEN,
        "end": State.ENDED,
    },
    State.AUTHENTICATING: {"SUB": State.SUBSCRIBING, "open": State.OPEN, "end": State.ENDED},
    State.SUBSCRIBING: {"open": State.OPEN, "end": State.ENDED},
    State.OPEN: {"CLS": State.CLOSING, "end": State.ENDED},
    State.CLOSING: {"CLOSE_WAIT": State.DISMISSED, "end": State.ENDED},
    State.DISMISSED: {"end": State.ENDED},
    State.ENDED: {},
}
"""The next state, by state and by command sent or event.

Only consumers send SUB and CLS, and receive CLOSE_WAIT; they end after it once all messages are answered.
"""

_CLOSING_STATES: Final = {State.CLOSING, State.DISMISSED}
_OPEN_STATES: Final = {State.OPEN, *_CLOSING_STATES}


class ClientSession(Generic[M]):
    """One connection of a client.

    Args:
        identity: the content of IDENTIFY.
        read_timeout_ns: the session ends after this time without data, unless ``identity`` turns heartbeats off.
        max_msg_size: the limit of a message's size in bytes; messages up to 64 KiB are always accepted.
        now_ns: the time at which the connection was made.

    Attributes:
        state: the state; it changes only by ``TRANSITIONS``.
        is_open: True between the handshake, with a consumer's SUB, and the end.
        is_closing: True between a consumer's CLS and the end.
        ended: True once the connection is to be closed, after the bytes that ``data_to_send`` still returns are sent.
        has_input: True while a part of the received bytes is left for ``process_input``.
        has_events: True if ``events`` returns anything.
        has_output: True while there are bytes to send, or the connection is to be closed.
        outbox_full: False: a client never stops reading. It sends little in answer to what it reads, and two ends that
            both stopped reading would wait for ever.
        answer: the answer to IDENTIFY; None until the handshake is done.
        auth: the answer to AUTH; None until the handshake is done, and if the broker does not require AUTH.
        error: the reason of the end; None if this end closed the connection.
    """

    outbox_full: Final = False

    def __init__(
        self,
        identity: IdentifyRequest,
        *,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
    ) -> None:
        # Drivers read these for each buffer, so they are plain attributes.
        self.state = State.CONNECTED
        self.is_open = False
        self.is_closing = False
        self.ended = False
        self.has_input = False
        self.has_events = False
        self.has_output = False
        self.answer: IdentifyAnswer | None = None
        self.auth: AuthAnswer | None = None
        self.error: NSQError | None = None
        # A response may be larger than a small max_msg_size: the answer to IDENTIFY is some 400 bytes.
        self._decoder = FrameDecoder(frame_size_max=max(max_msg_size, 1 << 16) + 4 + RECORD_HEADER_LENGTH)
        self._read_timeout_ns = read_timeout_ns
        self._has_heartbeats = identity.heartbeat_interval != -1
        self._last_receive_ns = now_ns
        self._events: list[object] = []
        self._outbox: list[bytes] = []
        self._layers = Layers()
        self._pieces: list[Iterator[bytes]] = []  # not decoded yet, the innermost layer last
        self._unread: list[bytes] = []  # received while _pieces was not empty
        self._eof_received = False
        self._has_only_frames = False  # True after a handshake without layers
        self._identity = identity
        self._handshake: Handshake | None = handshake(identity)
        self._beginning = b""  # of the data received, up to the answer to IDENTIFY
        self._take_step(next(self._handshake))

    def secure(self, *, make_tls: Callable[[], SecureTransform] | None = None, auth_secret: str = "") -> None:
        """Set what the handshake may need. Call it before the first ``receive_data``.

        Args:
            make_tls: makes the TLS layer; needed if IDENTIFY requests TLS.
            auth_secret: the content of AUTH, sent if the broker requires it.
        """
        self._handshake = handshake(self._identity, make_tls=make_tls, auth_secret=auth_secret)
        next(self._handshake)  # IDENTIFY, which is in the outbox already

    @property
    def is_authenticating(self) -> bool:
        """True while an answer to AUTH is due, for which the broker sends a request to an auth server."""
        return self.state is State.AUTHENTICATING

    # ---- Machine and Timed -----------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Process what one read returned, or a part of it; see ``process_input``."""
        self._last_receive_ns = now_ns
        if self.ended:
            return
        try:
            if self._has_only_frames:
                if frames := self._decoder.feed(data, self._make_messages):
                    self._on_frames(frames, now_ns)
                return
            if self.state is State.IDENTIFYING:
                self._beginning = (self._beginning + data)[:BEGINNING_LENGTH]
            self._unread.append(data)
            if not self._pieces:
                self._process(now_ns)
        except NSQError as error:
            self.end(error)

    def process_input(self, now_ns: int) -> None:
        """Process at most ``TURN_SIZE`` plain bytes of the input that is left.

        A few compressed bytes can become a thousand times as many. The limit is what one read returns without
        compression.
        """
        if self.has_input:
            try:
                self._process(now_ns)
            except NSQError as error:
                self.end(error)

    def receive_eof(self, now_ns: int) -> None:
        """Record that the broker has closed the connection; the input that is left is processed first."""
        if self.has_input:
            self._eof_received = True
            return
        text = "the broker closed the connection"
        if self.state is State.IDENTIFYING:
            text += " without an answer to IDENTIFY; perhaps it is no nsqd, or wants TLS from the first byte"
        self.end(ConnectionLost(text))

    def events(self) -> list[object]:
        """Return everything that happened since the last call, in order, and forget it."""
        events, self._events = self._events, []
        self.has_events = False
        return events

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and forget them."""
        data = b"".join(self._outbox)
        self._outbox.clear()
        self.has_output = self.ended
        if self._layers:
            data = self._layers.encode(data)
            self.has_output = self.ended or self._layers.has_output
        return data

    def next_deadline(self) -> int | None:
        """Return when the session ends if nothing is received."""
        if self.ended or not self._has_heartbeats:
            return None
        return self._last_receive_ns + self._read_timeout_ns

    def handle_deadline(self, now_ns: int) -> None:
        """End the session if the broker has been silent for too long."""
        deadline_ns = self.next_deadline()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self.end(HeartbeatTimeout(f"the broker was silent for {self._read_timeout_ns / 1e9:g} seconds"))

    # ---- for subclasses and owners ---------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Append to the bytes to send."""
        self._outbox.append(data)
        self.has_output = True

    def end(self, error: NSQError | None) -> None:
        """Process no more input, and have the connection closed once the outbox is sent; the first call counts."""
        if not self.ended:
            self._move("end")
            self.has_input = False
            self.has_output = True
            self.error = error
            self._on_end()

    def _move(self, event: str) -> None:
        state = self.state = TRANSITIONS[self.state][event]
        self.is_open = state in _OPEN_STATES
        self.is_closing = state in _CLOSING_STATES
        self.ended = state is State.ENDED

    def _on_handshake_done(self, now_ns: int) -> None:
        """Open the session; a consumer sends SUB first."""
        self._move("open")

    def _make_messages(self, rows: Iterable[Row]) -> list[M]:
        """Return the values for messages, in order."""
        raise NotImplementedError

    def _on_frames(self, frames: list[Any], now_ns: int) -> None:
        """Process the frames of one buffer."""
        raise NotImplementedError

    def _on_end(self) -> None:
        """Clean up; ``error`` is set."""

    def _answer_heartbeat(self, frame: Response) -> bool:
        """Answer ``frame`` if it is a heartbeat, and return whether it is one."""
        if frame.payload != HEARTBEAT:
            return False
        # One NOP is enough for all heartbeats since the last write.
        if not self._outbox or self._outbox[-1] is not NOP:
            self.send(NOP)
        return True

    # ---- the handshake and the layers --------------------------------------------------------------------------

    def _process(self, now_ns: int) -> None:
        try:
            self._process_pieces(now_ns)
        except ProtocolError as error:
            if self.state is State.UPGRADING:
                raise NegotiationFailed(str(error)) from error
            if self.state is State.IDENTIFYING:
                raise explain(self._beginning, error) from error
            raise
        self.has_input = bool(self._pieces) and not self.ended
        if self._layers.has_output:
            self.has_output = True
        if not self._pieces:
            self._has_only_frames = self._handshake is None and not self._layers
            if self._eof_received or self._layers.at_end:
                self.receive_eof(now_ns)

    def _process_pieces(self, now_ns: int) -> None:
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
            rest = piece if self._handshake is None else self._shake_hands(piece, now_ns)
            if rest and not self.ended and (frames := self._decoder.feed(rest, self._make_messages)):
                self._on_frames(frames, now_ns)

    def _shake_hands(self, data: bytes, now_ns: int) -> bytes:
        """Continue the handshake; return the data that follow it."""
        while data and self._handshake is not None and not self.ended:
            frame, data = self._decoder.feed_one(data, self._make_messages)
            depth = len(self._layers)
            if frame is not None:
                self._answer_step(self._handshake, frame, now_ns)
            if len(self._layers) > depth:
                self._pieces.append(self._layers.decode(data, depth))
                return b""
        return data

    def _answer_step(self, steps: Handshake, frame: Response | BrokerError | M, now_ns: int) -> None:
        if isinstance(frame, BrokerError):
            raise frame
        if not isinstance(frame, Response):
            raise ProtocolError(f"the broker sent {frame!r} during the handshake")
        if self.state is not State.IDENTIFYING and self._answer_heartbeat(frame):
            return
        try:
            self._take_step(steps.send(frame.payload))
        except StopIteration as stop:
            self._handshake = None
            self.answer, self.auth = stop.value.answer, stop.value.auth
            self._on_handshake_done(now_ns)

    def _take_step(self, step: Send | Upgrade) -> None:
        self._move(step.event)
        if isinstance(step, Send):
            self.send(step.data)
        else:
            self._layers.add(step.layer, above=len(self._layers), unsent=b"".join(self._outbox))
            self._outbox.clear()
            self.has_output = True
