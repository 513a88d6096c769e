from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from nsqkit.clock import ManualClock
from nsqkit.errors import Closed, OptionError, RequestFailed
from nsqkit.http.daemon import Daemon
from nsqkit.lookup.options import LookupOptions
from nsqkit.lookup.poller import LookupdPoller, LookupdStatus
from tests.lookupds import NOT_FOUND, WAIT, Behaviour, Lookupds, hangs, says, settle

pytestmark = pytest.mark.anyio

INTERVAL = 60.0


async def ask(daemon: Daemon) -> Mapping[str, str]:
    """Request a document; its keys are the entries."""
    return await daemon.request_document("GET", "/x")


class Rig:
    """A poller of simulated nsqlookupds, and the calls of ``on_merged``."""

    def __init__(self, *addresses: str, jitter: float = 0.0, **behaviours: Behaviour) -> None:
        self.clock = ManualClock()
        self.network = Lookupds({f"{host}:1": behaviour for host, behaviour in behaviours.items()})
        self.listed: list[list[str]] = []
        self._listed = anyio.Event()
        self.poller: LookupdPoller[str] = LookupdPoller(
            addresses,
            query=ask,
            on_merged=self.on_merged,
            options=LookupOptions(
                lookupd_http_request=self.network, lookupd_poll_jitter=jitter, lookupd_poll_timeout=300.0
            ),
            clock=self.clock,
            random=Random(1),
        )

    def on_merged(self, entries: dict[str, str]) -> None:
        self.listed.append(sorted(entries))
        self._listed.set()
        self._listed = anyio.Event()

    async def merged(self, count: int) -> list[str]:
        """Return the argument of the call with this number, from 1."""
        with anyio.fail_after(WAIT):
            while len(self.listed) < count:
                await self._listed.wait()
        return self.listed[count - 1]

    async def failed(self, name: str, count: int) -> LookupdStatus:
        """Return the status of an nsqlookupd after this number of failures."""
        with anyio.fail_after(WAIT):
            while True:
                (status,) = [status for status in self.poller.lookupds if status.name == f"http://{name}"]
                if status.failure_count == count:
                    return status
                await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.poller.run)
            yield
            tasks.cancel_scope.cancel()

    async def settle(self) -> None:
        """Let all tasks run that can."""
        await settle()


async def test_requests_are_sent_at_once_and_after_each_interval():
    rig = Rig("a:1", "b:1", a=says({"x": ""}), b=says({"y": ""}))
    async with rig.running():
        assert await rig.merged(2) == ["x", "y"]
        rig.network.behaviours["a:1"] = says({"z": ""})
        await rig.settle()
        rig.clock.advance(INTERVAL - 0.001)
        await rig.settle()
        assert len(rig.network.requests) == 2
        rig.clock.advance(0.002)
        await rig.merged(4)
        assert rig.listed[-1] == ["y", "z"]


async def test_each_wait_has_its_own_jitter():
    rig = Rig("a:1", jitter=1.0, a=says({}))
    waits = []
    async with rig.running():
        for count in range(1, 9):
            await rig.network.asked("a:1", count)
            await rig.settle()
            asked_ns = rig.clock.now_ns()
            while rig.network.count("a:1") == count:
                rig.clock.advance(2)
                await rig.settle()
            waits.append((rig.clock.now_ns() - asked_ns) // 10**9)
    assert all(INTERVAL <= wait <= 2 * INTERVAL + 2 for wait in waits)
    assert len(set(waits)) > 4


async def test_silent_nsqlookupd_delays_no_other():
    rig = Rig("a:1", "b:1", a=hangs, b=says({"y": ""}))
    async with rig.running():
        for count in range(1, 4):
            assert await rig.merged(count) == ["y"]
            await rig.settle()
            rig.clock.advance(INTERVAL)
    assert rig.network.count("a:1") == 1


async def test_failed_request_is_repeated_and_removes_nothing(caplog):
    rig = Rig("a:1", "b:1", a=says({"x": ""}), b=says({"y": ""}))
    async with rig.running():
        await rig.merged(2)
        del rig.network.behaviours["a:1"]
        await rig.settle()
        rig.clock.advance(INTERVAL)
        status = await rig.failed("a:1", 1)
        assert status.answered_ns == rig.clock.now_ns() - INTERVAL * 10**9
        assert status.entry_count == 1
        assert isinstance(status.error, RequestFailed)
        assert rig.listed[-1] == ["x", "y"]
        rig.clock.advance(1)
        await rig.failed("a:1", 2)
        rig.network.behaviours["a:1"] = says({})
        count = len(rig.listed)
        rig.clock.advance(2)
        assert await rig.merged(count + 1) == ["y"]
        await rig.failed("a:1", 0)
    record = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert "nsqlookupd http://a:1 has failed 1 times in a row: " in record.message
    assert (record.lookupd, record.failure_count) == ("http://a:1", 1)
    assert record.exc_info is None


async def test_failures_of_all_raise_nothing():
    rig = Rig("a:1", "b:1", b=NOT_FOUND)
    async with rig.running():
        for count in range(1, 20):
            await rig.failed("a:1", count)
            await rig.failed("b:1", count)
            await rig.settle()
            rig.clock.advance(INTERVAL)
    assert rig.listed == []


async def test_unexpected_error_does_not_end_polling(caplog):
    def broken(path: str) -> tuple[int, bytes]:
        raise AssertionError("ours")

    rig = Rig("a:1", a=says({}))

    async def fault(daemon: Daemon) -> Mapping[str, str]:
        return {"x": broken("")[1].decode()}

    rig.poller._query = fault
    async with rig.running():
        assert isinstance((await rig.failed("a:1", 1)).error, AssertionError)
        rig.poller._query = ask
        await rig.settle()
        rig.clock.advance(1)
        assert await rig.merged(1) == []
    assert "AssertionError: ours" in caplog.text


async def test_wake_sends_requests_soon():
    rig = Rig("a:1", "b:1", a=says({"x": ""}), b=says({"y": ""}))
    rig.poller.wake()  # before the first request, which is sent at once
    async with rig.running():
        await rig.merged(2)
        await rig.settle()
        rig.clock.advance(10)
        rig.poller.wake()
        await rig.merged(4)
        await rig.settle()
        rig.poller.wake()
        rig.poller.wake()
        await rig.settle()
        assert len(rig.listed) == 4
        rig.clock.advance(1)
        await rig.merged(6)
        await rig.settle()
        rig.clock.advance(INTERVAL - 1)
        await rig.settle()
        assert len(rig.listed) == 6


async def test_wake_during_a_request_sends_another():
    rig = Rig("a:1", a=hangs)
    async with rig.running():
        await rig.network.asked("a:1", 1)
        rig.poller.wake()
        await rig.settle()
        assert rig.network.count("a:1") == 1


async def test_nsqlookupds_can_be_added_and_removed():
    rig = Rig("a:1", a=says({"x": "", "y": ""}), b=says({"y": "", "z": ""}))
    async with rig.running():
        await rig.merged(1)
        rig.poller.add_lookupd("http://b:1/")
        rig.poller.add_lookupd("b:1")
        assert await rig.merged(2) == ["x", "y", "z"]
        assert [status.name for status in rig.poller.lookupds] == ["http://a:1", "http://b:1"]
        rig.poller.remove_lookupd("a:1")
        assert rig.listed[-1] == ["y", "z"]
        await rig.settle()
        rig.clock.advance(INTERVAL)
        await rig.merged(4)
    assert (rig.network.count("a:1"), rig.network.count("b:1")) == (1, 2)


async def test_nsqlookupds_can_be_added_and_removed_before_run():
    rig = Rig(a=says({"x": ""}), b=says({"y": ""}))
    rig.poller.add_lookupd("a:1")
    rig.poller.add_lookupd("b:1")
    rig.poller.remove_lookupd("a:1")
    rig.listed.clear()
    async with rig.running():
        assert await rig.merged(1) == ["y"]


async def test_nsqlookupd_can_be_removed_before_its_task_starts():
    rig = Rig(a=says({"x": ""}))
    async with rig.running():
        await rig.settle()
        rig.poller.add_lookupd("a:1")
        rig.poller.remove_lookupd("a:1")
        rig.poller.add_lookupd("a:1")
        assert await rig.merged(2) == ["x"]
        await rig.settle()
        rig.clock.advance(INTERVAL)
        await rig.merged(3)
        await rig.settle()
        assert len(rig.listed) == 3, "one task asks"


async def test_response_of_removed_nsqlookupd_is_ignored():
    rig = Rig("a:1")
    gate = anyio.Event()

    async def late() -> tuple[int, bytes]:
        with anyio.CancelScope(shield=True):
            await gate.wait()
        return 200, b'{"x": ""}'

    rig.network.behaviours["a:1"] = lambda path: late()
    async with rig.running():
        await rig.network.asked("a:1", 1)
        rig.poller.remove_lookupd("a:1")
        gate.set()
        await rig.settle()
    assert rig.listed == [[]]


async def test_invalid_address_cannot_be_added_or_removed():
    rig = Rig("http://me:secret@a:1")
    with pytest.raises(OptionError, match="address 'c'"):
        rig.poller.add_lookupd("c")
    with pytest.raises(OptionError) as caught:
        rig.poller.remove_lookupd("http://me:secret@c:1")
    assert str(caught.value) == "nsqlookupd http://c:1 is none of those that are asked: http://a:1"


async def test_run_can_be_called_again_but_not_twice_at_once():
    rig = Rig("a:1", a=says({"x": ""}))
    async with rig.running():
        await rig.merged(1)
        with pytest.raises(Closed, match="runs already"):
            await rig.poller.run()
    async with rig.running():
        await rig.merged(2)


async def test_error_of_callback_ends_run():
    rig = Rig("a:1", a=says({"x": ""}))

    def fail(entries: dict[str, str]) -> None:
        raise ZeroDivisionError

    rig.poller._on_merged = fail
    with pytest.raises(ExceptionGroup) as caught:
        await rig.poller.run()
    assert caught.group_contains(ZeroDivisionError)


async def test_default_clock_is_real():
    rig = Rig("a:1", a=says({"x": ""}))
    rig.poller._clock = None
    async with rig.running():
        assert await rig.merged(1) == ["x"]
