"""Cancels a coroutine at each of the points at which it waits, one after the other.

No await is left out, since the waits are counted while the coroutine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import anyio


class CancelledAt:
    """Runs a coroutine, and cancels it at its ``n``-th wait.

    Attributes:
        wait_count: number of waits so far.
    """

    def __init__(self, n: int) -> None:
        self.wait_count = 0
        self.scope = anyio.CancelScope()
        self._n = n

    async def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with self.scope:
            await _Watched(coroutine, self._on_wait)

    def _on_wait(self) -> None:
        self.wait_count += 1
        if self.wait_count == self._n:
            self.scope.cancel()


class _Watched:
    """Awaits a coroutine and calls ``on_wait`` whenever it yields to the event loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_wait: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_wait = on_wait

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                wish = step()
            except StopIteration:
                return
            self._on_wait()
            try:
                value = yield wish
                step = partial(self._coroutine.send, value)
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
