"""pynsq instead of nsqkit's clients: a message timeout of 60 seconds, without the wait for it."""

from __future__ import annotations

import asyncio
import time

import nsq
import pytest

from nsqkit.testing import NsqdServer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.asyncio
async def test_message_timeout(nsqd: NsqdServer) -> None:
    begin = time.monotonic()
    attempts: asyncio.Queue[int] = asyncio.Queue()

    def handle(message: nsq.Message) -> bool:
        message.enable_async()
        attempts.put_nowait(message.attempts)
        if message.attempts == 2:
            message.finish()
        return False

    nsqd.publish("orders", b"one")
    reader = nsq.Reader("orders", "billing", handle, nsqd_tcp_addresses=[nsqd.tcp_address], max_in_flight=1)
    assert await attempts.get() == 1
    await nsqd.clock.advance(60)
    assert await attempts.get() == 2
    await nsqd.wait_idle("orders")
    assert time.monotonic() - begin < 30
    reader.close()
