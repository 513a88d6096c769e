from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import ClassVar

import anyio
import pytest

from nsqkit.errors import Closed
from nsqkit.portal.stay import Stay
from tests.portal.clients import Client
from tests.threads import PATIENCE, interrupted_once, start, until


@pytest.fixture
def stay():
    stay = Stay(Client, "client")
    yield stay
    stay.end()


def test_a_client_spends_its_life_in_the_event_loop_thread():
    stay = Stay(Client, "client")
    thread = stay.ask(threading.current_thread)
    stay.end()
    stay.end()
    assert stay.client.threads == [thread] * 3
    assert thread is not threading.current_thread()


def test_what_is_put_is_called_in_order(stay):
    called: list[int] = []
    for n in range(100):
        stay.put(partial(called.append, n))
    assert stay.ask(called.copy) == [*range(100)]


def test_many_threads_are_answered(stay):
    def work(n: int) -> int:
        return sum(stay.ask(lambda: n) for _ in range(50))

    results = [start(work, n) for n in range(8)]
    assert [result.result(PATIENCE) for result in results] == [50 * n for n in range(8)]


def test_errors_come_to_who_asked(stay):
    def fail() -> None:
        raise ValueError("no")

    async def fail_later() -> None:
        fail()

    with pytest.raises(ValueError, match="no"):
        stay.ask(fail)
    with pytest.raises(ValueError, match="no"):
        stay.run(fail_later)


def test_what_waits_runs_in_a_task(stay):
    async def work() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert stay.run(work) == 7
    assert stay.start(work).result(PATIENCE) == 7


def test_a_task_whose_caller_is_interrupted_is_cancelled(stay):
    begun, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt), interrupted_once(begun.is_set):
        stay.run(work)
    assert cancelled.wait(PATIENCE)


def test_a_task_whose_caller_is_interrupted_before_it_has_a_future_ends(stay, monkeypatch):
    def interrupt(function: Callable[[], Awaitable[None]]) -> None:
        futures.append(begin(function))
        assert begun.wait(PATIENCE)
        raise KeyboardInterrupt

    async def work() -> None:
        begun.set()
        await anyio.sleep_forever()

    begun = threading.Event()
    futures: list[Future[None]] = []
    begin = stay._portal.start_task_soon
    monkeypatch.setattr(stay._portal, "start_task_soon", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stay.run(work)
    with pytest.raises(Closed):
        futures[0].result(PATIENCE)


def test_a_task_whose_caller_is_interrupted_before_it_begins_does_not_begin(stay, monkeypatch):
    def interrupt(function: Callable[[], Awaitable[None]]) -> None:
        functions.append(function)
        raise KeyboardInterrupt

    functions: list[Callable[[], Awaitable[None]]] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stay._portal, "start_task_soon", interrupt)
        stay.run(anyio.sleep_forever)
    with pytest.raises(Closed):
        stay.run(functions[0])


def test_what_is_to_be_called_later_is(stay):
    called = threading.Event()
    stay.put(partial(stay.call_later, 0.001, called.set))
    assert called.wait(PATIENCE)


def test_after_the_end_nothing_is_taken(stay):
    stay.end()
    for use in (stay.put, stay.ask, stay.run, stay.start):
        with pytest.raises(Closed, match="the client is closed"):
            use(list)


def test_in_another_process_nothing_is_taken_and_nothing_ended(stay, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for use in (stay.put, stay.ask, stay.run, stay.start):
        with pytest.raises(Closed, match="opened in another process"):
            use(list)
    stay.end()
    monkeypatch.undo()
    assert stay.ask(lambda: 7) == 7


def test_the_event_loop_does_not_wait_for_itself(stay):
    with pytest.raises(RuntimeError, match="would wait for itself"):
        stay.ask(lambda: stay.ask(list))


def test_at_the_end_those_who_still_wait_are_told(stay):
    refused: list[Exception] = []
    client = stay.client

    def hold() -> None:
        client.may_leave = anyio.Event()

    stay.ask(hold)
    ending = start(stay.end)
    assert client.leaving.wait(PATIENCE)
    stay._queue.append((lambda: None, refused.append))  # somebody who has looked just before the end began
    stay._loop.call_soon_threadsafe(client.may_leave.set)
    ending.result(PATIENCE)
    assert [type(error) for error in refused] == [Closed]


def test_who_comes_just_after_the_end_is_told(stay, monkeypatch):
    monkeypatch.setattr(stay, "check", stay.end)  # it was open when somebody looked
    with pytest.raises(Closed):
        stay.ask(list)


def test_an_interrupted_note_does_not_keep_others_from_waking(stay, monkeypatch):
    others = []

    def interrupt() -> None:
        monkeypatch.undo()
        others.append(start(stay.ask, lambda: 7))  # relies on the wake-up that does not come about
        until(lambda: len(stay._queue) == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(stay._waker, "wake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stay.put(list)
    assert others[0].result(PATIENCE) == 7
    assert stay.ask(lambda: 8) == 8


def test_an_event_loop_that_has_ended_is_closed(stay, monkeypatch):
    def fail(*args: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(stay._waker, "wake", fail)
    monkeypatch.setattr(stay._portal, "start_task_soon", fail)
    for use in (stay.put, stay.start):
        with pytest.raises(Closed):
            use(list)
    monkeypatch.undo()
    stay._is_noted = False
    until(lambda: stay.ask(lambda: True))


# ---- what threads borrow --------------------------------------------------------------------------------------------


class Lent:
    """A loan that a test gives back when it likes."""

    made: ClassVar[list[Lent]] = []

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self.made.append(self)
        self.on_idle = on_idle
        self.use_count = 0
        self.asked_count = 0
        self.is_free = False

    def take_back(self) -> bool:
        self.asked_count += 1
        return self.is_free

    def give_back(self) -> None:
        self.is_free = True
        self.on_idle()


@pytest.fixture
def used(monkeypatch):
    """Have loans taken back only when somebody asks for them."""
    monkeypatch.setattr("nsqkit.portal.stay.LOAN_UNUSED_MAX", 3600.0)
    yield
    for lent in Lent.made:
        lent.give_back()
    Lent.made.clear()


def test_what_is_put_and_started_waits_for_a_loan(stay, used):
    lent = stay.borrow(Lent)
    assert lent.asked_count == 0

    async def work() -> int:
        return 7

    asked = [start(stay.ask, lambda: 6) for _ in range(3)]
    ran = stay.start(work)
    until(lambda: lent.asked_count >= 2)  # once by what was put, however often, and once by what was started
    assert not any(each.done() for each in (*asked, ran))
    lent.give_back()
    assert ran.result(PATIENCE) == 7
    assert [each.result(PATIENCE) for each in asked] == [6] * 3
    assert stay.ask(lambda: 8) == 8


def test_nothing_is_lent_while_something_is_under_way_or_lent_already(stay, used):
    may_end = threading.Event()

    async def work() -> None:
        while not may_end.is_set():
            await anyio.lowlevel.checkpoint()

    working = stay.start(work)
    assert stay.borrow(Lent) is None
    may_end.set()
    working.result(PATIENCE)
    assert stay.borrow(lambda on_idle: None) is None
    lent = stay.borrow(Lent)
    again = start(stay.borrow, Lent)
    until(lambda: lent.asked_count)
    lent.give_back()
    second = again.result(PATIENCE)
    assert second is not lent
    second.give_back()


def test_a_loan_that_is_not_used_is_taken_back(stay, monkeypatch):
    monkeypatch.setattr("nsqkit.portal.stay.LOAN_UNUSED_MAX", 0.001)
    lent = stay.borrow(Lent)
    until(lambda: lent.asked_count)
    waiting = start(stay.ask, lambda: 7)
    lent.is_free = True  # without a word, as by a thread that was interrupted
    assert waiting.result(PATIENCE) == 7


def test_a_loan_that_is_used_stays(stay, monkeypatch):
    monkeypatch.setattr("nsqkit.portal.stay.LOAN_UNUSED_MAX", 0.001)

    class Busy(Lent):
        looked_count = 0

        @property
        def use_count(self) -> int:
            self.looked_count += 1
            return self.looked_count

        @use_count.setter
        def use_count(self, count: int) -> None:
            pass

    lent = stay.borrow(Busy)
    until(lambda: lent.looked_count > 10)
    assert lent.asked_count == 0
    lent.give_back()


def test_the_end_waits_for_a_loan(used):
    stay = Stay(Client, "client")
    lent = stay.borrow(Lent)
    assert lent is not None
    ending = start(stay.end)
    until(lambda: lent.asked_count)
    assert not stay.client.leaving.is_set()
    lent.give_back()
    ending.result(PATIENCE)
    assert stay.client.leaving.is_set()
