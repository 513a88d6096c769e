"""What lies between a session and its socket: commands coming in, frames going out, layers on the way of both.

      socket ─▶ layers ─▶ decoder ─▶ commands
      socket ◀─ layers ◀─ frames

The rule it guards: what waits, waits in order. Frames may be held back until what they promise is true (``hold``), and
commands until an answer from elsewhere has come (``wait``): the session's client sees only that it took a while.

How to read it: the half that goes out, then the half that comes in, then ``upgrade``, which joins them. What layers are
and how they stack: ``nsqkit.wire.layers``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from nsqkit.wire.layers import Layers

if TYPE_CHECKING:
    from nsqkit.errors import BrokerError
    from nsqkit.wire.commands import Command, CommandDecoder
    from nsqkit.wire.transform import Transform

OUTBOX_SIZE_MAX: Final = 1 << 20
"""Bytes that wait for a slow reader before nothing more is delivered to it, nor read from it."""


class Wait(Exception):
    """Raised while a command is acted on: it is to be acted on again when ``Link.go_on`` is called."""


class Link:
    """Both directions between one session and its socket.

    Args:
        decoder: cuts commands out of the plain bytes.

    Attributes:
        size: bytes of the frames that wait to be sent.
        rest: what followed the command that added a layer; ``receive_rest`` goes on with it.
        waits: commands are not acted on for now.
        is_plain: there are no layers.
    """

    __slots__ = (
        *(
            "_commands",
            "_decoder",
            "_held",
            "_last",
            "_layers",
            "_rest_depth",
            "_sendable",
            "_unread",
        ),
        *("is_plain", "rest", "size", "waits"),
    )

    def __init__(self, decoder: CommandDecoder) -> None:
        self.size = 0
        self.rest = b""
        self.waits = False
        self.is_plain = True
        self._decoder = decoder
        self._rest_depth = 0  # layers that the rest has come through
        self._layers = Layers()
        self._sendable: list[bytes] = []
        self._last = self._sendable  # where frames are added: the last of those that are held, if any are
        self._held: deque[tuple[int, list[bytes]]] = deque()
        self._commands: Iterator[Command] = iter(())  # the rest of a buffer, while waiting
        self._unread: list[bytes] = []  # what came meanwhile

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
        """Add messages; a link that buffers may have them wait until there are ``buffer_size`` bytes of them."""
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

    def receive(self, data: bytes) -> Iterator[Command]:
        """Return the commands that ``data`` completes; none while waiting."""
        if self.waits:
            self._unread.append(data)
            return iter(())
        return self._decoder.feed(data) if self.is_plain else self._decode(data, 0)

    def _decode(self, data: bytes, depth: int) -> Iterator[Command]:
        """Yield the commands in ``data``, which has come through ``depth`` layers."""
        for piece in self._layers.decode(data, depth):
            yield from self._decoder.feed(piece)
            if self.rest:
                yield from self.receive_rest()

    def receive_rest(self) -> Iterator[Command]:
        """Return the commands in what followed an upgrade, through the layer that it added."""
        rest, self.rest = self.rest, b""
        return self._decode(rest, self._rest_depth)

    @property
    def at_end(self) -> bool:
        """True once the client has said in one of the layers that it sends nothing more."""
        return self._layers.at_end

    def end(self) -> BrokerError | None:
        """Say that the client sends nothing more: return the error to answer if that cut a command off."""
        return self._decoder.end()

    def wait(self, command: Command, rest: Iterator[Command]) -> None:
        """Keep ``command``, which could not be acted on, and the ``rest`` of its buffer until ``go_on``."""
        self.waits = True
        self._commands = chain((command,), rest)

    def go_on(self) -> Iterator[Command]:
        """Return the commands that were kept, and those that came meanwhile."""
        self.waits = False
        commands, self._commands = self._commands, iter(())
        unread, self._unread = self._unread, []
        return chain(commands, self._receive_all(unread))

    def _receive_all(self, unread: Iterable[bytes]) -> Iterator[Command]:
        for data in unread:
            if self.rest:  # it came before
                yield from self.receive_rest()
            yield from self.receive(data)

    # ---- both --------------------------------------------------------------------------------------------------

    def upgrade(self, layer: Transform, *, above: int = 0) -> None:
        """Have what is sent and received from here on go through ``layer``.

        Args:
            layer: the new one, next to the session.
            above: how many of the layers stay, from the socket on; a client may ask for compression again, and nsqd
                then begins anew above TLS.
        """
        unsent = self._take_frames()
        if not self.rest:  # of two upgrades at once, the first takes it
            self.rest = self._decoder.take_rest()
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
