from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from nsqkit.loop_thread.provider import PortalProvider
from nsqkit.loop_thread.waker import Waker
from tests.threads import WAIT_LIMIT


@pytest.mark.parametrize("platform", ["linux", "other"])
def test_a_thread_wakes_the_event_loop_until_the_end(platform, monkeypatch):
    if platform != "linux":
        monkeypatch.setattr(sys, "platform", platform)
    elif sys.platform != "linux":
        pytest.skip("there is no eventfd")
    threads: list[threading.Thread] = []
    woken = threading.Event()

    def look() -> None:
        threads.append(threading.current_thread())
        woken.set()

    provider = PortalProvider()
    with provider as portal:
        waker = portal.call(lambda: Waker(asyncio.get_running_loop(), look))
        for _ in range(2):
            woken.clear()
            waker.wake()
            assert woken.wait(WAIT_LIMIT)
        assert set(threads) == {provider.thread}
        portal.call(waker.close)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no eventfd")
def test_closed_waker_ignores_wake_ups():
    provider = PortalProvider()
    count = 0

    def look() -> None:
        nonlocal count
        count += 1

    with provider as portal:
        waker = portal.call(lambda: Waker(asyncio.get_running_loop(), look))
        portal.call(waker.close)
        waker.wake()
        portal.call(asyncio.sleep, 0.01)
    waker.wake()  # its file stays open for late callers
    assert not count
