from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from nsqkit.clock import ManualClock
from nsqkit.transport.busy_poll import AGAIN_NS, BUSY_POLL_NS, WOKEN_NS, BusyPoll


class Turns:
    """An event loop as far as a vigil uses it: what is to be called in the next turn."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run_one(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()

    @property
    def may_sleep(self) -> bool:
        return not self.due


class Watched:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.turns = Turns()
        self.vigil = BusyPoll(cast(asyncio.AbstractEventLoop, self.turns), self.clock)

    def after(self, gap_ns: int, takes_ns: int = 0) -> Watched:
        """Have something come such a time after the last answer, whose answer takes some time, too."""
        self.pass_(gap_ns)
        came_ns = self.clock.now_ns()
        self.pass_(takes_ns)
        self.vigil.keep(came_ns)
        return self

    def pass_(self, ns: int) -> None:
        self.clock.advance(ns / 1e9)

    def let_it_end(self) -> Watched:
        self.pass_(BUSY_POLL_NS)
        self.turns.run_one()
        assert self.turns.may_sleep
        return self


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_comes_alone_lets_the_loop_sleep(watched):
    for _ in range(3):
        watched.after(BUSY_POLL_NS + WOKEN_NS)
        assert watched.turns.may_sleep


def test_what_comes_soon_after_an_answer_keeps_it_looking_for_as_long(watched):
    watched.after(1_000_000_000).after(BUSY_POLL_NS - 1000)
    for _ in range(3):
        assert not watched.turns.may_sleep
        watched.turns.run_one()
    watched.let_it_end()


def test_how_long_the_answer_took_does_not_matter(watched):
    watched.after(1_000_000_000, takes_ns=BUSY_POLL_NS).after(BUSY_POLL_NS - 1000, takes_ns=BUSY_POLL_NS)
    assert not watched.turns.may_sleep
    watched.pass_(BUSY_POLL_NS - 1000)
    watched.turns.run_one()
    assert not watched.turns.may_sleep


def test_what_comes_meanwhile_makes_it_last_and_begins_no_second_one(watched):
    watched.after(1_000_000_000).after(1000)
    for _ in range(5):
        watched.after(BUSY_POLL_NS // 2)
        assert len(watched.turns.due) == 1
        watched.turns.run_one()
    assert not watched.turns.may_sleep


def test_a_sleeper_sees_later_what_came_soon(watched):
    watched.after(1_000_000_000).after(BUSY_POLL_NS + WOKEN_NS - 1000)
    assert not watched.turns.may_sleep


def test_soon_after_a_vigil_only_what_even_a_sleeper_sees_soon_begins_the_next(watched):
    watched.after(1_000_000_000).after(1000).let_it_end()
    watched.after(BUSY_POLL_NS + WOKEN_NS - 1000)
    assert watched.turns.may_sleep
    watched.after(BUSY_POLL_NS - 1000)
    assert not watched.turns.may_sleep


def test_a_while_after_a_vigil_it_tries_again(watched):
    watched.after(1_000_000_000).after(1000).let_it_end()
    for _ in range(AGAIN_NS // BUSY_POLL_NS):
        watched.after(BUSY_POLL_NS)
        assert watched.turns.may_sleep
    watched.after(BUSY_POLL_NS)
    assert not watched.turns.may_sleep


def test_the_same_said_again_changes_nothing(watched):
    watched.after(1_000_000_000)
    for _ in range(3):
        watched.vigil.keep(watched.clock.now_ns())
    assert watched.turns.may_sleep
