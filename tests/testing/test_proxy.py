from __future__ import annotations

import anyio
import pytest

from nsqkit.broker.core.options import BrokerOptions
from nsqkit.broker.server import Nsqd
from nsqkit.consumer import Consumer
from nsqkit.producer import Producer
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.ports import KeptPort
from nsqkit.testing.proxy import Proxy
from nsqkit.testing.waiting import Traffic
from nsqkit.transport.tcp import connect


@pytest.mark.anyio
async def test_clients_reach_the_broker_through_the_proxy() -> None:
    options = BrokerOptions(tcp_address="127.0.0.1:0", http_address="")
    async with Nsqd(options) as nsqd:

        async def upstream(name: str) -> anyio.abc.ByteStream:
            return await connect(nsqd.tcp_address)

        journal = Journal()
        async with Proxy(KeptPort("127.0.0.1:0"), upstream, journal, ControlledClock(), Traffic()) as proxy:
            await proxy.open_listener()
            async with Producer(proxy.address) as producer:
                await producer.publish("t", b"x" * 500_000)
            async with Consumer("t", "c", nsqd_tcp_addresses=[proxy.address]) as consumer:
                message = await anext(aiter(consumer))
                assert message.body == b"x" * 500_000
                message.finish()
        names = [entry.name for entry in journal]
        assert names.count("PUB") == names.count("MESSAGE") == names.count("FIN") == 1
