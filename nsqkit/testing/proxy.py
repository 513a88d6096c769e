"""A proxy: accepts clients, and joins each of them to a broker by a link.

The broker is behind ``connect``: an embedded one by streams in memory, any other by TCP. So journal and faults are the
same for every broker.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from nsqkit.testing.link.link import Link
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import listen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.testing.clock import ControlledClock
    from nsqkit.testing.link.journal import Journal

logger = logging.getLogger("nsqkit.testing")


class Proxy:
    """Listens on an address, for ``async with``.

    Args:
        listen_address: ``host:port``; port 0 for a free one.
        connect: returns a new connection to the broker, for a client of this name.
        journal: of all links.
        clock: the time; it waits for the links' traffic.

    Attributes:
        address: ``host:port`` that clients connect to.
        links: the open connections.
    """

    def __init__(
        self,
        listen_address: str,
        connect: Callable[[str], Awaitable[ByteStream]],
        journal: Journal,
        clock: ControlledClock,
    ) -> None:
        self.address = listen_address
        self.links: dict[Link, None] = {}
        self._connect = connect
        self._journal = journal
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Start: return when clients can connect.

        Raises:
            OSError: the address cannot be used.
        """
        async with AsyncExitStack() as stack:
            listener = await stack.enter_async_context(await listen(self.address))
            self.address = listener.address
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(accept, listener, self._serve, self._tasks, logger, self._clock)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop: close every connection and the listener."""
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        await self._stack.aclose()

    async def _serve(self, stream: ByteStream) -> None:
        name = remote_address(stream)
        upstream = await self._connect(name)
        link = Link(name, self._journal)
        client = Pump(link.client_end, stream, self._clock, after=lambda _: after())
        broker = Pump(link.broker_end, upstream, self._clock, after=lambda _: after())

        def after() -> None:
            link.client_end.events()
            link.broker_end.events()
            client.wake()
            broker.wake()

        self.links[link] = None
        self._clock.attach(link)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run)
                await broker.run()
        finally:
            del self.links[link]
            self._clock.detach(link)
