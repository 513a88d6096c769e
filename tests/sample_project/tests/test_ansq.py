"""ansq instead of nsqkit's clients: a message timeout of 60 seconds, without the wait for it."""

from __future__ import annotations

import time

import ansq
import pytest

from nsqkit.testing import NsqdServer


@pytest.mark.asyncio
async def test_message_timeout(nsqd: NsqdServer) -> None:
    begin = time.monotonic()
    nsqd.publish("orders", b"one")
    reader = await ansq.create_reader(topic="orders", channel="billing", nsqd_tcp_addresses=[nsqd.tcp_address])
    messages = aiter(reader.messages())
    assert (await anext(messages)).attempts == 1
    await nsqd.clock.advance(60)
    message = await anext(messages)
    assert message.attempts == 2
    await message.fin()
    await nsqd.wait_idle("orders")
    assert time.monotonic() - begin < 30
    await reader.close()
