"""One run of an nsqd for tests: its backend, and the proxy that clients connect to."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from nsqkit.broker.server import Nsqd
    from nsqkit.testing.backend import Backend
    from nsqkit.testing.ports import KeptPort
    from nsqkit.testing.proxy import Proxy

STOP_LIMIT: Final = 0.1
"""Real seconds in which a server that stops sends its last bytes; then connections that remain are reset."""


class NsqdRun:
    """A server while it runs (``nsqkit.testing.lifecycle.Run``).

    Args:
        backend: the nsqd.
        proxy: where clients connect.
        http_port: where HTTP clients connect.
        keep_data: begin with the data of the last stop.
    """

    def __init__(self, backend: Backend, proxy: Proxy, http_port: KeptPort, *, keep_data: bool) -> None:
        self.backend = backend
        self.proxy = proxy
        self._http_port = http_port
        self._keep_data = keep_data
        self._is_killed = False
        self._is_last = False

    @property
    def tcp_address(self) -> str:
        """``host:port`` that clients connect to."""
        return self.proxy.address

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; empty without HTTP."""
        return self.backend.http_address

    @property
    def nsqd(self) -> Nsqd:
        """The broker; raise Unsupported where it is not in this process."""
        return self.backend.nsqd

    def kill(self) -> None:
        """Have the end of ``async with`` reset every connection, and save nothing."""
        self._is_killed = True

    def forget(self) -> None:
        """Have the end of ``async with`` keep no data for another start."""
        self._is_last = True

    async def reset(self) -> None:
        """Reset every connection, delete all topics, and clear the journal; connections are refused meanwhile."""
        await self.proxy.reset()
        await self.proxy.wait_closed()
        await self.backend.reset()
        self.proxy.journal.clear()
        await self.proxy.open_listener()

    async def __aenter__(self) -> Self:
        # Cancel scopes are nested: the proxy's is the outer one, so that the backend can be stopped first.
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.proxy)
            await self.backend.start(self.proxy.address, self._http_port, keep_data=self._keep_data)
            stack.push_async_callback(self.backend.kill)
            await self.proxy.open_listener()
            stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._is_killed:
            await self.proxy.reset()
            await self.backend.kill()
        else:
            await self.proxy.close_listener()
            self.proxy.reset_after(STOP_LIMIT)
            await self.backend.stop(keep_data=not self._is_last)
            await self.proxy.wait_closed()
        await self.proxy.__aexit__(None, None, None)
