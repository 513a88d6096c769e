"""A byte stream without a peer, for code that needs one, and an event loop that stays between inputs."""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from anyio import EndOfStream
from anyio.abc import ByteStream

T = TypeVar("T")


class FakeStream(ByteStream):
    """A stream that has these pieces to receive, and keeps everything that is sent."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.sent = b""
        self._pieces = pieces[::-1]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._pieces:
            raise EndOfStream
        piece = self._pieces.pop()
        if len(piece) > max_bytes:
            self._pieces.append(piece[max_bytes:])
        return piece[:max_bytes]

    async def send(self, item: bytes) -> None:
        self.sent += item

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine."""
    return _loop().run_until_complete(work)
