from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from nsqkit import Consumer
from nsqkit.clock import ManualClock
from nsqkit.consumer import BackoffState, BackoffStats, ConnectionStats, ConsumerStats
from nsqkit.errors import FinishFailed, NotConnected
from tests.peers import BACKENDS, ScriptedBroker, settle

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]

RUNNING = BackoffStats(state=BackoffState.RUNNING, counter=0, wait=0.0, seconds_left=0.0)


def counts(value: ConsumerStats | ConnectionStats) -> dict[str, Any]:
    return {name: count for name, count in attrs.asdict(value).items() if type(count) is int and count}


async def test_stats_count_for_consumer_and_connections():
    brokers = {"one:1": ScriptedBroker(), "two:1": ScriptedBroker()}
    brokers["two:1"].refusal = ConnectionRefusedError()
    clock = ManualClock()
    consumer = Consumer(
        "t",
        "c",
        nsqd_tcp_addresses=[*brokers],
        max_in_flight=20,
        clock=clock,
        close_timeout=0,
        dial=lambda address: brokers[address].dial(address),
    )
    async with consumer:
        async with await brokers["one:1"].subscribe(
            version="1.3.0", msg_timeout=10_000, max_msg_timeout=100_000
        ) as peer:
            await peer.deliver(1, 2, 3, 4, 5)
            await settle()
            (await anext(consumer)).finish()
            (await anext(consumer)).requeue(0, backoff=False)
            clock.advance(1)
            (await anext(consumer)).touch()
            await peer.send(FinishFailed("FIN … failed ID not in flight"))
            await settle()
            stats = consumer.stats()
            expected = {
                "received": 5,
                "requeued": 1,  # the FIN was refused
                "touched": 1,
                "refused": 1,
                "in_flight": 3,
            }
            assert counts(stats) == {**expected, "waiting": 2, "max_in_flight": 20}
            one, two = stats.connections
            assert counts(one) == {**expected, "rdy_count": 20}
            assert (one.address, one.connected, one.error, one.version) == ("one:1", True, None, "1.3.0")
            assert counts(two) == {}
            assert (two.address, two.connected, two.version) == ("two:1", False, "")
            assert isinstance(two.error, NotConnected)
            assert (stats.backoff, stats.paused, stats.starved) == (RUNNING, False, False)
            for _ in range(10):
                clock.advance(1)
                await settle()
            assert consumer.stats().timed_out == 1  # the others wait, and are touched
        await settle()
        assert consumer.stats().received == 5
        assert counts(consumer.stats().connections[0])["received"] == 5
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            stats.received = 0  # type: ignore[misc]


async def test_stats_outside_of_the_block():
    consumer = Consumer("t", "c", nsqd_tcp_addresses=["one:1"])
    await anyio.lowlevel.checkpoint()
    assert counts(consumer.stats()) == {"max_in_flight": 1}
    assert consumer.stats().connections == ()
