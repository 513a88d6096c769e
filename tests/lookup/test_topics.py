from __future__ import annotations

import re

import anyio
import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import OptionError
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.topics import TopicDiscovery
from nsqkit.testing.servers import NsqlookupdServer
from tests.lookupds import WAIT, Changes, Lookupds, says, settle

pytestmark = pytest.mark.anyio


async def test_topics_are_added_and_removed():
    clock, changes = ManualClock(), Changes()
    network = Lookupds({"l:1": says({"topics": ["log.a", "audit", "catalog"]}), "m:1": says({"topics": ["log.b"]})})
    discovery = TopicDiscovery(
        ["l:1", "m:1"],
        pattern=r"^log\.",
        on_change=changes,
        options=LookupOptions(lookupd_http_request=network, lookupd_poll_jitter=0),
        clock=clock,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(discovery.run)
        await changes.wait(2)
        assert sorted(changes.calls) == [(["log.a"], []), (["log.b"], [])]
        assert discovery.topics == ["log.a", "log.b"]
        network.behaviours = {"l:1": says({"topics": ["log.c"]})}
        await settle()
        clock.advance(60)
        assert await changes.wait(3) == (["log.c"], ["log.a"])
        assert discovery.topics == ["log.b", "log.c"], "one that fails takes nothing away"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("pattern", ["t$", re.compile("^t")], ids=["text", "compiled"])
async def test_topics_of_real_nsqlookupd(nsqlookupd: NsqlookupdServer, pattern):
    nsqlookupd.inspect(lambda registry: registry.create_topic(b"t"))
    nsqlookupd.inspect(lambda registry: registry.create_topic(b"u"))
    changes = Changes()
    discovery = TopicDiscovery([nsqlookupd.http_address], pattern=pattern, on_change=changes)
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(discovery.run)
            assert await changes.wait(1) == (["t"], [])
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 5000])
async def test_invalid_pattern_is_refused(pattern):
    with pytest.raises(OptionError, match="is no regular expression"):
        TopicDiscovery(["l:1"], pattern=pattern, on_change=Changes())
