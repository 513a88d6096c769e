"""The end of a consumer over real sockets, with a clock that stands still: no limit but the named one has to pass."""

from __future__ import annotations

import anyio
import pytest

from nsqkit import Consumer, Message
from nsqkit.testing.servers import NsqdServer

pytestmark = [pytest.mark.anyio, pytest.mark.nsqd(clock="manual")]


async def test_consumer_with_hanging_handler_ends_after_close_timeout(nsqd: NsqdServer) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(message: Message) -> None:
        begun.set()
        await anyio.sleep_forever()

    async def consume(consumer: Consumer) -> None:
        async with consumer:
            await consumer.run(hang)
        ended.set()

    nsqd.publish("t", b"x")
    consumer = Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address], clock=nsqd.clock, close_timeout=20)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume, consumer)
        await begun.wait()
        consumer.stop()
        await nsqd.clock.advance(20)
        with anyio.move_on_after(5):
            await ended.wait()
        is_in_time = ended.is_set()
        await nsqd.clock.advance(20)
    assert is_in_time
    nsqd.assert_requeued("x", delay=0)
