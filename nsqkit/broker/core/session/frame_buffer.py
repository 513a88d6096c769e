"""The commands that a session receives and the frames that it sends, with the layers (TLS, compression) of both.

      socket ─▶ layers ─▶ decoder ─▶ commands
      socket ◀─ layers ◀─ frames

Order is kept in both directions. Frames can be held back until a commit has ended (``hold``). Commands can be kept
until an answer from elsewhere has come (``suspend``) or until the session's next turn (``put_back``). Unread input is a
queue, so its length does not matter. ``nsqkit.wire.layers`` describes how layers stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nsqkit.wire.layers import Layers

if TYPE_CHECKING:
    from nsqkit.errors import BrokerError
    from nsqkit.wire.commands import Command, CommandDecoder
    from nsqkit.wire.transform import Transform

OUTBOX_SIZE_MAX: Final = 1 << 20
"""With so many unsent bytes, the client gets no more messages, and nothing is read from it."""


class Wait(Exception):
    """Raised by the action of a command that has to wait, and is then called again."""


class Unfinished(Exception):
    """Raised by the action of a command of which a part is done, and which is called again in the next turn."""


class FrameBuffer:
    """The input and the output of one session.

    Args:
        decoder: turns the decoded bytes into commands.

    Attributes:
        decoder: as given; to be fed directly while nothing waits here and ``is_plain``.
        begun: commands of pieces that were begun, the first to be processed last.
        decoded_size: bytes that layers have decoded so far.
        sendable: frames that can be sent now.
        size: bytes of the frames that wait to be sent.
        is_full: True while the client does not read the bytes that it was sent.
        unread: buffers received and not processed, to which a session adds.
        is_suspended: no commands are processed for now.
        is_plain: there are no layers.
        flush_ns: when to call ``flush``; None while no message waits.
    """

    __slots__ = (
        *("_held", "_last", "_layers", "_pieces", "_rest", "_rest_depth", "begun", "decoded_size", "decoder"),
        *("flush_ns", "is_full", "is_plain", "is_suspended", "sendable", "size", "unread"),
    )

    def __init__(self, decoder: CommandDecoder) -> None:
        self.decoded_size = 0
        self.size = 0
        self.is_full = False
        self.is_suspended = False
        self.is_plain = True
        self.flush_ns: int | None = None
        self.decoder = decoder
        self._rest = b""  # the bytes behind the command that added a layer …
        self._rest_depth = 0  # … and how many layers have decoded them
        self._layers = Layers()
        self.sendable: list[bytes] = []
        self._last = self.sendable  # where frames are added: the last of the held lists, if there is one
        self._held: deque[tuple[int, list[bytes]]] = deque()
        # Unprocessed input, in this order: commands of a piece that was begun (the last iterator first), pieces that
        # layers have yet to decode (the last iterator first), and buffers.
        self.begun: list[Iterator[Command]] = []
        self._pieces: list[Iterator[bytes]] = []
        self.unread: list[bytes] = []

    # ---- out ---------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Add one frame."""
        self._last.append(frame)
        self.size += len(frame)
        self.is_full = self.size >= OUTBOX_SIZE_MAX

    def send_all(self, frames: list[bytes]) -> None:
        """Add frames."""
        self._last += frames
        self.size += sum(map(len, frames))
        self.is_full = self.size >= OUTBOX_SIZE_MAX

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages; with nsqd's timing they wait until there are ``buffer_size`` bytes of them."""
        self.send_all(frames)

    def flush_every(self, interval_ns: int, now_ns: int) -> None:
        """Let messages wait no longer than ``interval_ns``."""

    def flush(self) -> None:
        """Let no message wait any longer."""

    def end_interval(self, now_ns: int) -> None:
        """Let no message wait any longer, as its interval is over."""

    @property
    def has_output(self) -> bool:
        """True while bytes can be sent now."""
        return bool(self.sendable) or (not self.is_plain and self._layers.has_output)

    def take(self) -> bytes:
        """Remove and return the bytes that can be sent now."""
        data = self._take_frames()
        return data if self.is_plain else self._layers.encode(data)

    def _take_frames(self) -> bytes:
        frames = self.sendable
        data = b"".join(frames)
        self.size -= len(data)
        self.is_full = self.size >= OUTBOX_SIZE_MAX
        frames.clear()
        return data

    def hold(self, ticket: int) -> None:
        """Hold back the frames added from now on until ``release`` is called with this ticket or a later one."""
        if not self._held or self._held[-1][0] != ticket:
            self._last = []
            self._held.append((ticket, self._last))

    def release(self, ticket: int) -> None:
        """Let the frames be sent that were held back for ``ticket`` or an earlier one."""
        while self._held and self._held[0][0] <= ticket:
            self.sendable += self._held.popleft()[1]
        if not self._held:
            self._last = self.sendable

    @property
    def is_holding(self) -> bool:
        """True while frames are held back."""
        return bool(self._held)

    # ---- in ----------------------------------------------------------------------------------------------------

    def next_commands(self) -> Iterator[Command] | None:
        """Return the commands of the next piece, to be processed one by one; None if nothing is left.

        A piece is a buffer, or the bytes that the layers decode at once.

        Raises:
            ProtocolError: a layer cannot decode the bytes.
        """
        if self.begun:
            return self.begun.pop()
        if self.is_plain:
            return self.decoder.feed(self.unread.pop(0)) if self.unread else None
        while True:
            if self._rest:
                rest, self._rest = self._rest, b""
                self._pieces.append(self._layers.decode(rest, self._rest_depth))
            if self._pieces:
                for piece in self._pieces[-1]:
                    self.decoded_size += len(piece)
                    return self.decoder.feed(piece)
                self._pieces.pop()
            elif self.unread:
                self._pieces.append(self._layers.decode(self.unread.pop(0)))
            else:
                return None

    @property
    def is_drained(self) -> bool:
        """True after a command that was the last of its piece."""
        return self.decoder.is_drained

    @property
    def has_unread(self) -> bool:
        """True while ``next_commands`` may return commands."""
        return bool(self.begun or self._pieces or self.unread or self._rest)

    def put_back(self, *begun: Iterator[Command]) -> None:
        """Let ``next_commands`` return these first, in this order."""
        self.begun += reversed(begun)

    def suspend(self, command: Command, rest: Iterator[Command]) -> None:
        """Put back a command that has to wait, and the ``rest`` of its piece, until ``is_suspended`` is False."""
        self.is_suspended = True
        self.put_back(iter((command,)), rest)

    @property
    def at_end(self) -> bool:
        """True once the client has ended the stream of a layer."""
        return self._layers.at_end

    def end(self) -> BrokerError | None:
        """End the input; return the error to answer if that cut a command off."""
        return self.decoder.end()

    # ---- both --------------------------------------------------------------------------------------------------

    def upgrade(self, layer: Transform, *, above: int = 0) -> None:
        """Send and receive everything from here on through ``layer``.

        Args:
            layer: the new layer, the one next to the session.
            above: how many of the layers stay, counted from the socket. A client may request compression again, and
                nsqd then starts again above TLS.
        """
        unsent = self._take_frames()
        if not self._rest:  # of two upgrades at once, the first one has done it
            self._rest = self.decoder.take_rest()
            self._rest_depth = above
        self._layers.add(layer, above=above, unsent=unsent)
        self.is_plain = False

    def strip(self) -> None:
        """Send everything from here on plain, after the last bytes of the outermost layer.

        If the handshake of TLS fails, the error is sent outside of TLS.
        """
        self._take_frames()
        self.is_plain = True
        if last := self._layers.strip():
            self.send(last)
