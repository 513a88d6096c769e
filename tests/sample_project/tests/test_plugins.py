"""The same fixture under pytest-asyncio and pytest-trio."""

from __future__ import annotations

import pytest

from nsqkit import Consumer
from nsqkit.testing import NsqdServer


async def consume_one(nsqd: NsqdServer) -> None:
    nsqd.publish("orders", b"one")
    async with Consumer("orders", "billing", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        message = await anext(consumer)
        message.finish()
        await nsqd.wait_idle("orders")
    nsqd.assert_finished("one")


@pytest.mark.asyncio
async def test_with_pytest_asyncio(nsqd: NsqdServer) -> None:
    await consume_one(nsqd)


@pytest.mark.trio
async def test_with_pytest_trio(nsqd: NsqdServer) -> None:
    await consume_one(nsqd)
