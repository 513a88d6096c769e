"""The fixtures, used by their names as by a user."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nsqkit import Consumer, Producer
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from tests.runners import Run


def test_a_plain_test_has_a_broker(nsqd: NsqdServer) -> None:
    assert nsqd.inspect(lambda broker: broker.topics) == {}


@pytest.mark.anyio
async def test_async_test_has_a_broker_on_either_backend(nsqd: NsqdServer) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"x")
    async with Consumer("t", "c", nsqd_tcp_addresses=[nsqd.tcp_address]) as consumer:
        message = await anext(aiter(consumer))
        assert message.body == b"x"
        message.finish()


def test_program_has_a_broker_however_it_is_run(nsqd: NsqdServer, nsqlookupd: NsqlookupdServer, run: Run) -> None:
    async def main() -> None:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x")
        async with Consumer(
            "t",
            "c",
            nsqd_tcp_addresses=[nsqd.tcp_address],
            lookupd_http_addresses=[nsqlookupd.http_address],
        ) as consumer:
            message = await anext(consumer)
            assert message.body == b"x"
            message.finish()

    run(main)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_a_new_broker(nsqd: NsqdServer, turn: int) -> None:
    assert nsqd.inspect(lambda broker: list(broker.topics)) == []
    nsqd.inspect(lambda broker: broker.topics.get_or_create(b"t"))


def test_a_plain_test_has_an_nsqlookupd(nsqlookupd: NsqlookupdServer) -> None:
    assert nsqlookupd.inspect(lambda registry: registry.topics()) == []
    assert nsqlookupd.http_url.startswith("http://127.0.0.1:")


def test_plugin_imports_nothing_without_a_fixture() -> None:
    code = (
        "import sys, pytest, nsqkit.testing.plugin;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('anyio', 'trio', 'h11', 'pyspark')"
        " or name.startswith('nsqkit.') and not name.startswith('nsqkit.testing')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
