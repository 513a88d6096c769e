"""The client's side of a connection, without the connection.

                 IDENTIFY ─▶ answer           greet() ─▶ OK …            end()
        GREETING ──────────────────▶ (a subclass may say more) ─▶ OPEN ─────────▶ ended

The rule it guards: what every client has to do is done here, before anybody else sees a frame: the greeting, a NOP
for each heartbeat, the silence after which a broker counts as dead, and the difference between an error that ends
the connection and one that does not.

How to read it: a producer's and a consumer's session build on this one. They say what they send after the
greeting (``_on_greeted``), and get whole lists of frames (``_on_frames``), never single ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nsqkit.errors import BrokerError, ConnectionLost, HeartbeatTimeout, NSQError, ProtocolError
from nsqkit.wire.commands import MAGIC_V2, NOP, encode_identify
from nsqkit.wire.frames import HEARTBEAT, FrameDecoder, Response
from nsqkit.wire.identify import IdentifyAnswer, IdentifyRequest, decode_response, encode_request
from nsqkit.wire.messages import RECORD_HEADER_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M")


class ClientSession(Generic[M]):
    """What both kinds of client do on a connection.

    Args:
        identity: what is told and asked in IDENTIFY.
        make_message: makes what a message frame becomes.
        read_timeout_ns: silence after which the broker counts as dead.
        max_msg_size: bytes that a received message may have.
        now_ns: the time at which the connection was made.

    Attributes:
        answer: what the broker answered to IDENTIFY; None before.
        is_open: True between the greeting and the end.
        ended: True once the connection is to be closed, after what ``data_to_send`` still returns.
        error: why it has ended, None if by our own will.
    """

    def __init__(
        self,
        identity: IdentifyRequest,
        make_message: Callable[[int, int, bytes, bytes], M],
        *,
        read_timeout_ns: int,
        max_msg_size: int,
        now_ns: int,
    ) -> None:
        self.answer: IdentifyAnswer | None = None
        self.is_open = False
        self.ended = False
        self.error: NSQError | None = None
        # A response may be larger than a small max_msg_size: the answer to IDENTIFY is some 400 bytes.
        self._decoder = FrameDecoder(
            make_message, frame_size_max=max(max_msg_size, 1 << 16) + 4 + RECORD_HEADER_LENGTH
        )
        self._read_timeout_ns = read_timeout_ns
        self._last_receive_ns = now_ns
        self._outbox: list[bytes] = [MAGIC_V2, encode_identify(encode_request(identity))]
        self._outbox_size = 0

    # ---- the five verbs --------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Work through what one read has returned."""
        self._last_receive_ns = now_ns
        if self.ended:
            return
        try:
            frames = self._decoder.feed(data)
            if self.answer is None and frames:
                self._greeted(frames.pop(0), now_ns)
            if frames:
                self._on_frames(frames, now_ns)
        except NSQError as error:
            self.end(error)

    def receive_eof(self, now_ns: int) -> None:
        """Take note that the broker has closed the connection."""
        self.end(ConnectionLost("the broker closed the connection"))

    def data_to_send(self, now_ns: int) -> bytes:
        """Return, and forget, what is to be sent."""
        if not self._outbox:
            return b""
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._outbox_size = 0
        return data

    def next_deadline(self) -> int | None:
        """Return when the broker counts as dead if it stays silent."""
        return None if self.ended else self._last_receive_ns + self._read_timeout_ns

    def handle_deadline(self, now_ns: int) -> None:
        """End the session if the broker has been silent for too long."""
        if not self.ended and now_ns >= self._last_receive_ns + self._read_timeout_ns:
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
        return self.ended or bool(self._outbox)

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

    def _greeted(self, frame: Response | BrokerError | M, now_ns: int) -> None:
        if isinstance(frame, BrokerError):
            raise frame
        if not isinstance(frame, Response):
            raise ProtocolError(f"the broker answered IDENTIFY with {frame!r}")
        self.answer = decode_response(frame.payload)
        self._on_greeted(now_ns)

    def _on_greeted(self, now_ns: int) -> None:
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
        self._outbox.append(NOP)
        return True
