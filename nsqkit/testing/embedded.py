"""The nsqd of a test server in this process: nsqkit's own broker, reached through streams in memory."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs

from nsqkit.broker.server import Nsqd
from nsqkit.errors import Closed
from nsqkit.testing.disk import Disk, FaultyFileStore
from nsqkit.testing.kept_memory import KeptMemory
from nsqkit.transport.address import port_of

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock
    from nsqkit.testing.ports import KeptPort


class EmbeddedNsqd:
    """A backend (``nsqkit.testing.backend.Backend``): a broker in the loop thread.

    Args:
        options: nsqd's flags. With ``data_path`` its files decide what a start begins with, as for nsqd.
        clock: the time.
        seed: of the broker's random numbers; None for another one at each start.

    Attributes:
        disk: the faults of the data path; None without one.
    """

    def __init__(self, options: BrokerOptions, clock: Clock, seed: int | None = None) -> None:
        self.disk = Disk(options.data_path) if options.data_path else None
        self.clock = clock
        self.nsqd: Nsqd | None = None
        self._options = options
        self._seed = seed
        self._last: tuple[Nsqd, KeptMemory] | None = None  # it has stopped

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; empty without HTTP."""
        return "" if self.nsqd is None else self.nsqd.http_address

    async def start(self, tcp_address: str, http_port: KeptPort, *, keep_data: bool) -> None:
        """Start a new broker."""
        options = attrs.evolve(
            self._options,
            tcp_address="",
            http_address=http_port.address,
            broadcast_tcp_port=self._options.broadcast_tcp_port or max(port_of(tcp_address), 0),
        )
        memory = KeptMemory(options, self._take_kept() if keep_data else None)
        random = None if self._seed is None else Random(self._seed)
        files = None if self.disk is None else FaultyFileStore(self.disk)
        nsqd = Nsqd(options, clock=self.clock, random=random, data_path=files, storage=memory)
        nsqd.tcp_address = tcp_address
        if files is None:
            memory.restore(nsqd.broker, self.clock.now_ns())
        http_port.release()
        await nsqd.__aenter__()
        self.nsqd, self._last = nsqd, (nsqd, memory)

    def _take_kept(self) -> KeptMemory | None:
        """Return the storage of the last broker with its messages; None if there was none or it was killed."""
        if self._last is None or self._options.data_path:
            return None
        nsqd, memory = self._last
        memory.save(nsqd.broker)
        return memory

    async def connect(self, name: str) -> ByteStream:
        """Return a connection in memory."""
        if self.nsqd is None:
            raise Closed("the broker is not running")
        return self.nsqd.connect(name)

    async def stop(self) -> None:
        """Stop the broker, and keep it in case its messages are wanted."""
        nsqd, self.nsqd = self.nsqd, None
        if nsqd is not None:
            await nsqd.__aexit__(None, None, None)

    async def kill(self) -> None:
        """End the broker without output; its memory is lost."""
        self._last = None
        if self.nsqd is not None:
            self.nsqd.kill()
            await self.stop()
