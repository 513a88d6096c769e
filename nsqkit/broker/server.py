"""nsqd as a running thing: listeners, a pump for each client, one alarm, start and stop.

The rule it guards: when ``async with Nsqd(…)`` has been entered, the broker answers; when it has been left, every
client's connection is closed and no task is left. Between the two the engine is only ever called from here, one
call at a time, and after each call the sessions that it names are woken.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import anyio

from nsqkit.broker.core.broker import Broker
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.report.statsd import resolve_prefix
from nsqkit.broker.external_services import ExternalServices
from nsqkit.broker.persistence import Persistence
from nsqkit.clock import Clock, LoopClock
from nsqkit.errors import Closed
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.address import port_of
from nsqkit.transport.asyncio_stream import asyncio_loop
from nsqkit.transport.busy_poll import BusyPoll
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import Listener, listen
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.broker.core.session.session import Session
    from nsqkit.transport.memory import MemoryByteStream
    from nsqkit.transport.tls import Context

logger = logging.getLogger("nsqkit.broker")

STOP_TIMEOUT = 0.05
"""Seconds that clients have to take what is still to be sent to them when the broker stops."""


class Nsqd:
    """A broker in this event loop, for ``async with``.

    Args:
        options: nsqd's flags. An empty ``http_address`` means no HTTP.
        clock: the time; by default the real one.
        random: chance; by default seeded by the system.
        data_path: a directory for messages on disk and metadata; by default all is in memory, and gone at the end.
        owns_loop: the event loop has nothing else to do, so it may keep a vigil for publishers (see
            ``nsqkit.transport.busy_poll``).

    Attributes:
        broker: the engine.
        clock: the time it is told.
        tcp_address: ``host:port`` that clients connect to, or the path of a Unix socket.
        http_address: the same of the HTTP routes, empty without HTTP.
        https_address: the same of the HTTP routes behind TLS, empty without a certificate.
        start_time_ns: the time at which it began to listen.
    """

    def __init__(
        self,
        options: BrokerOptions | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        data_path: str | None = None,
        owns_loop: bool = False,
    ) -> None:
        self.options = BrokerOptions() if options is None else options
        self._persistence = (
            None if data_path is None else Persistence(data_path, self.options, after=self._after)
        )
        storage = None if self._persistence is None else self._persistence.storage
        self.broker = Broker(self.options, random or Random(), storage)
        self.broker.log_commands(self.options.log_level == "debug")
        self.tcp_address = ""
        self.http_address = ""
        self.https_address = ""
        self.start_time_ns = 0
        self._clock = clock
        self._owns_loop = owns_loop
        self._busy_poll: BusyPoll | None = None
        self._pumps: dict[Session, Pump] = {}
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._timer: Timer | None = None
        self._external_services: ExternalServices | None = None
        self._all_gone = anyio.Event()

    @property
    def clock(self) -> Clock:
        """The time that the broker is told."""
        if self._clock is None:
            self._clock = LoopClock()
        return self._clock

    @property
    def statsd_prefix(self) -> str:
        """What keys for statsd begin with."""
        options = self.options
        port = options.broadcast_http_port or max(port_of(self.http_address), 0)
        return resolve_prefix(options.statsd_prefix, options.broadcast_address, port)

    # ---- start and stop ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Nsqd:
        """Start: return when clients can connect.

        Raises:
            OptionError: an address cannot be one, or a file of TLS cannot be used.
            OSError: an address or the data path cannot be had.
        """
        if self.options.auth_http_addresses:
            from nsqkit.broker.auth import check_library

            check_library()
        async with AsyncExitStack() as stack:
            persistence = self._persistence
            if persistence is not None:
                persistence.open(self.broker, self.clock.now_ns())
                stack.callback(persistence.close, self.broker)
            self.broker.settle(self.clock.now_ns())
            context = self._tls_context()
            tcp = await stack.enter_async_context(await listen(self.options.tcp_address))
            self.tcp_address = tcp.address
            http = None
            if self.options.http_address:
                http = await stack.enter_async_context(await listen(self.options.http_address))
                self.http_address = http.address
            https = None
            if context is not None and self.options.https_address:
                https = await stack.enter_async_context(await listen(self.options.https_address, paths=False))
                self.https_address = https.address
            self.start_time_ns = self.clock.now_ns()
            self._timer = Timer(self.broker, self.clock, after=self._after)
            if self._owns_loop and (loop := asyncio_loop()) is not None:
                self._busy_poll = BusyPoll(loop, self.clock)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._timer.run)
            if persistence is not None:
                self._tasks.start_soon(persistence.run, self.broker)
            self._serve(tcp, self._serve_client, "TCP", self.tcp_address)
            if http is not None:
                self._serve(http, self._serve_http, "HTTP", self.http_address)
            if https is not None and context is not None:
                self._serve(https, partial(self._serve_https, context), "HTTPS", self.https_address)
            self._external_services = ExternalServices(self, self._tasks)
            self._external_services.start()
            self._stack = stack.pop_all()
        return self

    def _tls_context(self) -> Context | None:
        """Return the rules of TLS, and have the broker offer it, if there is a certificate."""
        if not self.options.tls_cert:
            return None
        from nsqkit.broker.tls import server_context
        from nsqkit.transport.tls import TLS

        context = server_context(self.options)
        self.broker.offer_tls(partial(TLS, context))
        return context

    def _serve(
        self,
        listener: Listener,
        handler: Callable[[ByteStream], Awaitable[None]],
        name: str,
        address: str,
    ) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(accept, listener, handler, self._tasks, logger)
        logger.info("%s: listening on %s", name, address)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop: end every session, let clients take what is still to be sent to them, close."""
        assert self._tasks is not None
        for session in list(self.broker.sessions):
            session.end(None)
        self._after()
        with anyio.move_on_after(STOP_TIMEOUT, shield=True):
            while self._pumps:
                self._all_gone = anyio.Event()
                await self._all_gone.wait()
        self._tasks.cancel_scope.cancel()
        self._tasks = None
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            await self._stack.__aexit__(exc_type, exc, traceback)
        else:
            # A task group would wrap an exception of the user's own in an ExceptionGroup; so it is not told of it.
            await self._stack.aclose()
        logger.info("stopped")

    # ---- clients -------------------------------------------------------------------------------------------------

    def connect(self, name: str = "memory:0") -> MemoryByteStream:
        """Return the client's end of a connection that uses no socket.

        Args:
            name: what the broker takes for the client's address.

        Raises:
            Closed: the broker is not running.
        """
        if self._tasks is None:
            raise Closed("the broker is not running")
        from nsqkit.transport.memory import memory_pair

        ours, theirs = memory_pair()
        self._tasks.start_soon(self._serve_memory, ours, name)
        return theirs

    async def _serve_memory(self, stream: ByteStream, name: str) -> None:
        try:
            await self._serve_session(stream, name)
        except Exception:  # as ``accept`` does it for sockets
            logger.exception("[%s] - internal error", name)

    async def _serve_client(self, stream: ByteStream) -> None:
        await self._serve_session(stream, remote_address(stream))

    async def _serve_session(self, stream: ByteStream, remote_address: str) -> None:
        broker, clock = self.broker, self.clock
        session = broker.open_session(remote_address, clock.now_ns())
        pump = self._pumps[session] = Pump(session, stream, clock, after=self._after)
        logger.info("TCP: new client(%s)", remote_address)
        try:
            self._after()
            await pump.run()
        finally:
            del self._pumps[session]
            if not self._pumps:
                self._all_gone.set()
            if session.end_reason:
                logger.error("[%s] - %s", remote_address, session.end_reason)
            logger.info("PROTOCOL(V2): [%s] exiting", remote_address)
            broker.close_session(session, clock.now_ns())
            self._after()

    async def _serve_http(self, stream: ByteStream) -> None:
        # h11 and the routes are imported when they are first needed, so that a start does not wait for them.
        from nsqkit.broker.http_api import serve_http

        await serve_http(self, stream, remote_address(stream))

    async def _serve_https(self, context: Context, stream: ByteStream) -> None:
        from nsqkit.broker.https import serve_https

        await serve_https(self, context, stream, remote_address(stream))

    def _after(self) -> None:
        """Act on what the last call of the engine has left: wake writers, tell the others, look at the deadlines."""
        for session in self.broker.take_sessions():
            pump = self._pumps.get(session)
            if pump is not None:
                try:
                    pump.wake()
                except Exception as fault:  # it ends that connection, not the one that is served now
                    pump.fail(fault)
        if self._busy_poll is not None:
            self._busy_poll.keep(self.broker.agenda.published_ns)
        if not self.broker.agenda.has_news:
            return
        self.broker.agenda.has_news = False
        if self._external_services is not None:
            self._external_services.check()
        if self._persistence is not None:
            self._persistence.check(self.broker)
        assert self._timer is not None
        self._timer.check()

    def settle(self) -> None:
        """Act on what was done to the engine from outside a connection, such as by an HTTP route."""
        self.broker.settle(self.clock.now_ns())
        self.broker.agenda.has_news = True  # options may be others now
        self._after()

    async def turn(self) -> None:
        """Return when all others that are ready have had a turn of the event loop."""
        await anyio.lowlevel.checkpoint()

    async def save(self) -> None:
        """Return when the topics and channels of this moment are named on disk, if there is one."""
        if self._persistence is not None:
            await self._persistence.save(self.broker)

    async def committed(self) -> bool:
        """Return when what was put before is as safe as the options want it; tell whether it is."""
        return self._persistence is None or await self._persistence.committed(self.broker)
