from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from nsqkit.clock import ManualClock
from nsqkit.transport.busy_poll import RETRY_NS, WAKE_UP_NS, BusyPoll

DURATION_NS = 100_000


class FakeLoop:
    """An event loop without sockets: the callbacks of the next turn."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def run_turn(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    @property
    def may_sleep(self) -> bool:
        return not self.callbacks


class Driver:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = FakeLoop()
        self.busy_poll = BusyPoll(cast(asyncio.AbstractEventLoop, self.loop), self.clock, DURATION_NS)

    def publish(self, gap_ns: int, answer_ns: int = 0) -> Driver:
        """Record a publish ``gap_ns`` after the last answer, which is answered after ``answer_ns``."""
        self.advance(gap_ns)
        received_ns = self.clock.now_ns()
        self.advance(answer_ns)
        self.busy_poll.record(received_ns)
        return self

    def advance(self, ns: int) -> None:
        self.clock.advance(ns / 1e9)

    def end_polling(self) -> Driver:
        self.advance(DURATION_NS)
        self.loop.run_turn()
        assert self.loop.may_sleep
        return self


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_publishes_far_apart_start_no_polling(driver):
    for _ in range(3):
        driver.publish(DURATION_NS + WAKE_UP_NS)
        assert driver.loop.may_sleep


def test_a_publish_soon_after_an_answer_starts_polling_for_the_duration(driver):
    driver.publish(1_000_000_000).publish(DURATION_NS - 1000)
    for _ in range(3):
        assert not driver.loop.may_sleep
        driver.loop.run_turn()
    driver.end_polling()


def test_the_time_that_an_answer_takes_is_not_counted(driver):
    driver.publish(1_000_000_000, answer_ns=DURATION_NS).publish(DURATION_NS - 1000, answer_ns=DURATION_NS)
    assert not driver.loop.may_sleep
    driver.advance(DURATION_NS - 1000)
    driver.loop.run_turn()
    assert not driver.loop.may_sleep


def test_a_publish_while_polling_extends_it(driver):
    driver.publish(1_000_000_000).publish(1000)
    for _ in range(5):
        driver.publish(DURATION_NS // 2)
        assert len(driver.loop.callbacks) == 1
        driver.loop.run_turn()
    assert not driver.loop.may_sleep


def test_the_time_of_a_wake_up_is_allowed_for(driver):
    driver.publish(1_000_000_000).publish(DURATION_NS + WAKE_UP_NS - 1000)
    assert not driver.loop.may_sleep


def test_soon_after_polling_no_time_of_a_wake_up_is_allowed_for(driver):
    driver.publish(1_000_000_000).publish(1000).end_polling()
    driver.publish(DURATION_NS + WAKE_UP_NS - 1000)
    assert driver.loop.may_sleep
    driver.publish(DURATION_NS - 1000)
    assert not driver.loop.may_sleep


def test_a_while_after_polling_the_time_of_a_wake_up_is_allowed_for_again(driver):
    driver.publish(1_000_000_000).publish(1000).end_polling()
    for _ in range(RETRY_NS // DURATION_NS):
        driver.publish(DURATION_NS)
        assert driver.loop.may_sleep
    driver.publish(DURATION_NS)
    assert not driver.loop.may_sleep


def test_recording_the_same_publish_again_has_no_effect(driver):
    driver.publish(1_000_000_000)
    for _ in range(3):
        driver.busy_poll.record(driver.clock.now_ns())
    assert driver.loop.may_sleep
