"""What a world replaces of ``thread_lease``: the socket of a thread is an end of a connection in memory.

It takes a part of the bytes that are sent, and none while its peer reads nothing, or for a moment after such a part.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Final

from tests.simulation.driver.baton import Threads, Waiters, call_at_once
from tests.simulation.driver.network import Loop, Network
from tests.simulation.driver.transport import Transport

PART: Final = 0.3
"""The part of the calls of ``send`` that take a part of the bytes, though there is room for more."""
FULL: Final = 0.2
"""The part of those calls after which nothing is taken for a time."""
FULL_S: Final = 0.15
"""That time, in seconds; a thread waits for less."""


class _Socket:
    """A socket that does not block, on the connection of a stream."""

    def __init__(self, transport: Transport, loop: Loop, random: Random) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self._is_full = False
        self._transport = transport
        self._loop = loop
        self._random = random
        transport.on_detached_change = self._pass_on

    def _pass_on(self) -> None:
        self.on_change()

    def send(self, data: bytes) -> int:
        room = self._transport.room
        if room <= 0 or self._is_full:
            raise BlockingIOError
        count = min(len(data), room)
        if self._random.random() < PART:
            count = self._random.randint(1, count)
            if self._random.random() < FULL:
                self._is_full = True
                call_at_once(self._loop.call_at, self._loop.time() + FULL_S, self._make_room)
        call_at_once(self._transport.send_detached, data[:count])
        return count

    def _make_room(self) -> None:
        self._is_full = False
        self._pass_on()

    def recv(self, size: int) -> bytes:
        return call_at_once(self._transport.receive_detached, size)

    def is_ready(self, mask: int) -> bool:
        is_writable = bool(mask & select.POLLOUT) and self._transport.room > 0 and not self._is_full
        return is_writable or self._transport.is_readable

    def close(self) -> None:
        self._transport.on_detached_change = lambda: None


class _Signal:
    """One end of a pair of sockets, on which a byte is sent once."""

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.peer = self
        self._has_byte = False

    def send(self, data: bytes) -> None:
        self.peer._has_byte = True
        self.peer.on_change()

    def is_ready(self, mask: int) -> bool:
        return self._has_byte

    def close(self) -> None:
        """Do nothing."""


class _Poll:
    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._masks: dict[_Socket | _Signal, int] = {}
        self._waiters = Waiters()

    def register(self, socket: _Socket | _Signal, mask: int) -> None:
        self._masks[socket] = mask
        socket.on_change = self._waiters.wake

    modify = register

    def poll(self, milliseconds: int) -> list[_Socket | _Signal]:
        end = self._time() + milliseconds / 1000
        while not (ready := [socket for socket, mask in self._masks.items() if socket.is_ready(mask)]):
            if not self._waiters.wait(max(end - self._time(), 0)):
                return []
        return ready


class LeaseSeams:
    """The modules that ``thread_lease`` uses."""

    def __init__(self, network: Network, threads: Threads) -> None:
        self._network = network
        self._threads = threads
        self.os = SimpleNamespace(dup=lambda fd: fd)
        self.socket = SimpleNamespace(socket=self._socket, socketpair=_pair)
        self.select = SimpleNamespace(
            poll=lambda: _Poll(network.loop.time), POLLIN=select.POLLIN, POLLOUT=select.POLLOUT
        )

    def _socket(self, *, fileno: int) -> _Socket:
        end = next(each.client for each in self._network.connections if each.client.local_port == fileno)
        assert isinstance(end, Transport)
        return _Socket(end, self._network.loop, self._threads.random("socket"))


def _pair() -> tuple[_Signal, _Signal]:
    one, other = _Signal(), _Signal()
    one.peer, other.peer = other, one
    return one, other
