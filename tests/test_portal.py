from __future__ import annotations

import os
import threading

import pytest
from anyio import to_thread
from sniffio import current_async_library

from nsqkit.portal import portal_provider


def test_the_event_loop_runs_in_a_thread_of_its_own():
    with portal_provider() as portal:
        assert portal.call(threading.current_thread) is not threading.current_thread()
        assert portal.call(current_async_library) == "asyncio"


def test_all_who_need_it_share_one_thread_and_the_last_one_ends_it():
    with portal_provider() as outer:
        with portal_provider() as inner:
            thread = inner.call(threading.current_thread)
            assert outer.call(threading.current_thread) is thread
        assert outer.call(threading.current_thread) is thread
    assert not thread.is_alive()


def test_it_starts_again_after_its_end():
    for _ in range(2):
        with portal_provider() as portal:
            assert portal.call(threading.current_thread).is_alive()


def test_a_forked_process_gets_a_thread_of_its_own(monkeypatch):
    ours = portal_provider()
    assert portal_provider() is ours
    with ours as portal:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with portal_provider() as forked:
            assert forked.call(threading.current_thread) is not portal.call(threading.current_thread)
    monkeypatch.undo()


@pytest.mark.anyio
async def test_it_may_be_used_beside_another_event_loop():
    def look() -> str:
        with portal_provider() as portal:
            return portal.call(current_async_library)

    assert await to_thread.run_sync(look) == "asyncio"
