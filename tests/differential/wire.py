"""A connection over a plain blocking socket: any bytes to the program, and its frames back."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Final

import attrs

ANSWER_LIMIT: Final = 3.0
"""Seconds after which a missing answer is recorded as ``silence``."""

RESPONSE, ERROR, MESSAGE = range(3)
CLOSED: Final = "closed"
SILENCE: Final = "silence"
HEARTBEAT: Final = b"_heartbeat_"

_HEAD: Final = struct.Struct(">ii")
_MESSAGE: Final = struct.Struct(">qH16s")


@attrs.frozen
class Delivery:
    """A message as it was delivered."""

    id: bytes
    timestamp: int
    attempts: int
    body: bytes


class Connection:
    """One connection.

    Args:
        address: host and port.
        typed: whether a frame has a type, as from nsqd; nsqlookupd's have none.

    Attributes:
        port: the local port.
        channel: the channel that it has subscribed to.
        ready: the RDY count that it has set.
        immediate: whether the program writes each message at once.
        deliveries: all messages, in the order of their arrival, those of one step sorted by body.
        is_open: whether the program has not closed it.
    """

    def __init__(self, address: tuple[str, int], *, typed: bool) -> None:
        self._socket = socket.create_connection(address, ANSWER_LIMIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self._typed = typed
        self._buffer = bytearray()
        self._answers: list[str] = []
        self._arrived: list[Delivery] = []
        self.channel = ""
        self.ready = 0
        self.immediate = False
        self.deliveries: list[Delivery] = []
        self.is_open = True

    @property
    def count(self) -> int:
        """The number of messages that have arrived."""
        return len(self.deliveries) + len(self._arrived)

    def send(self, data: bytes, *, ends: bool = False) -> None:
        """Write bytes; if ``ends``, nothing more can be sent."""
        try:
            self._socket.sendall(data)
            if ends:
                self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the program has closed the connection; reading finds that too
            pass

    def answers(self, count: int | None) -> list[str]:
        """Return the frames up to the response number ``count``, or up to the end of the connection."""
        limit = time.monotonic() + ANSWER_LIMIT
        while self.is_open and (count is None or self._response_count() < count):
            if not self._read(limit - time.monotonic()):
                self._answers.append(SILENCE)
                break
        answers, self._answers = self._answers, []
        return answers

    def _response_count(self) -> int:
        return sum(answer.startswith("response ") for answer in self._answers)

    def collect(self, count: int, seconds: float) -> bool:
        """Read until ``count`` messages have arrived; return whether they have."""
        limit = time.monotonic() + seconds
        while self.is_open and self.count < count:
            if not self._read(limit - time.monotonic()):
                break
        return self.count >= count

    def take(self) -> list[Delivery]:
        """Return the messages that arrived since the last call, sorted by body, and append them to ``deliveries``."""
        taken = sorted(self._arrived, key=lambda delivery: (delivery.body, delivery.attempts))
        self._arrived.clear()
        self.deliveries += taken
        return taken

    def _read(self, seconds: float) -> bool:
        """Read once; return whether anything has come, which may be the end."""
        if not select.select([self._socket], [], [], max(seconds, 0))[0]:
            return False
        try:
            data = self._socket.recv(65536)
        except OSError:
            data = b""
        if data:
            self._buffer += data
            self._decode()
        else:
            self._answers.append(CLOSED)
            self.close()
        return True

    def _decode(self) -> None:
        buffer = self._buffer
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "big")
            if len(buffer) < 4 + size:
                return
            payload = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            self._record(payload)

    def _record(self, payload: bytes) -> None:
        kind, payload = (int.from_bytes(payload[:4], "big"), payload[4:]) if self._typed else (RESPONSE, payload)
        if kind == MESSAGE:
            timestamp, attempts, number = _MESSAGE.unpack_from(payload)
            self._arrived.append(Delivery(number, timestamp, attempts, payload[_MESSAGE.size :]))
        elif payload == HEARTBEAT:
            self.send(b"NOP\n")
        else:
            name = "response" if kind == RESPONSE else "error" if kind == ERROR else f"frame of type {kind}"
            self._answers.append(f"{name} {payload.decode('latin-1')}")

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        self.channel, self.ready = "", 0
        self._socket.close()
