"""An asyncio transport that records its calls and sends nothing."""

from __future__ import annotations

import asyncio
from typing import Any


class PlayedTransport(asyncio.Transport):
    """The transport of an ``AsyncioStream`` under test.

    Attributes:
        extra: the values for ``get_extra_info``.
        calls: the names of all calls except writes.
        written: the arguments of the writes.
        closing: True once it was aborted.
        when_written: called after each write, to simulate a kernel that takes no more.
        unsent_size: bytes that the simulated kernel has not taken.
        when_asked: called each time ``unsent_size`` is read.
    """

    def __init__(self) -> None:
        self.extra: dict[str, object] = {"peername": ("1.2.3.4", 5), "sockname": ("6.7.8.9", 10)}
        super().__init__(self.extra)
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
