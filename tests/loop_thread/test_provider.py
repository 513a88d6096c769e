from __future__ import annotations

import os
import threading

import anyio
import pytest
from anyio import to_thread
from sniffio import current_async_library

from nsqkit.loop_thread import portal_provider
from nsqkit.loop_thread.provider import PortalProvider
from tests.threads import WAIT_LIMIT, start


def test_the_event_loop_runs_in_a_thread_of_its_own():
    with portal_provider() as portal:
        assert portal.call(threading.current_thread) is not threading.current_thread()
        assert portal.call(current_async_library) == "asyncio"


def test_users_share_one_thread_and_the_last_one_ends_it():
    provider = PortalProvider()
    with provider as outer:
        with provider as inner:
            thread = inner.call(threading.current_thread)
            assert outer.call(threading.current_thread) is thread is provider.thread
        assert outer.call(threading.current_thread) is thread
    assert not thread.is_alive()
    assert provider.thread is None


def test_running_tasks_do_not_prevent_the_end():
    provider = PortalProvider()
    with provider as portal:
        future = portal.start_task_soon(anyio.sleep_forever)
    assert provider.thread is None
    assert future.cancelled()


def test_thread_starts_again_after_its_end():
    provider = PortalProvider()
    for _ in range(2):
        with provider as portal:
            assert portal.call(threading.current_thread).is_alive()


def test_many_threads_may_enter_and_leave_at_once():
    provider = PortalProvider()

    def visit() -> bool:
        with provider as portal:
            return portal.call(threading.current_thread).is_alive()

    assert all(visit.result(WAIT_LIMIT) for visit in [start(visit) for _ in range(20)])
    assert provider.thread is None


def test_each_process_has_its_own_thread(monkeypatch):
    ours = portal_provider()
    assert portal_provider() is ours
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert portal_provider() is not ours


def test_leaving_in_a_forked_process_does_nothing(monkeypatch):
    provider = PortalProvider()
    with provider as portal:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        provider.__exit__(None, None, None)
        monkeypatch.undo()
        assert portal.call(threading.current_thread).is_alive()


def test_error_of_a_loop_that_cannot_start_is_raised(monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr("anyio.run", fail)
    with pytest.raises(OSError, match="no more files"), PortalProvider():
        pass


@pytest.mark.anyio
async def test_thread_may_be_used_beside_another_event_loop():
    def look() -> str:
        with portal_provider() as portal:
            return portal.call(current_async_library)

    assert await to_thread.run_sync(look) == "asyncio"
