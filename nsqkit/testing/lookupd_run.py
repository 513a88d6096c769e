"""One run of an nsqlookupd for tests, with the faults of its HTTP answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import attrs

from nsqkit.lookupd.server import Nsqlookupd
from nsqkit.testing.http_front import HTTPFront
from nsqkit.transport.accept import remote_address

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from anyio.abc import ByteStream

    from nsqkit.http.messages import Request, Response
    from nsqkit.lookupd.options import LookupdOptions
    from nsqkit.testing.clock import ControlledClock
    from nsqkit.testing.lookup_faults import LookupFaults
    from nsqkit.testing.ports import KeptPort


class NsqlookupdRun(Nsqlookupd):
    """An nsqlookupd while it runs (``nsqkit.testing.lifecycle.Run``), on ports that are kept before and after."""

    def __init__(
        self,
        options: LookupdOptions,
        tcp_port: KeptPort,
        http_port: KeptPort,
        clock: ControlledClock,
        faults: LookupFaults,
    ) -> None:
        options = attrs.evolve(options, tcp_address=tcp_port.address, http_address=http_port.address)
        super().__init__(options, clock=clock)
        self._ports = (tcp_port, http_port)
        self._add_loop = clock.add_loop
        self._front = HTTPFront(self._handle, faults, clock)

    def forget(self) -> None:
        """Do nothing: an nsqlookupd keeps no data."""

    async def __aenter__(self) -> Self:
        self._add_loop()
        for port in self._ports:
            port.release()
        await super().__aenter__()
        return self

    async def serve_http(self, stream: ByteStream) -> None:
        """Answer the HTTP requests of one connection, with the faults."""
        await self._front.serve(stream, remote_address(stream))

    def _handle(self, request: Request) -> Response | Awaitable[Response]:
        return self.http_api.handle(request)  # the routes are imported for the first request
