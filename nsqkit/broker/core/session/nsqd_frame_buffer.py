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

    __slots__ = ("_buffered", "_buffered_size", "_flush_ns", "_interval_ns")

    def __init__(self, decoder: CommandDecoder) -> None:
        super().__init__(decoder)
        self._buffered: list[bytes] = []
        self._buffered_size = 0
        self._interval_ns = 0
        self._flush_ns = 0

    def flush_every(self, interval_ns: int, now_ns: int) -> None:
        """Let messages wait no longer than ``interval_ns``; 0 is no limit."""
        self._interval_ns = interval_ns
        self._flush_ns = now_ns

    @property
    def flush_ns(self) -> int | None:
        """When to call ``flush``: intervals begin with the client's IDENTIFY, not with a message."""
        return self._flush_ns if self._buffered and self._interval_ns else None

    def send_messages(self, frames: list[bytes], buffer_size: int, now_ns: int) -> None:
        """Add messages, which wait until there are ``buffer_size`` bytes of them."""
        size = sum(map(len, frames))
        self._buffered += frames
        self._buffered_size += size
        self.size += size
        self.is_full = self.size >= OUTBOX_SIZE_MAX
        if self._buffered_size >= buffer_size:
            self.flush()
        elif self._interval_ns and now_ns >= self._flush_ns:
            self._flush_ns += self._interval_ns * (1 + (now_ns - self._flush_ns) // self._interval_ns)

    def send(self, frame: bytes) -> None:
        """Add one frame behind the messages, which wait no longer."""
        self.flush()
        super().send(frame)

    def flush(self) -> None:
        """Let no message wait any longer."""
        buffered, self._buffered = self._buffered, []
        self.size -= self._buffered_size  # send_all counts it again
        self._buffered_size = 0
        self.send_all(buffered)
