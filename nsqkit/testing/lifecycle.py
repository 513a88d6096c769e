"""The life of a test server: start, stop, kill and restart, from any thread, with the same addresses.

A server runs in the process of the test, in the thread of the event loop that all blocking objects of nsqkit share.
Each run of it, from a start to the next stop, is one ``Run``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from nsqkit.loop_thread import portal_provider
from nsqkit.testing.errors import ServerState
from nsqkit.testing.ports import KeptPort

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from anyio.from_thread import BlockingPortal


class Run(Protocol):
    """A server while it runs, for ``async with`` in the loop thread."""

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes."""
        ...

    @property
    def tcp_address(self) -> str:
        """``host:port`` of the TCP listener."""
        ...

    def kill(self) -> None:
        """Have the end of ``async with`` reset every connection, and save nothing."""
        ...

    def forget(self) -> None:
        """Have the end of ``async with`` keep no data for another start; called in any thread."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None: ...


R = TypeVar("R", bound=Run)
T = TypeVar("T")


class Server(Generic[R]):
    """A server with a life, for ``with`` or with ``start`` and ``stop``.

    Attributes:
        name: nsqd or nsqlookupd.
        tcp_address: ``host:port`` that clients connect to; the same after each start.
        http_address: ``host:port`` of the HTTP routes, likewise; empty without HTTP.
    """

    name = ""

    def __init__(self, tcp_address: str, http_address: str) -> None:
        self.tcp_address = ""
        self.http_address = ""
        self._addresses = (tcp_address, http_address)
        self._ports: tuple[KeptPort, KeptPort] | None = None
        self._portal: BlockingPortal | None = None
        self._run: R | None = None
        self._stack = ExitStack()

    def _make_run(self, tcp_port: KeptPort, http_port: KeptPort, *, keep_data: bool) -> R:
        """Return the next run, which releases the ports when it listens; called in the loop thread."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """True from ``start`` to ``stop`` or ``kill``."""
        return self._run is not None

    @property
    def http_url(self) -> str:
        """``http://host:port`` of the HTTP routes."""
        return f"http://{self.http_address}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._run is not None:
            self._run.forget()
        self.stop()

    def start(self, *, keep_data: bool = False) -> None:
        """Start: return when clients can connect.

        Args:
            keep_data: begin with the data of the last ``stop``, as a process that finds its files.

        Raises:
            ServerState: it is running.
            OptionError: an option cannot be used.
            OSError: an address or a file cannot be used.
        """
        if self._run is not None:
            raise ServerState(f"the {self.name} at {self.tcp_address} is running; stop() has to come before start()")
        with ExitStack() as stack:
            if self._ports is None:
                self._ports = (KeptPort(self._addresses[0]), KeptPort(self._addresses[1]))
            tcp_port, http_port = self._ports
            stack.callback(http_port.keep)
            stack.callback(tcp_port.keep)
            portal = stack.enter_context(portal_provider())
            run = portal.call(lambda: self._make_run(tcp_port, http_port, keep_data=keep_data))
            stack.enter_context(portal.wrap_async_context_manager(run))
            self.tcp_address, self.http_address = run.tcp_address, run.http_address
            self._portal, self._run = portal, run
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Stop: send the rest of the output and close every connection; do nothing if it is stopped.

        Connections are refused until the next start.
        """
        self._run = None
        self._stack.close()

    def kill(self) -> None:
        """End as by a crash: every connection is reset and nothing is saved; do nothing if it is stopped."""
        if self._run is not None:
            self._call(lambda run: run.kill())
            self.stop()

    def restart(self, *, keep_data: bool = False) -> None:
        """Stop if it is running, and start again on the same addresses; the argument and errors are those of start."""
        self.stop()
        self.start(keep_data=keep_data)

    @overload
    def _call(self, function: Callable[[R], Coroutine[Any, Any, T]]) -> T: ...
    @overload
    def _call(self, function: Callable[[R], T]) -> T: ...
    def _call(self, function: Callable[[R], Any]) -> Any:
        """Call a function, or a coroutine function, with the present run in the loop thread, and return its result.

        Raises:
            ServerState: the server is stopped.
        """
        run, portal = self._run, self._portal
        if run is None or portal is None:
            raise ServerState(f"the {self.name} is not running; start() has to come before this call")
        return portal.call(function, run)
