"""nsqlookupd as a service: two listeners, a pump for each nsqd, start and stop.

Inside ``async with Nsqlookupd(...)`` it answers. Afterwards every connection is closed and no task is left. It needs no
timer: whether a peer is active and a tombstone in force is computed when a request needs it.
"""

from __future__ import annotations

import logging
import platform
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio

from nsqkit.clock import Clock, LoopClock
from nsqkit.lookupd.options import LookupdOptions
from nsqkit.lookupd.registry import Registry
from nsqkit.lookupd.session import Session
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.address import join_address, split_address
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import listen
from nsqkit.wire.identify import BROKER_VERSION
from nsqkit.wire.lookup import LookupdInfo

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.lookupd.http_api import HTTPApi
    from nsqkit.transport.tcp import Listener

logger = logging.getLogger("nsqkit.lookupd")


class Nsqlookupd:
    """An nsqlookupd in this event loop, for ``async with``.

    Args:
        options: nsqlookupd's flags.
        clock: the time; by default the real one.

    Attributes:
        registry: the registrations.
        tcp_address: ``host:port`` that nsqds connect to.
        http_address: ``host:port`` of the HTTP routes.
    """

    def __init__(self, options: LookupdOptions | None = None, *, clock: Clock | None = None) -> None:
        self.options = LookupdOptions() if options is None else options
        self.registry = Registry(
            inactive_producer_timeout_ns=self.options.inactive_producer_timeout_ns,
            tombstone_lifetime_ns=self.options.tombstone_lifetime_ns,
        )
        self.tcp_address = ""
        self.http_address = ""
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listeners: list[Listener] = []
        self._http_api: HTTPApi | None = None

    @property
    def clock(self) -> Clock:
        """The time of registrations and tombstones."""
        if self._clock is None:
            self._clock = LoopClock()
        return self._clock

    @property
    def info(self) -> LookupdInfo:
        """The answer to IDENTIFY."""
        return LookupdInfo(
            broadcast_address=self.options.broadcast_address,
            hostname=platform.node(),
            http_port=split_address(self.http_address)[1],
            tcp_port=split_address(self.tcp_address)[1],
            version=BROKER_VERSION,
        )

    async def __aenter__(self) -> Nsqlookupd:
        """Start: return when nsqds and HTTP clients can connect.

        Raises:
            OptionError: an address is invalid.
            OSError: an address cannot be used.
        """
        async with AsyncExitStack() as stack:
            tcp = await stack.enter_async_context(await listen(self.options.tcp_address, paths=False))
            http = await stack.enter_async_context(await listen(self.options.http_address, paths=False))
            self.tcp_address = join_address(*tcp.local_address)
            self.http_address = join_address(*http.local_address)
            self._listeners = [tcp, http]
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(accept, tcp, self._serve_nsqd, self._tasks, logger, self.clock)
            logger.info("TCP: listening on %s", self.tcp_address)
            self._tasks.start_soon(accept, http, self.serve_http, self._tasks, logger, self.clock)
            logger.info("HTTP: listening on %s", self.http_address)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop: close every connection."""
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        self._tasks = None
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            await self._stack.__aexit__(exc_type, exc, traceback)
        else:
            # The task group would wrap an exception of the caller in an ExceptionGroup, so it does not get it.
            await self._stack.aclose()
        logger.info("stopped")

    def kill(self) -> None:
        """Have the end of ``async with`` reset every connection, as if the process had been killed."""
        for listener in self._listeners:
            listener.reset_on_close()

    async def _serve_nsqd(self, stream: ByteStream) -> None:
        address = remote_address(stream)
        logger.info("TCP: new client(%s)", address)
        session = Session(self.registry, address, self.info)
        pump = Pump(session, stream, self.clock, after=lambda _: None)
        try:
            await pump.run()
        finally:
            session.end("closed")
            while session.has_input:
                session.process_input(self.clock.now_ns())
                await anyio.lowlevel.checkpoint()

    @property
    def http_api(self) -> HTTPApi:
        """The HTTP routes."""
        # h11 and the routes are imported for the first connection, so that the start does not take longer for them.
        if self._http_api is None:
            from nsqkit.lookupd.http_api import HTTPApi

            self._http_api = HTTPApi(self.registry, self.clock)
        return self._http_api

    async def serve_http(self, stream: ByteStream) -> None:
        """Answer the HTTP requests of one connection until it ends; a subclass may do it in another way."""
        await self.http_api.serve(stream, remote_address(stream))
