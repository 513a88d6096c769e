"""An HTTP server of a test, in the loop thread: its handler, with faults."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Self

import anyio

from nsqkit.loop_thread import portal_provider
from nsqkit.testing.http_front import HTTPFront
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.tcp import listen

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import ByteStream

    from nsqkit.clock import Clock
    from nsqkit.http.messages import Handler
    from nsqkit.testing.http_faults import HTTPFaults

logger = logging.getLogger("nsqkit.testing")


class HTTPServer:
    """Serves HTTP on a free port, for ``with``.

    Args:
        handle: answers a request without a fault.
        faults: the rules.
        clock: the time.

    Attributes:
        address: ``host:port``.
    """

    def __init__(self, handle: Handler, faults: HTTPFaults, clock: Clock) -> None:
        self.address = ""
        self._clock = clock
        self._front = HTTPFront(handle, faults, clock)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(portal_provider())
            stack.enter_context(portal.wrap_async_context_manager(_Listening(self)))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    async def listen(self, stack: AsyncExitStack) -> None:
        """Serve until the stack is closed."""
        listener = await stack.enter_async_context(await listen(self.address or "127.0.0.1:0"))
        self.address = listener.address
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(accept, listener, self._serve, tasks, logger, self._clock)

    async def _serve(self, stream: ByteStream) -> None:
        await self._front.serve(stream, remote_address(stream))


class _Listening:
    """The listener, for ``async with`` in the loop thread."""

    def __init__(self, server: HTTPServer) -> None:
        self._server = server
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> None:
        async with AsyncExitStack() as stack:
            await self._server.listen(stack)
            self._stack = stack.pop_all()

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
