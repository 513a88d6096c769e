"""Keeps a connection to one nsqd: dial, handshake, pump, and again when it is lost.

The rule it guards: one task owns one address. It is the only one that dials it, it never gives up until it is
stopped, and when it ends nothing of the connection is left.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import anyio

from nsqkit.client.dialler import Dial, Dialler, Securable
from nsqkit.client.failure import advice
from nsqkit.client.options import ConnectionOptions
from nsqkit.clock import NS_PER_S, Clock
from nsqkit.errors import ConnectionLost, ConnectTimeout, NotConnected, NSQError, ProtocolError, WriteTimeout
from nsqkit.transport.loan import Loan
from nsqkit.transport.machine import Machine, Timed
from nsqkit.transport.pump import Pump
from nsqkit.transport.timer import Timer

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.client.reconnect import Reconnect

__all__ = ["ClientMachine", "Connection", "Dial"]

logger = logging.getLogger("nsqkit.client")

STEADY_NS: Final = 60 * NS_PER_S
"""A connection that lasts so long was of use, even if the broker breaks the protocol in the end."""

LOAN_MARGIN_NS: Final = NS_PER_S
"""A session is lent only if its next deadline is further away: several times what a loan may be unused."""


class ClientMachine(Machine, Timed, Securable, Protocol):
    """A client's session, as its connection sees it."""

    @property
    def is_open(self) -> bool:
        """True between the greeting and the end."""
        ...

    @property
    def is_authenticating(self) -> bool:
        """True while the broker asks an auth server about us."""
        ...

    @property
    def error(self) -> NSQError | None:
        """Why the session has ended."""
        ...

    def end(self, error: NSQError | None) -> None:
        """Have the connection closed."""
        ...


S = TypeVar("S", bound=ClientMachine)


class Connection(Generic[S]):
    """One address and the connection to it.

    Args:
        address: ``host:port``, or the path of a Unix socket.
        make_session: makes the session of each new connection, given the time.
        clock: the time.
        dial: how to reach the address; one that is no ``Dialler`` knows of neither TLS nor AUTH.
        dial_timeout: seconds of ``clock`` for dialling and greeting together, without what an auth server takes.
        reconnect: how long to wait before dialling again.
        on_change: called after the session was handed bytes, was made, or has ended.
        log: where to say what happens to the connection.

    Attributes:
        session: the session of the present connection, or of the last one; None before the first.
        error: why there is no connection at present.
        failure: the permanent error after which the address is not dialled again, where the options say so.
        is_running: False once ``run`` has ended.
        handshake_count: how often a connection was made and greeted.
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
        on_change: Callable[[Connection[S]], None],
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
        self._on_change = on_change
        self._log = log
        self._log_fields = {"nsqd_address": address}
        self._pump: Pump | None = None
        self._detached: Pump | None = None
        self._attempt: anyio.CancelScope | None = None  # from dialling to the end of the session
        self._begun_ns = 0  # when it was dialled
        self._greeting_deadline_ns: int | None = None  # while dialling and greeting last
        self._stopped = False
        self._logged = ""  # the last error, as text
        self.is_running = True
        self.handshake_count = 0

    def wake(self) -> None:
        """Have what the session wants to send be sent."""
        if self._pump is not None:
            self._pump.wake()

    def flush(self) -> None:
        """Have it sent without a turn of the event loop, where that is possible."""
        if self._pump is not None:
            self._pump.flush()

    def lend(self, on_idle: Callable[[], None]) -> Loan | None:
        """Hand the connection to threads, if nothing is on its way there.

        Args:
            on_idle: as for ``Loan``.

        Returns:
            The loan; until it is over, nobody else may use the session. None if that cannot be now.
        """
        session = self.session
        if sys.platform == "win32" or session is None or not session.is_open:
            return None  # there, an event loop that waits for a socket cannot be kept from taking what comes
        deadline_ns = session.next_deadline()
        if deadline_ns is not None and deadline_ns < self._clock.now_ns() + LOAN_MARGIN_NS:
            return None  # the alarm would come while a thread has the session
        fileno = self.detach()
        if fileno is None:
            return None
        return Loan(session, fileno, self._clock, on_idle=on_idle, on_back=self._take_back)

    def _take_back(self, loan: Loan) -> None:
        if loan.is_broken:
            self.abort(ConnectionLost("a thread was interrupted while it talked to the broker"))
        else:
            self.attach(loan.unsent)

    def detach(self) -> int | None:
        """Stop reading and writing, and return the file descriptor of the socket; None if that is not possible now.

        The session and the socket belong to the caller until it calls ``attach`` or ``abort``, each in the event loop.
        It must do so before the session's ``next_deadline``, which the event loop handles.
        """
        pump = self._pump
        if pump is None or (fileno := pump.detach()) is None:
            return None
        self._pump, self._detached = None, pump
        return fileno

    def attach(self, unsent: bytes = b"") -> None:
        """Read and write again after ``detach``; first send ``unsent``, which the session gave and nobody has sent."""
        self._reattached().attach(unsent)
        self._after()

    def abort(self, error: NSQError) -> None:
        """After ``detach``, end the session with ``error`` and close the connection without sending anything."""
        assert self.session is not None
        self.session.end(error)
        self._reattached().abort()
        self._on_change(self)

    def _reattached(self) -> Pump:
        assert self._detached is not None
        pump = self._pump = self._detached
        self._detached = None
        return pump

    def stop(self) -> None:
        """Dial no more once the present session has ended."""
        self._stopped = True

    async def run(self) -> None:
        """Keep the connection until stopped or cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._timer.run)
                await self._keep()
                tasks.cancel_scope.cancel()
        finally:
            self.is_running = False
            self._on_change(self)

    async def _keep(self) -> None:
        while not self._stopped:
            handshake_count = self.handshake_count
            error = self.error = await self._run_once()
            is_greeted = self.handshake_count > handshake_count
            misbehaves = (
                isinstance(error, ProtocolError) and self._clock.now_ns() - self._begun_ns < STEADY_NS
            )
            if is_greeted and not misbehaves:
                self._reconnect.connected()
                self._logged = ""
            if error is not None:
                self._report(error, is_permanent=error.permanent and not is_greeted)
                if error.permanent and not is_greeted and self._dialler.end_on_permanent_error:
                    self.failure = error
                    break
            if self._stopped:
                break
            delay_ns = self._reconnect.next_delay_ns()
            self._on_change(self)
            delay = delay_ns / NS_PER_S
            self._log.info("[%s] dialling again in %.3f s", self.address, delay, extra=self._log_fields)
            await self._clock.wait_until(self._clock.now_ns() + delay_ns)

    def _report(self, error: NSQError, *, is_permanent: bool) -> None:
        """Log an error and tell the user's function; what comes again and again is a warning or an error once."""
        text = str(error)
        if error.permanent and text == self._logged:
            self._log.debug("[%s] %s", self.address, text, extra=self._log_fields)
        elif is_permanent:
            self._log.error("[%s] %s (%s)", self.address, text, advice(error), extra=self._log_fields)
        else:
            self._log.warning("[%s] %s", self.address, text, extra=self._log_fields)
        self._logged = text
        self._tell(error)

    async def _run_once(self) -> NSQError | None:
        """Dial, handshake and pump; return why that is over."""
        session = None
        self._begun_ns = self._clock.now_ns()
        self._greeting_deadline_ns = self._begun_ns + self._dial_timeout_ns
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
                await self._talk(session, stream)
        finally:
            self._greeting_deadline_ns = None
        return session.error if session is not None else self._timeout()

    async def _talk(self, session: S, stream: ByteStream) -> None:
        pump = self._pump = Pump(
            session,
            stream,
            self._clock,
            after=self._after,
            wait_for_peer=True,
            write_timeout=self._dialler.write_timeout,
        )
        self._timer.check()
        try:
            await pump.run()
        except WriteTimeout as timeout:
            session.end(timeout)
        finally:
            self._pump = None
            # A session that has ended keeps its own reason.
            timed_out = self._attempt is not None and self._attempt.cancel_called
            session.end(self._timeout() if timed_out else ConnectionLost("the connection was cancelled"))

    # ---- deadlines: of the greeting and of the session -------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call ``handle_deadline`` if nothing else happens."""
        session_ns = None if self.session is None else self.session.next_deadline()
        deadlines = (self._greeting_deadline_ns, session_ns)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def handle_deadline(self, now_ns: int) -> None:
        """Give up a greeting that takes too long, or have the session do what is due."""
        if self._greeting_deadline_ns is not None and now_ns >= self._greeting_deadline_ns:
            self._greeting_deadline_ns = None
            if self._attempt is not None:
                self._attempt.cancel()
        elif self.session is not None:
            self.session.handle_deadline(now_ns)

    def _after_deadline(self) -> None:
        if self._pump is not None:
            self._after()

    def _timeout(self) -> ConnectTimeout:
        seconds = self._dial_timeout_ns / NS_PER_S
        return ConnectTimeout(f"{self.address} did not answer within {seconds:g} seconds")

    def _after(self) -> None:
        """Act on what the session was told."""
        session = self.session
        assert session is not None
        if self._greeting_deadline_ns is not None:
            if session.is_open:
                self._greeting_deadline_ns = None
                self.error = None
                self.handshake_count += 1
                self._log.info("[%s] connected", self.address, extra=self._log_fields)
                self._tell(None)
            elif session.is_authenticating:
                patience_ns = max(self._dial_timeout_ns, round(self._dialler.read_timeout * NS_PER_S))
                self._greeting_deadline_ns = self._begun_ns + self._dial_timeout_ns + patience_ns
        self._on_change(self)
        self.wake()

    def _tell(self, error: Exception | None) -> None:
        """Tell the user that there is a connection, or why there is none."""
        if self._dialler.on_connection is not None:
            try:
                self._dialler.on_connection(self.address, error)
            except Exception:
                self._log.exception("[%s] on_connection failed", self.address, extra=self._log_fields)
