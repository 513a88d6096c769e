"""A reader of both directions of a connection, which its ends may compress after IDENTIFY."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsqkit.wire.compression import Deflate, Snappy

if TYPE_CHECKING:
    from nsqkit.wire.transform import Transform

SIZE_LENGTH = 4
TYPE_LENGTH = 4


class Reader:
    """Decompresses what each end sends, from the answer of the broker on that grants it."""

    def __init__(self) -> None:
        self._up: Transform | None = None
        self._down: Transform | None = None

    def read_up(self, data: bytes) -> bytes:
        """Return the bytes of the client in plain."""
        return data if self._up is None else b"".join(self._up.decode(data))

    def read_down(self, data: bytes) -> bytes:
        """Return the bytes of the broker in plain; without compression they are whole frames."""
        begin = 0
        while self._down is None and begin < len(data):
            end = begin + SIZE_LENGTH + int.from_bytes(data[begin : begin + SIZE_LENGTH], "big")
            payload = data[begin + SIZE_LENGTH + TYPE_LENGTH : end]
            begin = end
            if payload.startswith(b"{"):
                self._follow(json.loads(payload))
        return data if self._down is None else data[:begin] + b"".join(self._down.decode(data[begin:]))

    def _follow(self, grant: dict[str, object]) -> None:
        if grant.get("deflate"):
            self._up, self._down = Deflate(1), Deflate(1)
        elif grant.get("snappy"):
            self._up, self._down = Snappy(), Snappy()
