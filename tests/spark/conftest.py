"""Brokers for tests without an event loop, and one Spark session for all tests that need one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from nsqkit import Producer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.core.topics.channel import Channel
from nsqkit.broker.server import Nsqd

PROGRAMS = Path(__file__).resolve().parents[2] / "spark"


@attrs.frozen
class Broker:
    """A broker that runs in a thread, for tests that are not async."""

    portal: BlockingPortal
    nsqd: Nsqd
    _running: ExitStack

    @property
    def address(self) -> str:
        return self.nsqd.tcp_address

    def stop(self) -> None:
        self._running.close()

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        async def publish() -> None:
            async with Producer(self.address) as producer:
                for start in range(0, len(bodies), 1000):
                    await producer.multi_publish(topic, bodies[start : start + 1000])

        self.portal.call(publish)

    def channel(self, topic: str, channel: str) -> Channel:
        return self.nsqd.broker.topics[topic.encode()].channels[channel.encode()]

    def depth(self, topic: str, channel: str) -> int:
        """Messages that are not finished: waiting or in flight."""

        def depth() -> int:
            found = self.channel(topic, channel)
            return len(found.queue) + found.in_flight_count

        return self.portal.call(depth)

    def in_flight(self, topic: str, channel: str) -> int:
        return self.portal.call(lambda: self.channel(topic, channel).in_flight_count)


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def make_broker(portal: BlockingPortal) -> Iterator[Callable[..., Broker]]:
    """Start brokers, which stop when the test ends."""
    brokers = []

    def make_broker(**options: Any) -> Broker:
        running = ExitStack()
        nsqd = Nsqd(BrokerOptions(**{"tcp_address": "127.0.0.1:0", "http_address": "", **options}))
        running.enter_context(portal.wrap_async_context_manager(nsqd))
        brokers.append(Broker(portal, nsqd, running))
        return brokers[-1]

    yield make_broker
    for broker in brokers:
        broker.stop()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker()


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """Return the environment of the programs under spark/: quiet, and on this machine only."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(PROGRAMS / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # The executors import nsqkit from here, installed or not.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")])),
    }


@pytest.fixture(scope="session")
def sc(spark_session: Any) -> object:
    """Return the context of the session of all tests."""
    return spark_session.sparkContext
