from __future__ import annotations

import pytest

from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.embedded import EmbeddedNsqd
from nsqkit.testing.link.faults import Faults
from nsqkit.testing.link.journal import Journal
from nsqkit.testing.nsqd_run import NsqdRun
from nsqkit.testing.options import nsqd_options
from nsqkit.testing.ports import KeptPort
from nsqkit.testing.proxy import Proxy
from nsqkit.testing.waiting import Traffic
from nsqkit.transport.tcp import connect
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME

pytestmark = pytest.mark.anyio


def make_run(tcp_port: KeptPort) -> NsqdRun:
    clock = ControlledClock()
    backend = EmbeddedNsqd(nsqd_options({}), clock)
    proxy = Proxy(tcp_port, backend.connect, Journal(), Faults(), clock, Traffic())
    return NsqdRun(backend, proxy, KeptPort("127.0.0.1:0"), keep_data=False)


@pytest.mark.parametrize("killed", [False, True])
async def test_run_answers_until_its_end(killed: bool) -> None:
    run = make_run(KeptPort("127.0.0.1:0"))
    async with run:
        stream = await connect(run.tcp_address)
        await stream.send(MAGIC_V2 + encode_publish(b"t", b"x"))
        assert await stream.receive() == OK_FRAME
        assert list(run.nsqd.broker.topics) == [b"t"]
        assert run.http_address
        if killed:
            run.kill()
    await stream.aclose()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await connect(run.tcp_address)


async def test_failure_to_listen_ends_the_backend() -> None:
    port = KeptPort("127.0.0.1:0")
    first, second = make_run(port), make_run(port)
    async with first:
        with pytest.raises(OSError, match="in use"):
            async with second:
                raise AssertionError
        assert second.http_address == ""
