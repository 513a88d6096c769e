"""The network of a world, which only keeps the order of bytes.

A network does what a real one may do: it cuts a write at any byte, delays it, stalls for long, or loses the end of it
and reports a reset. The world's random numbers decide.
"""

from __future__ import annotations

from collections import deque
from random import Random

MS = 1_000_000
END = b""


class Pipe:
    """One direction of a connection.

    Args:
        random: the world's.
        delay_ns: the maximum delay of bytes, unless the pipe stalls.
    """

    def __init__(self, random: Random, delay_ns: int) -> None:
        self._random = random
        self._delay_ns = delay_ns
        self._pieces: deque[tuple[int, bytes]] = deque()  # each with the time of its arrival
        self._last_ns = 0
        self._is_ended = False

    def send(self, data: bytes, now_ns: int) -> None:
        """Send bytes, in pieces; END closes the pipe after them."""
        if not self._is_ended:
            self._is_ended = data == END
            cut = self._random.randint(1, len(data)) if data and self._random.random() < 0.3 else len(data)
            for piece in (data[:cut], data[cut:])[: 1 + (cut < len(data))]:
                self._last_ns = max(self._last_ns, now_ns + self._random.randint(0, self._delay_ns))
                self._pieces.append((self._last_ns, piece))

    def reset(self, now_ns: int) -> None:
        """Lose some of the bytes in transit, from the end, and close the pipe there."""
        if not self._is_ended:
            for _ in range(self._random.randint(0, len(self._pieces))):
                self._pieces.pop()
            self.send(END, now_ns)

    def stall(self, until_ns: int) -> None:
        """Deliver nothing that is sent from now on before ``until_ns``."""
        self._last_ns = max(self._last_ns, until_ns)

    @property
    def next_arrival(self) -> int | None:
        return self._pieces[0][0] if self._pieces else None

    def receive(self, now_ns: int) -> list[bytes]:
        """Return the pieces that have arrived, sometimes two of them as one."""
        arrived: list[bytes] = []
        while self._pieces and self._pieces[0][0] <= now_ns:
            piece = self._pieces.popleft()[1]
            if piece and arrived and self._random.random() < 0.5:
                arrived[-1] += piece
            else:
                arrived.append(piece)
        return arrived
