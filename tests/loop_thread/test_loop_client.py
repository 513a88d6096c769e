from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import anyio
import pytest

from nsqkit.errors import Closed
from nsqkit.loop_thread.loop_client import LoopClient
from nsqkit.loop_thread.provider import PortalProvider
from tests.loop_thread.clients import Client
from tests.threads import WAIT_LIMIT, interrupted_once, start, until


@pytest.fixture
def loop_client():
    loop_client = LoopClient(Client, "client")
    yield loop_client
    loop_client.end()


def test_client_is_made_used_and_left_in_the_event_loop_thread():
    loop_client = LoopClient(Client, "client")
    thread = loop_client.ask(threading.current_thread)
    loop_client.end()
    loop_client.end()
    assert loop_client.client.threads == [thread] * 3
    assert thread is not threading.current_thread()


def test_put_functions_are_called_in_order(loop_client):
    called: list[int] = []
    for n in range(100):
        loop_client.put(partial(called.append, n))
    assert loop_client.ask(called.copy) == [*range(100)]


def test_ask_returns_results_to_many_threads(loop_client):
    def work(n: int) -> int:
        return sum(loop_client.ask(lambda: n) for _ in range(50))

    results = [start(work, n) for n in range(8)]
    assert [result.result(WAIT_LIMIT) for result in results] == [50 * n for n in range(8)]


def test_errors_are_raised_in_the_calling_thread(loop_client):
    def fail() -> None:
        raise ValueError("no")

    async def fail_later() -> None:
        fail()

    with pytest.raises(ValueError, match="no"):
        loop_client.ask(fail)
    with pytest.raises(ValueError, match="no"):
        loop_client.run(fail_later)


@pytest.mark.parametrize("exit_error", [SystemExit(3), KeyboardInterrupt(), pytest.fail.Exception("no")], ids=repr)
def test_an_exit_is_raised_in_the_calling_thread_and_does_not_end_the_loop(loop_client, exit_error):
    async def leave() -> None:
        raise exit_error

    def leave_at_once() -> None:
        raise exit_error

    for call in (partial(loop_client.run, leave), partial(loop_client.ask, leave_at_once)):
        with pytest.raises(type(exit_error)) as caught:
            call()
        assert caught.value is exit_error
    assert loop_client.ask(lambda: 1) == 1


def test_async_functions_run_in_tasks(loop_client):
    async def work() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert loop_client.run(work) == 7
    assert loop_client.start(work).result(WAIT_LIMIT) == 7


def test_a_task_whose_caller_is_interrupted_is_cancelled(loop_client):
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt), interrupted_once(begun.is_set):
        loop_client.run(work)
    assert cancelled.wait(WAIT_LIMIT)


def test_a_task_whose_caller_is_interrupted_before_it_has_a_future_ends(loop_client, monkeypatch):
    def interrupt(function: Callable[[], Awaitable[None]]) -> None:
        futures.append(begin(function))
        assert begun.wait(WAIT_LIMIT)
        raise KeyboardInterrupt

    async def work() -> None:
        begun.set()
        await anyio.sleep_forever()

    begun = threading.Event()
    futures: list[Future[None]] = []
    begin = loop_client._portal.start_task_soon
    monkeypatch.setattr(loop_client._portal, "start_task_soon", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop_client.run(work)
    with pytest.raises(Closed):
        futures[0].result(WAIT_LIMIT)


def test_a_task_whose_caller_is_interrupted_before_it_begins_does_not_begin(loop_client, monkeypatch):
    def interrupt(function: Callable[[], Awaitable[None]]) -> None:
        functions.append(function)
        raise KeyboardInterrupt

    functions: list[Callable[[], Awaitable[None]]] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop_client._portal, "start_task_soon", interrupt)
        loop_client.run(anyio.sleep_forever)
    with pytest.raises(Closed):
        loop_client.run(functions[0])


def test_call_later_calls_the_function(loop_client):
    called = threading.Event()
    loop_client.put(partial(loop_client.call_later, 0.001, called.set))
    assert called.wait(WAIT_LIMIT)


def test_calls_after_the_end_raise_closed(loop_client):
    loop_client.end()
    for use in (loop_client.put, loop_client.ask, loop_client.run, loop_client.start):
        with pytest.raises(Closed, match="the client is closed"):
            use(list)


def test_calls_in_another_process_raise_closed_and_end_does_nothing(loop_client, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (loop_client.put, loop_client.ask, loop_client.run, loop_client.start):
        with pytest.raises(Closed, match="opened in another process"):
            use(list)
    loop_client.end()
    monkeypatch.undo()
    assert loop_client.ask(lambda: 7) == 7


def test_calls_in_the_event_loop_thread_are_refused(loop_client):
    with pytest.raises(RuntimeError, match="would wait for itself"):
        loop_client.ask(lambda: loop_client.ask(list))


def test_calls_that_wait_at_the_end_get_closed(loop_client):
    refused: list[Exception] = []
    client = loop_client.client

    def hold() -> None:
        client.may_leave = anyio.Event()

    loop_client.ask(hold)
    ending = start(loop_client.end)
    assert client.leaving.wait(WAIT_LIMIT)
    loop_client._queue.append((lambda: None, refused.append))  # a caller that has checked just before the end began
    loop_client._loop.call_soon_threadsafe(client.may_leave.set)
    ending.result(WAIT_LIMIT)
    assert [type(error) for error in refused] == [Closed]


def test_call_right_after_the_end_gets_closed(loop_client, monkeypatch):
    monkeypatch.setattr(loop_client, "check", loop_client.end)  # it was open when the caller checked
    with pytest.raises(Closed):
        loop_client.ask(list)


def test_interrupted_put_does_not_prevent_later_wake_ups(loop_client, monkeypatch):
    others = []

    def interrupt() -> None:
        monkeypatch.undo()
        others.append(start(loop_client.ask, lambda: 7))  # relies on the wake-up that was prevented
        until(lambda: len(loop_client._queue) == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop_client._waker, "wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop_client.put(list)
    assert others[0].result(WAIT_LIMIT) == 7
    assert loop_client.ask(lambda: 8) == 8


def test_an_event_loop_that_has_ended_is_closed(loop_client, monkeypatch):
    def fail(*args: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(loop_client._waker, "wake", fail)
    monkeypatch.setattr(loop_client._portal, "start_task_soon", fail)
    for use in (loop_client.put, loop_client.start):
        with pytest.raises(Closed):
            use(list)
    monkeypatch.undo()
    loop_client._wake_is_due = False
    until(lambda: loop_client.ask(lambda: True))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_clients_of_an_event_loop_that_ends_by_an_error_are_closed(monkeypatch, kind):
    def leave() -> None:
        raise kind

    provider = PortalProvider()
    monkeypatch.setattr("nsqkit.loop_thread.loop_client.portal_provider", lambda: provider)
    clients: list[Any] = [LoopClient(Client, "client") for _ in range(2)]
    thread = provider.thread
    assert thread is not None
    waiting = [start(client.run, anyio.sleep_forever) for client in clients]
    until(lambda: all(client._task_count for client in clients))
    clients[0].put(leave)
    thread.join(WAIT_LIMIT)
    for each in waiting:
        with pytest.raises(Closed, match="the client is closed"):
            each.result(WAIT_LIMIT)
    for client in clients:
        for use in (client.put, client.ask, client.run, client.start):
            with pytest.raises(Closed, match="the client is closed"):
                use(list)
    later = LoopClient(Client, "client")
    for client in clients:
        client.end()
    assert later.ask(lambda: 7) == 7
    later.end()
    assert provider.user_count == 0


def test_a_task_that_never_began_in_an_event_loop_that_has_ended_is_refused(loop_client, monkeypatch):
    future: Future[None] = Future()
    monkeypatch.setattr(loop_client._portal, "start_task_soon", lambda function: future)
    monkeypatch.setattr(loop_client, "_is_lost", True)
    with pytest.raises(Closed):
        loop_client.run(anyio.sleep_forever)


# ---- leases ---------------------------------------------------------------------------------------------------------


class FakeLease:
    """A lease that the test ends."""

    def __init__(self, loop_client: LoopClient[Client]) -> None:
        self._loop_client = loop_client
        self.end_count = 0
        self.is_free = False

    def end(self) -> bool:
        self.end_count += 1
        return self.is_free

    def free(self) -> None:
        self.is_free = True
        self._loop_client.wake()


@pytest.fixture
def make(loop_client):
    """Return a function that makes a lease; all are ended at the end."""
    made: list[FakeLease] = []

    def make() -> FakeLease:
        made.append(FakeLease(loop_client))
        return made[-1]

    yield make
    for lease in made:
        lease.free()


def test_calls_and_tasks_wait_for_the_end_of_a_lease(loop_client, make):
    lease = loop_client.lease(make)
    assert lease.end_count == 0

    async def work() -> int:
        return 7

    asked = [start(loop_client.ask, lambda: 6) for _ in range(3)]
    ran = loop_client.start(work)
    until(lambda: lease.end_count >= 2)  # once for the queue, however long it is, and once for the task
    assert not any(each.done() for each in (*asked, ran))
    lease.free()
    assert ran.result(WAIT_LIMIT) == 7
    assert [each.result(WAIT_LIMIT) for each in asked] == [6] * 3
    assert loop_client.ask(lambda: 8) == 8


def test_there_is_no_lease_while_a_task_runs_or_another_lease_lasts(loop_client, make):
    has_begun, may_end = threading.Event(), threading.Event()

    async def work() -> None:
        has_begun.set()
        while not may_end.is_set():
            await anyio.lowlevel.checkpoint()

    working = loop_client.start(work)
    assert has_begun.wait(WAIT_LIMIT)
    assert loop_client.lease(make) is None
    may_end.set()
    working.result(WAIT_LIMIT)
    assert loop_client.lease(lambda: None) is None
    first = loop_client.lease(make)
    requesting = start(loop_client.lease, make)
    until(lambda: first.end_count)
    first.free()
    assert requesting.result(WAIT_LIMIT) is not first


def test_a_lease_can_be_ended_in_the_event_loop(loop_client, make):
    lease = loop_client.lease(make)
    waiting = start(loop_client.ask, lambda: 7)
    until(lambda: lease.end_count)
    lease.is_free = True
    loop_client._loop.call_soon_threadsafe(lambda: loop_client.end_lease() and loop_client.wake())
    assert waiting.result(WAIT_LIMIT) == 7


def test_the_end_waits_for_the_end_of_a_lease():
    loop_client = LoopClient(Client, "client")
    lease = loop_client.lease(lambda: FakeLease(loop_client))
    assert lease is not None
    ending = start(loop_client.end)
    until(lambda: lease.end_count)
    assert not loop_client.client.leaving.is_set()
    lease.free()
    ending.result(WAIT_LIMIT)
    assert loop_client.client.leaving.is_set()
