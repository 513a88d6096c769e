"""A consumer that is cancelled at each await from start to end keeps no message."""

from __future__ import annotations

import anyio
import pytest

from nsqkit import Consumer
from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.clock import ManualClock
from tests.cancelling import CancelledAt
from tests.integration.stage import channel_of, until
from tests.peers import BACKENDS, dialler

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]

BODIES = [b"1", b"2", b"3"]


async def use(consumer: Consumer) -> None:
    """Receive one message of several, and answer none."""
    async with consumer:
        await anext(consumer)


async def play(n: int) -> int:
    """Cancel at the ``n``-th await; return how many there were."""
    flags = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")
    async with Nsqd(flags, clock=ManualClock()) as nsqd:
        topic = nsqd.broker.topics.get_or_create(b"t")
        channel = topic.channel(b"c", nsqd.clock.now_ns())
        topic.put(BODIES, nsqd.clock.now_ns())
        consumer = Consumer(
            "t", "c", nsqd_tcp_addresses=["nsqd:4150"], dial=dialler(nsqd), max_in_flight=2, close_timeout=60
        )
        victim = CancelledAt(n)
        with anyio.fail_after(15):
            await victim.run(use(consumer))
            await until(lambda: not nsqd.broker.sessions)
        assert channel_of(nsqd) is channel
        assert (channel.in_flight_count, len(channel.queue)) == (0, len(BODIES))
        assert consumer.stats().in_flight == 0
    return victim.wait_count


async def test_cancellation_at_any_await_requeues_all_and_leaves_no_task():
    n = 1
    while await play(n) >= n:
        n += 1
    assert n > 3
