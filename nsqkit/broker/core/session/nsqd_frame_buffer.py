"""nsqd's output buffer: ``--timing=nsqd``.

Messages stay in the buffer until it is full, its time is over, the client can take no more messages, or another frame
is sent (nsqd/protocol_v2.go, messagePump). By default they are sent at the end of the receive buffer that caused their
delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqkit.broker.core.session.frame_buffer import OUTBOX_SIZE_MAX, FrameBuffer

if TYPE_CHECKING:
    from nsqkit.wire.commands import CommandDecoder


class NsqdFrameBuffer(FrameBuffer):
    """A frame buffer that holds messages back as nsqd's output buffer does."""

    __slots__ = ("_buffered", "_buffered_size", "_interval_end_ns", "_interval_ns")

    def __init__(self, decoder: CommandDecoder) -> None:
        super().__init__(decoder)
        self._buffered: list[bytes] = []
        self._buffered_size = 0
        self._interval_ns = 0
        self._interval_end_ns = 0

    def flush_every(self, interval_ns: int, now_ns: int) -> None:
        """Let messages wait no longer than ``interval_ns``; 0 is no limit.

        Intervals begin now, with the client's IDENTIFY, and not with a message.
        """
        self._interval_ns = interval_ns
        self._interval_end_ns = now_ns + interval_ns

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages, which wait until there are ``buffer_size`` bytes of them or ``is_full`` is True."""
        size = sum(map(len, frames))
        self._buffered += frames
        self._buffered_size += size
        self.size += size
        self.is_full = self.size >= OUTBOX_SIZE_MAX
        if self._buffered_size >= buffer_size or self.is_full:
            self.flush()
        elif self._interval_ns and self.flush_ns is None:  # the time of earlier ones may have come
            if now_ns >= self._interval_end_ns:  # the tick of an interval without messages waits in Go's ticker
                self.end_interval(now_ns)
            else:
                self.flush_ns = self._interval_end_ns

    def end_interval(self, now_ns: int) -> None:
        """Let no message wait any longer; the next interval ends after ``now_ns``."""
        if self._interval_ns:
            count = 1 + (now_ns - self._interval_end_ns) // self._interval_ns
            self._interval_end_ns += count * self._interval_ns
        self.flush()

    def send(self, frame: bytes) -> None:
        """Add one frame behind the messages, which wait no longer."""
        self.flush()
        super().send(frame)

    def flush(self) -> None:
        """Let no message wait any longer."""
        buffered, self._buffered, self.flush_ns = self._buffered, [], None
        self.size -= self._buffered_size  # send_all counts it again
        self._buffered_size = 0
        self.send_all(buffered)
