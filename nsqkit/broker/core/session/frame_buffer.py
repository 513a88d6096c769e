"""What lies between a session and its socket: commands coming in, frames going out, layers on the way of both.

      socket ─▶ layers ─▶ decoder ─▶ commands
      socket ◀─ layers ◀─ frames

The rule it guards: what waits, waits in order. Frames may be held back until what they promise is true (``hold``), and
commands until an answer from elsewhere has come (``wait``) or until the session's next turn (``keep``): the session's
client sees only that it took a while. What waits to be read is kept as a queue, so its length does not matter.

How to read it: the half that goes out, then the half that comes in, then ``upgrade``, which joins them. What layers are
and how they stack: ``nsqkit.wire.layers``.
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
"""Bytes that wait for a slow reader before nothing more is delivered to it, nor read from it."""


class Wait(Exception):
    """Raised while a command is acted on: it has to wait, and is then acted on again."""


class Unfinished(Exception):
    """Raised while a command is acted on: a part of it is done, and it is acted on again in the next turn."""


class FrameBuffer:
    """Both directions between one session and its socket.

    Args:
        decoder: cuts commands out of the plain bytes.

    Attributes:
        decoded_size: bytes that layers have decoded so far.
        size: bytes of the frames that wait to be sent.
        waits: commands are not acted on for now.
        is_plain: there are no layers.
    """

    __slots__ = (
        *(
            "_begun",
            "_decoder",
            "_held",
            "_last",
            "_layers",
            "_pieces",
            "_rest",
            "_rest_depth",
            "_sendable",
            "_unread",
        ),
        *("decoded_size", "is_plain", "size", "waits"),
    )

    def __init__(self, decoder: CommandDecoder) -> None:
        self.decoded_size = 0
        self.size = 0
        self.waits = False
        self.is_plain = True
        self._decoder = decoder
        self._rest = b""  # what followed the command that added a layer …
        self._rest_depth = 0  # … and how many layers it has come through
        self._layers = Layers()
        self._sendable: list[bytes] = []
        self._last = self._sendable  # where frames are added: the last of those that are held, if any are
        self._held: deque[tuple[int, list[bytes]]] = deque()
        # Input that was not acted on, in the order in which it will be: commands of a piece that was begun (the last
        # iterator first), pieces that layers have yet to decode (the last iterator first), and buffers.
        self._begun: list[Iterator[Command]] = []
        self._pieces: list[Iterator[bytes]] = []
        self._unread: list[bytes] = []

    # ---- out ---------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Add one frame."""
        self._last.append(frame)
        self.size += len(frame)

    def send_all(self, frames: list[bytes]) -> None:
        """Add frames."""
        self._last += frames
        self.size += sum(map(len, frames))

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages; a buffer that buffers may have them wait until there are ``buffer_size`` bytes of them."""
        self.send_all(frames)

    def flush_every(self, interval_ns: int, now_ns: int) -> None:
        """Let messages wait for no longer than such an interval."""

    @property
    def flush_ns(self) -> int | None:
        """When to call ``flush``; None while no message waits."""
        return None

    def flush(self) -> None:
        """Have no message wait any longer."""

    @property
    def has_output(self) -> bool:
        """True while there is something to send now."""
        return bool(self._sendable) or (not self.is_plain and self._layers.has_output)

    @property
    def is_full(self) -> bool:
        """True while the client does not read what it was sent."""
        return self.size >= OUTBOX_SIZE_MAX

    def take(self) -> bytes:
        """Return, and forget, what can be sent now."""
        data = self._take_frames()
        return data if self.is_plain else self._layers.encode(data)

    def _take_frames(self) -> bytes:
        frames = self._sendable
        data = b"".join(frames)
        self.size -= len(data)
        frames.clear()
        return data

    def hold(self, ticket: int) -> None:
        """Hold back what is added from now on until ``release`` is called with this ticket or a later one."""
        if not self._held or self._held[-1][0] != ticket:
            self._last = []
            self._held.append((ticket, self._last))

    def release(self, ticket: int) -> None:
        """Let go what was held back for ``ticket`` and those before it."""
        while self._held and self._held[0][0] <= ticket:
            self._sendable += self._held.popleft()[1]
        if not self._held:
            self._last = self._sendable

    @property
    def is_holding(self) -> bool:
        """True while frames are held back."""
        return bool(self._held)

    # ---- in ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Add what one read has returned to what ``next_commands`` returns."""
        self._unread.append(data)

    def next_commands(self) -> Iterator[Command] | None:
        """Return the commands of the next piece, to be acted on one by one; None if nothing is left.

        A piece is a buffer, or, where there are layers, as much as they decode at once.

        Raises:
            ProtocolError: the client does not speak one of the layers.
        """
        if self._begun:
            return self._begun.pop()
        if self.is_plain:
            return self._decoder.feed(self._unread.pop(0)) if self._unread else None
        while True:
            if self._rest:
                rest, self._rest = self._rest, b""
                self._pieces.append(self._layers.decode(rest, self._rest_depth))
            if self._pieces:
                for piece in self._pieces[-1]:
                    self.decoded_size += len(piece)
                    return self._decoder.feed(piece)
                self._pieces.pop()
            elif self._unread:
                self._pieces.append(self._layers.decode(self._unread.pop(0)))
            else:
                return None

    @property
    def is_drained(self) -> bool:
        """True after a command that was the last of its piece."""
        return self._decoder.is_drained

    @property
    def has_unread(self) -> bool:
        """True while ``next_commands`` may return commands."""
        return bool(self._begun or self._pieces or self._unread or self._rest)

    def keep(self, *begun: Iterator[Command]) -> None:
        """Have ``next_commands`` return these before all others, in this order."""
        self._begun += reversed(begun)

    def wait(self, command: Command, rest: Iterator[Command]) -> None:
        """Keep ``command``, which could not be acted on, and the ``rest`` of its piece until ``waits`` is False."""
        self.waits = True
        self.keep(iter((command,)), rest)

    @property
    def at_end(self) -> bool:
        """True once the client has said in one of the layers that it sends nothing more."""
        return self._layers.at_end

    def end(self) -> BrokerError | None:
        """Say that the client sends nothing more: return the error to answer if that cut a command off."""
        return self._decoder.end()

    # ---- both --------------------------------------------------------------------------------------------------

    def upgrade(self, layer: Transform, *, above: int = 0) -> None:
        """Have what is sent and received from here on go through ``layer``.

        Args:
            layer: the new one, next to the session.
            above: how many of the layers stay, from the socket on; a client may ask for compression again, and nsqd
                then begins anew above TLS.
        """
        unsent = self._take_frames()
        if not self._rest:  # of two upgrades at once, the first takes it
            self._rest = self._decoder.take_rest()
            self._rest_depth = above
        self._layers.add(layer, above=above, unsent=unsent)
        self.is_plain = False

    def strip(self) -> None:
        """Have what is sent from here on go out plain; before it goes what the outermost layer still has to say.

        For a client with which TLS could not be agreed on: it is told so outside of it.
        """
        self._take_frames()
        self.is_plain = True
        if last := self._layers.strip():
            self.send(last)
