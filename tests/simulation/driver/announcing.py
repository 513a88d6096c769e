"""When a broker dials an nsqlookupd: at once where a topic or channel changed during an attempt that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.simulation.broken import Broken

if TYPE_CHECKING:
    from nsqkit.broker.server import Nsqd
    from tests.simulation.driver.node import Broker
    from tests.simulation.driver.world import World

DIAL_MAX: Final = 0.1
"""Seconds until a broker dials again that has something new to announce."""


class Announcing:
    """The attempts of one broker."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker
        self._news: dict[str, tuple[Nsqd, float]] = {}  # by nsqlookupd: since when there is something to announce

    @contextmanager
    def attempt(self, lookupd: str) -> Iterator[None]:
        """Watch one attempt to connect.

        Raises:
            Broken: it comes later than it should.
        """
        loop, nsqd = self._world.loop, self._broker.nsqd
        owner, since = self._news.pop(lookupd, (None, 0.0))
        if nsqd is None:
            yield
            return
        if owner is nsqd and loop.time() - since > DIAL_MAX:
            seconds = loop.time() - since
            text = f"{self._broker.name} dials {lookupd} {seconds:.3f} seconds after it had something to announce"
            raise self._world.failed(Broken(21, text))
        revision = nsqd.broker.changes.revision
        try:
            yield
        except BaseException:
            is_configured = any(lookupd in address for address in nsqd.options.lookupd_tcp_addresses)
            if is_configured and nsqd.broker.changes.revision != revision:
                self._news[lookupd] = nsqd, loop.time()
            raise
