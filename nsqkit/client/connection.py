"""The connection to one nsqd: dial, handshake, pump, and all of it again when the connection is lost.

One task per address does so until it is stopped. When it ends, nothing of the connection is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio

from nsqkit.client.dialler import Dial, Dialler
from nsqkit.client.failure import advice
from nsqkit.client.options import ConnectionOptions
from nsqkit.clock import NS_PER_S, Clock
from nsqkit.errors import ConnectionLost, ConnectTimeout, NotConnected, NSQError, ProtocolError, WriteTimeout
from nsqkit.transport.pump import Pump
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.client.reconnect import Reconnect
    from nsqkit.client.session import ClientSession

__all__ = ["Connection", "Dial"]

logger = logging.getLogger("nsqkit.client")

STEADY_NS: Final = 60 * NS_PER_S
"""A connection that lasts so long counts as useful, even if it ends with an error of the protocol."""


S = TypeVar("S", bound="ClientSession[Any]")


class Connection(Generic[S]):
    """One address and the connection to it.

    Args:
        address: ``host:port``, or the path of a Unix socket.
        make_session: makes the session of each new connection, given the time.
        clock: the time.
        dial: connects to the address; only a ``Dialler`` supports TLS and AUTH.
        dial_timeout: limit, in seconds, of dialling and handshake together, without the answer to AUTH.
        reconnect: the delays before dialling again.
        on_change: called with the time after each change: bytes were received, a deadline was handled, the session has
            ended.
        log: the logger.

    Attributes:
        session: the session of the current connection, or of the last one; None before the first.
        error: the error of the last connection; None while there is one.
        failure: the permanent error after which the address is not dialled again, if ``end_on_permanent_error`` is set.
        wake: writes the session's output soon.
        flush: writes the session's output now if the kernel takes it at once, else soon.
        is_running: False once ``run`` has ended.
        handshake_count: the number of successful handshakes.
    """

    def __init__(
        self,
        address: str,
        make_session: Callable[[int], S],
        *,
        clock: Clock,
        dial: Dial,
        dial_timeout: float,
        reconnect: Reconnect,
        on_change: Callable[[Connection[S], int], None],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger] = logger,
    ) -> None:
        self.address = address
        self.session: S | None = None
        self.error: Exception | None = None
        self.failure: NSQError | None = None
        self._make_session = make_session
        self._clock = clock
        self._dialler = dial if isinstance(dial, Dialler) else Dialler(ConnectionOptions(), dial)
        self._dial_timeout_ns = round(dial_timeout * NS_PER_S)
        self._timer = Timer(self, clock, after=self._after_deadline)
        self._reconnect = reconnect
        self._on_change: Callable[[int], None] = partial(on_change, self)
        self._log = log
        self._log_fields = {"nsqd_address": address}
        self._use(None)
        self._detached: Pump | None = None
        self._attempt: anyio.CancelScope | None = None  # encloses dialling and the session
        self._dialled_ns = 0
        self._handshake_limit_ns = 0  # of dialling and handshake
        self._handshake_deadline_ns: int | None = None  # the end of that time; None without a handshake
        self._stopped = False
        self._logged = ""  # the last error, as text
        self.is_running = True
        self.handshake_count = 0

    def _use(self, pump: Pump | None) -> None:
        """Read and write by a pump, or not at all."""
        self._pump = pump
        self.wake, self.flush = (_do_nothing, _do_nothing) if pump is None else (pump.wake, pump.flush)

    def detach(self) -> int | None:
        """Stop reading and writing, and return the file descriptor of the socket; None if that is not possible now.

        The session and the socket belong to the caller until it calls ``attach`` or ``abort``, each in the event loop.
        It must do so before the session's ``next_deadline``, which the event loop handles.
        """
        pump = self._pump
        if pump is None or (fileno := pump.detach()) is None:
            return None
        self._use(None)
        self._detached = pump
        return fileno

    def attach(self, unsent: bytes = b"") -> None:
        """Read and write again after ``detach``; first send ``unsent``, which the caller took and could not send."""
        self._reattached().attach(unsent)
        self._after(self._clock.now_ns())
        self.wake()

    def abort(self, error: NSQError) -> None:
        """After ``detach``, end the session with ``error`` and close the connection without sending anything."""
        assert self.session is not None
        self.session.end(error)
        self._reattached().abort()
        self._on_change(self._clock.now_ns())

    def _reattached(self) -> Pump:
        assert self._detached is not None
        pump, self._detached = self._detached, None
        self._use(pump)
        return pump

    def stop(self) -> None:
        """Do not dial again after the current session."""
        self._stopped = True

    async def run(self) -> None:
        """Connect, again and again, until stopped or cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._timer.run)
                await self._reconnect_until_stopped()
                tasks.cancel_scope.cancel()
        finally:
            self.is_running = False
            self._on_change(self._clock.now_ns())

    async def _reconnect_until_stopped(self) -> None:
        while not self._stopped:
            handshake_count = self.handshake_count
            error = self.error = await self._run_once()
            was_open = self.handshake_count > handshake_count
            lasted_ns = self._clock.now_ns() - self._dialled_ns
            if was_open and not (isinstance(error, ProtocolError) and lasted_ns < STEADY_NS):
                self._reconnect.connected()
                self._logged = ""
            if error is not None:
                is_permanent = error.permanent and not was_open
                self._report(error, is_permanent=is_permanent)
                if is_permanent and self._dialler.options.end_on_permanent_error:
                    self.failure = error
                    break
            if self._stopped:
                break
            delay_ns = self._reconnect.next_delay_ns()
            self._on_change(self._clock.now_ns())
            delay = delay_ns / NS_PER_S
            self._log.info("[%s] dialling again in %.3f s", self.address, delay, extra=self._log_fields)
            await self._clock.wait_until(self._clock.now_ns() + delay_ns)

    def _report(self, error: NSQError, *, is_permanent: bool) -> None:
        """Log an error, a repeated permanent one at level DEBUG, and pass it to ``on_connection``."""
        text = str(error)
        if error.permanent and text == self._logged:
            self._log.debug("[%s] %s", self.address, text, extra=self._log_fields)
        elif is_permanent:
            self._log.error("[%s] %s (%s)", self.address, text, advice(error), extra=self._log_fields)
        else:
            self._log.warning("[%s] %s", self.address, text, extra=self._log_fields)
        self._logged = text
        self._call_on_connection(error)

    async def _run_once(self) -> NSQError | None:
        """Dial, handshake and pump; return the error that ended it."""
        session = None
        self._dialled_ns = self._clock.now_ns()
        self._limit_handshake(self._dial_timeout_ns)
        self._timer.check()
        try:
            with anyio.CancelScope() as self._attempt:
                try:
                    stream = await self._dialler(self.address)
                except (OSError, NSQError) as error:
                    refused = NotConnected(f"cannot connect to {self.address}: {error}")
                    refused.__cause__ = error
                    return refused
                session = self.session = self._make_session(self._clock.now_ns())
                self._dialler.secure(session, self.address)
                await self._pump_until_ended(session, stream)
        finally:
            self._handshake_deadline_ns = None
        return session.error if session is not None else self._timeout()

    async def _pump_until_ended(self, session: S, stream: ByteStream) -> None:
        pump = Pump(
            session,
            stream,
            self._clock,
            after=self._after,
            wait_for_peer=True,
            write_timeout=self._dialler.options.write_timeout,
        )
        self._use(pump)
        self._timer.check()
        try:
            await pump.run()
        except WriteTimeout as timeout:
            session.end(timeout)
        finally:
            self._use(None)
            # A session that has ended keeps its error.
            timed_out = self._attempt is not None and self._attempt.cancel_called
            session.end(self._timeout() if timed_out else ConnectionLost("the connection was cancelled"))

    # ---- deadlines of the handshake and of the session -------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return the earlier deadline."""
        session_ns = None if self.session is None else self.session.next_deadline()
        deadlines = (self._handshake_deadline_ns, session_ns)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle_deadline(self, now_ns: int) -> None:
        """End a handshake that takes too long, or have the session handle its deadline."""
        if self._handshake_deadline_ns is not None and now_ns >= self._handshake_deadline_ns:
            self._handshake_deadline_ns = None
            if self._attempt is not None:
                self._attempt.cancel()
        elif self.session is not None:
            self.session.handle_deadline(now_ns)

    def _after_deadline(self, now_ns: int) -> None:
        if self._pump is not None:
            self._after(now_ns)
            self.wake()

    def _limit_handshake(self, limit_ns: int) -> None:
        self._handshake_limit_ns = limit_ns
        self._handshake_deadline_ns = self._dialled_ns + limit_ns

    def _timeout(self) -> ConnectTimeout:
        seconds = self._handshake_limit_ns / NS_PER_S
        return ConnectTimeout(f"{self.address} did not answer within {seconds:g} seconds")

    def _after(self, now_ns: int) -> None:
        """Act on the session's changes."""
        session = self.session
        assert session is not None
        has_opened = self._handshake_deadline_ns is not None and session.is_open
        if has_opened:
            self._handshake_deadline_ns = None
            if self._pump is not None:
                self._pump.after = self._on_change
            self.error = None
            self.handshake_count += 1
            self._log.info("[%s] connected", self.address, extra=self._log_fields)
        elif self._handshake_deadline_ns is not None and session.is_authenticating:
            # The broker sends a request to an auth server, which may take longer than the handshake itself.
            auth_ns = max(self._dial_timeout_ns, round(self._dialler.options.read_timeout * NS_PER_S))
            self._limit_handshake(self._dial_timeout_ns + auth_ns)
        self._on_change(now_ns)
        if has_opened:  # the owner has the session by now, so that the user's function may have it closed
            self._call_on_connection(None)

    def _call_on_connection(self, error: Exception | None) -> None:
        if (on_connection := self._dialler.options.on_connection) is not None:
            try:
                on_connection(self.address, error)
            except Exception:
                self._log.exception("[%s] on_connection failed", self.address, extra=self._log_fields)


def _do_nothing() -> None:
    """Do nothing: there is no connection."""
