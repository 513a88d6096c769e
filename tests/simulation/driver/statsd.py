"""The statsd daemons that brokers report to: counts that arrive add up, also when some reports could not be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from nsqkit.broker import statsd
from nsqkit.broker.statsd import StatsdReporter
from tests.simulation.broken import Broken
from tests.simulation.driver.network import HOST
from tests.simulation.driver.pace import pass_time

if TYPE_CHECKING:
    from types import TracebackType

    from nsqkit.clock import Clock
    from tests.simulation.driver.world import World

OPTIONS: Final[dict[str, Any]] = {"statsd_address": "statsd:8125", "statsd_prefix": "", "statsd_mem_stats": False}
"""Of a broker that reports, beside the interval."""

CURRENT: ContextVar[_Reports] = ContextVar("CURRENT")
"""Those of the broker whose code runs."""


class _Reports:
    """The reports of one life of a broker.

    Attributes:
        received: the sums of the counters, by their keys.
        counts: those of the broker when it made its last report.
        is_connected: the last report can be sent.
    """

    def __init__(self) -> None:
        self.received: Counter[str] = Counter()
        self.counts: dict[str, int] = {}
        self.is_connected = False
        self._holders: dict[str, Any] = {}  # the topics and channels, by the keys of their counts

    def take(self, reporter: StatsdReporter) -> None:
        """Record the counts of a broker, but for those of topics and channels that were deleted and created again."""
        self.counts = {}
        for topic in reporter._broker.topics.values():
            key = f"topic.{topic.name.decode()}."
            channels = ((f"{key}channel.{each.name.decode()}.", each) for each in topic.channels.values())
            for place, holder in ((key, topic), *channels):
                if self._holders.setdefault(place, holder) is holder:
                    self.counts[f"{place}message_count"] = holder.message_count

    def __enter__(self) -> _Reports:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def send(self, packet: bytes) -> None:
        """As a socket that is connected to the daemon."""
        for line in packet.decode().splitlines():
            key, _, value = line.partition(":")
            if value.endswith("|c"):
                self.received[key] += int(value.removesuffix("|c"))


class StatsdDaemons:
    """The daemons of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reports: dict[StatsdReporter, _Reports] = {}
        self._randoms: dict[str, Random] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have brokers report to these daemons."""
        report, packets = StatsdReporter._report, StatsdReporter._packets

        async def reported(self_: StatsdReporter, end_ns: int) -> None:
            reports = self._reports.setdefault(self_, _Reports())
            CURRENT.set(reports)
            reports.is_connected = False
            await report(self_, end_ns)
            if reports.is_connected:
                self._check(reports)

        def made(self_: StatsdReporter) -> list[bytes]:
            CURRENT.get().take(self_)
            return packets(self_)

        with ExitStack() as stack:
            for owner, name, function in (
                (StatsdReporter, "_report", reported),
                (StatsdReporter, "_packets", made),
                (statsd, "_connected", self._connected),
            ):
                stack.enter_context(mock.patch.object(owner, name, function))
            yield

    async def _connected(self, address: str, clock: Clock) -> _Reports:
        """Return the daemon's end for the packets of one report, or fail as the resolver does."""
        host = HOST.get()
        random = self._randoms.setdefault(host, Random(f"{self._world.plan.seed}/{host}/statsd"))
        await pass_time(random.choice((0.0, 0.2)))
        if random.random() < 0.3:
            raise OSError(f"{address} is not found")
        reports = CURRENT.get()
        reports.is_connected = True
        return reports

    def _check(self, reports: _Reports) -> None:
        self._world.reached.add("report to statsd")
        for key, count in reports.counts.items():
            if (received := reports.received[key]) != count:
                raise self._world.failed(Broken(13, f"statsd has {key} {received}, and the broker {count}"))
