"""A proxy: accepts clients, and joins each of them to a broker by a link.

The broker is behind ``connect``: an embedded one by streams in memory, any other by TCP. So journal and faults are the
same for every broker.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio
import attrs

from nsqkit.errors import Closed
from nsqkit.testing.link.link import Link, LinkEnd
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import listen, reset_on_close
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.testing.clock import ControlledClock
    from nsqkit.testing.link.faults import Faults
    from nsqkit.testing.link.journal import Journal
    from nsqkit.testing.ports import KeptPort
    from nsqkit.testing.waiting import Traffic
    from nsqkit.transport.tcp import Listener

logger = logging.getLogger("nsqkit.testing")


class Proxy:
    """Accepts clients at a port, for ``async with``; from ``open_listener`` on.

    Args:
        port: where it listens; it is kept while there is no listener.
        connect: returns a new connection to the broker, for a client of this name.
        journal: of all links.
        faults: of all links, and of the port.
        clock: the time; it waits for the links' traffic.
        traffic: notified after each read of a link.

    Attributes:
        journal: the same.
        links: the open connections.
    """

    def __init__(
        self,
        port: KeptPort,
        connect: Callable[[str], Awaitable[ByteStream]],
        journal: Journal,
        faults: Faults,
        clock: ControlledClock,
        traffic: Traffic,
    ) -> None:
        self.links: dict[Link, OpenLink] = {}
        self._port = port
        self._connect = connect
        self.journal = journal
        self._faults = faults
        self._clock = clock
        self._traffic = traffic
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listening: _Listening | None = None
        self._link_closed = anyio.Event()

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to."""
        return self._port.address

    async def __aenter__(self) -> Self:
        self._clock.add_loop()
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop: close every connection and the listener."""
        assert self._tasks is not None
        await self.close_listener()
        self._tasks.cancel_scope.cancel()
        await self._stack.aclose()

    # ---- the listener --------------------------------------------------------------------------------------------

    async def open_listener(self) -> None:
        """Accept clients, unless it does already, or a fault refuses them.

        Raises:
            OSError: the address cannot be used.
        """
        assert self._tasks is not None
        if self._listening is None and not self._faults.refuses:
            self._port.release()
            self._listening = _Listening(await listen(self.address))
            self._tasks.start_soon(self._listening.run, self._serve, self._tasks, self._clock)

    async def close_listener(self) -> None:
        """Have new connections refused; those that are open stay so."""
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.close()
            self._port.keep()

    async def update_listener(self) -> None:
        """Open or close the listener as ``faults.refuses`` requires; the errors are those of ``open_listener``."""
        await (self.close_listener() if self._faults.refuses else self.open_listener())

    async def reset(self) -> None:
        """Reset every connection, and have new ones refused."""
        await self.close_listener()
        for open_link in self.links.values():
            open_link.reset()

    def reset_after(self, seconds: float) -> None:
        """Reset every connection after so many real seconds, unless the proxy is left before."""
        assert self._tasks is not None
        self._tasks.start_soon(self._reset_after, seconds)

    async def _reset_after(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        await self.reset()

    async def wait_closed(self) -> None:
        """Return when there is no connection."""
        while self.links:
            self._link_closed = anyio.Event()
            await self._link_closed.wait()

    # ---- clients -------------------------------------------------------------------------------------------------

    async def _serve(self, stream: ByteStream) -> None:
        name = remote_address(stream)
        link = Link(name, self.journal, self._faults)
        pumps = [Pump(link.client_end, stream, self._clock, after=lambda _: after())]
        if not link.is_silent:
            try:
                upstream = await self._connect(name)
            except (OSError, Closed) as error:
                logger.info("[%s] no connection to the broker: %s", name, error)
                reset_on_close(stream)
                await anyio.aclose_forcefully(stream)
                return
            # After the end of the client's bytes the answers to them still come.
            pumps.append(Pump(link.broker_end, upstream, self._clock, after=lambda _: after(), wait_for_peer=True))
        timer = Timer(link, self._clock, after=lambda _: after())

        def after() -> None:
            link.client_end.events()
            link.broker_end.events()
            self._traffic.notify()
            if link.is_reset:
                self.links[link].reset()
                return
            for pump in pumps:
                pump.wake()
            timer.check()

        async def run(pump: Pump, end: LinkEnd) -> None:
            await pump.run()
            end.close(self._clock.now_ns())
            after()

        self._clock.attach(link)
        try:
            async with anyio.create_task_group() as tasks:
                self.links[link] = OpenLink(stream, tasks.cancel_scope)
                self._traffic.notify()
                tasks.start_soon(timer.run)
                async with anyio.create_task_group() as both:
                    for pump, end in zip(pumps, (link.client_end, link.broker_end), strict=False):
                        both.start_soon(run, pump, end)
                tasks.cancel_scope.cancel()
        finally:
            del self.links[link]
            self._clock.detach(link)
            self._link_closed.set()


@attrs.frozen
class OpenLink:
    """The connection of a client."""

    _stream: ByteStream
    _scope: anyio.CancelScope

    def close(self) -> None:
        """Close it without the bytes that wait."""
        self._scope.cancel()

    def reset(self) -> None:
        """Reset it."""
        reset_on_close(self._stream)
        self._scope.cancel()


class _Listening:
    """A listener that accepts clients until it is closed."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    async def run(
        self, serve: Callable[[ByteStream], Awaitable[None]], tasks: TaskGroup, clock: ControlledClock
    ) -> None:
        try:
            with self._scope:
                async with self._listener:
                    await accept(self._listener, serve, tasks, logger, clock)
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Return when the listener is closed."""
        self._scope.cancel()
        await self._ended.wait()
