"""One run of an nsqlookupd for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import attrs

from nsqkit.lookupd.server import Nsqlookupd

if TYPE_CHECKING:
    from nsqkit.lookupd.options import LookupdOptions
    from nsqkit.testing.clock import ControlledClock
    from nsqkit.testing.ports import KeptPort


class NsqlookupdRun(Nsqlookupd):
    """An nsqlookupd while it runs (``nsqkit.testing.lifecycle.Run``), on ports that are kept before and after."""

    def __init__(
        self, options: LookupdOptions, tcp_port: KeptPort, http_port: KeptPort, clock: ControlledClock
    ) -> None:
        options = attrs.evolve(options, tcp_address=tcp_port.address, http_address=http_port.address)
        super().__init__(options, clock=clock)
        self._ports = (tcp_port, http_port)
        self._add_loop = clock.add_loop

    async def __aenter__(self) -> Self:
        self._add_loop()
        for port in self._ports:
            port.release()
        await super().__aenter__()
        return self
