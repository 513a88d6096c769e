"""A TCP connection that a test can interrupt: between an nsqd and an nsqlookupd.

A closed gate passes no bytes, in neither direction, and no end of a connection: as a network that loses all packets. It
accepts new connections, which remain silent. When it is opened, everything that was held back is passed on.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from nsqkit.transport.accept import accept
from nsqkit.transport.tcp import connect, listen

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.clock import Clock

logger = logging.getLogger("nsqkit.testing")


class Gate:
    """Listens on a free port, and passes each connection on to ``target``, for ``async with``.

    Args:
        target: ``host:port`` of the server.
        clock: the time.

    Attributes:
        address: ``host:port`` that clients connect to.
        is_open: bytes are passed on.
    """

    def __init__(self, target: str, clock: Clock) -> None:
        self.address = "127.0.0.1:0"
        self.is_open = True
        self._target = target
        self._clock = clock
        self._opened = anyio.Event()
        self._opened.set()
        self._stack = AsyncExitStack()

    def open(self) -> None:
        """Pass everything on."""
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        """Pass nothing on."""
        if self.is_open:
            self.is_open = False
            self._opened = anyio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            listener = await stack.enter_async_context(await listen(self.address))
            self.address = listener.address
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(accept, listener, self._serve, tasks, logger, self._clock)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _serve(self, client: ByteStream) -> None:
        async with client:
            await self._opened.wait()
            try:
                server = await connect(self._target)
            except OSError:  # the server is stopped
                return
            async with server, anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_on, client, server, tasks.cancel_scope)
                await self._pass_on(server, client, tasks.cancel_scope)

    async def _pass_on(self, source: ByteStream, target: ByteStream, scope: anyio.CancelScope) -> None:
        """Pass bytes on until one side closes, then close both."""
        with suppress(EndOfStream, BrokenResourceError, ClosedResourceError):
            while True:
                data = await source.receive()
                await self._opened.wait()
                await target.send(data)
        await self._opened.wait()
        scope.cancel()
