"""nsqd as a service: listeners, a pump for each client, the timer, start and stop.

Inside ``async with Nsqd(...)`` the broker answers. Afterwards every connection is closed and no task is left. The
engine is driven from here alone, one call at a time. After each call ``_process_events`` wakes the pumps of sessions
that have something to send, starts requests to external services, and updates the timer.
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
from nsqkit.broker.core.session.sessions import AuthorizationRequested, SessionEnded
from nsqkit.broker.external_services import ExternalServices
from nsqkit.broker.persistence import Persistence
from nsqkit.clock import Clock, LoopClock, move_on_after
from nsqkit.errors import Closed
from nsqkit.transport.accept import accept, remote_address
from nsqkit.transport.address import port_of
from nsqkit.transport.asyncio_stream import asyncio_loop
from nsqkit.transport.busy_poll import BusyPoll
from nsqkit.transport.pump import Pump
from nsqkit.transport.tcp import Listener, listen
from nsqkit.transport.timer import Timer
from nsqkit.wire.error_codes import printable_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import ByteStream, TaskGroup

    from nsqkit.broker.core.disk.storage import Storage
    from nsqkit.broker.core.session.session import Session
    from nsqkit.broker.core.session.sessions import Event
    from nsqkit.broker.file_store import DirectoryFileStore
    from nsqkit.broker.http_api import HTTPApi
    from nsqkit.transport.memory import MemoryByteStream
    from nsqkit.transport.tls import Context

    Handler = Callable[[ByteStream], Awaitable[None]]

logger = logging.getLogger("nsqkit.broker")

STOP_TIMEOUT = 0.05
"""Seconds in which a stopping broker sends the rest of its output."""


class Nsqd:
    """A broker in this event loop, for ``async with``.

    Args:
        options: nsqd's flags. An empty ``tcp_address`` means that clients come by ``connect`` alone, an empty
            ``http_address`` no HTTP.
        clock: the time; by default the real one.
        random: the random numbers; by default seeded by the system.
        data_path: a directory for messages on disk and metadata, or its files; by default everything is kept in
            memory only.
        storage: the queues behind memory, where there is no ``data_path``.

    Attributes:
        broker: the engine.
        options: the present options.
        tcp_address: ``host:port`` that clients connect to, or the path of a Unix socket.
        http_address: the same of the HTTP routes, empty without HTTP.
        https_address: the same of the HTTP routes behind TLS, empty without a certificate.
        start_time_ns: the time at which it began to listen, ns since the Unix epoch.
    """

    def __init__(
        self,
        options: BrokerOptions | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        data_path: str | DirectoryFileStore | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.options = BrokerOptions() if options is None else options
        self._persistence = (
            None if data_path is None else Persistence(data_path, self.options, after=self.process_changes)
        )
        if self._persistence is not None:
            storage = self._persistence.storage
        self.broker = Broker(self.options, random or Random(), storage)
        self.broker.log_commands(self.options.log_level == "debug")
        self.tcp_address = ""
        self.http_address = ""
        self.https_address = ""
        self.start_time_ns = 0
        self._clock = clock
        self._busy_poll: BusyPoll | None = None
        self._pumps: dict[Session, Pump] = {}
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._acceptors: TaskGroup | None = None
        self._timer: Timer | None = None
        self._external_services: ExternalServices | None = None
        self._http_api: HTTPApi | None = None
        self._pumps_ended = anyio.Event()
        self._is_killed = False
        self._listeners: list[Listener] = []

    @property
    def clock(self) -> Clock:
        """The time that is passed to the engine."""
        if self._clock is None:
            self._clock = LoopClock()
        return self._clock

    @property
    def is_running(self) -> bool:
        """Whether it accepts clients and messages: from the start until the stop begins."""
        return self._tasks is not None

    @property
    def statsd_prefix(self) -> str:
        """The beginning of all keys that are sent to statsd."""
        options = self.options
        port = options.broadcast_http_port or max(port_of(self.http_address), 0)
        return resolve_prefix(options.statsd_prefix, options.broadcast_address, port)

    # ---- start and stop ------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Nsqd:
        """Start: return when clients can connect.

        Raises:
            OptionError: an invalid address, a TLS file that cannot be used, or a package that an option needs is
                not installed.
            OSError: an address or the data path cannot be used.
        """
        options = self.options
        if options.auth_http_addresses:
            from nsqkit.broker.auth import check_library

            check_library()
        async with AsyncExitStack() as stack:
            if self._persistence is not None:
                self._persistence.open(self.broker, self.clock.now_ns())
                stack.callback(self._close_files, self._persistence)
            self.broker.settle(self.clock.now_ns())
            context = self._tls_context()
            servers: list[tuple[str, Listener, Handler]] = []
            if options.tcp_address:
                tcp = await stack.enter_async_context(await listen(options.tcp_address))
                self.tcp_address = tcp.address
                servers.append(("TCP", tcp, self._serve_client))
            if options.http_address:
                http = await stack.enter_async_context(await listen(options.http_address))
                self.http_address = http.address
                servers.append(("HTTP", http, self._serve_http))
            if context is not None and options.https_address:
                https = await stack.enter_async_context(await listen(options.https_address, paths=False))
                self.https_address = https.address
                servers.append(("HTTPS", https, partial(self._serve_https, context)))
            self._listeners = [listener for _, listener, _ in servers]
            self.start_time_ns = self.clock.now_ns()
            self._timer = Timer(self.broker, self.clock, after=self._process_events)
            if options.busy_poll_ns and (loop := asyncio_loop()) is not None:
                self._busy_poll = BusyPoll(loop, self.clock, options.busy_poll_ns)
            tasks = self._tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(self._timer.run)
            if self._persistence is not None:
                tasks.start_soon(self._persistence.run, self.broker, self.clock)
            self._acceptors = await stack.enter_async_context(anyio.create_task_group())
            for name, listener, handler in servers:
                self._acceptors.start_soon(self._accept, listener, handler, tasks)
                logger.info("%s: listening on %s", name, listener.address)
            self._external_services = ExternalServices(self, tasks)
            self._stack = stack.pop_all()
        return self

    def _tls_context(self) -> Context | None:
        """Let clients upgrade to TLS if there is a certificate; return the TLS settings."""
        if not self.options.tls_cert:
            return None
        from nsqkit.broker.tls import server_context
        from nsqkit.transport.tls import TLS

        context = server_context(self.options)
        self.broker.offer_tls(partial(TLS, context))
        return context

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop: accept nothing more, end every session, send the rest of its output within ``STOP_TIMEOUT``, close."""
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        if not self._is_killed:
            await self._end_sessions()
        tasks.cancel_scope.cancel()
        if isinstance(exc, anyio.get_cancelled_exc_class()):
            await self._stack.__aexit__(exc_type, exc, traceback)
        else:
            # The task group would wrap an exception of the caller in an ExceptionGroup, so it does not get it.
            await self._stack.aclose()
        logger.info("stopped")

    async def _end_sessions(self) -> None:
        assert self._acceptors is not None
        self._acceptors.cancel_scope.cancel()
        for session in list(self.broker.sessions):
            session.end(None)
        self._process_events(self.clock.now_ns())
        with move_on_after(self.clock, STOP_TIMEOUT, shield=True):
            while self._pumps:
                self._pumps_ended = anyio.Event()
                await self._pumps_ended.wait()

    async def _accept(self, listener: Listener, handler: Handler, tasks: TaskGroup) -> None:
        async with listener:
            await accept(listener, handler, tasks, logger, self.clock)

    def kill(self) -> None:
        """Have the end of ``async with`` send and save nothing more, as if the process had been killed."""
        self._is_killed = True
        for listener in self._listeners:
            listener.reset_on_close()

    def _close_files(self, persistence: Persistence) -> None:
        if self._is_killed:
            persistence.abandon()
        else:
            persistence.close(self.broker)

    # ---- clients -------------------------------------------------------------------------------------------------

    def connect(self, name: str = "memory:0") -> MemoryByteStream:
        """Return the client's end of a connection that uses no socket.

        Args:
            name: the client's address, as the broker logs and reports it.

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
        except Exception:  # as ``accept`` does for sockets
            logger.exception("[%s] - internal error", name)

    async def _serve_client(self, stream: ByteStream) -> None:
        await self._serve_session(stream, remote_address(stream))

    async def _serve_session(self, stream: ByteStream, remote_address: str) -> None:
        broker, clock = self.broker, self.clock
        session = broker.open_session(remote_address, clock.now_ns())
        pump = self._pumps[session] = Pump(session, stream, clock, after=self._process_events)
        logger.info("TCP: new client(%s)", remote_address)
        try:
            if not self.is_running:  # the connection was accepted as the stop began
                session.end(None)
            self._process_events(self.clock.now_ns())
            await pump.run()
        finally:
            del self._pumps[session]
            if not self._pumps:
                self._pumps_ended.set()
            logger.info("PROTOCOL(V2): [%s] exiting", remote_address)
            broker.close_session(session, clock.now_ns())
            self._process_events(self.clock.now_ns())

    @property
    def _http(self) -> HTTPApi:
        # h11 and the routes are imported for the first connection, so that the start does not take longer for them.
        if self._http_api is None:
            from nsqkit.broker.http_api import HTTPApi

            self._http_api = HTTPApi(self)
        return self._http_api

    async def _serve_http(self, stream: ByteStream) -> None:
        await self._http.serve(stream, remote_address(stream))

    async def _serve_https(self, context: Context, stream: ByteStream) -> None:
        from nsqkit.broker.https import serve_https

        await serve_https(self._http, context, stream, remote_address(stream))

    # ---- the engine ----------------------------------------------------------------------------------------------

    def _process_events(self, now_ns: int) -> None:
        """Act on the results of the last call of the engine: deliver, handle events, wake writers, check deadlines."""
        self.broker.settle(now_ns)
        for session in self.broker.take_sessions():
            if session.has_events:
                for event in session.events():
                    self._handle_event(session, event)
            pump = self._pumps.get(session)
            if pump is not None:
                try:
                    pump.wake()
                except Exception as fault:  # it ends that connection, not the one that is being served
                    pump.fail(fault)
        if self._busy_poll is not None:
            self._busy_poll.record(self.broker.changes.published_ns)
        if not self.broker.has_news:
            return
        self.broker.has_news = False
        if self._external_services is not None:
            self._external_services.check()
        if self._persistence is not None:
            self._persistence.check(self.broker)
        assert self._timer is not None
        self._timer.check()

    def _handle_event(self, session: Session, event: Event) -> None:
        if isinstance(event, SessionEnded):
            if event.reason:
                logger.error("[%s] - %s", session.remote_address, printable_text(event.reason))
        elif isinstance(event, AuthorizationRequested) and self._external_services is not None:
            self._external_services.authorize(session, event.secret)

    def process_changes(self) -> None:
        """Deliver messages, wake writers and start requests after a change to ``broker`` or ``options``."""
        self.broker.changes.has_news = True  # the options may have changed
        self._process_events(self.clock.now_ns())

    async def save(self) -> None:
        """Write the names of the present topics and channels to disk, if there is a data path."""
        if self._persistence is not None:
            await self._persistence.save(self.broker)

    async def committed(self, first_ticket: int | None = None) -> bool:
        """Do as ``RunningBroker.committed``."""
        return self._persistence is None or await self._persistence.committed(self.broker, first_ticket)
