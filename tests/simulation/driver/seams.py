"""The functions of nsqkit that a world replaces: those that connect, listen, and run something in a thread.

A thread becomes a step of the loop that takes time: others act before it and after it. So what a thread does is done at
once, and may come later than the cancellation of the task that waits for it, as with a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final
from unittest import mock

import anyio
import anyio.from_thread
import anyio.to_thread

from nsqkit.broker import lookup_announcer, persistence
from nsqkit.broker import server as broker_server
from nsqkit.client import dialler
from nsqkit.http import client as http_client
from nsqkit.lookupd import server as lookupd_server
from tests.simulation.by_hand import Pool
from tests.simulation.driver.network import HOST, Loop, Network
from tests.simulation.driver.pace import pass_time

DELAYS: Final = (0.0, 0.0002, 0.003)

CONNECTING: Final = (
    (dialler, "connect"),
    (http_client, "connect_tcp"),
    (lookup_announcer, "connect_tcp"),
    (broker_server, "listen"),
    (lookupd_server, "listen"),
)


class Threads:
    """Runs functions after a time from the random generator of their host.

    Attributes:
        delays: seconds before and after the work, by host, where they differ from ``DELAYS``.
        lasting: seconds after the work, by host, where they differ from those before.
        abandoned: the hosts that have not waited for the end of a thread.
    """

    def __init__(self, loop: Loop, seed: str) -> None:
        self.delays: dict[str, tuple[float, ...]] = {}
        self.lasting: dict[str, tuple[float, ...]] = {}
        self.abandoned: set[str] = set()
        self._loop = loop
        self._seed = seed
        self._randoms: dict[str, Random] = {}

    def _delay(self, delays: dict[str, tuple[float, ...]]) -> float:
        host = HOST.get()
        if host not in self._randoms:
            self._randoms[host] = Random(f"{self._seed}/{host}/threads")
        return self._randoms[host].choice(delays.get(host, DELAYS))

    async def run_sync(
        self,
        function: Callable[..., Any],
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> Any:
        """As ``anyio.to_thread.run_sync``."""
        await anyio.lowlevel.checkpoint()
        before, after = self._delay(self.delays), self._delay(self.delays | self.lasting)
        if limiter is not None:
            async with limiter:
                return await self._run(function, args, before, after, abandon_on_cancel)
        return await self._run(function, args, before, after, abandon_on_cancel)

    async def _run(
        self, function: Callable[..., Any], args: tuple[Any, ...], before: float, after: float, may_abandon: bool
    ) -> Any:
        work = _Work(function, args)
        try:
            with anyio.CancelScope(shield=not may_abandon):
                self._loop.call_at(self._loop.time() + before, work)
                await work.done.wait()
                await pass_time(after)
        except anyio.get_cancelled_exc_class():
            self.abandoned.add(HOST.get())
            raise
        if work.error is not None:
            raise work.error
        return work.result


class _Work:
    """What a thread does."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self.done = anyio.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.result = self._function(*self._args)
        except BaseException as error:
            self.error = error
        self.done.set()


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@contextmanager
def installed(network: Network, threads: Threads) -> Iterator[None]:
    """Have nsqkit use a network and threads in memory."""
    with ExitStack() as stack:
        for module, name in CONNECTING:
            stack.enter_context(mock.patch.object(module, name, getattr(network, name)))
        stack.enter_context(mock.patch.object(persistence, "ThreadPoolExecutor", Pool))
        stack.enter_context(mock.patch.object(anyio.to_thread, "run_sync", threads.run_sync))
        stack.enter_context(mock.patch.object(anyio.from_thread, "run_sync", _call))
        yield
