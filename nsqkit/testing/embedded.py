"""The nsqd of a test server in this process: nsqkit's own broker, reached through streams in memory."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

import attrs

from nsqkit.broker.server import Nsqd
from nsqkit.errors import Closed
from nsqkit.testing.disk import Disk, FaultyFileStore
from nsqkit.testing.inject import publish
from nsqkit.testing.kept_memory import KeptMemory
from nsqkit.testing.snapshot import reset
from nsqkit.testing.state import of_broker
from nsqkit.transport.address import port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import ByteStream

    from nsqkit.broker.core.broker import Broker
    from nsqkit.broker.core.options import BrokerOptions
    from nsqkit.clock import Clock
    from nsqkit.options.durations import Seconds
    from nsqkit.testing.ports import KeptPort
    from nsqkit.testing.state import NsqdState

T = TypeVar("T")


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
        self._clock = clock
        self._nsqd: Nsqd | None = None
        self._options = options
        self._seed = seed
        self._last: tuple[Nsqd, KeptMemory] | None = None  # it has stopped

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP routes; empty without HTTP."""
        return "" if self._nsqd is None else self._nsqd.http_address

    @property
    def nsqd(self) -> Nsqd:
        """The broker; raise Closed if it is not running."""
        if self._nsqd is None:
            raise Closed("the broker is not running")
        return self._nsqd

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
        nsqd = Nsqd(options, clock=self._clock, random=random, data_path=files, storage=memory)
        nsqd.tcp_address = tcp_address
        if files is None:
            memory.restore(nsqd.broker, self._clock.now_ns())
        http_port.release()
        await nsqd.__aenter__()
        self._nsqd, self._last = nsqd, (nsqd, memory)

    def _take_kept(self) -> KeptMemory | None:
        """Return the storage of the last broker with its messages; None if there was none or it was killed."""
        if self._last is None or self._options.data_path:
            return None
        nsqd, memory = self._last
        memory.save(nsqd.broker)
        return memory

    async def connect(self, name: str) -> ByteStream:
        """Return a connection in memory."""
        return self.nsqd.connect(name)

    async def stop(self, *, keep_data: bool) -> None:
        """Stop the broker."""
        nsqd, self._nsqd = self._nsqd, None
        if not keep_data:
            self._last = None
        if nsqd is not None:
            await nsqd.__aexit__(None, None, None)

    async def kill(self) -> None:
        """End the broker without output; its memory is lost."""
        if self._nsqd is not None:
            self._nsqd.kill()
        await self.stop(keep_data=False)

    async def state(self) -> NsqdState:
        """Return the state of the engine."""
        return of_broker(self.nsqd.broker)

    async def publish(self, topic: str, bodies: Sequence[bytes], delay: Seconds | None) -> None:
        """Put messages into the engine."""
        change(self.nsqd, lambda broker, now_ns: publish(broker, now_ns, topic, *bodies, defer=delay))

    async def reset(self) -> None:
        """Delete all topics, disconnect all clients, and have the disk work again."""
        if self.disk is not None:
            self.disk.heal()
        change(self.nsqd, lambda broker, _: reset(broker))


def change(nsqd: Nsqd, function: Callable[[Broker, int], T]) -> T:
    """Call a function with the engine and the time, in the loop thread, then have the broker act on the changes."""
    try:
        return function(nsqd.broker, nsqd.clock.now_ns())
    finally:
        nsqd.process_changes()
