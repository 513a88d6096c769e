"""Cancels a coroutine at each of the places at which it waits, one after the other.

The rule it guards: no await is left out, for nobody lists them: they are counted while the coroutine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import anyio


class CancelledAt:
    """Runs a coroutine, and cancels it at the ``n``-th time that it waits for something.

    Attributes:
        wait_count: how often it has waited so far.
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
    """Awaits a coroutine and calls ``on_wait`` whenever that gives way to the event loop."""

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
