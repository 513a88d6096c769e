from __future__ import annotations

import pytest

from nsqkit.errors import Closed
from nsqkit.testing.clock import ControlledClock
from nsqkit.testing.embedded import EmbeddedNsqd
from nsqkit.testing.options import nsqd_options
from nsqkit.testing.ports import KeptPort
from nsqkit.wire.commands import MAGIC_V2, encode_publish
from nsqkit.wire.frames import OK_FRAME

pytestmark = pytest.mark.anyio


async def test_backend_announces_the_port_of_the_proxy_and_has_no_listener() -> None:
    backend = EmbeddedNsqd(nsqd_options({}), ControlledClock())
    with pytest.raises(Closed):
        await backend.connect("client")
    for keep_data in (False, True):
        await backend.start("127.0.0.1:4321", KeptPort("127.0.0.1:0"), keep_data=keep_data)
        assert backend.nsqd.tcp_address == "127.0.0.1:4321"
        assert backend.nsqd.options.broadcast_tcp_port == 4321
        assert backend.nsqd.options.tcp_address == ""
        assert backend.http_address == backend.nsqd.http_address != ""
        assert list(backend.nsqd.broker.topics) == ([b"t"] if keep_data else [])
        stream = await backend.connect("client")
        await stream.send(MAGIC_V2 + encode_publish(b"t", b"x"))
        assert await stream.receive() == OK_FRAME
        await backend.stop(keep_data=True)
        await stream.aclose()
    assert backend.http_address == ""


async def test_given_port_is_announced() -> None:
    backend = EmbeddedNsqd(nsqd_options({"broadcast_tcp_port": 7}), ControlledClock())
    await backend.start("/tmp/path", KeptPort(""), keep_data=False)
    assert backend.nsqd.options.broadcast_tcp_port == 7
    await backend.kill()


async def test_seed_decides_each_start() -> None:
    backend = EmbeddedNsqd(nsqd_options({}), ControlledClock(), seed=5)
    numbers = []
    for _ in range(2):
        await backend.start("", KeptPort(""), keep_data=False)
        numbers.append(backend.nsqd.broker.random.random())
        await backend.stop(keep_data=False)
    assert numbers[0] == numbers[1]
