from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsqkit import LookupdAdmin, OptionError
from nsqkit.errors import RequestFailed, RequestRefused
from nsqkit.testing.lookup_proxy import LookupProxy
from nsqkit.testing.servers import NsqlookupdServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def proxy(nsqlookupd: NsqlookupdServer) -> Iterator[LookupProxy]:
    with LookupProxy(nsqlookupd.http_address) as proxy:
        yield proxy


async def test_requests_are_passed_on(proxy: LookupProxy, nsqlookupd: NsqlookupdServer) -> None:
    admin = LookupdAdmin(proxy.http_address)
    await admin.create_topic("t")
    assert await admin.topics() == ["t"]
    assert nsqlookupd.registry.topics == {"t": ()}
    assert (await admin.lookup("t")).nodes == []
    with pytest.raises(RequestRefused, match="TOPIC_NOT_FOUND"):
        await admin.lookup("u")


async def test_answers_have_the_faults(proxy: LookupProxy) -> None:
    admin = LookupdAdmin(proxy.http_address)
    proxy.faults.stale("t", "gone:1")
    assert [node.tcp_port for node in (await admin.lookup("t")).nodes] == [1]
    with proxy.faults.status(500), pytest.raises(RequestFailed):
        await admin.topics()


async def test_stopped_nsqlookupd_does_not_answer(proxy: LookupProxy, nsqlookupd: NsqlookupdServer) -> None:
    nsqlookupd.stop()
    with pytest.raises(RequestFailed):
        await LookupdAdmin(proxy.http_address).topics()


async def test_wrong_address_is_refused() -> None:
    with pytest.raises(OptionError, match="nsqlookupd"):
        LookupProxy("nsqlookupd")
