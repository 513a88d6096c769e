"""Sending to a peer that may have stopped reading: as long as it takes, if it takes anything.

The rule it guards: what counts is progress. A large write to a slow peer may take any time; a peer that takes not a
single byte for the time allowed is given up.

How to read it: an ``AsyncioStream`` tells how much is unsent. It is looked at twice in that time, so that time which
passed because this program was busy is not held against the peer. Other streams are given the data in pieces, each of
which has to be taken in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from nsqkit.errors import WriteTimeout
from nsqkit.transport.asyncio_stream import AsyncioStream

if TYPE_CHECKING:
    from anyio.abc import ByteStream

PIECE_SIZE: Final = 64 * 1024
"""Bytes that a stream which cannot tell of its progress is given at a time."""


async def send_with_timeout(stream: ByteStream, data: bytes, timeout: float) -> None:
    """Return when all of ``data``, and what was sent before it, has been taken.

    Args:
        stream: where to.
        data: what to send; empty to wait for what was sent before.
        timeout: seconds in which something has to be taken.

    Raises:
        WriteTimeout: nothing was.
        BrokenResourceError: the connection is broken.
    """
    if isinstance(stream, AsyncioStream):
        await _send_and_watch(stream, data, timeout)
        return
    for start in range(0, len(data), PIECE_SIZE):
        await _send_piece(stream, data[start : start + PIECE_SIZE], timeout)


async def _send_and_watch(stream: AsyncioStream, data: bytes, timeout: float) -> None:
    unsent_size = stream.unsent_size + len(data)
    idle_count = 0
    while idle_count < 2:
        with anyio.move_on_after(timeout / 2):
            await stream.send(data)
            return
        data = b""  # the stream has it
        idle_count = idle_count + 1 if stream.unsent_size >= unsent_size else 0
        unsent_size = stream.unsent_size
    raise _timeout(timeout)


async def _send_piece(stream: ByteStream, piece: bytes, timeout: float) -> None:
    with anyio.move_on_after(timeout):
        await stream.send(piece)
        return
    raise _timeout(timeout)


def _timeout(timeout: float) -> WriteTimeout:
    return WriteTimeout(f"the peer took nothing for {timeout:g} seconds")
