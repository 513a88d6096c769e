"""The network of a world, which only keeps the order of bytes.

A network does what a real one may do: it cuts a write at any byte, delays it, stalls for long, loses the end of it and
reports a reset, or loses everything silently. Each direction of each connection has random numbers of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

MS = 1_000_000
END = b""


class Pipe:
    """One direction of a connection.

    Args:
        random: of this pipe alone.
        delay_ns: the maximum delay of bytes, unless the pipe stalls.
        slice_max: the maximum length of a piece in bytes, 0 for any.

    Attributes:
        next_arrival: the time at which the first piece arrives; None if there is none.
        is_lost: everything that is sent is lost.
    """

    def __init__(self, random: Random, delay_ns: int, slice_max: int = 0) -> None:
        self._random = random
        self._delay_ns = delay_ns
        self._slice_max = slice_max
        self._pieces: deque[tuple[int, bytes]] = deque()  # each with the time of its arrival
        self._last_ns = 0
        self._ns_per_byte = 0
        self._is_ended = False
        self.next_arrival: int | None = None
        self.is_lost = False

    def send(self, data: bytes, now_ns: int) -> None:
        """Send bytes, in pieces; END closes the pipe after them."""
        if self._is_ended or self.is_lost:
            return
        self._is_ended = data == END
        pieces, last_ns = self._pieces, self._last_ns
        for piece in self._cut(data):
            arrival_ns = now_ns + self._random.randrange(self._delay_ns) if self._delay_ns else now_ns
            last_ns = (last_ns if last_ns > arrival_ns else arrival_ns) + self._ns_per_byte * len(piece)
            pieces.append((last_ns, piece))
        self._last_ns = last_ns
        self.next_arrival = pieces[0][0]

    def _read_next(self) -> None:
        self.next_arrival = self._pieces[0][0] if self._pieces else None

    def _cut(self, data: bytes) -> list[bytes]:
        if self._slice_max:
            return [data[begin : begin + self._slice_max] for begin in range(0, len(data) or 1, self._slice_max)]
        if len(data) < 2 or self._random.random() > 0.2:
            return [data]
        cut = self._random.randrange(1, len(data))
        return [data[:cut], data[cut:]]

    def reset(self, now_ns: int) -> None:
        """Lose some of the bytes in transit, from the end, and close the pipe there."""
        if not self._is_ended:
            for _ in range(self._random.randint(0, len(self._pieces))):
                self._pieces.pop()
            self.is_lost = False
            self.send(END, now_ns)

    def stall(self, until_ns: int) -> None:
        """Deliver nothing that is sent from now on before ``until_ns``."""
        self._last_ns = max(self._last_ns, until_ns)

    def hold(self, until_ns: int) -> None:
        """Deliver nothing before ``until_ns``, nor anything that is in transit."""
        self._pieces = deque((max(arrival_ns, until_ns), piece) for arrival_ns, piece in self._pieces)
        self._read_next()
        self.stall(until_ns)

    def slow_down(self, ns_per_byte: int) -> None:
        """Limit the rate; 0 ends the limit."""
        self._ns_per_byte = ns_per_byte

    def lose(self) -> None:
        """Lose all bytes from now on, and the end, as if the other host had vanished."""
        self.is_lost = True

    def receive(self, now_ns: int) -> Sequence[bytes]:
        """Return the pieces that have arrived, sometimes two of them as one."""
        if self.next_arrival is None or self.next_arrival > now_ns:
            return ()
        pieces = self._pieces
        arrived = [pieces.popleft()[1]]
        while pieces and pieces[0][0] <= now_ns:
            piece = pieces.popleft()[1]
            if piece and arrived[-1] and self._random.random() < 0.5:
                arrived[-1] += piece
            else:
                arrived.append(piece)
        self._read_next()
        return arrived


def act_on_pipes(up: Pipe, down: Pipe, verb: str, values: dict[str, Any], now_ns: int) -> None:
    """Perform a fault of a plan on both directions of a connection, or on the one that ``ways`` names."""
    ways = values.get("ways", "both")
    for pipe in [up] * (ways != "down") + [down] * (ways != "up"):
        match verb:
            case "cut":
                pipe.reset(now_ns)
            case "stall":
                pipe.hold(now_ns + 1000 * values["for_us"])
            case "half-open":
                pipe.lose()
            case "slow":
                pipe.slow_down(values["ns_per_byte"])
