"""A transport of asyncio's that a test plays: it writes down what is asked of it, and sends nothing."""

from __future__ import annotations

import asyncio
from typing import Any


class PlayedTransport(asyncio.Transport):
    """What an ``AsyncioStream`` talks to in place of a socket.

    Attributes:
        calls: all but writes, by name.
        written: what was written.
        closing: True once it was aborted.
        when_written: called after each write, to play a kernel that takes no more.
        unsent_size: what the kernel has not taken.
        when_asked: called each time that is asked for.
    """

    def __init__(self) -> None:
        super().__init__({"peername": ("1.2.3.4", 5), "sockname": ("6.7.8.9", 10)})
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.closing = False
        self.when_written = lambda: None
        self.unsent_size = 0
        self.when_asked = lambda: None

    def get_write_buffer_size(self) -> int:
        self.when_asked()
        return self.unsent_size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limit {high}")

    def write(self, data: Any) -> None:
        assert "eof" not in self.calls
        if data:
            self.written.append(data)
            self.when_written()

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing
