"""Sending with a limit on the time in which the peer takes nothing.

The limit is for progress: a large write to a slow peer may take any time, and a peer that takes not a single byte
within the limit is given up. A ``PushStream`` shows how much is unsent. That is read twice per limit, so that a
time in which this program was busy does not count against the peer. Other streams get the data in pieces, and the
limit holds for each piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqkit.clock import Clock, move_on_after
from nsqkit.errors import WriteTimeout
from nsqkit.transport.push_stream import PushStream

if TYPE_CHECKING:
    from anyio.abc import ByteStream

PIECE_SIZE: Final = 64 * 1024
"""Bytes that are sent at a time into a stream that does not show its progress."""


async def send_with_timeout(stream: ByteStream, data: bytes, timeout: float, clock: Clock) -> None:
    """Return when all of ``data``, and everything sent before it, has been taken; ``timeout`` is in seconds.

    Raises:
        WriteTimeout: nothing was taken within the limit.
        BrokenResourceError: the connection is broken.
    """
    if isinstance(stream, PushStream):
        await _send_and_watch(stream, data, timeout, clock)
        return
    for start in range(0, len(data), PIECE_SIZE):
        with move_on_after(clock, timeout) as scope:
            await stream.send(data[start : start + PIECE_SIZE])
        if scope.cancelled_caught:
            raise _timeout(timeout)


async def _send_and_watch(stream: PushStream, data: bytes, timeout: float, clock: Clock) -> None:
    unsent_size = stream.unsent_size + len(data)
    idle_count = 0
    while idle_count < 2:
        with move_on_after(clock, timeout / 2) as scope:
            await stream.send(data)
        if not scope.cancelled_caught:
            return
        data = b""  # the stream has it
        idle_count = idle_count + 1 if stream.unsent_size >= unsent_size else 0
        unsent_size = stream.unsent_size
    raise _timeout(timeout)


def _timeout(timeout: float) -> WriteTimeout:
    return WriteTimeout(f"the peer took nothing for {timeout:g} seconds")
