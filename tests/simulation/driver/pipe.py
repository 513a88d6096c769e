"""One direction of a connection in memory, and its ends, as the kernel and its faults make them.

A pipe has room for ``CAPACITY`` bytes: on their way, and not read yet. More than that waits at the sender,
which is not writable meanwhile. A stream that is closed with unread bytes resets its peer, as TCP does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteStream, SocketAttribute

if TYPE_CHECKING:
    from tests.simulation.driver.network import Loop
    from tests.simulation.driver.wire import Wire

CAPACITY: Final = 4_096
SLICES_MAX: Final = 1_000
"""Slices of a large piece, roughly: each takes a turn of the event loop."""

DELAYS: Final = (0.0002, 0.0002, 0.001)


def _drop_last(chunks: deque[Any], size: int) -> int:
    """Remove up to ``size`` bytes, the last ones, and return how many."""
    dropped = 0
    while chunks and dropped < size:
        data = chunks.pop()
        if rest := data[: max(len(data) - (size - dropped), 0)]:
            chunks.append(rest)
        dropped += len(data) - len(rest)
    return dropped


class Pipe:
    """Bytes on their way to ``receiver``.

    Attributes:
        slice_max: the most bytes that arrive at a time; 0 for all.
        pause: seconds between two slices.
        size: bytes that were sent and not read.
        total: bytes that were ever sent.
        late_since, late_at: the times between which bytes are late because of a fault.
        blocked_since: when the receiver has last taken any of more bytes than the pipe has room for.
    """

    __slots__ = (
        *("_chunks", "_is_scheduled", "_random", "_stalled_until", "blocked_since", "is_dead", "late_at"),
        *("late_since", "loop", "pause", "receiver", "sender", "size", "slice_max", "total"),
    )

    def __init__(self, loop: Loop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self._chunks: deque[bytes | None] = deque()  # None is the end of the stream
        self._stalled_until = 0.0
        self._is_scheduled = False
        self.is_dead = False  # nothing will arrive any more
        self.slice_max = 0
        self.pause = 0.0
        self.late_since, self.late_at = math.inf, 0.0
        self.blocked_since = math.inf
        self.size = 0
        self.total = 0
        self.sender: Endpoint
        self.receiver: Endpoint

    def write(self, data: bytes | None) -> None:
        if data is not None:
            self.size += len(data)
            self.total += len(data)
            if self.size > CAPACITY:
                self.blocked_since = min(self.blocked_since, self.loop.time())
        self._chunks.append(data)
        self._schedule(self._random.choice(DELAYS))

    def _schedule(self, delay: float) -> None:
        if not self._is_scheduled and self._chunks and self._stalled_until != math.inf:
            self._is_scheduled = True
            now = self.loop.time()
            self.loop.call_at(max(now + delay, self._stalled_until), self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if self._stalled_until > self.loop.time():
            self._schedule(0)
            return
        while self._chunks:
            data = self._chunks.popleft()
            if data is not None and 0 < self.slice_max < len(data):
                length = self._random.randint(1, max(self.slice_max, len(data) // SLICES_MAX))
                self._chunks.appendleft(data[length:])
                data = data[:length]
            self.receiver.feed(data)
            if self.slice_max:
                self._schedule(self.pause)
                return

    def read(self, size: int) -> None:
        """Record that the receiver has read so many bytes."""
        self.size -= size
        self.blocked_since = self.loop.time() if self.size > CAPACITY else math.inf
        if self.size <= CAPACITY < self.size + size:
            self.sender.on_room()

    def now(self) -> float:
        return self.loop.time()

    def clear(self) -> None:
        """Lose all that is on its way."""
        self._chunks.clear()

    def drop_unsent(self) -> None:
        """Lose the last bytes, which the kernel has not taken: the sender closes the connection at once."""
        for chunks in (self._chunks, self.receiver.unread):
            self.size -= _drop_last(chunks, self.size - CAPACITY)

    @property
    def has_bytes(self) -> bool:
        return any(self._chunks)

    def slow(self, size: int, pause: float) -> None:
        """Deliver pieces of up to ``size`` bytes, each after ``pause`` seconds; 0 for whole writes."""
        self.slice_max, self.pause = size, pause
        if size:
            self._be_late()

    def _be_late(self) -> None:
        self.late_since, self.late_at = min(self.late_since, self.loop.time()), math.inf

    def stall(self, until: float) -> None:
        self._be_late()
        self._stalled_until = max(until, self._stalled_until)
        self.is_dead = self._stalled_until == math.inf

    def heal(self) -> None:
        """End all faults but one: a direction that is dead stays so, until its ends drop the connection."""
        self.late_at = math.inf if self.is_dead else self.loop.time()
        self.slice_max = 0
        if not self.is_dead:
            self._stalled_until = 0.0
            self._is_scheduled = False  # else all that waits arrives at the planned end of the fault
        self._schedule(0)


class Endpoint:
    """One end of a connection, as the kernel has it.

    Attributes:
        unread: data that have arrived.
        wire: reads the bytes that are sent and received, at a client's end; None to read nothing.
        dialled_at: when a client of an nsqd began to connect.
        closed_at: when this end was closed.
        blocked_for: seconds for which it had sent more than the kernel takes then, and the peer had taken nothing.
        is_detached: a thread has the connection.
        stream: what the program that has this end uses.
    """

    wire: Wire | None = None
    dialled_at = math.inf
    closed_at = math.inf
    blocked_for = 0.0
    is_detached = False
    stream: ByteStream

    def __init__(self, out: Pipe, into: Pipe, local: tuple[str, int], remote: tuple[str, int]) -> None:
        self._out = out
        self._into = into
        out.sender = into.receiver = self
        self.unread: deque[bytes] = deque()
        self._at_end = False
        self._error: Exception | None = None
        self._closed = False
        self._eof_sent = False
        self._addresses = {SocketAttribute.local_address: local, SocketAttribute.remote_address: remote}
        self.resets_on_close = False

    @property
    def late_at(self) -> float:
        """The time until which bytes of one direction are late because of a fault."""
        return max(self._out.late_at, self._into.late_at)

    @property
    def late_since(self) -> float:
        """The time since which bytes of one direction are, or were, late."""
        return min(self._out.late_since, self._into.late_since)

    @property
    def peer(self) -> Endpoint:
        """The other end."""
        return self._out.receiver

    @property
    def remote_host(self) -> str:
        return str(self._addresses[SocketAttribute.remote_address][0])

    @property
    def local_address(self) -> str:
        """``host:port`` of this end."""
        return "{}:{}".format(*self._addresses[SocketAttribute.local_address])

    @property
    def local_port(self) -> int:
        return int(self._addresses[SocketAttribute.local_address][1])

    @property
    def is_blocked(self) -> bool:
        """Whether the kernel takes no more bytes, as the peer reads none."""
        return self._out.size > CAPACITY

    @property
    def was_reset(self) -> bool:
        return self._error is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self._closed or self._error is not None

    # ---- called by the pipe and the peer -------------------------------------------------------------------------

    def feed(self, data: bytes | None) -> None:
        """Take data that arrive."""
        if self._closed:
            if data:  # the kernel answers with a reset
                self._into.sender.reset()
            return
        if data is None:
            self._at_end = True
        else:
            self.unread.append(data)
        self._on_input()

    def _on_input(self) -> None:
        """Have the program read: data or the end are there."""
        raise NotImplementedError

    def on_room(self) -> None:
        """Have the program write: the kernel takes bytes again."""
        raise NotImplementedError

    def open(self) -> None:
        """Give the end to a program."""

    def abort(self) -> None:
        """Close the end at once."""
        self._close()

    def reset(self, *, loses: bool = True) -> None:
        """End with an error; by default data that are not read are lost."""
        if self.is_over:
            return
        self._error = ConnectionResetError("reset")
        self._at_end = True
        self._out.clear()
        if loses:
            self.unread.clear()
        self._into.clear()
        self._on_input()
        self.on_room()

    def _close(self) -> None:
        if self._closed:
            return
        was_over, self._closed = self.is_over, True
        self.closed_at = self._out.now()
        self.blocked_for = self.closed_at - self._out.blocked_since
        self._on_close()
        if was_over:
            return
        if self.resets_on_close or self.unread:
            self._out.clear()
            self._out.receiver.reset()
        elif not self._eof_sent:
            self._out.drop_unsent()
            self._out.write(None)

    def _on_close(self) -> None:
        """Do nothing."""


class Stream(Endpoint, ByteStream):
    """One end of a connection as a byte stream that reads nothing before it is asked to, as anyio's for trio."""

    def __init__(self, out: Pipe, into: Pipe, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__(out, into, local, remote)
        self._arrived = anyio.Event()
        self._room = anyio.Event()
        self.stream = self

    def _on_input(self) -> None:
        self._arrived.set()

    def on_room(self) -> None:
        self._room.set()

    def _on_close(self) -> None:
        self._arrived.set()
        self._room.set()

    # ---- anyio's byte stream -------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError
        if self._error is not None:
            raise BrokenResourceError from self._error

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self.unread:
            if self._at_end and self.wire is not None:
                self.wire.is_lost = True
            self._check_open()
            if self._at_end:
                raise EndOfStream
            self._arrived = anyio.Event()
            await self._arrived.wait()
        data = self.unread.popleft()
        if len(data) > max_bytes:
            self.unread.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._into.read(len(data))
        if self.wire is not None:
            self.wire.receive(data)
        return data

    async def send(self, item: bytes) -> None:
        if self.wire is not None:
            self.wire.send(item)  # a stream that is broken takes bytes, too
        await anyio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        if self._eof_sent:
            raise BrokenResourceError
        if item:
            self._out.write(bytes(item))
        while self._out.size > CAPACITY:
            self._room = anyio.Event()
            await self._room.wait()
            self._check_open()

    async def send_eof(self) -> None:
        if self.wire is not None:
            self.wire.is_over = True
        if not self.is_over and not self._eof_sent:
            self._eof_sent = True
            self._out.write(None)
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._close()
        await anyio.lowlevel.checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {name: partial(self._addresses.__getitem__, name) for name in self._addresses}
