from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from nsqkit.clock import ManualClock
from nsqkit.transport.vigil import VIGIL_NS, Vigil


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
        self.vigil = Vigil(cast(asyncio.AbstractEventLoop, self.turns), self.clock)

    def after(self, gap_ns: int) -> Watched:
        """Have something come such a time after what came last."""
        self.pass_(gap_ns)
        self.vigil.keep(self.clock.now_ns())
        return self

    def pass_(self, ns: int) -> None:
        self.clock.advance(ns / 1e9)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_comes_alone_lets_the_loop_sleep(watched):
    for _ in range(3):
        watched.after(VIGIL_NS)
        assert watched.turns.may_sleep


def test_what_comes_close_upon_another_keeps_it_looking_for_as_long(watched):
    watched.after(VIGIL_NS).after(VIGIL_NS - 1000)
    for _ in range(3):
        assert not watched.turns.may_sleep
        watched.turns.run_one()
    watched.pass_(VIGIL_NS)
    watched.turns.run_one()
    assert watched.turns.may_sleep


def test_what_comes_meanwhile_makes_it_last_and_begins_no_second_one(watched):
    watched.after(VIGIL_NS).after(1000)
    for _ in range(5):
        watched.after(VIGIL_NS // 2)
        assert len(watched.turns.due) == 1
        watched.turns.run_one()
    assert not watched.turns.may_sleep


def test_it_begins_anew_after_one_that_is_over(watched):
    watched.after(VIGIL_NS).after(1000).pass_(VIGIL_NS)
    watched.turns.run_one()
    watched.after(VIGIL_NS).after(1000)
    assert not watched.turns.may_sleep


def test_the_same_said_again_changes_nothing(watched):
    watched.after(VIGIL_NS)
    for _ in range(3):
        watched.vigil.keep(watched.clock.now_ns())
    assert watched.turns.may_sleep
