"""What a world replaces of the modules behind the façades without ``await``: locks, threads, futures, and wake-ups.

The client of a façade runs in the event loop of the world, so its network and its time are those of the world. Each
host has a ``PortalProvider`` of its own, as if it were a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import anyio
import anyio.from_thread

from nsqkit.consumer import blocking as blocking_consumer
from nsqkit.consumer.consumer import Consumer
from nsqkit.loop_thread import PortalProvider, loop_client, one_shot, provider, waker
from nsqkit.producer import blocking as blocking_producer
from nsqkit.producer import producer as async_producer
from nsqkit.producer import thread_lease
from nsqkit.producer.producer import Producer
from tests.simulation.driver.baton import BatonFuture, Lock, Thread, Threads, ask, call_at_once, hop, run_soon
from tests.simulation.driver.lease_seams import LeaseSeams
from tests.simulation.driver.network import HOST, Network
from tests.simulation.driver.node import make_clock
from tests.simulation.driver.pace import pass_time

LEASE_COUNTS: Final = {"ALONE_COUNT_MIN": 1, "REFUSED_PAUSE_COUNT": 2}
"""Numbers of publishes, lower than those of nsqkit, as worlds have few."""


class FacadeLoop:
    """The event loop of all façades as ``LoopClient`` and ``Waker`` see it, and the event file descriptors."""

    EFD_NONBLOCK = EFD_CLOEXEC = 0

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._numbers = count(1000)
        self._values: dict[int, int] = {}
        self._readers: dict[int, anyio.Event] = {}  # set while there is something to read, and at the end

    def call_later(self, delay: float, function: Callable[[], object]) -> None:
        self._threads.tasks.start_soon(self._call_later, delay, function)

    async def _call_later(self, delay: float, function: Callable[[], object]) -> None:
        await pass_time(delay)
        function()

    def add_reader(self, fd: int, function: Callable[[], object]) -> None:
        self._readers[fd] = anyio.Event()
        self._threads.tasks.start_soon(self._read, fd, function, self._threads.random("wake-ups"))

    async def _read(self, fd: int, function: Callable[[], object], random: Random) -> None:
        while (readable := self._readers.get(fd)) is not None:
            await readable.wait()
            await hop(random)
            if fd in self._readers:
                function()
                if not self._values[fd]:
                    self._readers[fd] = anyio.Event()

    def remove_reader(self, fd: int) -> None:
        self._readers.pop(fd).set()

    def eventfd(self, value: int, flags: int) -> int:
        fd = next(self._numbers)
        self._values[fd] = value
        return fd

    def eventfd_write(self, fd: int, value: int) -> None:
        self._values[fd] += value
        if fd in self._readers:
            call_at_once(self._readers[fd].set)

    def eventfd_read(self, fd: int) -> int:
        value, self._values[fd] = self._values[fd], 0
        return value

    def close(self, fd: int) -> None:
        del self._values[fd]


@contextmanager
def batoned(threads: Threads, network: Network) -> Iterator[dict[str, PortalProvider]]:
    """Have the façades use threads with a baton; give the provider of each host."""
    loop, lease = FacadeLoop(threads), LeaseSeams(network, threads)
    providers: dict[str, PortalProvider] = {}

    class HostedProducer(Producer):
        def __init__(self, *addresses: str, **options: Any) -> None:
            super().__init__(*addresses, random=threads.random("client"), **options)

    class HostedConsumer(Consumer):
        def __init__(self, *names: str, **options: Any) -> None:
            super().__init__(*names, random=threads.random("client"), **options)

    def portal_provider() -> PortalProvider:
        return providers.get(HOST.get()) or providers.setdefault(HOST.get(), PortalProvider())

    module = SimpleNamespace(Lock=Lock, Thread=Thread, get_ident=threading.get_ident)
    patches: list[tuple[Any, str, Any]] = [
        *((each, "threading", module) for each in (provider, one_shot, thread_lease)),
        *((each, "Future", BatonFuture) for each in (provider, blocking_producer, anyio.from_thread)),
        (provider, "anyio", SimpleNamespace(run=lambda serve, **_: ask(serve))),
        (anyio.from_thread, "run_sync", run_soon),
        (loop_client, "portal_provider", portal_provider),
        (loop_client, "asyncio", SimpleNamespace(get_running_loop=lambda: loop)),
        (waker, "os", loop),
        *((thread_lease, name, getattr(lease, name)) for name in ("os", "select", "socket")),
        *((thread_lease, name, count) for name, count in LEASE_COUNTS.items()),
        (async_producer, "LoopClock", make_clock),  # one that a caller makes would prevent leases
        (blocking_producer, "Producer", HostedProducer),
        (blocking_consumer, "Consumer", HostedConsumer),
    ]
    with ExitStack() as stack:
        for each, name, value in patches:
            stack.enter_context(mock.patch.object(each, name, value))
        yield providers
