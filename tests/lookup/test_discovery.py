from __future__ import annotations

import ssl

import anyio
import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import OptionError
from nsqkit.lookup.discovery import Discovery
from nsqkit.lookup.options import LookupOptions
from nsqkit.testing.servers import NsqdServer, NsqlookupdServer
from tests import certificates
from tests.answering import answering, http_answer
from tests.lookupds import BAD, NOT_FOUND, WAIT, Changes, Lookupds, hangs, lists, settle

pytestmark = pytest.mark.anyio

INTERVAL = 60.0


class Rig:
    """A discovery with simulated nsqlookupds."""

    def __init__(self, *addresses: str, **options) -> None:
        self.clock = ManualClock()
        self.network = Lookupds()
        self.changes = Changes()
        self.discovery = Discovery(
            addresses,
            topic="t",
            on_change=self.changes,
            options=LookupOptions(lookupd_http_request=self.network, lookupd_poll_jitter=0, **options),
            clock=self.clock,
        )

    async def poll(self) -> None:
        """Advance the clock to the next requests, and let them be answered."""
        await settle()
        self.clock.advance(INTERVAL)
        await settle()

    @property
    def addresses(self) -> list[str]:
        return sorted(self.discovery.addresses)


async def test_nsqds_of_all_nsqlookupds_are_merged():
    rig = Rig("l:1", "m:1")
    rig.network.behaviours = {"l:1": lists("a:1", "b:1"), "m:1": lists("b:1", "c:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.changes.wait(2)
        assert rig.addresses == ["a:1", "b:1", "c:1"]
        assert {request for _, request in rig.network.requests} == {"/lookup t"}
        await rig.poll()
        assert len(rig.changes.calls) == 2, "nothing has changed"
        tasks.cancel_scope.cancel()


async def test_nsqd_is_removed_when_no_nsqlookupd_lists_it():
    rig = Rig("l:1", "m:1")
    rig.network.behaviours = {"l:1": lists("a:1", "b:1"), "m:1": lists("a:1", "b:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.poll()
        rig.network.behaviours["l:1"] = lists("b:1")
        await rig.poll()
        assert rig.addresses == ["a:1", "b:1"], "the other one still lists it"
        rig.network.behaviours["m:1"] = lists("b:1")
        await rig.poll()
        assert rig.changes.calls[-1] == ([], ["a:1"])
        assert rig.addresses == ["b:1"]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("bad", [*BAD.values(), hangs, None], ids=[*BAD, "silent", "down"])
async def test_failed_requests_remove_no_nsqd(bad):
    rig = Rig("l:1", "m:1")
    rig.network.behaviours = {"l:1": lists("a:1"), "m:1": lists("a:1", "b:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.poll()
        rig.network.behaviours = {"l:1": bad, "m:1": bad} if bad else {}
        for _ in range(5):
            await rig.poll()
        assert rig.addresses == ["a:1", "b:1"]
        # One responds again with an empty list; the entries of the other stay.
        rig.network.behaviours["l:1"] = NOT_FOUND
        rig.discovery.wake()
        for _ in range(2):
            await rig.poll()
        assert rig.addresses == ["a:1", "b:1"]
        assert all(not gone for _, gone in rig.changes.calls)
        tasks.cancel_scope.cancel()


async def test_empty_response_removes_nsqds():
    rig = Rig("l:1")
    rig.network.behaviours = {"l:1": lists("a:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.poll()
        rig.network.behaviours = {"l:1": NOT_FOUND}
        await rig.poll()
        assert rig.changes.calls == [(["a:1"], []), ([], ["a:1"])]
        tasks.cancel_scope.cancel()


async def test_empty_response_of_restarted_nsqlookupd_removes_no_nsqd_of_others():
    rig = Rig("l:1", "m:1")
    rig.network.behaviours = {"l:1": lists("a:1"), "m:1": lists("a:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.poll()
        rig.network.behaviours["l:1"] = NOT_FOUND
        await rig.poll()
        assert rig.addresses == ["a:1"]
        tasks.cancel_scope.cancel()


async def test_filter_and_address_map_are_applied():
    wanted = {"a", "b"}
    rig = Rig(
        "l:1",
        discovery_filter=lambda nodes: [node for node in nodes if node.broadcast_address in wanted],
        address_map={"a:1": "localhost:32768"},
    )
    rig.network.behaviours = {"l:1": lists("a:1", "b:1", "c:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        assert await rig.changes.wait(1) == (["localhost:32768", "b:1"], [])
        wanted.add("c")
        await rig.poll()
        assert rig.addresses == ["b:1", "c:1", "localhost:32768"]
        tasks.cancel_scope.cancel()


async def test_failing_filter_or_map_changes_nothing(caplog):
    mapping: dict[str, str | None] = {}
    rig = Rig("l:1", address_map=mapping)
    rig.network.behaviours = {"l:1": lists("a:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.changes.wait(1)
        mapping["b:1"] = "nowhere"
        rig.network.behaviours = {"l:1": lists("b:1")}
        await rig.poll()
        assert rig.addresses == ["a:1"]
        assert "address_map makes 'nowhere' of b:1" in caplog.text
        mapping["b:1"] = "b:2"
        await rig.poll()
        assert rig.addresses == ["b:2"]
        tasks.cancel_scope.cancel()


async def test_removed_nsqlookupd_removes_nsqds_that_only_it_listed():
    rig = Rig("l:1", "m:1")
    rig.network.behaviours = {"l:1": lists("a:1", "b:1"), "m:1": lists("b:1")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.discovery.run)
        await rig.poll()
        rig.discovery.remove_lookupd("l:1")
        assert rig.changes.calls[-1] == ([], ["a:1"])
        rig.discovery.add_lookupd("l:1")
        await rig.poll()
        assert rig.changes.calls[-1] == (["a:1"], [])
        tasks.cancel_scope.cancel()


async def test_invalid_topic_is_refused():
    with pytest.raises(OptionError, match="topic name"):
        Discovery(["l:1"], topic="no name", on_change=Changes())


# ---- over sockets ---------------------------------------------------------------------------------------------


async def test_nsqd_is_found_and_lost_with_real_nsqlookupds(nsqlookupd: NsqlookupdServer):
    with NsqlookupdServer() as other:
        changes = Changes()
        how = LookupOptions(lookupd_poll_interval=0.02)
        where = [nsqlookupd.http_address, f"http://{other.http_address}"]
        discovery = Discovery(where, topic="t", on_change=changes, options=how)
        everything = Discovery(where, topic=None, on_change=(found := Changes()), options=how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(discovery.run)
            tasks.start_soon(everything.run)
            both = (nsqlookupd.tcp_address, other.tcp_address)
            with NsqdServer(lookupd_tcp_address=both) as nsqd:
                assert await found.wait(1) == ([nsqd.tcp_address], [])
                assert changes.calls == []
                await how.daemon(nsqd.http_address).request("POST", "/topic/create", {"topic": "t"})
                assert await changes.wait(1) == ([nsqd.tcp_address], [])
            assert await changes.wait(2) == ([], [nsqd.tcp_address])
            tasks.cancel_scope.cancel()


async def test_discovery_over_https_with_client_certificate():
    theirs = certificates.server_context()
    theirs.verify_mode = ssl.CERT_REQUIRED
    certificates.authority().configure_trust(theirs)
    document = b'{"producers":[{"broadcast_address":"a","tcp_port":1}]}'
    async with answering(lambda request: http_answer(document), tls=theirs) as server:
        changes = Changes()
        context = certificates.client_context("client")
        discovery = Discovery(
            [f"https://localhost:{server.port}"],
            topic="t",
            on_change=changes,
            options=LookupOptions(lookupd_tls_context=context, lookupd_authorization="Bearer token"),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(discovery.run)
            assert await changes.wait(1) == (["a:1"], [])
            tasks.cancel_scope.cancel()
    assert b"\r\nAuthorization: Bearer token\r\n" in server.requests[0]


async def test_other_servers_are_logged_and_skipped():
    with anyio.fail_after(WAIT):
        async with (
            answering(lambda request: None) as silent,
            answering(lambda request: b"SSH-2.0-OpenSSH\r\n\r\n") as garbage,
            answering(lambda request: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") as cut_off,
            answering(lambda request: http_answer(b'{"producers":[{"address":"a","tcp_port":1}]}')) as good,
            anyio.create_task_group() as tasks,
        ):
            changes = Changes()
            where = [server.address for server in (silent, garbage, cut_off, good)]
            discovery = Discovery(where, topic="t", on_change=changes)
            tasks.start_soon(discovery.run)
            assert await changes.wait(1) == (["a:1"], [])
            while sum(status.failure_count > 0 for status in discovery.lookupds) < 2:
                await anyio.lowlevel.checkpoint()
            assert discovery.addresses == ["a:1"]
            tasks.cancel_scope.cancel()
